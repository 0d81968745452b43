# Everything on a machine that has only Python 3.11 or newer: each target does its own set-up.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# With what tests, checks and benchmarks want as well.
COMPLETE := $(VENV)/.complete

.PHONY: run test test-fast lowest check format manifest bench conformance node clean

# Install, and serve on http://127.0.0.1:4444.
run: $(INSTALLED)
	$(BIN)/substrate

# Install, and run all tests. They wait for processes and sockets much of their time, so there are
# more workers than two cores. Tests of one file share a worker, because they share its servers.
test: $(COMPLETE)
	$(BIN)/python -m pytest --numprocesses=3 --dist=loadfile --no-loadscope-reorder

# What needs no browser, no PostgreSQL and no Node, and starts few processes: for while you work.
test-fast: $(COMPLETE)
	$(BIN)/python -m pytest --numprocesses=2 --dist=worksteal --hypothesis-profile=fast \
		-m 'not browser and not node and not postgres and not slow'

# The smoke tests with the lowest versions that pyproject.toml allows, in .cache/lowest.
lowest:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; set PYTHON=...")'
	$(PYTHON) -m tests.lowest

# Style and types of source and tests.
check: $(COMPLETE)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(COMPLETE)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Describe the built-in activations anew, after a change of plexus or activations.
manifest: $(INSTALLED)
	$(BIN)/python -m substrate.devtools.manifest

# Speed, as ratios to a bare loop in the same run.
bench: $(COMPLETE)
	$(BIN)/python -m bench

# The official MCP conformance suites, one line a leg. Needs npm; installs the rest by itself.
conformance: $(COMPLETE)
	$(BIN)/python -m tests.conformance.legs

# Node and the npm packages that some tests want, into .cache/node or SUBSTRATE_NODE_DIR.
node: $(COMPLETE)
	$(BIN)/python -m tests.conformance.node

clean:
	rm -rf $(VENV) .cache build dist artifacts

$(INSTALLED): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; set PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(COMPLETE): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test]'
	@touch $@

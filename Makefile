# Every target installs what it needs; only Python 3.11 or newer must be present.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# With the dependencies of tests, checks and benchmarks.
COMPLETE := $(VENV)/.complete

# Python keeps its bytecode: without it, each process that a test starts compiles the whole program.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test test-failed test-fast lowest check format manifest docs bench conformance node dist mcpb clean

# Install, and serve on http://127.0.0.1:4444.
run: $(INSTALLED)
	$(BIN)/substrate

# Install, and run all tests. They spend more than half of their time waiting for processes, sockets
# and deadlines, so there are more workers than two cores. Tests of one file share a worker and its
# servers.
test: $(COMPLETE)
	$(BIN)/python -m pytest --numprocesses=5 --dist=loadfile --no-loadscope-reorder

# Run the tests that failed last once more, one after the other.
test-failed: $(COMPLETE)
	$(BIN)/python -m pytest --last-failed --last-failed-no-failures=none

# Tests that need no browser, no PostgreSQL and no Node, and start few processes; for development.
test-fast: $(COMPLETE)
	$(BIN)/python -m pytest --numprocesses=2 --dist=worksteal --hypothesis-profile=fast \
		-m 'not browser and not node and not postgres and not slow'

# Run the smoke tests with the lowest versions that pyproject.toml allows, in .cache/lowest.
lowest:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; set PYTHON=...")'
	$(PYTHON) -m tests.lowest

# Check style and types of source and tests.
check: $(COMPLETE)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(COMPLETE)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Regenerate the manifest of the built-in activations after changing plexus or activations.
manifest: $(INSTALLED)
	$(BIN)/python -m substrate.devtools.manifest

# Build the documentation site in build/docs. A broken link or reference is an error.
docs: $(COMPLETE)
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going --conf-dir docs . build/docs

# Measure speed, as ratios to a bare loop in the same run.
bench: $(COMPLETE)
	$(BIN)/python -m bench

# Run the official MCP conformance suites, one line per suite. Needs npm; installs the rest.
conformance: $(COMPLETE)
	$(BIN)/python -m tests.conformance.legs

# Install Node and the npm packages that some tests need, into .cache/node or SUBSTRATE_NODE_DIR.
node: $(COMPLETE)
	$(BIN)/python -m tests.conformance.node

# Build the wheel and the sdist into dist, and check them.
dist: $(COMPLETE)
	rm -rf dist
	$(BIN)/python -m hatchling build
	$(BIN)/twine check --strict dist/*

# Build the MCP bundle for Claude Desktop into dist. Needs npm, for the official packer.
mcpb: $(COMPLETE)
	packer=$$($(BIN)/python -m tests.conformance.node packer) && \
		$(BIN)/python packaging/mcpb/build_bundle.py --packer $$packer

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

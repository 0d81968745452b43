"""A built-in activation is not used instead of a replacement that could not be loaded."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from plexus import Activation, Plexus, method
from plexus.errors import UnknownMethod
from plexus.registry.plugin_namespaces import namespaces_in
from plexus.registry.plugins import BrokenPlugin, load_plugins

OFF = "; the built-in shell, which it replaces, is switched off"
GOOD = '''
from plexus import Activation, method

class Restricted(Activation):
    """A restricted shell."""
    namespace = "shell"
    version = "1.0.0"

    @method
    async def run(self) -> str:
        """Run nothing."""
        return "restricted"
'''
#: The same, broken in ways that a person breaks it.
BROKEN = {
    "a module that is not there": "import nothing_like_it\n" + GOOD,
    "a syntax error": GOOD + "\ndef (",
    "an error at the end": GOOD + "\nraise RuntimeError('oh')\n",
    "an exit": GOOD + "\nimport sys; sys.exit(3)\n",
    "a starred argument": GOOD.replace("(self", "(self, *more"),
    "a broken object": 'from plexus import Activation\nshell = Activation("shell")\n',
    "an object under another name": "from plexus import Activation as A\n"
    'shell = A(namespace="shell")\nraise OSError',
    "a type without a schema": GOOD.replace("-> str", "-> type(Activation.mro)"),
    "a constructor that raises": GOOD + "\n    def __init__(self):\n        raise OSError('no')\n",
    "an annotated namespace": GOOD.replace("namespace =", "namespace: str =") + "\nraise OSError",
    "other quotes": GOOD.replace('"shell"', "'shell'") + "\nraise OSError",
    "a constant": 'NAME = "shell"\n' + GOOD.replace('"shell"', "NAME") + "\nraise OSError",
    "one line": "from plexus import Activation\n"
    'class A(Activation): namespace = "shell"; version = "1"\nraise OSError',
    "a class that is made": "from plexus import Activation\n"
    'A = type("A", (Activation,), {"namespace": "shell"})\nraise OSError',
    "a subclass": "from test_plugin_namespaces import Shell\n"
    'class Restricted(Shell):\n    """Restricted."""\nraise OSError',
    "a subclass by another name": "from test_plugin_namespaces import Shell as Base\n"
    'class Restricted(Base):\n    """Restricted."""\nraise OSError',
    "a subclass of a module": "import test_plugin_namespaces as there\n"
    'class Restricted(there.Shell):\n    """Restricted."""\nraise OSError',
    "two classes of which one is broken": GOOD.replace("shell", "other").replace("Restricted", "A")
    + GOOD.replace("(self", "(self, *more"),
}
#: BrokenPlugin, but no replacement of the shell.
OTHERS = {
    "another namespace": GOOD.replace("shell", "other") + "\nraise OSError",
    "a comment": GOOD.replace('    namespace = "shell"', '    # namespace = "shell"\n')
    + "\nraise OSError",
    "a subclass with another namespace": "from test_plugin_namespaces import Shell\n"
    'class Mine(Shell):\n    """Mine."""\n    namespace = "mine"\nraise OSError',
    "nothing to read": "\0",
}


class Shell(Activation):
    """A shell that is built in."""

    namespace = "shell"
    version = "1.0.0"

    @method
    async def run(self) -> str:
        """Run anything."""
        return "unrestricted"


@pytest.fixture(autouse=True)
def _clean_imports(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Remove the modules and paths that a test imported."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(sys.modules, "test_plugin_namespaces", sys.modules[__name__])
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith(("plug", "plexus_plugin_")):
            del sys.modules[name]


def load(*names: str, folder: Path | None = None) -> tuple[Plexus, list[BrokenPlugin]]:
    hub = Plexus()
    hub.register(Shell)
    return hub, load_plugins(hub, names, folder)


def is_off(hub: Plexus) -> bool:
    return not any(spec.name.startswith("shell.") for spec in hub.methods())


@pytest.mark.parametrize("how", BROKEN)
def test_a_replacement_in_the_folder_that_is_broken_switches_the_built_in_off(
    how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "restricted.py").write_text(BROKEN[how])
    hub, [broken] = load(folder=tmp_path)
    assert is_off(hub)
    assert broken.reason.endswith(OFF)
    errors = [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR]
    assert any("the built-in shell is switched off" in each for each in errors)
    for name in ("shell.run", "shell_run"):
        with pytest.raises(UnknownMethod, match="shell is switched off"):
            hub.call(name)


@pytest.mark.parametrize("how", OTHERS)
def test_a_broken_plugin_that_replaces_nothing_switches_nothing_off(
    how: str, tmp_path: Path
) -> None:
    (tmp_path / "other.py").write_text(OTHERS[how])
    hub, [broken] = load(folder=tmp_path)
    assert not is_off(hub)
    assert "switched off" not in broken.reason


@pytest.mark.parametrize("how", ["a syntax error", "an error at the end", "a starred argument"])
@pytest.mark.parametrize("name", ["plug_shell", "plug_shell:Restricted", "plug_shell.py"])
def test_a_broken_named_replacement_switches_the_built_in_off(
    how: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plug_shell.py").write_text(BROKEN[how])
    monkeypatch.chdir(tmp_path)
    hub, [broken] = load(name)
    assert is_off(hub)
    assert broken.reason.endswith(OFF)


@pytest.mark.parametrize("name", ["plug_package", "plug_package.inner:Restricted"])
def test_a_broken_package_switches_the_built_in_off_without_being_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "plug_package"
    package.mkdir()
    (package / "__init__.py").write_text("import os\nos.mkdir('ran')\nraise RuntimeError('no')\n")
    (package / "inner.py").write_text(GOOD)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    hub, [broken] = load(name)
    assert is_off(hub)
    assert broken.reason.endswith(OFF)
    assert "RuntimeError: no" in broken.reason  # and not that the folder is there already


def test_a_broken_entry_point_switches_the_built_in_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plug_entry.py").write_text(BROKEN["an error at the end"])
    package = tmp_path / "plug_entry-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: plug-entry\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(
        "[plexus.activations]\nsafe = plug_entry:Restricted\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    hub, [broken] = load()
    assert is_off(hub)
    assert (broken.source, broken.reason.endswith(OFF)) == ("entry point safe", True)


def test_a_working_replacement_next_to_a_broken_one_is_used(tmp_path: Path) -> None:
    (tmp_path / "a_broken.py").write_text(BROKEN["a syntax error"])
    (tmp_path / "b_good.py").write_text(GOOD)
    hub, [broken] = load(folder=tmp_path)
    assert broken.source.endswith("a_broken.py")
    assert not is_off(hub)
    assert hub.switched_off == {}
    assert type(dict(hub.activations())["shell"]).__name__ == "Restricted"


def test_a_broken_replacement_after_a_working_one_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "a_good.py").write_text(GOOD)
    (tmp_path / "b_broken.py").write_text(BROKEN["a syntax error"])
    hub, [broken] = load(folder=tmp_path)
    assert "switched off" not in broken.reason
    assert type(dict(hub.activations())["shell"]).__name__ == "Restricted"


def test_the_core_namespace_stays_for_clients_that_ask_what_is_wrong() -> None:
    assert namespaces_in('class A:\n    namespace = "plexus"\n', {}) == {"plexus"}


@pytest.mark.parametrize("text", ["class A(\n" * 100_000, "namespace:" * 100_000, "#" * 10**6])
def test_reading_a_hostile_text_takes_linear_time(text: str) -> None:
    assert namespaces_in(text, {"Shell": "shell"}) == set()

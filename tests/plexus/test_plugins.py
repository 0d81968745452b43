"""Plugins: found by entry point, by name, by file and by folder; a broken one is only skipped."""

from __future__ import annotations

import py_compile
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from plexus import Plexus
from plexus.registry.plugins import find_activations, load_plugins

PLUGIN = '''
from plexus import Activation, method

class {name}(Activation):
    """A plugin."""
    namespace = "{namespace}"
    version = "1.0.0"

    @method
    async def hello(self) -> str:
        """Greet."""
        return "{namespace}"
'''


@pytest.fixture(autouse=True)
def _clean_imports(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Remove the modules and paths that a test imported."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith(("plug", "plexus_plugin_")):
            del sys.modules[name]


def plugin(name: str = "Hello", namespace: str = "hello") -> str:
    return PLUGIN.format(name=name, namespace=namespace)


def load(
    *names: str, folder: Path | None = None, here: Path | None = None
) -> tuple[set[str], list[tuple[str, str]]]:
    """Return the names of the loaded methods, and the skipped plugins with reasons."""
    hub = Plexus()
    broken = load_plugins(hub, names, folder, partial(find_activations, here=here))
    return {spec.name for spec in hub.methods()}, [(each.source, each.reason) for each in broken]


# --- by name -------------------------------------------------------------------------------------


def test_a_class_is_found_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plug_one.py").write_text(plugin())
    monkeypatch.syspath_prepend(tmp_path)
    assert load("plug_one:Hello") == ({"hello.hello"}, [])


def test_a_class_is_found_in_the_project_folder(tmp_path: Path) -> None:
    (tmp_path / "plug_two.py").write_text(plugin())
    assert load("plug_two:Hello", here=tmp_path) == ({"hello.hello"}, [])


def test_a_class_in_the_current_folder_is_found_only_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plug_two.py").write_text(plugin())
    monkeypatch.chdir(tmp_path)
    reason = "no module 'plug_two' on PYTHONPATH"
    assert load("plug_two:Hello") == (set(), [("plug_two:Hello", reason)])


def test_the_project_folder_cannot_replace_a_module_of_the_server(tmp_path: Path) -> None:
    (tmp_path / "plexus.py").write_text("raise RuntimeError('not this one')")
    (tmp_path / "plug_three.py").write_text(plugin())
    assert load("plug_three:Hello", here=tmp_path) == ({"hello.hello"}, [])
    assert sys.path[0] != str(tmp_path)


def test_an_installed_activation_does_not_make_the_project_folder_importable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed, project = tmp_path / "installed", tmp_path / "project"
    installed.mkdir()
    project.mkdir()
    optional = "try:\n    import plug_optional\nexcept ImportError:\n    pass\n"
    (installed / "plug_installed.py").write_text(optional + plugin())
    (project / "plug_optional.py").write_text("raise RuntimeError('the folder was imported')")
    monkeypatch.syspath_prepend(installed)
    assert load("plug_installed:Hello", here=project) == ({"hello.hello"}, [])
    assert str(project) not in sys.path


def test_a_file_is_executed_from_verified_content_and_not_from_disk(tmp_path: Path) -> None:
    file = tmp_path / "plug_verified.py"
    file.write_text("raise RuntimeError('this is what is on disk')")
    [found] = find_activations(str(file), source=plugin().encode())
    assert found.namespace == "hello"


def test_bytecode_on_disk_does_not_replace_verified_content(tmp_path: Path) -> None:
    file = tmp_path / "plug_cached.py"
    file.write_text("raise RuntimeError('this is in the bytecode')")
    py_compile.compile(
        str(file), doraise=True, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH
    )
    [found] = find_activations(str(file), source=plugin().encode())
    assert found.namespace == "hello"


def test_a_module_alone_means_all_its_activations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plug_four.py").write_text(plugin() + plugin("Other", "other"))
    monkeypatch.syspath_prepend(tmp_path)
    assert load("plug_four")[0] == {"hello.hello", "other.hello"}


def test_a_child_is_not_loaded_in_addition_to_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = plugin("Child", "child") + plugin("Parent", "parent") + "    children = (Child,)\n"
    (tmp_path / "plug_five.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    assert load("plug_five") == ({"parent.hello", "parent.child.hello"}, [])


def test_imported_activations_of_a_module_are_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plug_base.py").write_text(plugin("Base", "base"))
    source = "from plug_base import Base\n" + plugin()
    (tmp_path / "plug_six.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    assert load("plug_six") == ({"hello.hello"}, [])


# --- by file and by folder -----------------------------------------------------------------------


def test_a_file_is_loaded_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "any-name.py"
    path.write_text(plugin())
    assert load(str(path)) == ({"hello.hello"}, [])


def test_a_file_with_postponed_annotations_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "later.py"
    path.write_text("from __future__ import annotations\n" + plugin())
    assert load(str(path)) == ({"hello.hello"}, [])


def test_every_file_of_a_folder_is_loaded_and_a_broken_one_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(plugin("A", "one"))
    (tmp_path / "b.py").write_text("import")
    (tmp_path / "c.py").write_text(plugin("C", "three"))
    (tmp_path / "notes.txt").write_text("not a plugin")
    names, broken = load(folder=tmp_path)
    assert names == {"one.hello", "three.hello"}
    [(source, reason)] = broken
    assert source.endswith("b.py")
    assert "SyntaxError" in reason


def test_a_missing_folder_is_ignored(tmp_path: Path) -> None:
    assert load(folder=tmp_path / "nothing") == (set(), [])


def test_a_class_that_is_named_wins_over_one_that_is_found(tmp_path: Path) -> None:
    found, named = tmp_path / "found", tmp_path / "named"
    for folder, version in ((found, "1.0.0"), (named, "2.0.0")):
        folder.mkdir()
        (folder / "hello.py").write_text(plugin().replace("1.0.0", version))
    hub = Plexus()
    load_plugins(hub, [str(named / "hello.py")], found)
    [(_, activation)] = hub.activations()
    assert activation.version == "2.0.0"


# --- by entry point ------------------------------------------------------------------------------


def install(folder: Path, entry_points: str) -> None:
    """A distribution, as an installer would leave it."""
    info = folder / "plug_dist-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plug-dist\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)


def test_an_installed_package_is_found_by_its_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plug_installed.py").write_text(plugin())
    install(tmp_path, "[plexus.activations]\nhello = plug_installed:Hello\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert load() == ({"hello.hello"}, [])


def test_an_entry_point_of_another_group_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "[console_scripts]\nhello = plug_nothing:main\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert load() == (set(), [])


def test_a_broken_entry_point_is_skipped_and_the_others_are_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plug_good.py").write_text(plugin())
    (tmp_path / "plug_bad.py").write_text("raise RuntimeError('boom')")
    (tmp_path / "plug_odd.py").write_text("Odd = 5")
    install(
        tmp_path,
        "[plexus.activations]\nbad = plug_bad:Bad\ngone = plug_gone:Gone\n"
        "good = plug_good:Hello\nodd = plug_odd:Odd\nnone = plug_good:Nothing\n",
    )
    monkeypatch.syspath_prepend(tmp_path)
    names, broken = load()
    assert names == {"hello.hello"}
    reasons = dict(broken)
    assert set(reasons) == {f"entry point {name}" for name in ("bad", "gone", "odd", "none")}
    assert "boom" in reasons["entry point bad"]
    assert "plug_gone" in reasons["entry point gone"]
    assert "Activation" in reasons["entry point odd"]


# --- broken ones ---------------------------------------------------------------------------------

BROKEN = {
    "raises": ("raise RuntimeError('boom')", "RuntimeError: boom"),
    "exits": ("import sys; sys.exit('bye')", "SystemExit: bye"),
    "imports": ("import no_such_package_here", "no_such_package_here"),
    "empty": ("", 'defines no activation: write Activation("name")'),
    "starred": (plugin().replace("(self", "(self, *more"), "Hello.hello: argument 'more'"),
    "nameless": (plugin().replace('namespace = "hello"', ""), "namespace"),
    "init": (
        plugin() + "\n    def __init__(self):\n        raise OSError('no disk')\n",
        "no disk",
    ),
    "property": (
        plugin() + "\n    @property\n    def late(self):\n        raise OSError('not yet')\n",
        None,
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_plugin_is_reported_with_its_reason_and_skipped(kind: str, tmp_path: Path) -> None:
    source, reason = BROKEN[kind]
    bad, good = tmp_path / f"{kind}.py", tmp_path / "good.py"
    bad.write_text(source)
    good.write_text(plugin("Good", "good"))
    names, broken = load(str(bad), str(good))
    if reason is None:  # not broken: a property is not a method
        assert (names, broken) == ({"hello.hello", "good.hello"}, [])
        return
    assert names == {"good.hello"}
    assert [source for source, _ in broken] == [str(bad)]
    assert reason in broken[0][1]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (":Hello", "':Hello' has no module"),
        ("plug_nothing:Hello", "no module 'plug_nothing'"),
        ("plug_nothing", "no module 'plug_nothing'"),
        ("plexus:Nothing", "has no 'Nothing'"),
        ("plexus.principal:LOCAL", "is not an Activation"),
        ("no/such/file.py", "no file"),
        ("", ""),
        (":", ""),
        ("plexus.nothing.at.all:Hello", ""),
    ],
)
def test_an_unknown_name_is_reported(name: str, reason: str) -> None:
    names, [(source, message)] = load(name)
    assert names == set()
    assert source == name
    assert reason in message


def test_a_missing_import_inside_of_a_plugin_is_not_taken_for_a_missing_plugin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plug_needs.py").write_text("import plug_missing_dependency")
    monkeypatch.syspath_prepend(tmp_path)
    _, [(_, reason)] = load("plug_needs:Hello")
    assert "plug_missing_dependency" in reason

"""A folder that is trusted by digest: exactly the trusted bytes are loaded."""

from __future__ import annotations

import os
import py_compile
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from command_line import started
from hostile_folders import Folder

from activations.processes.sandbox import protected_paths
from plexus.runtime.hub import Plexus
from substrate import settings
from substrate.build_hub import build_hub
from substrate.security.folder_trust.contents import MAX_DEPTH, MAX_FILES, Unreadable, read_contents
from substrate.security.folder_trust.decision import decide
from substrate.settings import FILE, ProjectFiles, Settings, files_to_trust


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """Return a trusted folder with a plugin, a data file, a subpackage and settings."""
    made = Folder(tmp_path)
    made.plant("activations.d/planted.py")
    (made.path / "activations.d" / "data.json").write_text("{}")
    made.plant("activations.d/inner/deep.py")
    made.plant("named.py")
    made.settings('activation = ["named.py"]\nlog_level = "info"\n')
    trusted = made.run("trust")
    assert trusted.returncode == 0, trusted.stderr
    return made


def test_trusted_files_are_loaded_and_reported_as_ok(folder: Folder) -> None:
    assert {"planted.word", "named.word"} <= folder.methods()
    assert folder.executed() == ["named", "planted"]
    assert folder.notices() == []
    assert "unchanged since they were trusted" in folder.run("doctor", "--json").stdout


def test_loading_it_changes_nothing_in_it(folder: Folder) -> None:
    before = sorted(folder.path.rglob("*"))
    for _ in range(2):
        for flags in ((), ("--trust",)):
            assert "planted.word" in folder.methods(*flags, PYTHONDONTWRITEBYTECODE="")
    assert sorted(folder.path.rglob("*")) == before


def _append(path: Path) -> None:
    path.write_text(path.read_text() + "\n# more\n")


CHANGES: dict[str, Callable[[Folder], object]] = {
    "changed activations.d/planted.py": lambda f: _append(f.plugins / "planted.py"),
    "changed activations.d/data.json": lambda f: _append(f.plugins / "data.json"),
    "changed activations.d/inner/deep.py": lambda f: _append(
        f.path / "activations.d/inner/deep.py"
    ),
    "changed named.py": lambda f: _append(f.path / "named.py"),
    "changed substrate.toml": lambda f: f.settings('auth = "off"\n'),
    "added activations.d/more.py": lambda f: f.plant("activations.d/more.py"),
    "added activations.d/.hidden": lambda f: (f.path / "activations.d/.hidden").touch(),
    "removed activations.d/data.json": lambda f: (f.path / "activations.d/data.json").unlink(),
    "removed named.py": lambda f: (f.path / "named.py").unlink(),
    "removed substrate.toml": lambda f: (f.path / "substrate.toml").unlink(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_any_change_skips_everything_and_is_named(change: str, folder: Folder) -> None:
    CHANGES[change](folder)
    [notice] = folder.notices()
    assert (notice["code"], notice["details"]) == ("folder_changed", [change])
    assert folder.executed() == []
    assert folder.run("trust").returncode == 0
    folder.methods()
    assert "planted" in folder.executed()


def test_unchanged_settings_still_apply_when_a_plugin_changed(folder: Folder) -> None:
    """Otherwise a changed plugin would switch off a sandbox."""
    folder.settings('bash_sandbox = "strict"\nactivation = ["named.py"]\n')
    folder.run("trust")
    folder.plant("activations.d/more.py")
    rows = folder.run("config", "--json").stdout
    assert '"setting":"bash_sandbox","value":"strict","origin":"substrate.toml"' in rows
    [notice] = folder.notices()
    assert notice["message"].startswith(
        "Not loaded from the project folder: activations.d, because"
    )
    assert folder.executed() == []
    folder.settings('bash_sandbox = "off"\n')
    assert '"origin":"substrate.toml"' not in folder.run("config", "--json").stdout


def test_a_change_of_the_same_size_and_time_is_detected(folder: Folder) -> None:
    file = folder.path / "activations.d" / "planted.py"
    before = file.stat()
    file.write_text(file.read_text().replace("'one'", "'two'"))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file.stat().st_size == before.st_size
    assert [notice["code"] for notice in folder.notices()] == ["folder_changed"]


def test_planted_bytecode_is_not_executed_and_is_a_change(folder: Folder, tmp_path: Path) -> None:
    evil = Folder(tmp_path / "evil")
    source = evil.plant("planted.py")
    file = folder.path / "activations.d" / "planted.py"
    cache = file.parent / "__pycache__" / f"planted.{sys.implementation.cache_tag}.pyc"
    py_compile.compile(
        str(source),
        str(cache),
        doraise=True,
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )
    [notice] = folder.notices()
    assert notice["details"] == [f"added activations.d/__pycache__/{cache.name}"]
    folder.run("trust")
    assert "planted.word" in folder.methods()
    assert evil.executed() == []
    assert "planted" in folder.executed()


def test_a_link_is_pinned_by_its_target(folder: Folder, tmp_path: Path) -> None:
    outside = Folder(tmp_path / "outside")
    target = outside.plant("linked.py")
    (folder.path / "activations.d" / "linked.py").symlink_to(target)
    shared = outside.path / "shared"
    shared.mkdir()
    (shared / "words.txt").write_text("one")
    (folder.path / "activations.d" / "shared").symlink_to(shared)
    (folder.path / "activations.d" / ".#planted.py").symlink_to("user@host.1234")
    folder.run("trust")
    assert "linked.word" in folder.methods()
    (shared / "words.txt").write_text("two")
    assert folder.notices()[0]["details"] == ["changed activations.d/shared/words.txt"]
    folder.run("trust")
    target.write_text(target.read_text() + "\n")
    assert folder.notices()[0]["details"] == ["changed activations.d/linked.py"]


def test_a_whole_folder_of_plugins_may_be_a_link(tmp_path: Path) -> None:
    outside, folder = Folder(tmp_path / "outside"), Folder(tmp_path / "inside")
    file = outside.plant("linked.py")
    (folder.path / "activations.d").symlink_to(outside.path)
    assert "linked.word" not in folder.methods()
    folder.run("trust")
    assert "linked.word" in folder.methods()
    file.write_text(file.read_text() + "\n")
    assert "linked.word" not in folder.methods()


def test_a_module_of_the_folder_that_settings_name_is_not_covered_and_not_loaded(
    folder: Folder,
) -> None:
    folder.plant("module.py")
    folder.settings('activation = ["module"]\n')
    folder.run("trust")
    done = folder.run("list", "--local", "--json")
    assert "module.word" not in done.stdout
    assert "Plugin skipped: module: no module 'module' on PYTHONPATH" in done.stderr
    assert "module" not in folder.executed()
    assert "module.word" in folder.methods("--trust")


def test_compiled_files_that_settings_name_are_not_covered_and_not_loaded(folder: Folder) -> None:
    py_compile.compile(
        str(folder.plant("compiled.py")), str(folder.path / "compiled.pyc"), doraise=True
    )
    folder.settings('activation = ["./compiled.pyc", "../", "/proc/kmsg"]\n')
    trusted = folder.run("trust")
    assert "compiled" not in trusted.stdout.partition("substrate.toml contains")[0]
    done = folder.run("list", "--local", "--json")
    assert "Plugin skipped: ./compiled.pyc" in done.stderr
    assert folder.executed() == ["planted"]


def test_another_folder_of_plugins_that_settings_name_is_pinned_too(folder: Folder) -> None:
    file = folder.plant("tools/more.py")
    folder.settings('activations_folder = "./tools/"\n')
    folder.run("trust")
    assert "more.word" in folder.methods()
    file.write_text(file.read_text() + "\n")
    assert "more.word" not in folder.methods()


def test_dev_does_not_reload_pinned_files(folder: Folder) -> None:
    talk = folder.plant("talk.py")
    with started("dev", "--port", "0", "talk.py", cwd=folder.path) as process:
        process.err.wait_for(r"`substrate trust --always` to reload them")
        process.err.wait_for(r"Loaded talk\.py")
        process.err.wait_for(r"http://127")
        assert folder.executed() == ["named", "planted", "talk"]
        _append(folder.path / "activations.d" / "planted.py")
        _append(folder.path / "named.py")
        for number in range(3):
            talk.write_text(talk.read_text().replace("one", f"one{number}"))
            process.err.wait_for(rf"(?s)(Reloaded talk\.py.*){{{number + 1}}}")
    assert folder.executed() == ["talk"]


# --- between check and load -----------------------------------------------------------------------


async def words(files: ProjectFiles, folder: Folder) -> Plexus:
    settings = Settings(activation=("named.py",), database=":memory:")
    hub, broken = build_hub(settings, folder.path, files)
    assert broken == []
    return hub


@pytest.mark.anyio
async def test_the_executed_code_is_the_hashed_code(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.path)
    files = decide(folder.path)
    assert files.skipped is None
    evil = Folder(tmp_path / "evil")
    for name in ("activations.d/planted.py", "named.py"):
        shutil.copy(evil.plant(Path(name).name, word="evil"), folder.path / name)
    hub = await words(files, folder)
    assert {"planted.word", "named.word"} <= {spec.name for spec in hub.methods()}
    assert evil.executed() == []
    assert folder.executed() == ["named", "planted"]
    await hub.close()


# --- files that cannot be read --------------------------------------------------------------------


def _fifo(folder: Path) -> None:
    os.mkfifo(folder / "activations.d" / "pipe.py")


def _fifo_for_settings(folder: Path) -> None:
    (folder / "substrate.toml").unlink(missing_ok=True)
    os.mkfifo(folder / "substrate.toml")


def _endless(folder: Path) -> None:
    (folder / "activations.d" / "zero.py").symlink_to("/dev/zero")


def _waiting(folder: Path) -> None:
    (folder / "activations.d" / "tty.py").symlink_to("/dev/tty")


def _huge(folder: Path) -> None:
    with (folder / "activations.d" / "huge.bin").open("wb") as file:
        file.truncate(1024**4)


def _huge_settings(folder: Path) -> None:
    with (folder / "substrate.toml").open("wb") as file:
        file.truncate(1024**3)


def _loop(folder: Path) -> None:
    (folder / "activations.d" / "loop").symlink_to(folder / "activations.d")


def _many(folder: Path) -> None:
    for number in range(MAX_FILES + 1):
        (folder / "activations.d" / f"{number}.txt").touch()


def _deep(folder: Path) -> None:
    (folder / "activations.d").joinpath(*["d"] * (MAX_DEPTH + 1)).mkdir(parents=True)


def _multiplied(folder: Path) -> None:
    """Each folder has two links to the next: thousands of folders without a file."""
    outside = folder.parent / "links"
    for number in range(MAX_DEPTH - 4):
        (outside / str(number)).mkdir(parents=True)
        for name in "ab":
            (outside / str(number) / name).symlink_to(outside / str(number + 1))
    (outside / str(MAX_DEPTH - 4)).mkdir()
    (folder / "activations.d" / "links").symlink_to(outside / "0")


def _not_utf8(folder: Path) -> None:
    Path(os.fsdecode(os.fsencode(folder / "activations.d") + b"/\xff.py")).touch()


UNREADABLE: dict[Callable[[Path], None], str] = {
    _fifo: "activations.d/pipe.py is not a regular file",
    _fifo_for_settings: "substrate.toml is not a regular file",
    _endless: "activations.d/zero.py is not a regular file",
    _waiting: "activations.d/tty.py is not a regular file",
    _huge: "activations.d/huge.bin is too large",
    _huge_settings: "substrate.toml is too large",
    _loop: "activations.d/loop is a link to one of its parent folders",
    _many: f"there are more than {MAX_FILES} files and folders",
    _deep: f"is more than {MAX_DEPTH} folders deep",
    _multiplied: f"there are more than {MAX_FILES} files and folders",
    _not_utf8: "is not UTF-8",
}


@pytest.mark.parametrize("make", UNREADABLE, ids=lambda make: make.__name__)
def test_an_unreadable_file_is_rejected_by_name_without_blocking(
    make: Callable[[Path], None], folder: Folder
) -> None:
    make(folder.path)
    [notice] = folder.notices()
    assert notice["code"] in ("folder_unreadable", "folder_changed")
    assert folder.executed() == []
    refused = folder.run("trust")
    assert refused.returncode == 1
    assert UNREADABLE[make] in refused.stderr
    assert "Nothing was trusted" in refused.stderr


@pytest.mark.parametrize("make", [_fifo, _fifo_for_settings, _huge_settings, _loop])
def test_a_start_with_trust_does_not_block_either(
    make: Callable[[Path], None], folder: Folder
) -> None:
    make(folder.path)
    folder.methods("--trust")


# --- cost -----------------------------------------------------------------------------------------


def test_a_folder_without_such_files_is_checked_only_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    real = os.lstat

    def counted(path: Path) -> os.stat_result:
        looked.append(str(path))
        return real(path)

    monkeypatch.setattr(os, "lstat", counted)
    monkeypatch.delenv("SUBSTRATE_ACTIVATIONS_FOLDER", raising=False)
    assert files_to_trust(tmp_path) == []
    assert len(looked) <= 2


def test_a_full_folder_is_read_once(tmp_path: Path) -> None:
    """The limits hold; only the timeout of the test bounds the time."""
    folder = tmp_path / "activations.d"
    folder.mkdir()
    for number in range(MAX_FILES - 1):
        (folder / f"{number}.py").write_text("x = 1\n")
    until = time.monotonic() + 20
    assert len(read_contents(tmp_path).entries) == MAX_FILES - 1
    assert time.monotonic() < until
    (folder / "more.py").touch()
    with pytest.raises(Unreadable):
        read_contents(tmp_path)


@contextmanager
def placeholders(folder: Path) -> Iterator[None]:
    """Yield the placeholders in a folder while a sandboxed command runs there."""
    held = protected_paths.ProtectedPaths(folder, [FILE, "activations.d"], [])
    try:
        yield
    finally:
        held.release()


def test_an_active_sandboxed_command_changes_nothing_for_another_start(tmp_path: Path) -> None:
    """Empty folders keep the command from creating what is missing; there is nothing to trust."""
    made = Folder(tmp_path)
    made.plant("activations.d/planted.py")
    assert made.run("trust").returncode == 0
    with placeholders(made.path):
        assert (made.path / FILE).is_dir()
        assert "planted.word" in made.methods()
        assert made.notices() == []
    empty = Folder(tmp_path / "empty")
    with placeholders(empty.path):
        assert files_to_trust(empty.path) == []
        assert empty.notices() == []


def test_the_placeholders_of_sandboxed_commands_are_recognised() -> None:
    assert settings.PLACEHOLDER_MODE == protected_paths.PLACEHOLDER_MODE

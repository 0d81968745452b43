"""`substrate trust`: what is stored, for which folder, and what happens on failure."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from pathlib import Path

import pytest
from command_line import SUBSTRATE, environment, terminal
from hostile_folders import Folder

from plexus.private_files import state_folder
from substrate.security.folder_trust.records import (
    RecordError,
    list_records,
    read_record,
    write_record,
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    made = Folder(tmp_path)
    made.plant("activations.d/planted.py")
    return made


def record_files() -> list[Path]:
    return sorted((state_folder() / "trust").glob("*"))


def test_trust_shows_what_it_covers_and_lists_it(folder: Folder) -> None:
    folder.settings('log_level = "info"\n')
    shown = folder.run("trust").stdout
    assert "activations.d/planted.py  " in shown
    assert '  | log_level = "info"' in shown
    assert "Trusted the current version of these files" in shown
    [listed] = map(json.loads, folder.run("trust", "--list", "--json").stdout.splitlines())
    assert listed["folder"] == str(folder.path)
    assert listed["files"] == ["activations.d/planted.py", "substrate.toml"]
    assert not listed["always"]
    assert (
        f"{folder.path}  2 files at their trusted version" in folder.run("trust", "--list").stdout
    )


def test_always_covers_later_files_and_revoke_ends_it(folder: Folder) -> None:
    assert folder.run("trust", "--always").returncode == 0
    folder.plant("activations.d/later.py")
    assert {"planted.word", "later.word"} <= folder.methods()
    assert folder.run("trust", "--revoke").returncode == 0
    assert folder.methods().isdisjoint({"planted.word", "later.word"})
    again = folder.run("trust", "--revoke")
    assert again.returncode == 1
    assert "is not trusted" in again.stderr


def test_as_json_each_outcome_is_one_line(folder: Folder) -> None:
    def outcome(*flags: str) -> object:
        return json.loads(folder.run("trust", "--json", *flags).stdout)

    known = {"folder": str(folder.path), "trusted": True}
    assert outcome() == known | {"always": False, "files": ["activations.d/planted.py"]}
    assert outcome("--always") == known | {"always": True}
    assert outcome("--revoke") == known | {"trusted": False}


def test_a_missing_folder_can_be_revoked(folder: Folder, tmp_path: Path) -> None:
    folder.run("trust")
    shutil.rmtree(folder.path)
    listed = folder.run("trust", "--list", cwd=tmp_path).stdout
    assert "(missing)" in listed
    assert folder.run("trust", "--revoke", str(folder.path), cwd=tmp_path).returncode == 0
    assert folder.run("trust", "--list", "--json", cwd=tmp_path).stdout == ""


def test_without_files_to_trust_nothing_is_stored(folder: Folder, tmp_path: Path) -> None:
    done = folder.run("trust", cwd=tmp_path)
    assert done.returncode == 0
    assert "nothing to trust" in done.stdout
    assert record_files() == []


@pytest.mark.parametrize(
    "arguments",
    [("--always", "--list"), ("--list", "--revoke"), ("--list", "."), ("no/folder",)],
    ids=" ".join,
)
def test_a_wrong_call_is_refused(arguments: tuple[str, ...], folder: Folder) -> None:
    assert folder.run("trust", *arguments).returncode == 2
    assert record_files() == []


def test_trusted_invalid_settings_do_not_prevent_revoking(folder: Folder) -> None:
    folder.settings("port = ")
    assert folder.run("trust").returncode == 0
    assert "substrate.toml is not valid TOML" in folder.run("list").stderr
    assert folder.run("trust", "--revoke").returncode == 0
    assert folder.run("list", "--local").returncode == 0


# --- which folder ---------------------------------------------------------------------------------


def test_a_link_to_a_folder_is_trusted_as_that_folder(folder: Folder, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(folder.path)
    assert folder.run("trust", cwd=link).returncode == 0
    assert "planted.word" in folder.methods()
    assert "planted.word" in folder.run("list", "--local", "--json", cwd=link).stdout


def test_a_folder_that_was_moved_is_not_trusted(folder: Folder, tmp_path: Path) -> None:
    folder.run("trust")
    moved = tmp_path / "moved"
    folder.path.rename(moved)
    done = folder.run("list", "--local", "--json", cwd=moved)
    assert "planted.word" not in done.stdout
    assert "the folder is not trusted" in done.stderr


def test_trust_in_a_home_folder_does_not_cover_its_subfolders(
    folder: Folder, tmp_path: Path
) -> None:
    (tmp_path / "activations.d").mkdir()
    assert folder.run("trust", "--always", cwd=tmp_path, HOME=str(tmp_path)).returncode == 0
    assert "planted.word" not in folder.methods(HOME=str(tmp_path))
    assert folder.executed() == []


def test_a_folder_that_every_user_can_change_is_not_trusted_always(folder: Folder) -> None:
    folder.plugins.chmod(0o777)
    refused = folder.run("trust", "--always")
    assert refused.returncode == 1
    assert f"{folder.plugins} is writable by every user" in refused.stderr
    pinned = folder.run("trust")
    assert pinned.returncode == 0
    assert "writable by every user" in pinned.stderr
    assert "planted.word" in folder.methods()


def test_a_folder_that_becomes_writable_by_every_user_is_no_longer_trusted_always(
    folder: Folder,
) -> None:
    folder.run("trust", "--always")
    folder.path.chmod(0o777)
    assert [notice["code"] for notice in folder.notices()] == ["folder_unsafe"]
    assert folder.executed() == []


def test_a_folder_in_one_that_every_user_can_change_is_not_trusted_always(
    folder: Folder, tmp_path: Path
) -> None:
    tmp_path.chmod(0o777)
    assert "other users can replace" in folder.run("trust", "--always").stderr
    tmp_path.chmod(0o1777)  # like /tmp: only owners can rename their files
    assert folder.run("trust", "--always").returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_not_trusted_always(folder: Folder) -> None:
    os.chown(folder.path, 12345, 12345)
    refused = folder.run("trust", "--always")
    assert "belongs to another user" in refused.stderr
    assert refused.returncode == 1


# --- the records ----------------------------------------------------------------------------------


def test_only_the_owner_can_read_records(folder: Folder) -> None:
    folder.run("trust")
    [record] = record_files()
    assert record.stat().st_mode & 0o777 == 0o600
    assert record.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"{}", b'{"folder":1,"always":1,"files":[],"since":0}', b"\xff"]
)
def test_a_damaged_record_grants_no_trust_and_is_reported(content: bytes, folder: Folder) -> None:
    folder.run("trust", "--always")
    [record] = record_files()
    record.write_bytes(content)
    [notice] = folder.notices()
    assert notice["code"] == "folder_record_unreadable"
    assert str(record)[:60] in notice["details"][0]
    assert folder.executed() == []
    assert str(record) in folder.run("trust", "--list").stderr
    assert folder.run("trust").returncode == 0
    assert "planted.word" in folder.methods()


def test_a_record_of_another_folder_grants_no_trust(folder: Folder, tmp_path: Path) -> None:
    other = Folder(tmp_path / "other")
    other.run("trust", "--always")
    [theirs] = record_files()
    folder.run("trust")
    [ours] = [file for file in record_files() if file != theirs]
    shutil.copy(theirs, ours)
    with pytest.raises(RecordError, match="belongs to another folder"):
        read_record(folder.path)


def test_a_record_that_others_can_write_or_that_is_a_link_grants_no_trust(
    folder: Folder, tmp_path: Path
) -> None:
    folder.run("trust", "--always")
    [record] = record_files()
    record.chmod(0o666)
    with pytest.raises(RecordError, match="another user can write"):
        read_record(folder.path)
    record.chmod(0o600)
    record.rename(tmp_path / "elsewhere")
    record.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RecordError, match="not a regular file"):
        read_record(folder.path)


def test_concurrent_writers_leave_one_complete_record(folder: Folder) -> None:
    digests = [{f"activations.d/{number}.py": f"{number:064}"} for number in range(8)]

    def write(files: dict[str, str]) -> None:
        for _ in range(20):
            write_record(folder.path, files)

    threads = [threading.Thread(target=write, args=(files,)) for files in digests]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    record = read_record(folder.path)
    assert record is not None
    assert record.files in digests
    assert len(record_files()) == 1
    assert list_records()[1] == []


def test_a_state_folder_that_cannot_be_written_is_an_error_with_advice(
    folder: Folder, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    refused = folder.run("trust", XDG_STATE_HOME=str(tmp_path / "file"))
    assert refused.returncode == 1
    assert "cannot be stored" in refused.stderr
    assert "XDG_STATE_HOME" in refused.stderr
    assert "planted.word" not in folder.methods(XDG_STATE_HOME=str(tmp_path / "file"))


def test_a_confirmation_that_cannot_be_stored_holds_for_this_start(
    folder: Folder, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    variables = {"XDG_STATE_HOME": str(tmp_path / "file")}
    with terminal("list", "--local", cwd=folder.path, **variables) as screen:
        screen.screen.wait_for(r"\[y/N\]")
        screen.type("y\n")
        code, shown = screen.end()
    assert code == 0
    assert "for this start only" in shown
    assert folder.executed() == ["planted"]


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")
def test_trust_is_read_from_a_state_folder_that_is_read_only(
    folder: Folder, tmp_path: Path
) -> None:
    folder.run("trust")
    state = str(tmp_path / "state")
    done = subprocess.run(
        ["bwrap", "--dev-bind", "/", "/", "--ro-bind", state, state, *SUBSTRATE, "list", "--local"],
        cwd=folder.path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert folder.executed() == ["planted"]


# --- offers of trust ------------------------------------------------------------------------------


def test_mcp_install_reports_files_that_would_be_skipped(folder: Folder, tmp_path: Path) -> None:
    install = ("mcp", "install", "gemini", "--scope", "project", "--yes")
    output = folder.run(*install, HOME=str(tmp_path)).stderr
    assert "Not loaded from the project folder: activations.d" in output
    assert "`substrate trust`" in output
    assert record_files() == []  # --yes only confirms the host's file
    assert "Not loaded" not in folder.run(*install, "--", "--trust", HOME=str(tmp_path)).stderr
    folder.run("trust")
    assert "Not loaded" not in folder.run(*install, HOME=str(tmp_path)).stderr


def test_mcp_install_asks_on_a_terminal(folder: Folder, tmp_path: Path) -> None:
    install = ("mcp", "install", "gemini", "--scope", "project")
    with terminal(*install, cwd=folder.path, HOME=str(tmp_path)) as screen:
        screen.screen.wait_for(r"Write .*\[y/N\]")
        screen.type("y\n")
        screen.screen.wait_for(r"as they are now\? \[y/N\]")
        screen.type("y\n")
        assert screen.end()[0] == 0
    assert "planted.word" in folder.methods()


def test_a_new_package_is_trusted_always_so_that_dev_loads_it(
    folder: Folder, tmp_path: Path
) -> None:
    made = folder.run("new", "weather", cwd=tmp_path)
    assert "Trusted weather always" in made.stdout
    checked = folder.run("check", cwd=tmp_path / "weather")
    assert checked.returncode == 0, checked.stderr
    folder.run("trust", "--revoke", cwd=tmp_path / "weather")
    refused = folder.run("check", cwd=tmp_path / "weather")
    assert refused.returncode == 2
    assert "pass the path: `substrate check .`" in refused.stderr

"""`templates.scaffold_project`: what it shows, what it writes, and what it never does."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hub_calls import read
from template_folders import METADATA, URI, offering, snapshot, write_template

from activations.templates import project_folder, scaffold
from activations.templates.events import File, Scaffolded
from activations.templates.model import CONTENT_BYTES
from activations.templates.project_folder import ProjectFolder
from plexus.caller_environment import CallerEnvironment
from plexus.errors import Declined, Failed, InvalidParams, Unsupported
from plexus.events import ErrorEvent, Event, Log, QuestionAsked
from plexus.testing import Local, expect

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

NAMED = {"project_name": "my-project"}
RECORD = ".substrate-templates.json"
NODE_FILES = {
    *(".github/workflows/ci.yml", ".gitignore", "Dockerfile", "Makefile", "README.md"),
    *("package.json", "src/main.js", "test/main.test.js"),
}


@pytest.fixture
def target(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


async def make(plexus: Local, target: Path | str, *names: str, **options: Any) -> list[Event]:
    """Write a project of Node, unless the options say something else."""
    given = {"toolchain": "node", "parameters": NAMED, "write": True} | options
    return await plexus.events(
        "scaffold_project", templates=list(names or ["all"]), target=str(target), **given
    )


def actions(events: list[Event]) -> dict[str, str]:
    """Return what happened to each file."""
    return {event.path: event.action for event in events if isinstance(event, File)}


def reasons(events: list[Event]) -> list[str | None]:
    return [event.reason for event in events if isinstance(event, File)]


# --- showing and writing --------------------------------------------------------------------------


async def test_nothing_is_written_unless_it_is_asked_for(target: Path) -> None:
    async with offering() as plexus:
        events = await plexus.events(
            "scaffold_project",
            toolchain="node",
            templates=["all"],
            parameters=NAMED,
            target=str(target / "new"),
        )
    assert actions(events) == dict.fromkeys(NODE_FILES, "create")
    assert snapshot(target) == {}
    end = events[-1]
    assert isinstance(end, Scaffolded)
    assert (end.write, end.record, end.target) == (False, None, str(target / "new"))
    [readme] = [each for each in events if isinstance(each, File) and each.path == "README.md"]
    assert readme.content.startswith("# my-project\n")
    assert readme.as_text() == f"README.md: would be created\n{readme.content}\n"


async def test_files_are_written_one_after_the_other_with_progress(target: Path) -> None:
    async with offering() as plexus:
        events = await make(plexus, target)
    expect(events).progresses(8)
    assert actions(events) == dict.fromkeys(NODE_FILES, "created")
    written = snapshot(target)
    assert set(written) == NODE_FILES | {RECORD}
    for event in events:
        if isinstance(event, File):
            assert written[event.path] == event.content.encode()
            assert event.as_text() == f"{event.path}: created\n"
    end = events[-1]
    assert isinstance(end, Scaffolded)
    assert {each.path: each.action for each in end.files} == actions(events)
    assert end.as_line() == f"8 of 8 files written to {target}"
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE((target / "README.md").stat().st_mode) == 0o666 & ~umask


async def test_a_second_time_nothing_changes_and_nothing_is_asked(target: Path) -> None:
    async with offering() as plexus:
        await make(plexus, target)
        before = snapshot(target)
        events = await make(plexus, target)
    assert set(actions(events).values()) == {"unchanged"}
    assert snapshot(target) == before
    assert expect(events).questions == []


async def test_templates_are_named_by_category_file_path_or_uri(target: Path) -> None:
    names = ["readme", "Makefile", "ci/cli", "template://gitignore/node/cli", "src/main.js"]
    async with offering() as plexus:
        events = await make(plexus, target, *names, "README")
    assert list(actions(events)) == [
        *("README.md", "Makefile", ".github/workflows/ci.yml", ".gitignore", "src/main.js")
    ]


async def test_all_wrong_names_are_reported_with_the_nearest(target: Path) -> None:
    async with offering() as plexus:
        with pytest.raises(InvalidParams) as caught:
            await plexus.call(
                "scaffold_project",
                toolchain="node",
                templates=["readmi", "makefile", "xylophone", "template://readme/go/cli"],
                parameters=NAMED,
                target=str(target),
            )
        assert [each["at"] for each in caught.value.data["errors"]] == [
            *("templates.0", "templates.2", "templates.3")
        ]
        assert "did you mean 'readme'?" in caught.value.message
        assert "is not of node" in caught.value.message
        expect(await make(plexus, target, toolchain="nod")).fails(
            "invalid_params", saying="unknown toolchain 'nod'; did you mean 'node'"
        )
        expect(await make(plexus, target, "template://readme/node/x")).fails("not_found")
        expect(await make(plexus, target, "template://../node/x")).fails("invalid_params")


async def test_parameters_are_shared_and_all_faults_are_found_before_a_file_is_written(
    target: Path,
) -> None:
    async with offering() as plexus:
        wrong = {"project_name": "A B", "node_version": "x", "colour": "red"}
        events = await make(plexus, target, parameters=wrong)
        expect(events).fails("invalid_params", saying="colour is not a parameter")
        [error] = expect(events).of(ErrorEvent)
        assert sorted(each["at"] for each in error.data["errors"]) == [
            *("parameters.colour", "parameters.node_version", "parameters.project_name")
        ]
        assert error.data["seed_code"] == -32002
        # A parameter of one of the templates is no fault of the others.
        events = await make(plexus, target, parameters=NAMED | {"node_version": "24"}, write=False)
        assert "node:24-slim" in "".join(e.content for e in events if isinstance(e, File))
    assert snapshot(target) == {}


async def test_a_broken_template_prevents_the_whole_project(tmp_path: Path, target: Path) -> None:
    folder = tmp_path / "templates"
    write_template(folder, "fine", name="a/any/plain")
    write_template(folder, "{{ no }}", METADATA.replace("a.txt", "b.txt"), name="b/any/plain")
    async with offering(folder) as plexus:
        events = await make(plexus, target, toolchain="any", parameters={})
        expect(events).fails("render", saying="template://b/any/plain cannot be generated")
    assert snapshot(target) == {}


async def test_two_templates_for_one_path_are_a_conflict(tmp_path: Path, target: Path) -> None:
    folder = tmp_path / "templates"
    write_template(folder, "one", METADATA.replace("a.txt", "README"), name="a/any/plain")
    write_template(folder, "two", METADATA.replace("a.txt", "readme"), name="b/any/plain")
    async with offering(folder) as plexus:
        events = await make(plexus, target, toolchain="any", parameters={})
        expect(events).fails("conflict", saying="template://a/any/plain and template://b/any/plain")
    assert snapshot(target) == {}


async def test_the_target_is_relative_to_the_folder_of_the_caller(target: Path) -> None:
    given = {"toolchain": "node", "templates": ["readme"], "parameters": NAMED}
    async with offering() as plexus:
        call = plexus.hub.call(
            "scaffold_project",
            given | {"target": "a/b", "write": True},
            caller=CallerEnvironment(str(target), {}),
        )
        await read(call)
    assert set(snapshot(target)) == {"a/b/README.md", f"a/b/{RECORD}"}


# --- files that exist -----------------------------------------------------------------------------


async def test_a_file_is_replaced_only_after_its_difference_was_shown_and_agreed_to(
    target: Path,
) -> None:
    (target / "README.md").write_text("mine\n")
    (target / "README.md").chmod(0o640)
    async with offering(answers=[True]) as plexus:
        shown = await make(plexus, target, "readme", write=False)
        assert actions(shown) == {"README.md": "ask"}
        assert "\n-mine\n+# my-project\n" in expect(shown).text
        events = await make(plexus, target, "readme")
    [question] = expect(events).questions
    assert question.startswith(f"Replace README.md in {target}?\n\n--- README.md (now)\n")
    assert "\n-mine\n+# my-project\n" in question
    assert actions(events) == {"README.md": "replaced"}
    assert (target / "README.md").read_text().startswith("# my-project\n")
    assert stat.S_IMODE((target / "README.md").stat().st_mode) == 0o640


@pytest.mark.parametrize("answer", [False, None, Declined("no"), Unsupported("no client")])
async def test_a_file_is_kept_without_an_agreement(target: Path, answer: Any) -> None:
    (target / "README.md").write_text("mine\n")
    async with offering(answers=[answer]) as plexus:
        events = await make(plexus, target, "readme", "makefile")
    assert actions(events) == {"README.md": "kept", "Makefile": "created"}
    assert (target / "README.md").read_text() == "mine\n"
    assert list(json.loads((target / RECORD).read_text())["files"]) == ["Makefile"]


async def test_after_a_question_without_an_answer_no_other_is_asked(target: Path) -> None:
    for name in ("README.md", "Makefile"):
        (target / name).write_text("mine\n")
    async with offering(answers=[Unsupported("no client")]) as plexus:
        events = await make(plexus, target, "readme", "makefile")
    assert len(expect(events).questions) == 1
    assert set(actions(events).values()) == {"kept"}
    assert all("no answer" in (each or "") for each in reasons(events))


async def test_existing_files_can_be_skipped_without_a_question(target: Path) -> None:
    (target / "README.md").write_text("mine\n")
    async with offering() as plexus:
        events = await make(plexus, target, "readme", "makefile", existing="skip")
    assert actions(events) == {"README.md": "kept", "Makefile": "created"}


async def test_a_file_that_changes_while_a_person_decides_is_shown_again(target: Path) -> None:
    readme = target / "README.md"
    readme.write_text("mine\n")

    def change(_: QuestionAsked) -> bool:
        readme.write_text("changed meanwhile\n")
        return True

    async with offering(answers=[change, False]) as plexus:
        events = await make(plexus, target, "readme")
    first, second = expect(events).questions
    assert "-mine\n" in first
    assert "-changed meanwhile\n" in second
    assert readme.read_text() == "changed meanwhile\n"


async def test_a_file_that_always_changes_is_kept(target: Path) -> None:
    readme = target / "README.md"
    readme.write_text("0\n")

    def change(_: QuestionAsked) -> bool:
        readme.write_text(readme.read_text() + "1\n")
        return True

    async with offering(answers=[change] * scaffold.ATTEMPTS) as plexus:
        events = await make(plexus, target, "readme")
    assert reasons(events) == ["other processes change it all the time"]
    assert readme.read_text() == "0\n" + "1\n" * scaffold.ATTEMPTS


async def test_a_file_that_vanishes_while_a_person_decides_is_created(target: Path) -> None:
    readme = target / "README.md"
    readme.write_text("mine\n")

    def remove(_: QuestionAsked) -> bool:
        readme.unlink()
        return True

    async with offering(answers=[remove]) as plexus:
        events = await make(plexus, target, "readme")
    assert actions(events) == {"README.md": "created"}


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("binary", "it is not text"),
        ("large", "it is too large to compare"),
        ("lines", "it is too large to compare: the maximum is 2,000 lines"),
        ("folder", "it is a folder"),
        ("link", "it is a symbolic link"),
        ("dangling", "it is a symbolic link"),
        ("pipe", "it is not a regular file"),
    ],
)
async def test_what_cannot_be_compared_is_kept_without_a_question(
    tmp_path: Path, target: Path, kind: str, reason: str
) -> None:
    outside = tmp_path / "outside.md"
    outside.write_text("outside\n")
    readme = target / "README.md"
    match kind:
        case "binary":
            readme.write_bytes(b"\xff\x00")
        case "large":
            readme.touch()
            os.truncate(readme, 20 * 1024**3)
        case "lines":
            readme.write_text("x\n" * 2_001)
        case "folder":
            readme.mkdir()
        case "link":
            readme.symlink_to(outside)
        case "dangling":
            readme.symlink_to(tmp_path / "missing")
        case "pipe":
            os.mkfifo(readme)
    before = readme.lstat()
    async with offering() as plexus:
        for write in (False, True):
            events = await make(plexus, target, "readme", write=write)
            assert actions(events) == {"README.md": "kept"}
            assert reasons(events) == [reason]
    assert (readme.lstat().st_ino, readme.lstat().st_mtime_ns) == (
        before.st_ino,
        before.st_mtime_ns,
    )
    assert outside.read_text() == "outside\n"
    assert not (tmp_path / "missing").exists()


async def test_a_difference_has_no_control_characters(target: Path) -> None:
    (target / "README.md").write_text("\x1b[31m\u202emine\r\x07\n")
    async with offering(answers=[False]) as plexus:
        events = await make(plexus, target, "readme")
    [question] = expect(events).questions
    assert not {"\x1b", "\u202e", "\r", "\x07"} & set(question)


async def test_a_long_difference_is_shortened_in_the_question(target: Path) -> None:
    (target / "README.md").write_text("a line of text\n" * 1_500)
    async with offering(answers=[False]) as plexus:
        events = await make(plexus, target, "readme")
    [question] = expect(events).questions
    assert len(question) < 4_500
    assert "characters left out" in question


# --- never outside --------------------------------------------------------------------------------


@pytest.mark.parametrize("link", ["src", ".github", ".github/workflows"])
async def test_nothing_is_written_through_a_symbolic_link_of_a_folder(
    tmp_path: Path, target: Path, link: str
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (target / link).parent.mkdir(exist_ok=True)
    (target / link).symlink_to(outside)
    async with offering() as plexus:
        for write in (False, True):
            events = await make(plexus, target, write=write)
            expect(events).fails("unsafe_path", saying="symbolic link")
    assert list(outside.iterdir()) == []
    assert [each for each in snapshot(target) if not each.startswith(link)] == []


async def test_a_folder_that_becomes_a_link_after_the_check_is_not_followed(
    tmp_path: Path, target: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (target / "README.md").write_text("mine\n")

    def exchange(_: QuestionAsked) -> bool:
        (target / "src").symlink_to(outside)
        return True

    async with offering(answers=[exchange]) as plexus:
        events = await make(plexus, target, "readme", "source")
        expect(events).fails("unsafe_path", saying="src/main.js was not written")
    assert list(outside.iterdir()) == []


async def test_a_target_that_becomes_a_link_after_the_check_is_not_followed(
    tmp_path: Path, target: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (target / "README.md").write_text("mine\n")

    def exchange(_: QuestionAsked) -> bool:
        target.rename(tmp_path / "moved")
        target.symlink_to(outside)
        return True

    async with offering(answers=[exchange]) as plexus:
        events = await make(plexus, target, "readme", "makefile")
        expect(events).fails("unsafe_path")
    assert list(outside.iterdir()) == []


async def test_a_link_to_the_target_itself_is_allowed(tmp_path: Path, target: Path) -> None:
    (tmp_path / "link").symlink_to(target)
    async with offering() as plexus:
        events = await make(plexus, tmp_path / "link", "readme")
    assert events[-1].target == str(target)  # type: ignore[attr-defined]
    assert (target / "README.md").is_file()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "must be the path of a folder"),
        ("a\0b", "must be the path of a folder"),
        ("x" * 5000, "must be the path of a folder"),
        ("file", "is not a folder"),
        ("file/inner", "is not a folder"),
        (".git/hooks", "which is not a project"),
        ("a/" * 20, "of its folders are missing"),
    ],
)
async def test_a_target_that_is_no_folder_is_refused(target: Path, name: str, message: str) -> None:
    (target / "file").touch()
    place = f"{target}/{name}" if name and len(name) < 100 and "\0" not in name else name
    async with offering() as plexus:
        events = await make(plexus, place)
        expect(events).fails("invalid_params", saying=message)
    assert set(snapshot(target)) == {"file"}


def test_a_home_folder_is_that_of_a_user_who_exists(tmp_path: Path) -> None:
    assert project_folder.resolve_target("~", tmp_path, None) == Path.home().resolve()
    unknown = project_folder.resolve_target("~no such user/x", tmp_path, None)
    assert unknown == tmp_path / "~no such user" / "x"


async def test_in_the_sandbox_only_the_workspace_is_written_to(
    tmp_path: Path, target: Path
) -> None:
    folder = tmp_path / "templates"
    for number, path in enumerate(
        ["substrate.toml", "activations.d/x.py", ".claude/settings.json"]
    ):
        write_template(folder, "x", METADATA.replace("a.txt", path), name=f"bad/any/t{number}")
    (target / "out").symlink_to(tmp_path)
    async with offering(folder, workspace=target) as plexus:
        for place in (tmp_path, target / "..", target / "out", target / ".claude" / "x", "/"):
            events = await make(plexus, place, "readme")
            expect(events).fails("invalid_params", saying="the sandbox is on")
        for number in range(3):
            name = f"template://bad/any/t{number}"
            events = await make(plexus, target, name, toolchain="any", parameters={})
            expect(events).fails("unsafe_path", saying="protected")
        assert actions(await make(plexus, target / "inner", "readme")) == {"README.md": "created"}
    assert set(snapshot(target)) == {"inner/README.md", f"inner/{RECORD}"}


# --- whole files ----------------------------------------------------------------------------------


async def test_a_cancelled_project_has_only_whole_files(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with offering() as plexus:
        whole = {
            each.path: each.content.encode()
            for each in await make(plexus, target, write=False)
            if isinstance(each, File)
        }
        entered, real = asyncio.Event(), os.fsync
        loop = asyncio.get_running_loop()
        count = iter(range(100))

        def slow(fd: int) -> None:
            if next(count) == 3:
                loop.call_soon_threadsafe(entered.set)
            real(fd)

        monkeypatch.setattr(os, "fsync", slow)
        async with plexus.stream(
            "scaffold_project",
            toolchain="node",
            templates=["all"],
            parameters=NAMED,
            target=str(target),
            write=True,
        ) as stream:
            async with asyncio.timeout(20):
                await entered.wait()
            stream.cancel()
    written = snapshot(target)
    assert 3 <= len(written) < len(whole)
    assert all(whole[path] == content for path, content in written.items())


async def test_an_error_while_writing_leaves_the_old_file_and_no_draft(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (target / "README.md").write_text("mine\n")

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    async with offering(answers=[True]) as plexus:
        expect(await make(plexus, target, "readme")).fails("not_written", saying="No space left")
        expect(await make(plexus, target, "makefile")).fails("not_written", saying="No space left")
    assert snapshot(target) == {"README.md": b"mine\n"}


@pytest.mark.parametrize("number", [1, 95, 38])
def test_a_file_system_without_links_gets_whole_files_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def link(*_: object, **__: object) -> None:
        raise OSError(number, "not supported")

    monkeypatch.setattr(os, "link", link)
    folder = ProjectFolder(tmp_path)
    folder.create("a/b", b"content")
    assert snapshot(tmp_path) == {"a/b": b"content"}
    with pytest.raises(project_folder.Moved):
        folder.create("a/b", b"other")
    assert snapshot(tmp_path) == {"a/b": b"content"}


def test_a_read_only_folder_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def refuse(path: Any, flags: int, *rest: Any, **options: Any) -> int:
        if flags & os.O_CREAT:
            raise PermissionError(13, "Permission denied")
        return real(path, flags, *rest, **options)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(Failed, match="x was not written: Permission denied") as caught:
        ProjectFolder(tmp_path).create("x", b"")
    assert caught.value.code == "not_written"


# --- the record -----------------------------------------------------------------------------------


def entries_of(target: Path) -> dict[str, Any]:
    record = json.loads((target / RECORD).read_text())
    assert record["format"] == 1
    files: dict[str, Any] = record["files"]
    return files


async def test_the_record_names_templates_parameters_and_contents(target: Path) -> None:
    async with offering() as plexus:
        await make(plexus, target, "readme", parameters=NAMED | {"license": "MIT"})
        described = await plexus.call(
            "templates.describe_template", resource_uri="template://readme/node/cli"
        )
        await make(plexus, target, "makefile")
    files = entries_of(target)
    assert list(files) == ["Makefile", "README.md"]
    readme = files["README.md"]
    digest = hashlib.sha256((target / "README.md").read_bytes()).hexdigest()
    assert readme["content_hash"] == f"sha256:{digest}"
    assert readme["template"] == "template://readme/node/cli"
    assert readme["template_hash"] == described.hash
    assert (readme["template_version"], readme["source"]) == ("1.0.0", "built-in")
    assert readme["parameters"] == NAMED | {
        "license": "MIT",
        "description": "A command-line program.",
        "has_tests": True,
    }


async def test_the_record_can_be_left_out(target: Path) -> None:
    async with offering() as plexus:
        events = await make(plexus, target, "readme", record=False)
    assert set(snapshot(target)) == {"README.md"}
    assert events[-1].record is None  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "content",
    [b"mine", b"[]", b'{"format": 2, "files": {}}', b'{"files": 3}', b"\xff", b"{" * 9999],
)
async def test_a_file_that_is_no_record_is_not_touched(target: Path, content: bytes) -> None:
    (target / RECORD).write_bytes(content)
    async with offering() as plexus:
        events = await make(plexus, target, "readme")
    assert (target / RECORD).read_bytes() == content
    [warning] = expect(events).of(Log)
    assert warning.message.endswith("is not a record of this program.")
    assert events[-1].record is None  # type: ignore[attr-defined]


async def test_a_record_that_is_a_link_is_not_followed(tmp_path: Path, target: Path) -> None:
    outside = tmp_path / "outside.json"
    (target / RECORD).symlink_to(outside)
    async with offering() as plexus:
        events = await make(plexus, target, "readme")
    assert not outside.exists()
    [warning] = expect(events).of(Log)
    assert "is a symbolic link" in warning.message


async def test_two_projects_at_once_lose_no_entry(target: Path) -> None:
    async with offering() as plexus:
        names = ["readme", "makefile", "gitignore", "manifest", "ci", "test", "source"]
        await asyncio.gather(*(make(plexus, target, name) for name in names))
    assert len(entries_of(target)) == len(names)


async def test_a_lock_that_another_process_holds_is_not_waited_for_indefinitely(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(project_folder, "LOCK_S", 0.1)
    fd = os.open(target, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        async with offering() as plexus:
            events = await make(plexus, target, "readme")
    finally:
        os.close(fd)
    assert set(snapshot(target)) == {"README.md"}
    [warning] = expect(events).of(Log)
    assert "another process holds the folder" in warning.message


async def test_a_template_cannot_write_the_record(tmp_path: Path, target: Path) -> None:
    folder = tmp_path / "templates"
    write_template(folder, "{}", METADATA.replace("a.txt", RECORD))
    async with offering(folder) as plexus:
        events = await make(plexus, target, URI, toolchain="any", parameters={})
        expect(events).fails("unsafe_path", saying="the record of generated files")


async def test_the_largest_file_with_a_difference_fits_into_an_event(
    tmp_path: Path, target: Path
) -> None:
    folder = tmp_path / "templates"
    write_template(folder, f"{{{{ '\x01' * {CONTENT_BYTES} }}}}")
    (target / "a.txt").write_text("\U0001f600" * 100_000)
    async with offering(folder, answers=[True]) as plexus:
        events = await make(plexus, target, URI, toolchain="any", parameters={})
    assert actions(events) == {"a.txt": "replaced"}
    assert (target / "a.txt").read_text() == "\x01" * CONTENT_BYTES


@pytest.fixture(autouse=True)
def _no_leftovers(tmp_path: Path) -> Iterator[None]:
    """No test leaves a draft behind."""
    yield
    assert list(tmp_path.rglob(".substrate-*.tmp")) == []

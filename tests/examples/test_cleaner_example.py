"""The cleaner example: nothing is deleted without confirmation."""

from __future__ import annotations

import os
import time
from pathlib import Path

import cleaner
import pytest
from cleaner import Cleaned, Cleaner, Deleted, Kept

from plexus import Denied, NotFound, Principal
from plexus.errors import TooBig
from plexus.events import QuestionAsked
from plexus.testing import expect, local

pytestmark = pytest.mark.anyio

OLD_S = 60 * 24 * 3600.0


def make(folder: Path, name: str, age_s: float = OLD_S, text: str = "x" * 100) -> Path:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    then = time.time() - age_s
    os.utime(file, (then, then))
    return file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(5):
        make(tmp_path, f"old{number}.log", OLD_S - number)
    make(tmp_path, "sub/older.txt", OLD_S * 2)
    make(tmp_path, "new.log", 0)
    return tmp_path


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


async def test_old_files_are_listed_oldest_first_and_not_changed(folder: Path) -> None:
    before = names(folder)
    async with local(Cleaner(folder)) as plexus:
        found = await plexus.call("cleaner.find")
        assert found == ["sub/older.txt", *(f"old{number}.log" for number in range(5))]
        assert await plexus.call("cleaner.find", pattern="*.txt") == ["sub/older.txt"]
        assert await plexus.call("cleaner.find", older_than_days=100.0) == ["sub/older.txt"]
        assert await plexus.call("cleaner.find", folder="sub") == ["sub/older.txt"]
    assert names(folder) == before


async def test_a_confirmed_batch_is_deleted_and_another_is_kept(folder: Path) -> None:
    async with local(Cleaner(folder), answers=[True, False]) as plexus:
        events = await plexus.events("cleaner.clean", batch=3)
    result = expect(events).completes(deleted=3, kept=3, freed_bytes=300).progresses(to=6)
    assert [event.path for event in result.of(Deleted)] == ["sub/older.txt", "old0.log", "old1.log"]
    assert [event.reason for event in result.of(Kept)] == ["not confirmed"] * 3
    assert names(folder) == {"old2.log", "old3.log", "old4.log", "new.log"}


async def test_the_question_lists_the_files_and_their_size(folder: Path) -> None:
    for number in range(20):
        make(folder, f"many/{number:02}", OLD_S * 3)
    async with local(Cleaner(folder), answers=[False]) as plexus:
        events = await plexus.events("cleaner.clean", folder="many", batch=20)
    [question] = expect(events).questions
    assert question.startswith("Delete these 20 files (2.0 KiB)?\nmany/00\n")
    assert question.endswith("\nand 10 more")


async def test_after_declining_there_are_no_more_questions_and_no_deletions(folder: Path) -> None:
    before = names(folder)
    async with local(Cleaner(folder), answers=[None]) as plexus:
        events = await plexus.events("cleaner.clean", batch=1)
    assert expect(events).value == Cleaned(deleted=0, kept=6, freed_bytes=0)
    assert names(folder) == before


async def test_a_file_that_was_changed_after_the_question_is_kept(folder: Path) -> None:
    def change_and_agree(_: QuestionAsked) -> bool:
        (folder / "old0.log").write_text("new work")
        (folder / "old1.log").unlink()
        return True

    async with local(Cleaner(folder), answers=[change_and_agree]) as plexus:
        events = await plexus.events("cleaner.clean")
    kept = {event.path: event.reason for event in expect(events).of(Kept)}
    assert kept["old0.log"] == "changed in the meantime"
    assert "No such file" in kept["old1.log"]
    assert (folder / "old0.log").read_text() == "new work"


async def test_links_are_neither_followed_nor_deleted(folder: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path.parent / f"{tmp_path.name}-elsewhere"
    precious = make(elsewhere, "precious", OLD_S * 9)
    (folder / "link").symlink_to(precious)
    (folder / "folder").symlink_to(elsewhere)
    async with local(Cleaner(folder), answers=[True]) as plexus:
        await plexus.call("cleaner.clean")
    assert precious.exists()
    assert (folder / "link").is_symlink()


async def test_nothing_outside_the_folder_is_accessed(folder: Path) -> None:
    async with local(Cleaner(folder / "sub")) as plexus:
        for path in ("..", str(folder)):
            with pytest.raises(Denied):
                await plexus.call("cleaner.find", folder=path)
        with pytest.raises(NotFound):
            await plexus.call("cleaner.clean", folder="nothing")


async def test_without_old_files_there_is_no_question(tmp_path: Path) -> None:
    async with local(Cleaner(tmp_path)) as plexus:
        assert expect(await plexus.events("cleaner.clean")).text.startswith("0 old files")


async def test_a_folder_with_too_many_files_is_rejected(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleaner, "MAX_FILES", 7)
    async with local(Cleaner(folder)) as plexus:
        assert len(await plexus.call("cleaner.find")) == 6
        make(folder, "one_more")
        with pytest.raises(TooBig):
            await plexus.call("cleaner.find")


async def test_the_scope_to_find_does_not_allow_deleting(folder: Path) -> None:
    looker = Principal("looker", frozenset({"cleaner"}))
    async with local(Cleaner(folder), principal=looker) as plexus:
        assert await plexus.call("cleaner.find")
        with pytest.raises(Denied):
            await plexus.call("cleaner.clean")


async def test_cancelling_during_a_question_deletes_nothing(folder: Path) -> None:
    before = names(folder)
    async with local(Cleaner(folder)) as plexus, plexus.stream("cleaner.clean") as stream:
        assert [(await anext(stream)).type for _ in range(2)] == ["found", "request"]
    assert names(folder) == before

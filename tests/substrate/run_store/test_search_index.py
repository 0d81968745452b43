"""The search index finds runs by their words, on both engines, and forgets deleted runs."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import unicodedata
from collections.abc import AsyncIterator
from pathlib import Path

import apsw
import pytest
from arbor_databases import ENGINES, new_database

from substrate.run_store import search_index, search_queries
from substrate.run_store.search_index import Entry, SearchIndex
from substrate.run_store.search_words import (
    ENTRY_WORDS,
    PIECE_CHARACTERS,
    WORD_CHARACTERS,
    word_hasher,
    words_of,
)

pytestmark = pytest.mark.anyio

WAIT_S = 60.0
NOW_MS = 1_700_000_000_000


def entry(run: int, text: str, **more: int | str) -> Entry:
    """Return an entry of a run that started `run` seconds after the first."""
    fields = {"from_seq": 0, "started_ms": NOW_MS + run * 1000, "principal": "me", "project": "tea"}
    return Entry(**{"run": run, "text": text, **fields, **more})  # type: ignore[arg-type]


@pytest.fixture(params=ENGINES)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return new_database(request.param, tmp_path)


@pytest.fixture
async def index(database: str) -> AsyncIterator[SearchIndex]:
    opened = await SearchIndex.open(database)
    yield opened
    await opened.close()


async def runs_with(index: SearchIndex, *words: str, project: str | None = None) -> list[int]:
    return [hit.run for hit in await index.search(words, "me", project, 100)]


# --- words ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", set()),
        ("Hello, hello WORLD!", {"hello", "world"}),
        ("snake_case-kebab/path.py:42", {"snake_case", "kebab", "path", "py", "42"}),
        ("don't \x1b[31mred\x1b[0m", {"don", "t", "31mred", "0m"}),
        ("Straße ΟΔΟΣ ﬁle \uff21\uff22\uff23", {"strasse", "οδοσ", "file", "abc"}),
        ("Ünïcode " + unicodedata.normalize("NFD", "Ünïcode"), {"ünïcode"}),
        ("हिन्दी ภาษาไทย 日本語", {"हिन्दी", "ภาษาไทย", "日本語"}),
        ("✓️ done \ud800 \x00", {"done"}),
    ],
)
async def test_words_are_letters_digits_and_underscores_of_any_script(
    text: str, words: set[str]
) -> None:
    assert words_of(text) == words


async def test_long_words_are_cut_to_their_beginning() -> None:
    assert words_of("x" * 10_000 + " y") == {"x" * WORD_CHARACTERS, "y"}
    assert words_of("é" * 10_000) == {"é" * WORD_CHARACTERS}


async def test_a_word_on_the_border_of_two_pieces_is_not_divided() -> None:
    for before in range(PIECE_CHARACTERS - 20, PIECE_CHARACTERS + 2):
        assert words_of("-" * before + "divided and Ünïted") == {"divided", "and", "ünïted"}


async def test_the_first_words_of_a_text_count() -> None:
    found = words_of(" ".join(map(str, range(ENTRY_WORDS * 2))))
    assert len(found) == ENTRY_WORDS
    assert {str(number) for number in range(ENTRY_WORDS // 2)} <= found


# --- searching ------------------------------------------------------------------------------------


async def test_a_run_is_found_by_each_of_its_words_in_any_case(index: SearchIndex) -> None:
    await index.add([entry(1, "Compiling plexus v0.1"), entry(2, "Running tests of Plexus")])
    assert await runs_with(index, "compiling") == [1]
    assert await runs_with(index, "PLEXUS") == [2, 1]
    assert await runs_with(index, "plex") == []  # words are matched whole
    assert await runs_with(index, "running tests") == [2]  # two words in one text
    assert await runs_with(index) == []
    assert await runs_with(index, "...") == []


async def test_all_words_must_be_in_one_run_but_not_in_one_chunk(index: SearchIndex) -> None:
    await index.add([entry(1, "make build"), entry(1, "warning here", from_seq=5)])
    await index.add([entry(1, "then an error", from_seq=9), entry(2, "error", from_seq=3)])
    await index.add([entry(1, "error again", from_seq=20)])
    (hit,) = await index.search(["build", "error"], "me", None, 10)
    assert hit == (1, 9, NOW_MS + 1000)  # the chunk from which on all words have occurred
    assert [hit.from_seq for hit in await index.search(["error"], "me", None, 10)] == [3, 9]
    assert await runs_with(index, "warning", "error", "make") == [1]
    assert await runs_with(index, "warning", "missing") == []


async def test_a_principal_finds_only_its_own_runs(index: SearchIndex) -> None:
    await index.add([entry(1, "secret"), entry(2, "secret", principal="you")])
    assert await runs_with(index, "secret") == [1]
    assert [hit.run for hit in await index.search(["secret"], "you", None, 10)] == [2]
    assert await index.search(["secret"], "other", None, 10) == []


async def test_a_search_can_be_limited_to_a_project(index: SearchIndex) -> None:
    await index.add([entry(n, "word common", project=f"p{n % 3}") for n in range(30)])
    assert await runs_with(index, "word", project="p1") == list(range(28, 0, -3))
    assert await runs_with(index, "word", "common", project="p2") == list(range(29, 0, -3))
    assert await runs_with(index, "word", project="p") == []
    assert await runs_with(index, "project", "p1") == []  # the project is not a word of its runs


async def test_pages_continue_after_the_last_hit(
    index: SearchIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_queries, "SEGMENT_ROWS", 50)  # several segments
    order = random.Random(1)
    numbers = list(range(200))
    order.shuffle(numbers)  # not in the order in which they started
    for first in range(0, 200, 10):
        group = numbers[first : first + 10]
        await index.add([entry(n, f"all n{n}", started_ms=NOW_MS + n // 3) for n in group])
    found: list[tuple[int, int]] = []
    before = None
    while page := await index.search(["all"], "me", "tea", 7, before):
        found += [(hit.started_ms, hit.run) for hit in page]
        before = found[-1]
    assert {run for _, run in found} == set(numbers)
    assert len(found) == 200
    assert [start for start, _ in found] == sorted((start for start, _ in found), reverse=True)
    # A page after a run that is not in the index begins with those that started earlier.
    (hit,) = await index.search(["all"], "me", None, 1, (NOW_MS + 10, 10**6))
    assert hit.started_ms == NOW_MS + 9


async def test_random_searches_find_the_same_as_a_scan(
    index: SearchIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_queries, "SEGMENT_ROWS", 300)
    order = random.Random(5)
    vocabulary = [f"w{n}" for n in range(40)]
    texts: dict[int, set[str]] = {}
    for run in range(300):
        for from_seq in range(order.randint(1, 3)):
            words = order.sample(vocabulary, order.randint(1, 8))
            texts.setdefault(run, set()).update(words)
            await index.add([entry(run, " ".join(words), from_seq=from_seq)])
    await index.delete(range(0, 300, 7))
    left = {run: words for run, words in texts.items() if run % 7}
    for _ in range(60):
        words = order.sample(vocabulary, order.randint(1, 3))
        expected = [run for run in sorted(left, reverse=True) if left[run].issuperset(words)]
        assert await runs_with(index, *words) == expected[:100]


async def test_a_run_has_a_limited_number_of_words(
    index: SearchIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_queries, "RUN_WORDS", 100)
    for chunk in range(5):
        words = " ".join(f"w{chunk * 40 + n}" for n in range(40))
        await index.add([entry(1, words, from_seq=chunk)])
    size = await index.size()
    assert (size.runs, size.words) == (1, 100)
    assert await runs_with(index, "w0", "w39") == [1]
    assert await runs_with(index, "w199") == []


async def test_adding_again_changes_nothing(index: SearchIndex) -> None:
    entries = [entry(1, "one two"), entry(1, "two three", from_seq=4)]
    await index.add(entries)
    before = await index.size()
    await index.add(entries)
    assert (await index.size())[:2] == before[:2] == (1, 4)  # with the project
    await index.delete([1])
    assert (await index.size())[:2] == (0, 0)


async def test_an_index_is_the_same_after_it_was_opened_again(database: str) -> None:
    first = await SearchIndex.open(database)
    await first.add([entry(1, "kept")])
    second = await SearchIndex.open(database)
    assert await runs_with(second, "kept") == [1]
    assert first.identity == second.identity
    await second.add([entry(2, "kept")])
    assert await runs_with(first, "kept") == [2, 1]
    await first.close()
    await second.close()


# --- deleting -------------------------------------------------------------------------------------


async def test_deleted_runs_are_not_found(index: SearchIndex) -> None:
    await index.add([entry(n, f"all n{n}") for n in range(100)])
    await index.delete(range(10, 95))
    await index.delete([12, 1000])  # deleted already, and never added
    assert await runs_with(index, "all") == [99, 98, 97, 96, 95, *range(9, -1, -1)]
    assert await runs_with(index, "n50") == []
    await index.add([entry(50, "again n50")])
    assert await runs_with(index, "n50") == [50]


def count_in_files(path: Path, patterns: list[bytes]) -> int:
    """Return how many of the patterns have their first 8 bytes in the files of a database.

    Reads in another process: closing a file here would release the locks of the engine.
    """
    script = (
        "import sys\n"
        "data = b''.join(open(name, 'rb').read() for name in sys.argv[1:])\n"
        "parts = {data[start : start + 8] for start in range(len(data))}\n"
        "print(sum(bytes.fromhex(line)[:8] in parts for line in sys.stdin.read().split()))"
    )
    files = [path.with_name(path.name + suffix) for suffix in ("", "-wal", "-shm")]
    done = subprocess.run(
        [sys.executable, "-c", script, *(str(file) for file in files if file.exists())],
        input="\n".join(pattern.hex() for pattern in patterns),
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=True,
    )
    return int(done.stdout)


async def test_no_byte_of_the_words_of_deleted_runs_is_left(tmp_path: Path) -> None:
    path = tmp_path / "search.db"
    index = await SearchIndex.open(str(path))
    order = random.Random(3)
    texts = {run: [f"{order.getrandbits(64):x}" for _ in range(10)] for run in range(2_000)}
    texts[2_000] = [f"{order.getrandbits(64):x}" for _ in range(5_000)]  # over several pages
    for first in range(0, len(texts), 100):
        group = list(texts)[first : first + 100]
        await index.add([entry(run, " ".join(["shared", *texts[run]])) for run in group])
    runs = list(texts)
    order.shuffle(runs)
    deleted, kept = [2_000, *runs[:1_300]], set(runs[1_300:]) - {2_000}
    number = word_hasher("me")

    def stored(run: int) -> list[bytes]:
        """Return the words of a run in both byte orders in which the files contain them."""
        numbers = [number(word) for word in texts[run]]
        little = [each.to_bytes(8, sys.byteorder, signed=True) for each in numbers]
        return [each.to_bytes(8, "big", signed=True) for each in numbers] + little

    gone = [pattern for run in deleted for pattern in stored(run)]
    words = [word.encode() for run in texts for word in texts[run]]
    # Except for the few that are divided between two pages.
    assert await asyncio.to_thread(count_in_files, path, gone) > 0.99 * len(gone)
    await index.delete(deleted)
    assert await asyncio.to_thread(count_in_files, path, gone) == 0
    assert await asyncio.to_thread(count_in_files, path, words) == 0  # never stored
    patterns = [pattern for run in kept for pattern in stored(run)]
    assert await asyncio.to_thread(count_in_files, path, patterns) == len(patterns)
    assert len(await index.search(["shared"], "me", None, 5_000)) == len(kept)
    await index.close()


# --- corrupt files --------------------------------------------------------------------------------


async def corrupt_names(folder: Path) -> list[str]:
    found = await asyncio.to_thread(os.listdir, folder)
    return [name for name in found if ".corrupt-" in name and not name.endswith(("-wal", "-shm"))]


async def test_a_corrupt_file_is_set_aside_and_an_empty_index_takes_its_place(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "search.db"
    index = await SearchIndex.open(str(path))
    await index.add([entry(1, "lost")])
    identity = index.identity
    await index.close()
    path.write_bytes(os.urandom(8192))
    index = await SearchIndex.open(str(path))
    assert index.identity != identity
    assert await runs_with(index, "lost") == []
    await index.add([entry(2, "new")])
    assert await runs_with(index, "new") == [2]
    assert len(await corrupt_names(tmp_path)) == 1
    assert "search index was corrupt" in caplog.text
    await index.close()


async def test_damage_that_a_search_finds_is_repaired_in_every_process_that_has_it_open(
    tmp_path: Path,
) -> None:
    path = tmp_path / "search.db"
    indexes = [await SearchIndex.open(str(path)) for _ in range(3)]
    await indexes[0].add([entry(n, f"all n{n} m{n} o{n}") for n in range(2_000)])
    identity = indexes[0].identity
    overwrite_pages(path)
    found = await asyncio.gather(*(runs_with(index, "all", "n7") for index in indexes))
    assert found == [[], [], []]
    await indexes[0].add([entry(1, "all again")])
    assert [await runs_with(index, "again") for index in indexes] == [[1]] * 3
    assert len(await corrupt_names(tmp_path)) == 1
    assert {index.identity for index in indexes} == {indexes[0].identity} != {identity}
    for index in indexes:
        await index.close()


def overwrite_pages(path: Path) -> None:
    """Overwrite all pages but the first, through SQLite, which keeps the locks of this process."""
    connection = apsw.Connection(str(path))
    connection.execute("SELECT count(*) FROM word_runs").fetchall()  # opens the log
    connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    flags = apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_READWRITE
    file = apsw.VFSFile("", str(path), [flags, 0])
    for offset in range(4096, file.xFileSize(), 4096):
        file.xWrite(os.urandom(4096), offset)
    file.xClose()
    connection.execute("PRAGMA user_version = 0")  # other connections discard their caches
    connection.close()


async def test_a_file_that_was_removed_is_created_again(tmp_path: Path) -> None:
    path = tmp_path / "search.db"
    index = await SearchIndex.open(str(path))
    await index.add([entry(1, "old")])
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    await index.add([entry(2, "new")])
    assert await runs_with(index, "new") == [2]
    assert path.exists()
    await index.close()


async def test_a_transaction_has_a_limited_number_of_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_index, "TRANSACTION_WORDS", 100)
    index = await SearchIndex.open(str(tmp_path / "search.db"))
    await index.add([entry(n, " ".join(f"w{n}_{k}" for k in range(60))) for n in range(20)])
    assert (await index.size()).runs == 20
    await index.delete(range(20))
    assert (await index.size())[:2] == (0, 0)
    await index.close()

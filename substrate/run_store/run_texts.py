"""The texts of recorded runs: what the search index has, and a scan for runs that contain a text.

The text of a run is its summary, its arguments, and the text of its items as a client shows them.
A word of streamed text is often in several items, with progress in between, and in two chunks.
Items are therefore joined, those of one kind also without the others, and the text of a chunk
begins with the end of the text before it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from plexus.rpc import wire
from plexus.runtime.run_record import RunRecord
from plexus.runtime.stored_events import read_event
from plexus.storage.engine import Transaction
from substrate.run_store.chunks import decode_chunk
from substrate.run_store.search_words import WORD_CHARACTERS, words_of

__all__ = (
    "Scan",
    "ScanBounds",
    "TextMatcher",
    "last_word",
    "matcher_for",
    "run_texts",
    "search_words",
)

#: Whether the texts of a run match. Called with each text in order.
TextMatcher: TypeAlias = Callable[[str], bool]

#: The key of the text of all kinds of events together.
ALL: Final = ""
#: Events whose texts continue each other, and the field with the text. Others are lines.
TEXT_FIELDS: Final = {"content": "text", "stdout": "data", "stderr": "data", "thinking": "text"}
#: Separates the words of a text, in addition to other characters that are not part of any word.
SEPARATORS: Final = re.compile(r"[\s!-/:-@\[-^`{-~]")
#: A search for words. Everything else is a search for exactly this text.
WORDS: Final = re.compile(r"[\w\s]+")
QUOTES: Final = '"'


def search_words(text: str) -> list[str] | None:
    """Return the words of a search; None if it is for a text as it is written."""
    return text.split() if WORDS.fullmatch(text) else None


def matcher_for(text: str) -> TextMatcher:
    """Return a new matcher for one run: all words, or the text without its quotes.

    The texts of a run are passed to it one after the other, until it returns True. Letters match
    whatever their case.
    """
    words = search_words(text)
    if words is None:
        wanted = _wanted(text)
        return lambda part: wanted in part.casefold()
    missing = set().union(*map(words_of, words))

    def has_words(part: str) -> bool:
        missing.difference_update(words_of(part))
        return not missing

    return has_words


def _wanted(text: str) -> str:
    if len(text) > 1 and text[0] == text[-1] == QUOTES:
        text = text[1:-1]
    return text.casefold()


# --- texts ----------------------------------------------------------------------------------------


def last_word(text: str) -> str:
    """Return the word at the end of a text, which may continue in the next one."""
    word = SEPARATORS.split(text[-WORD_CHARACTERS:])[-1]
    return word if len(word) < WORD_CHARACTERS else ""  # the rest of a longer one does not count


class _Joint:
    """Joins the texts of consecutive chunks of one run."""

    def __init__(self, end_of: Callable[[str], str]) -> None:
        self._end_of = end_of
        #: The ends of the texts so far: of all items, and of the items of each kind.
        self._ends: dict[str, str] = {}

    def add(self, payloads: Sequence[bytes]) -> str:
        """Return the text of the next chunk. Raises ValueError if an item is not an event."""
        whole, kinds = _texts_of(payloads)
        ends = self._ends
        before = ends.get(ALL, "")
        texts = [before + whole]
        for kind, text in kinds.items():
            joined = ends.get(kind, "") + text
            if joined != texts[0]:  # other items are in between
                texts.append(joined)
            ends[kind] = self._end_of(joined)
        ends[ALL] = self._end_of(texts[0])
        return "\n".join(texts)

    def clear(self) -> None:
        """Begin again, because a chunk is missing."""
        self._ends.clear()


def run_texts(
    tx: Transaction,
    record: RunRecord,
    after: int = -1,
    end_of: Callable[[str], str] = last_word,
) -> Iterator[tuple[int, str]]:
    """Yield the texts of a run, each with the number of its first item; 0 is its description.

    after: only texts whose number is greater. `end_of` returns the end of a text with which the
    next one begins. A chunk that is damaged is skipped.
    """
    if after < 0:
        yield 0, f"{record.method} {record.summary} {_readable(record.arguments)}\n"
    joint = _Joint(end_of)
    row = tx.one("SELECT items FROM runs WHERE id = ?", (record.run,))
    if row is not None and row[0] is not None:
        yield 1, joint.add(row[0].encode().split(b"\n"))
        return
    for first, codec, content in tx.each(
        "SELECT from_seq, codec, content FROM run_chunks WHERE run = ? AND from_seq >= ?"
        " ORDER BY from_seq",
        (record.run, after),
    ):
        try:
            text = joint.add(decode_chunk(codec, content)[1])
        except ValueError:
            joint.clear()
            continue
        if first > after:
            yield first, text


def _readable(arguments: str) -> str:
    """Return the texts of redacted arguments as they were passed, without the escapes of JSON."""
    if "\\" not in arguments:
        return arguments
    try:
        return " ".join(_strings(wire.decode_trusted(arguments.encode())))
    except ValueError:
        return arguments


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, member in value.items():
            yield name
            yield from _strings(member)
    elif isinstance(value, list):
        for member in value:
            yield from _strings(member)
    else:
        yield str(value)


def _texts_of(payloads: Sequence[bytes]) -> tuple[str, dict[str, str]]:
    """Return the joined text of some items, and of those of each kind that continue each other.

    Raises ValueError if one of them is not an event.
    """
    events = wire.decode_trusted(b"[%b]" % b",".join(payloads))
    texts: list[str] = []
    kinds: dict[str, list[str]] = {}
    for event, raw in zip(events, payloads, strict=True):
        kind = event["type"]
        text = event.get(TEXT_FIELDS.get(kind))
        if isinstance(text, str):
            texts.append(text)
            kinds.setdefault(kind, []).append(text)
        else:
            texts.append(_text_of_other(raw))
    return "".join(texts), {kind: "".join(each) for kind, each in kinds.items()}


def _text_of_other(raw: bytes) -> str:
    text = wire.event_text(read_event(raw))
    return f"\n{text}\n" if text else ""


# --- scans ----------------------------------------------------------------------------------------


class ScanBounds(NamedTuple):
    """How much one search may read."""

    seconds: float = 3.0
    characters: int = 256 * 1024 * 1024


class Scan:
    """A scan of runs for a text, within bounds. Its parts run in separate transactions."""

    def __init__(self, text: str, bounds: ScanBounds) -> None:
        self._text = text
        self._end = time.monotonic() + bounds.seconds
        self._left = bounds.characters
        self._end_of = last_word
        if search_words(text) is None and (overlap := len(_wanted(text)) - 1) >= 0:
            self._end_of = lambda text: text[len(text) - min(overlap, len(text)) :]

    @property
    def is_over(self) -> bool:
        """Whether a bound is reached."""
        return self._left <= 0 or time.monotonic() > self._end

    def contains(self, tx: Transaction, record: RunRecord) -> bool:
        """Return whether a run has the text. False if a bound is reached before that is known."""
        has_text = matcher_for(self._text)
        for _, text in run_texts(tx, record, end_of=self._end_of):
            self._left -= len(text)
            if has_text(text):
                return True
            if self.is_over:
                return False
        return False

"""The texts of recorded runs: what the search index has, and a scan for runs that contain a text.

The text of a run is its summary, its arguments, and the text of its items as a client shows them.
Items are joined within a chunk, because a word of streamed text is often in several items.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from plexus.rpc import wire
from plexus.runtime.stored_events import read_event
from plexus.runtime.stored_run import RunRecord
from plexus.storage.engine import Transaction
from substrate.run_store.chunks import decode_chunk
from substrate.run_store.search_words import words_of

__all__ = ("Scan", "ScanBounds", "TextMatcher", "matcher_for", "run_texts", "search_words")

#: Whether the texts of a run match. Called with each text in order.
TextMatcher: TypeAlias = Callable[[str], bool]

#: Events whose texts continue each other, and the field with the text. Others are lines.
TEXT_FIELDS: Final = {"content": "text", "stdout": "data", "stderr": "data", "thinking": "text"}
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
        return _substring_matcher(text)
    missing = set().union(*map(words_of, words))

    def has_words(part: str) -> bool:
        missing.difference_update(words_of(part))
        return not missing

    return has_words


def _substring_matcher(text: str) -> TextMatcher:
    wanted = text
    if len(text) > 1 and text[0] == text[-1] == QUOTES:
        wanted = text[1:-1]
    wanted = wanted.casefold()
    end = ""

    def has_text(part: str) -> bool:
        nonlocal end
        joined = end + part.casefold()
        # The text may begin in one chunk and end in the next.
        end = joined[max(len(joined) - len(wanted) + 1, 0) :] if len(wanted) > 1 else ""
        return wanted in joined

    return has_text


# --- texts ----------------------------------------------------------------------------------------


def run_texts(tx: Transaction, record: RunRecord, after: int = -1) -> Iterator[tuple[int, str]]:
    """Yield the texts of a run, each with the number of its first item; 0 is its description.

    after: only texts whose number is greater. A chunk that is damaged is skipped.
    """
    if after < 0:
        yield 0, f"{record.method} {record.summary} {_readable(record.arguments)}\n"
    row = tx.one("SELECT items FROM runs WHERE id = ?", (record.run,))
    if row is not None and row[0] is not None:
        yield 1, _text_of(row[0].encode().split(b"\n"))
        return
    for first, codec, content in tx.each(
        "SELECT from_seq, codec, content FROM run_chunks WHERE run = ? AND from_seq > ?"
        " ORDER BY from_seq",
        (record.run, after),
    ):
        try:
            yield first, _text_of(decode_chunk(codec, content)[1])
        except ValueError:
            continue


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


def _text_of(payloads: Sequence[bytes]) -> str:
    """Return the joined text of some items. Raises ValueError if one of them is not an event."""
    events = wire.decode_trusted(b"[%b]" % b",".join(payloads))
    texts = []
    for event, raw in zip(events, payloads, strict=True):
        text = event.get(TEXT_FIELDS.get(event["type"]))
        texts.append(text if isinstance(text, str) else _text_of_other(raw))
    return "".join(texts)


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

    @property
    def is_over(self) -> bool:
        """Whether a bound is reached."""
        return self._left <= 0 or time.monotonic() > self._end

    def contains(self, tx: Transaction, record: RunRecord) -> bool:
        """Return whether a run has the text. False if a bound is reached before that is known."""
        has_text = matcher_for(self._text)
        for _, text in run_texts(tx, record):
            self._left -= len(text)
            if has_text(text):
                return True
            if self.is_over:
                return False
        return False

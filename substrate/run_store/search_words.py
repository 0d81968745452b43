"""Words: how text is split for the search index, and the number that stands for a word.

The index does not contain words but their hashes, each of a principal and a word. A search of one
principal therefore never reads the entries of another, every entry has the same small size, and a
copy of the index does not reveal text that was not known before. It does reveal whether a given
word was recorded: hashes of deleted runs have to be erased like words.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import re
import unicodedata
from collections.abc import Callable, Iterator
from typing import Final

__all__ = ("ENTRY_WORDS", "PROJECT", "WORD_CHARACTERS", "word_hasher", "words_of")

#: Longer words are cut to this length, when they are added and when they are searched for. Names,
#: paths and digests have parts of up to 64 characters; longer ones are encoded data.
WORD_CHARACTERS: Final = 64
#: The words of one text; the rest of the text is not indexed. A chunk of 64 KiB of prose, code or
#: logs has up to 4,000 different words. A chunk with more is mostly encoded or random data, of
#: which every word costs as much as a useful one.
ENTRY_WORDS: Final = 8_192
#: The characters that are split at a time. A call of `findall` has the interpreter lock, about a
#: millisecond for this length; other threads run in between.
PIECE_CHARACTERS: Final = 16_384
#: What is hashed in place of a word, to find the runs of a project. No word contains a space.
PROJECT: Final = "project "
#: All combining marks are below this code, except variation selectors.
MARKS: Final = 0x1F000


class _Splitter:
    """The patterns of a word, of which the first characters count, and of the end of a word."""

    def __init__(self, characters: str) -> None:
        rest = WORD_CHARACTERS - 1
        self.word = re.compile(rf"(\w[{characters}]{{0,{rest}}})[{characters}]*")
        self.end = re.compile(rf"[^{characters}]")


_ASCII: Final = _Splitter(r"\w")


@functools.cache
def _any_script() -> _Splitter:
    r"""Return a splitter for text that is not ASCII.

    Many scripts write vowels and accents as combining marks, which `\w` does not match.
    """
    marks = [code for code in range(MARKS) if unicodedata.category(chr(code))[0] == "M"]
    ranges = []
    for _, group in itertools.groupby(enumerate(marks), lambda each: each[1] - each[0]):
        codes = [code for _, code in group]
        ranges.append(f"{chr(codes[0])}-{chr(codes[-1])}")
    return _Splitter(r"\w" + "".join(ranges))


def words_of(text: str) -> set[str]:
    """Return the words of a text: letters, digits and underscores, in any script, case-folded.

    Compatible forms of a character, such as ligatures and full-width letters, are equal.
    """
    splitter = _ASCII if text.isascii() else _any_script()
    words: dict[str, None] = {}
    for piece in _pieces(text, splitter):
        words.update(dict.fromkeys(splitter.word.findall(piece)))
        if len(words) > ENTRY_WORDS:
            return set(itertools.islice(words, ENTRY_WORDS))
    return set(words)


def _pieces(text: str, splitter: _Splitter) -> Iterator[str]:
    """Yield normalized parts of a text that do not divide words."""
    start = 0
    while start < len(text):
        found = splitter.end.search(text, start + PIECE_CHARACTERS)
        end = len(text) if found is None else found.start()
        piece = text[start:end]
        if piece.isascii():
            yield piece.lower()
        else:
            yield unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", piece).casefold())
        start = end


def word_hasher(principal: str) -> Callable[[str], int]:
    """Return a function that returns the number of a word of this principal: 64 bits, signed."""
    start = hashlib.blake2b(
        key=hashlib.sha256(principal.encode(errors="surrogatepass")).digest(), digest_size=8
    )

    def number(word: str) -> int:
        state = start.copy()
        state.update(word.encode(errors="surrogatepass"))
        return int.from_bytes(state.digest(), signed=True)

    return number

"""Incremental rendering of Markdown as styled text for a terminal.

Headings, bullets, fences, bold and code are rendered: they can be recognised without looking far
ahead. At most a few characters that may start a mark are held back. The output does not depend on
how the input is split into pieces.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

__all__ = ("MarkdownStream",)

#: A piece of text and its rich style; empty for plain text.
Styled = tuple[str, str]

CODE: Final = "cyan"
BOLD: Final = "bold"
HEADING: Final = "bold magenta"
MARK: Final = "dim"

#: Start of a line that determines its kind. Its maximum length bounds what is held back.
LEAD: Final = re.compile(
    r"(?P<indent> {0,8})(?:(?P<fence>```)|(?P<heading>#{1,6} )|(?P<bullet>[-*+] ))"
)
#: Possible prefix of such a start.
MAYBE_LEAD: Final = re.compile(r" {0,8}(?:`{1,2}|#{1,6}|[-*+])?")


class MarkdownStream:
    """Renderer of one answer."""

    def __init__(self) -> None:
        #: Input that has not been rendered yet.
        self._pending = ""
        self._line_begins = True
        self._heading = False
        #: Whether this line is a fence, and whether it is inside a fenced block.
        self._fence_line = False
        self._fenced = False
        self._bold = False
        self._code = False
        self._after_space = True

    def feed(self, text: str) -> Iterator[Styled]:
        """Add input and yield what can be rendered."""
        self._pending += text
        return self._render(final=False)

    def flush(self) -> Iterator[Styled]:
        """Yield the rest of the input. No more input follows."""
        return self._render(final=True)

    def _render(self, *, final: bool) -> Iterator[Styled]:
        while self._pending:
            if self._line_begins:
                if not final and MAYBE_LEAD.fullmatch(self._pending):
                    return
                yield from self._lead()
                continue
            if self._pending[0] == "\n":
                yield self._consume(1), ""
                self._end_line()
            elif self._fenced or self._fence_line:
                yield (
                    self._consume(_find_first(self._pending, "\n")),
                    MARK if self._fence_line else CODE,
                )
            elif self._pending[0] == "`":
                self._consume(1)
                self._code = not self._code
            elif self._pending[0] == "*" and not self._code:
                if len(self._pending) < 3 and not final and set(self._pending) == {"*"}:
                    return
                yield from self._star()
            else:
                stops = "\n`" if self._code else "\n`*"
                piece = self._consume(_find_first(self._pending, stops))
                self._after_space = piece[-1].isspace()
                yield piece, self._style()

    def _lead(self) -> Iterator[Styled]:
        """Render the start of a line."""
        self._line_begins = False
        found = LEAD.match(self._pending)
        if found is None or (self._fenced and not found["fence"]):
            return
        self._consume(found.end())
        if found["fence"]:
            # The closing fence belongs to the block.
            self._fence_line, self._fenced = True, not self._fenced
            yield found[0], MARK
            return
        if found["indent"]:
            yield found["indent"], ""
        if found["heading"]:
            self._heading = True
        else:
            yield "• ", MARK

    def _star(self) -> Iterator[Styled]:
        """Render stars: two of them start or end bold text, others are literal."""
        count = 2 if self._pending.startswith("**") else 1
        stars, follows = self._consume(count), self._pending[:1]
        opens = not self._bold and bool(follows) and not follows.isspace()
        closes = self._bold and not self._after_space
        if count == 2 and (opens or closes):
            self._bold = not self._bold
        else:
            yield stars, self._style()
        self._after_space = False

    def _style(self) -> str:
        if self._heading:
            return HEADING
        return CODE if self._code else BOLD if self._bold else ""

    def _end_line(self) -> None:
        self._line_begins, self._after_space = True, True
        self._heading = self._fence_line = self._bold = self._code = False

    def _consume(self, count: int) -> str:
        consumed, self._pending = self._pending[:count], self._pending[count:]
        return consumed


def _find_first(text: str, stops: str) -> int:
    """Return the index of the first of these characters, or the length of the text."""
    return next((i for i, character in enumerate(text) if character in stops), len(text))

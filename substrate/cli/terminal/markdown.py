"""Markdown that comes in pieces, as styled text for a terminal, piece by piece.

Only what can be known at once is rendered: headings, bullets, fences, bold and code. What is held
back is a few characters that may be the beginning of a mark. How the text is cut into pieces makes
no difference to what comes out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

__all__ = ("MarkdownStream",)

#: A piece of text, and how it looks in the words of rich; empty for plain.
Styled = tuple[str, str]

CODE: Final = "cyan"
BOLD: Final = "bold"
HEADING: Final = "bold magenta"
MARK: Final = "dim"

#: The beginning of a line that says what the line is; the longest possible, so that no more than
#: this is ever held back.
LEAD: Final = re.compile(
    r"(?P<indent> {0,8})(?:(?P<fence>```)|(?P<heading>#{1,6} )|(?P<bullet>[-*+] ))"
)
#: What may become one of these when there is more of it.
MAYBE_LEAD: Final = re.compile(r" {0,8}(?:`{1,2}|#{1,6}|[-*+])?")


class MarkdownStream:
    """One answer."""

    def __init__(self) -> None:
        #: What has come and was not given yet.
        self._held = ""
        self._line_begins = True
        self._heading = False
        #: Whether the line is a fence, and whether we are between two fences.
        self._fence_line = False
        self._fenced = False
        self._bold = False
        self._code = False
        self._after_space = True

    def feed(self, text: str) -> Iterator[Styled]:
        """What is certain by now."""
        self._held += text
        return self._pieces(final=False)

    def rest(self) -> Iterator[Styled]:
        """What was held back; nothing more is waited for."""
        return self._pieces(final=True)

    def _pieces(self, *, final: bool) -> Iterator[Styled]:
        while self._held:
            if self._line_begins:
                if not final and MAYBE_LEAD.fullmatch(self._held):
                    return
                yield from self._lead()
                continue
            if self._held[0] == "\n":
                yield self._taken(1), ""
                self._end_line()
            elif self._fenced or self._fence_line:
                yield self._taken(_until(self._held, "\n")), MARK if self._fence_line else CODE
            elif self._held[0] == "`":
                self._taken(1)
                self._code = not self._code
            elif self._held[0] == "*" and not self._code:
                if len(self._held) < 3 and not final and set(self._held) == {"*"}:
                    return
                yield from self._star()
            else:
                stops = "\n`" if self._code else "\n`*"
                piece = self._taken(_until(self._held, stops))
                self._after_space = piece[-1].isspace()
                yield piece, self._style()

    def _lead(self) -> Iterator[Styled]:
        """The beginning of a line."""
        self._line_begins = False
        found = LEAD.match(self._held)
        if found is None or (self._fenced and not found["fence"]):
            return
        self._taken(found.end())
        if found["fence"]:
            # The line that ends a block is part of it.
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
        """Two stars begin and end bold text; others are stars."""
        count = 2 if self._held.startswith("**") else 1
        stars, follows = self._taken(count), self._held[:1]
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

    def _taken(self, count: int) -> str:
        taken, self._held = self._held[:count], self._held[count:]
        return taken


def _until(text: str, stops: str) -> int:
    """How far it is to the first of these characters."""
    return next((i for i, character in enumerate(text) if character in stops), len(text))

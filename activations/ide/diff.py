"""A proposed change of a file that waits for an answer, and its comments."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from activations.ide.events import Comment, DiffClosed, DiffInfo
from activations.ide.languages import language_of
from activations.ide.text_diff import TextDiff, apply_hunks
from plexus.caller_connection import CallerConnection
from plexus.diff_question import DiffAnswer

__all__ = ("DIFF_BYTES", "UNIFIED_CHARS", "Diff", "with_comments")

#: Maximum size of each side of a diff.
DIFF_BYTES: Final = 2 * 1024 * 1024
#: Maximum characters of the unified diff in a question: it is part of every list of questions.
UNIFIED_CHARS: Final = 64 * 1024


class Diff:
    """One proposed change."""

    def __init__(
        self,
        run: int,
        principal: str,
        path: str,
        tab_name: str,
        texts: tuple[str | None, str],
        changes: TextDiff,
        asked_ms: int,
        connection: CallerConnection | None,
        client: tuple[str | None, int | None],
    ) -> None:
        """Describe a change from an old text, None for a new file, to a new one.

        `run` is the run that asks. `connection` and `client` (its name and number) are those of the
        program that asks.
        """
        self.id = str(run)
        self.run = run
        self.principal = principal
        self.path = path
        self.tab_name = tab_name
        self.is_new = texts[0] is None
        self.old_text = texts[0] or ""
        self.new_text = texts[1]
        self.changes = changes
        self.asked_ms = asked_ms
        self.connection = connection
        self.client, self.client_number = client
        self.comments: list[Comment] = []
        #: The request of its question; empty before it was asked.
        self.request = ""
        #: How it was closed; None while it waits.
        self.closed: DiffClosed | None = None
        #: Set when the program that asked no longer needs the answer.
        self.withdrawn = asyncio.Event()

    @property
    def size(self) -> int:
        """The characters of both texts."""
        return len(self.old_text) + len(self.new_text)

    def final_text(self, answer: DiffAnswer) -> str:
        """Return the text that an accepting answer leads to."""
        if answer.text is not None:
            return answer.text
        if answer.hunks is not None:
            return apply_hunks(self.changes, answer.hunks)
        return self.new_text

    def details(self) -> dict[str, Any]:
        """Return what a question shows of it."""
        unified, cut = self.changes.unified(self.path, UNIFIED_CHARS)
        return {
            "diff": self.id,
            "path": self.path,
            "tab_name": self.tab_name,
            "new_file": self.is_new,
            "added": self.changes.added,
            "removed": self.changes.removed,
            "hunks": len(self.changes.hunks),
            "unified": unified,
            "cut": cut,
        }

    def info(self) -> DiffInfo:
        """Return the event with its state."""
        return DiffInfo(
            diff=self.id,
            path=self.path,
            tab_name=self.tab_name,
            new_file=self.is_new,
            language=language_of(self.path),
            added=self.changes.added,
            removed=self.changes.removed,
            hunks=len(self.changes.hunks),
            run=self.run,
            approval_id=f"{self.run}.{self.request}",
            client=self.client,
            asked_ms=self.asked_ms,
            comments=len(self.comments),
            connection=self.client_number,
        )


def with_comments(reason: str | None, comments: list[Comment]) -> str | None:
    """Return the reason of a rejection together with the comments on lines; None without both."""
    lines = [
        f"Line {each.line + 1}{' of the old text' if each.side == 'old' else ''}: {each.text}"
        for each in comments
    ]
    return "\n".join([*([reason] if reason else ()), *lines]) or None

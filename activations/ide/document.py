"""An open document: its text, and what is known about its file."""

from __future__ import annotations

from typing import Final, Literal

from activations.ide.events import DocumentInfo
from activations.ide.languages import language_of
from activations.ide.positions import Position, Range, lines_of, range_of
from activations.ide.workspace import TextFile, digest_of

__all__ = ("Document",)

DiskState = Literal["same", "changed", "deleted"]
CRLF: Final = "\r\n"


class Document:
    """An open document. Its text is the draft, or that of the file as it was read."""

    def __init__(self, path: str, file: TextFile) -> None:
        self.path = path
        self.language = language_of(path)
        self.text = file.text
        #: The digest of the file as it was read or saved.
        self.saved_digest = file.digest
        self.version = 1
        self.is_dirty = False
        #: Whether it stays open when another document needs its place.
        self.is_kept = False
        self.disk: DiskState = "same"
        #: The selected range; None before the first selection.
        self.selection: Range | None = None
        #: The name of its formatter; None without one.
        self.formatter: str | None = None

    def edit(self, text: str) -> None:
        """Replace the text by a draft."""
        self._set_text(text)
        self.is_dirty = digest_of(text) != self.saved_digest

    def load(self, file: TextFile) -> None:
        """Replace the text by that of the file."""
        self.saved_digest, self.disk, self.is_dirty = file.digest, "same", False
        self._set_text(file.text)

    def saved(self, digest: str) -> None:
        """Note that the text was written. Edits since then keep it dirty."""
        self.saved_digest, self.disk = digest, "same"
        self.is_dirty = digest_of(self.text) != digest

    def _set_text(self, text: str) -> None:
        if text == self.text:
            return
        self.text = text
        self.version += 1
        if self.selection is not None:  # it may be outside the new text
            self.selection = range_of(text, self.selection.start, self.selection.end)

    @property
    def cursor(self) -> Position:
        """The place of the cursor: the end of the selection."""
        return Position(0, 0) if self.selection is None else self.selection.end

    def info(self, *, active: bool) -> DocumentInfo:
        """Return the event with its state."""
        return DocumentInfo(
            path=self.path,
            language=self.language,
            version=self.version,
            dirty=self.is_dirty,
            active=active,
            eol=CRLF if CRLF in self.text else "\n",
            size=len(self.text.encode()),
            lines=len(lines_of(self.text)),
            disk=self.disk,
            selection=None if self.selection is None else self.selection.as_json(),
            formatter=self.formatter,
            read_only=False,
        )

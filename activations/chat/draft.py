"""An answer while it is being written: messages that grow, and the pieces to keep of them.

A draft is kept as pieces: each says what has come since the one before, so that keeping a long
answer costs no more than its length. `recovered` makes messages of the pieces that a program
which was ended has left behind.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

from activations.chat.message import KINDS, Kind, Message
from plexus.errors import PlexusError
from plexus.limits import Limits
from plexus.rpc import wire

__all__ = ("Draft", "recover_draft")

#: Our own pieces are read: brackets in them are mostly part of a text, and any number may be.
LIMITS = Limits(
    message_containers=sys.maxsize, message_members=sys.maxsize, message_values=sys.maxsize
)
#: A message of more characters is gone on with in another: a node holds only so much.
MESSAGE_CHARACTERS = 900_000


class _Part:
    """A message that may still grow."""

    __slots__ = ("kept", "kind", "meta", "meta_kept", "size", "texts")

    def __init__(self, kind: Kind, text: str, meta: dict[str, Any]) -> None:
        self.kind = kind
        self.meta = meta
        self.texts = [text]
        self.size = len(text)
        #: How many of the texts, and whether the metadata, are in a piece already.
        self.kept = 0
        self.meta_kept = False


class Draft:
    """What a round has brought so far."""

    def __init__(self) -> None:
        self._parts: list[_Part] = []
        #: The first part that may have something that is in no piece yet.
        self._first_unkept = 0

    def __bool__(self) -> bool:
        return bool(self._parts)

    def add(self, kind: Kind, text: str, meta: Mapping[str, Any] | None = None) -> None:
        """Add to the last message if it is of this kind, else begin one."""
        last = self._parts[-1] if self._parts else None
        if last is None or last.kind != kind or last.size > MESSAGE_CHARACTERS:
            self.begin(kind, text, meta)
            return
        if text:
            last.texts.append(text)
            last.size += len(text)
        if meta:
            last.meta.update(meta)
            last.meta_kept = False

    def begin(self, kind: Kind, text: str, meta: Mapping[str, Any] | None = None) -> None:
        """Begin another message."""
        self._parts.append(_Part(kind, text, dict(meta or {})))

    def messages(self) -> list[Message]:
        """The messages as they are now."""
        return [Message(part.kind, "".join(part.texts), dict(part.meta)) for part in self._parts]

    def take_piece(self) -> str | None:
        """What has come since the last piece; None if nothing has."""
        news = []
        for index in range(self._first_unkept, len(self._parts)):
            part = self._parts[index]
            text = "".join(part.texts[part.kept :])
            if text or not part.meta_kept:
                news.append([index, part.kind, text, None if part.meta_kept else part.meta])
            part.kept = len(part.texts)
            part.meta_kept = True
        self._first_unkept = max(len(self._parts) - 1, 0)
        return wire.encode(news).decode() if news else None


def recover_draft(pieces: Iterable[str]) -> list[Message]:
    """The messages that these pieces were kept of; what cannot be read is left out."""
    parts: dict[int, tuple[Kind, list[str], dict[str, Any]]] = {}
    for piece in pieces:
        try:
            news = wire.decode_value(piece.encode(), LIMITS)
        except (PlexusError, ValueError):  # written by something else, or not whole
            continue
        for index, kind, text, meta in news:
            if kind not in KINDS:
                continue
            _, texts, known = parts.setdefault(index, (kind, [], {}))
            texts.append(text)
            known.update(meta or {})
    return [Message(kind, "".join(texts), meta) for _, (kind, texts, meta) in sorted(parts.items())]

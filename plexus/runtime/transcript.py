"""The output of a run as text, in pages."""

from __future__ import annotations

from contextlib import aclosing

from plexus.events import Gap
from plexus.rpc import wire
from plexus.runtime.run import Run

__all__ = ("PAGE_CHARACTERS", "transcript")

#: Approximate number of characters in a page of a transcript: what a client shows, or passes to a
#: model, in one piece.
PAGE_CHARACTERS = 200_000


async def transcript(run: Run, after: int = 0) -> str:
    """Return the text of the items after this one; a last line gives the URI of the rest."""
    seq = min(max(after, 0), run.log.last)
    pieces: list[str] = []
    size = 0
    async with aclosing(run.available(seq)) as batches:
        async for batch in batches:
            for number, event in enumerate(batch.events, batch.first):
                piece = f"{event.as_line()}\n" if isinstance(event, Gap) else wire.event_text(event)
                if size and size + len(piece) > PAGE_CHARACTERS:
                    return _page(run, pieces, seq)
                # The terminal is on a separate line.
                if event.terminal and piece and size and not pieces[-1].endswith("\n"):
                    piece = f"\n{piece}"
                if piece:
                    pieces.append(piece)
                size += len(piece)
                seq = number
    return _page(run, pieces, seq)


def _page(run: Run, pieces: list[str], seq: int) -> str:
    """Return a page of a transcript that ends with this item."""
    text = "".join(pieces)
    more = "continues" if seq < run.log.last else "still running" if run.terminal is None else None
    if more is None:
        return text
    newline = "\n" if text and not text.endswith("\n") else ""
    return f"{text}{newline}[{more}: run://{run.id}?after={seq}]"

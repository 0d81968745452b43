"""What a run said, as a person reads it: the text of its items, a page at a time."""

from __future__ import annotations

from plexus.events import Event, Result
from plexus.rpc import wire
from plexus.runtime.run import Run

__all__ = ("text_of", "transcript")

#: About how many characters make a page: what a client shows, or gives to a model, at once.
PAGE_CHARACTERS = 200_000


def transcript(run: Run, after: int = 0) -> str:
    """The text of the items after this one; a last line says where more is to be had."""
    log = run.log
    seq = min(max(after, 0), log.last)
    text = ""
    if seq + 1 < log.first:
        text = f"[items {seq + 1} to {log.first - 1} are no longer kept]\n"
        seq = log.first - 1
    pieces = [text]
    size = 0
    for number, event in log.numbered(seq):
        piece = text_of(event)
        if size and size + len(piece) > PAGE_CHARACTERS:
            break
        # How a run ended is a line of its own.
        if event.terminal and piece and size and not pieces[-1].endswith("\n"):
            piece = f"\n{piece}"
        if piece:
            pieces.append(piece)
        size += len(piece)
        seq = number
    text = "".join(pieces)
    more = "continues" if seq < log.last else "still running" if run.terminal is None else None
    if more is None:
        return text
    newline = "\n" if text and not text.endswith("\n") else ""
    return f"{text}{newline}[{more}: run://{run.id}?after={seq}]"


def text_of(event: Event) -> str:
    """An event as text; what has no text is shown as JSON."""
    if isinstance(event, Result) and event.result is not None and not isinstance(event.result, str):
        return wire.encode_pretty(event.result).decode()
    if not event.speaks and not event.terminal:
        return wire.encode_event(event).decode() + "\n"
    return event.as_text()

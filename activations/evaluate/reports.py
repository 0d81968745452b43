"""Reports of a worker as events and errors."""

from __future__ import annotations

from typing import Final

from activations.evaluate.events import Display, Stderr, Stdout, Value
from activations.evaluate.worker_process import Report
from plexus import Failed, Image

__all__ = ("error_of", "event_of")

#: Media types of `image` events.
PICTURES: Final = ("image/png", "image/jpeg", "image/gif", "image/webp")


def event_of(report: Report) -> Stdout | Stderr | Display | Image | Value | None:
    """Return the event of a report."""
    text = str(report.get("text") or "")
    match report["op"]:
        case "stdout":
            return Stdout(text)
        case "stderr":
            return Stderr(text)
        case "result":
            return Value(text, str(report.get("kind")))
        case "display":
            media, data = str(report.get("media")), str(report.get("data"))
            return Image(data, media) if media in PICTURES else Display(media, data, text)
    return None


def error_of(report: Report) -> Failed:
    """Return the error of code that has raised an exception."""
    name, value = str(report.get("name")), str(report.get("value"))
    trace = str(report.get("traceback"))
    summary = f"{name}: {value}" if value else name
    message = f"{summary}\n\n{trace}".rstrip()
    data = {"ename": name, "evalue": value, "traceback": trace}
    return Failed(message, code="exception", data=data)

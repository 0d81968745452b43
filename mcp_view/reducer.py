"""The one reducer: events in, the content of a result out.

Text of all kinds is joined into one block, which comes first; pictures, sounds, resources and
what tools were used are blocks of their own, in their order. What a failed run has said so far
is kept, and why it failed comes last. A client that gets progress sees the steps on the
way (`mcp_view.progress`); the last value is the same for everybody.

Memory is bounded: of a text beyond the limit the head and the tail are kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from mcp_view.revisions import Revision
from plexus.events import (
    MEDIA,
    Audio,
    Content,
    Detached,
    Event,
    Gap,
    Image,
    Log,
    Progress,
    QuestionAsked,
    Resource,
    Result,
    Start,
    Terminal,
    ToolResult,
    ToolUse,
)
from plexus.rpc import wire
from plexus.runtime.log import Batch
from plexus.text import head_and_tail

__all__ = ("Block", "Reducer", "content_block", "text_only_result")

Block = dict[str, Any]

#: What a result says of a run that said nothing: some hosts refuse an empty text.
NO_OUTPUT: Final = "(no output)"


#: What is always kept of a block of text that is not joined to the rest, if there is available for it.
SIDE_CHARS: Final = 500


class Reducer:
    """What a run has said so far, as a result would have it."""

    __slots__ = (
        "_block_bytes",
        "_block_limit",
        "_blocks",
        "_head",
        "_limit",
        "_omitted_blocks",
        "_side_chars",
        "_size",
        "_tail",
        "_tail_size",
        "revision",
        "side_events",
    )

    def __init__(self, revision: Revision, text_limit: int, block_limit: int) -> None:
        self.revision = revision
        self._limit = text_limit
        self._block_limit = block_limit
        #: The text, until it is over the limit; from then on its first half.
        self._head: list[str] = []
        self._size = 0
        #: The end of a text that is over the limit.
        self._tail: deque[str] | None = None
        self._tail_size = 0
        self._blocks: list[Block] = []
        self._block_bytes = 0
        self._omitted_blocks = 0
        #: Characters in blocks of text beside the text itself.
        self._side_chars = 0
        #: Events that are not part of the result, for the call to handle.
        self.side_events: list[Event] = []

    def add_batch(self, batch: Batch) -> None:
        """Take these items; the bytes are for events that have no other form."""
        adders, texts = _adders, []
        for event, raw in zip(batch.events, batch.payloads, strict=True):
            adder = adders[event.__class__]
            if adder is _text:
                texts.append(event.as_text())
                continue
            if texts:
                self.add_text("".join(texts))
                texts = []
            adder(self, event, raw)
        if texts:
            self.add_text("".join(texts))

    def add_text(self, text: str) -> None:
        """Join this to the text so far."""
        self._size += len(text)
        if self._tail is None:
            self._head.append(text)
            if self._size > self._limit:
                self._split_tail()
            return
        self._tail.append(text)
        self._tail_size += len(text)
        keep = self._limit - self._limit // 2
        while self._tail_size - len(self._tail[0]) >= keep:
            self._tail_size -= len(self._tail.popleft())

    def add_block(self, block: Block, size: int) -> None:
        """Add something that is no text, as long as it fits."""
        self._block_bytes += size
        if self._block_bytes > self._block_limit:
            self._omitted_blocks += 1
        else:
            self._blocks.append(block)

    def add_side_text(self, text: str) -> None:
        """Add a block of text that is not joined to the rest; long ones keep head and tail.

        All of them share a quarter of the limit, so that the text itself keeps most of it.
        """
        available = self._limit // 4 - self._side_chars
        if available < len(text) and available < SIDE_CHARS:
            self._omitted_blocks += 1
            return
        text = head_and_tail(text, min(available, max(self._limit // 16, SIDE_CHARS)))
        self._side_chars += len(text)
        self.add_block({"type": "text", "text": text}, len(text))

    def _split_tail(self) -> None:
        whole = "".join(self._head)
        half = self._limit // 2
        self._head = [whole[:half]]
        rest = whole[half:]
        self._tail = deque([rest])
        self._tail_size = len(rest)

    @property
    def is_truncated(self) -> bool:
        """Whether some of the text is left out."""
        return self._size > self._limit - self._side_chars

    def text(self, log_uri: str) -> str:
        """The text so far. If some of it is left out, it says how much, and where the rest is."""
        head = "".join(self._head)
        if not self.is_truncated:
            return head
        tail = head if self._tail is None else "".join(self._tail)
        available = self._limit - self._side_chars
        half = available // 2
        head, tail = head[:half], tail[-(available - half) :]
        omitted = self._size - len(head) - len(tail)
        note = f"\n[... {omitted} characters left out; the whole output is {log_uri} ...]\n"
        return head + note + tail

    def blocks(self, log_uri: str) -> list[Block]:
        """What was said so far."""
        text = self.text(log_uri)
        blocks = self._blocks
        if text:
            blocks = [{"type": "text", "text": text}, *blocks]
        if self._omitted_blocks:
            note = f"[{self._omitted_blocks} more that do not fit are left out]"
            blocks = [*blocks, {"type": "text", "text": note}]
        if self.is_truncated and self.revision.links:
            link = {"type": "resource_link", "uri": log_uri, "name": log_uri}
            link |= {"description": "The whole output of this run", "mimeType": "text/plain"}
            blocks = [*blocks, link]
        return blocks

    def result(self, terminal: Terminal, run: int) -> bytes:
        """Return what the result of a tool says, as the inside of a JSON object."""
        content = wire.encode(self.content(terminal, f"run://{run}"))
        return b'"content":%b,"isError":%b' % (content, b"true" if terminal.failed else b"false")

    def content(self, terminal: Terminal, log_uri: str) -> list[Block]:
        """The blocks of the result."""
        blocks = self.blocks(log_uri)
        if terminal.failed:
            why = (
                terminal.as_text() or terminal.as_line() or _terminal_fields(terminal) or NO_OUTPUT
            )
            return [*blocks, {"type": "text", "text": why}]
        if blocks:
            return blocks
        return [{"type": "text", "text": _terminal_fields(terminal) or NO_OUTPUT}]


def _terminal_fields(terminal: Terminal) -> str:
    """What a terminal says when nothing else was said: its own fields."""
    if isinstance(terminal, Result) or not terminal.__class__.fields:
        return ""  # a value that there is has been said already
    fields = wire.decode_plain(terminal)
    del fields["type"]
    return wire.encode(fields).decode()


def text_only_result(batch: Batch, limit: int) -> bytes | None:
    """The text, as JSON, of a run that begins and ends with these items and says nothing but
    text; None if it says more than that, or too much. It gives what a reducer would give."""
    *events, terminal = batch.events
    if terminal.failed:  # type: ignore[attr-defined]  # the last is the terminal
        return None
    if events:
        if any(event.__class__ is not Content for event in events):
            return None
        text = "".join([event.text for event in events])  # type: ignore[attr-defined]  # as above
        value = terminal.result if isinstance(terminal, Result) else None
        if value is not None or not text:
            return None
    elif terminal.__class__ is Result:
        value = terminal.result
        if value is None or (value.__class__ is not str and isinstance(value, Event | list)):
            return None
        text = _text_of(value)
    else:
        return None
    return wire.encode(text) if 0 < len(text) <= limit else None


def _text_of(value: Any) -> str:
    """Return the value of a plain method as text: JSON, without quotes if that is a text itself, as
    for a path or a date."""
    if value.__class__ is str:
        text: str = value
        return text
    raw = wire.encode(value)
    return str(wire.decode_plain(value)) if raw.startswith(b'"') else raw.decode()


# --- events -----------------------------------------------------------------------------------

Adder = Callable[[Reducer, Any, bytes], None]


def _skip(_: Reducer, __: Event, ___: bytes) -> None:
    """An event that says how the work goes and is no part of what came of it."""


def _side_event(reducer: Reducer, event: Event, _: bytes) -> None:
    reducer.side_events.append(event)


def _text(reducer: Reducer, event: Event, _: bytes) -> None:
    text = event.as_text()
    if text:
        reducer.add_text(text)


def _result(reducer: Reducer, event: Result, _: bytes) -> None:
    """The value of a plain method: text and media as they are, everything else as JSON."""
    value = event.result
    media = value if isinstance(value, list) and value else [value]
    if all(isinstance(each, MEDIA) for each in media):
        for each in media:
            _adders[each.__class__](reducer, each, wire.encode_event(each))
    elif value is not None:
        reducer.add_text(_text_of(value))


def _data(reducer: Reducer, _: Event, raw: bytes) -> None:
    """An event that a person could not read and that is no block: its JSON, on a line."""
    reducer.add_text(raw.decode() + "\n")


def _gap(reducer: Reducer, event: Gap, _: bytes) -> None:
    reducer.add_text(event.as_line() + "\n")


def _tool_use(reducer: Reducer, event: ToolUse, _: bytes) -> None:
    reducer.add_side_text(f"[Tool: {event.tool_name}] {wire.encode(event.input).decode()}")


def _tool_result(reducer: Reducer, event: ToolResult, _: bytes) -> None:
    label = "Tool failed" if event.is_error else "Tool result"
    reducer.add_side_text(f"[{label}] {event.output}")


def _medium(reducer: Reducer, event: Image | Audio | Resource, raw: bytes) -> None:
    reducer.add_block(content_block(event, reducer.revision), len(raw))


def content_block(event: Event, revision: Revision) -> Block:
    """Content, a picture, a sound or a resource as a block that this revision has."""
    if isinstance(event, Image):
        return {"type": "image", "data": event.data, "mimeType": event.mime_type}
    if isinstance(event, Audio) and revision.audio:
        return {"type": "audio", "data": event.data, "mimeType": event.mime_type}
    if isinstance(event, Resource):
        return _resource_block(event, revision)
    return {"type": "text", "text": event.as_text() or event.as_line()}


def _resource_block(event: Resource, revision: Revision) -> Block:
    """A resource with its content is embedded; one without is a link, or a line of text."""
    kind = {} if event.mime_type is None else {"mimeType": event.mime_type}
    for key, value in (("text", event.content), ("blob", event.blob)):
        if value is not None:
            return {"type": "resource", "resource": {"uri": event.uri, **kind, key: value}}
    if not revision.links:
        return {"type": "text", "text": event.as_line()}
    return {"type": "resource_link", "uri": event.uri, "name": event.name or event.uri, **kind}


#: Events with a form of their own here; a subclass has that of its base.
_KNOWN: Final[dict[type[Event], Adder]] = {
    Content: _text,
    Start: _skip,
    Progress: _skip,
    Log: _side_event,
    QuestionAsked: _side_event,
    Detached: _side_event,
    Gap: _gap,
    ToolUse: _tool_use,
    ToolResult: _tool_result,
    Image: _medium,
    Audio: _medium,
    Resource: _medium,
    Result: _result,
    Terminal: _skip,
}


class _Adders(dict[type[Event], Adder]):
    """By class of event, what is done with it; found when one is seen for the first time."""

    def __missing__(self, event_class: type[Event]) -> Adder:
        known = next((_KNOWN[base] for base in event_class.__mro__ if base in _KNOWN), None)
        if known is None:
            known = _text if event_class.speaks else _data
        self[event_class] = known
        return known


_adders: Final = _Adders()

"""The reducer: events in, the content of a result out.

Text is joined into one block, which is first. Images, audio, resources and tool uses follow as
separate blocks in their order. The result of a failed run contains its output so far, and the error
last. Clients with progress notifications (`mcp_view.progress`) get the same result as all others.

Memory is bounded: text above the limit keeps its head and tail.
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
    ContentResult,
    Data,
    Detached,
    Event,
    Gap,
    Image,
    Log,
    Progress,
    QuestionAnswered,
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

__all__ = ("Block", "Reducer", "content_block", "supported_block", "text_only_result")

Block = dict[str, Any]

#: The text of a result without output, because some hosts reject an empty text.
NO_OUTPUT: Final = "(no output)"

#: Minimum characters kept of a separate text block, if it fits at all.
SIDE_CHARS: Final = 500


class Reducer:
    """The output of a run so far, as content of a result."""

    __slots__ = (
        "_block_bytes",
        "_block_limit",
        "_blocks",
        "_exact",
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
        #: The text up to the limit; above the limit its first half.
        self._head: list[str] = []
        self._size = 0
        #: The end of a text above the limit.
        self._tail: deque[str] | None = None
        self._tail_size = 0
        self._blocks: list[Block] = []
        #: The blocks of a result that another server sent, which are not joined.
        self._exact: list[Block] = []
        self._block_bytes = 0
        self._omitted_blocks = 0
        #: Characters in separate text blocks.
        self._side_chars = 0
        #: Events that are not part of the result, for the call to handle.
        self.side_events: list[Event] = []

    def add_batch(self, batch: Batch) -> None:
        """Add the items of a batch. Events without another form are added as JSON."""
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
        """Append to the text."""
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
        """Add a block of this size, if it fits."""
        self._block_bytes += size
        if self._block_bytes > self._block_limit:
            self._omitted_blocks += 1
        else:
            self._blocks.append(block)

    def add_content(self, blocks: list[Block], size: int) -> None:
        """Add the blocks of another server: unchanged, unless they exceed a limit."""
        texts = [block.get("text", "") for block in blocks if block.get("type") == "text"]
        fits = sum(map(len, texts)) + self._size <= self._limit
        if fits and self._block_bytes + size <= self._block_limit:
            self._exact += [supported_block(block, self.revision) for block in blocks]
            self._block_bytes += size
            return
        for block in blocks:
            if block.get("type") == "text":
                self.add_text(block.get("text", "") + "\n")
            else:
                self.add_block(supported_block(block, self.revision), len(wire.encode(block)))

    def add_side_text(self, text: str) -> None:
        """Add a separate text block. A long text keeps its head and tail.

        Separate blocks share a quarter of the limit, so that most of it remains for the output.
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
        """Whether some of the text is omitted."""
        return self._size > self._limit - self._side_chars

    def text(self, log_uri: str) -> str:
        """Return the text, with a note of its omitted part and where to read all of it."""
        head = "".join(self._head)
        if not self.is_truncated:
            return head
        tail = head if self._tail is None else "".join(self._tail)
        available = self._limit - self._side_chars
        half = available // 2
        head, tail = head[:half], tail[-(available - half) :]
        omitted = self._size - len(head) - len(tail)
        note = f"\n[... {omitted} characters omitted; full output: {log_uri} ...]\n"
        return head + note + tail

    def blocks(self, log_uri: str) -> list[Block]:
        """Return the blocks of the output so far."""
        text = self.text(log_uri)
        blocks = self._blocks
        if text:
            blocks = [{"type": "text", "text": text}, *blocks]
        if self._exact:
            blocks = [*blocks, *self._exact]
        if self._omitted_blocks:
            note = f"[{self._omitted_blocks} more blocks omitted: the result is full]"
            blocks = [*blocks, {"type": "text", "text": note}]
        if self.is_truncated and self.revision.links:
            link = {"type": "resource_link", "uri": log_uri, "name": log_uri}
            link |= {"description": "Full output of this run", "mimeType": "text/plain"}
            blocks = [*blocks, link]
        return blocks

    def result(self, terminal: Terminal, run: int) -> bytes:
        """Return the fields of a tool result, without the braces of the JSON object."""
        content = wire.encode(self.content(terminal, f"run://{run}"))
        return b'"content":%b,"isError":%b' % (content, b"true" if terminal.failed else b"false")

    def content(self, terminal: Terminal, log_uri: str) -> list[Block]:
        """Return the blocks of the result of an ended run."""
        blocks = self.blocks(log_uri)
        if terminal.__class__ is ContentResult:
            return blocks
        if terminal.failed:
            why = (
                terminal.as_text() or terminal.as_line() or _terminal_fields(terminal) or NO_OUTPUT
            )
            return [*blocks, {"type": "text", "text": why}]
        if blocks:
            return blocks
        return [{"type": "text", "text": _terminal_fields(terminal) or NO_OUTPUT}]


def _terminal_fields(terminal: Terminal) -> str:
    """Return the fields of a terminal as JSON, for a run without other output."""
    if isinstance(terminal, Result) or not terminal.__class__.fields:
        return ""  # a result is already part of the text
    fields = wire.decode_plain(terminal)
    del fields["type"]
    return wire.encode(fields).decode()


def text_only_result(batch: Batch, limit: int) -> bytes | None:
    """Return the encoded text of a run whose only batch contains nothing but text.

    None if it contains anything else or exceeds the limit. Equals the text of a reducer.
    """
    *events, terminal = batch.events
    if terminal.failed:  # type: ignore[attr-defined]  # the last event is the terminal
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
    """Return the value of a plain method as text.

    That is JSON, but without quotes if the JSON is a string, as for a path or a date.
    """
    if value.__class__ is str:
        text: str = value
        return text
    raw = wire.encode(value)
    return str(wire.decode_plain(value)) if raw.startswith(b'"') else raw.decode()


# --- events -----------------------------------------------------------------------------------

Adder = Callable[[Reducer, Any, bytes], None]


def _skip(_: Reducer, __: Event, ___: bytes) -> None:
    """Skip an event that is not part of the result, such as progress."""


def _side_event(reducer: Reducer, event: Event, _: bytes) -> None:
    reducer.side_events.append(event)


def _text(reducer: Reducer, event: Event, _: bytes) -> None:
    text = event.as_text()
    if text:
        reducer.add_text(text)


def _result(reducer: Reducer, event: Result, _: bytes) -> None:
    """Add the value of a plain method: text and media as such, everything else as JSON."""
    value = event.result
    media = value if isinstance(value, list) and value else [value]
    if all(isinstance(each, MEDIA) for each in media):
        for each in media:
            _adders[each.__class__](reducer, each, wire.encode_event(each))
    elif value is not None:
        reducer.add_text(_text_of(value))


def _content_result(reducer: Reducer, event: ContentResult, raw: bytes) -> None:
    reducer.add_content(event.content, len(raw))


def _data(reducer: Reducer, _: Event, raw: bytes) -> None:
    """Add an event without text or block form as a line of JSON."""
    reducer.add_text(raw.decode() + "\n")


def _value(reducer: Reducer, event: Data, _: bytes) -> None:
    """A value that was yielded: its JSON on a line, or its text if it is one."""
    reducer.add_text(_text_of(event.value) + "\n")


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
    """Return content, an image, audio or a resource as a block that this revision supports."""
    if isinstance(event, Image):
        return {"type": "image", "data": event.data, "mimeType": event.mime_type}
    if isinstance(event, Audio) and revision.audio:
        return {"type": "audio", "data": event.data, "mimeType": event.mime_type}
    if isinstance(event, Resource):
        return _resource_block(event, revision)
    return {"type": "text", "text": event.as_text() or event.as_line()}


def supported_block(block: Block, revision: Revision) -> Block:
    """Return a content block that another server sent, in a form that this revision supports."""
    kind = block.get("type")
    if kind == "audio" and not revision.audio:
        return {"type": "text", "text": f"[audio {block.get('mimeType', '')}]"}
    if kind == "resource_link" and not revision.links:
        return {"type": "text", "text": f"[resource {block.get('uri', '')}]"}
    return block


def _resource_block(event: Resource, revision: Revision) -> Block:
    """Embed a resource with content. Without content it is a link, or a line of text."""
    kind = {} if event.mime_type is None else {"mimeType": event.mime_type}
    for key, value in (("text", event.content), ("blob", event.blob)):
        if value is not None:
            return {"type": "resource", "resource": {"uri": event.uri, **kind, key: value}}
    if not revision.links:
        return {"type": "text", "text": event.as_line()}
    return {"type": "resource_link", "uri": event.uri, "name": event.name or event.uri, **kind}


#: How events are added; subclasses inherit from their base.
_KNOWN: Final[dict[type[Event], Adder]] = {
    Content: _text,
    Data: _value,
    Start: _skip,
    Progress: _skip,
    Log: _side_event,
    QuestionAsked: _side_event,
    QuestionAnswered: _skip,
    Detached: _side_event,
    Gap: _gap,
    ToolUse: _tool_use,
    ToolResult: _tool_result,
    Image: _medium,
    Audio: _medium,
    Resource: _medium,
    Result: _result,
    ContentResult: _content_result,
    Terminal: _skip,
}


class _Adders(dict[type[Event], Adder]):
    """The adder of each event class, resolved at its first use."""

    def __missing__(self, event_class: type[Event]) -> Adder:
        known = next((_KNOWN[base] for base in event_class.__mro__ if base in _KNOWN), None)
        if known is None:
            known = _text if event_class.has_text else _data
        self[event_class] = known
        return known


_adders: Final = _Adders()

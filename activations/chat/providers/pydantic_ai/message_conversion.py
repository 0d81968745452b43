"""Conversion between chat messages and pydantic-ai: requests, response parts, stream events.

Servers are stricter than a stored conversation: each tool call must be followed immediately by its
result, and reasoning is sent back complete and signed to the model that produced it, or omitted.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from activations.chat.message import Message
from activations.chat.providers.endpoints import Dialect, Endpoint
from activations.chat.providers.provider import (
    Delta,
    Stop,
    Text,
    ThinkingText,
    TokenUsage,
    ToolCall,
)

if TYPE_CHECKING:  # heavy and optional: imported when first used
    from pydantic_ai.messages import (
        ModelMessage,
        ModelRequestPart,
        ModelResponsePart,
        ModelResponseStreamEvent,
        ThinkingPart,
        ToolCallPart,
        ToolReturnPart,
        UserContent,
    )
    from pydantic_ai.models import StreamedResponse

__all__ = ("ResponseReader", "model_messages")

NOT_RUN = "This tool was not run: the turn ended first."
SUMMARY = "Summary of the conversation so far, which is too long to be included:\n\n"

IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
#: The file types that a server accepts. For other files the model gets only a note.
ACCEPTED_TYPES: dict[Dialect, tuple[str, ...]] = {
    "anthropic": (*IMAGES, "application/pdf"),
    "openai": (*IMAGES, "application/pdf", "audio/wav", "audio/x-wav", "audio/mpeg", "audio/mp3"),
    "compatible": (*IMAGES, "application/pdf", "audio/wav", "audio/x-wav", "audio/mpeg"),
    "google": ("image/", "application/pdf", "audio/", "video/"),
}
#: Aliases of MIME types, and the names that pydantic-ai supports.
MIME_ALIASES = {"image/jpg": "image/jpeg", "audio/x-wav": "audio/wav", "audio/mp3": "audio/mpeg"}

#: The key of the provider's data in the metadata of a message, and its maximum size. The metadata
#: of a node is limited to 64 KiB; reasoning whose signature does not fit is not sent back.
META = "provider"
META_CHARACTERS = 48_000


def model_messages(
    messages: Sequence[Message], model: str, dialect: Dialect, system: str
) -> list[ModelMessage]:
    """Convert a conversation for a model "provider:model" of the pydantic-ai provider `system`."""
    from pydantic_ai.messages import TextPart, UserPromptPart

    builder = _ConversationBuilder(system)
    results = _Results(messages)
    files: list[UserContent] = []
    for index, message in enumerate(messages):
        text, meta = message.text, message.meta
        if message.kind == "attachment":
            files.append(_attachment_content(message, dialect))
        elif message.kind in ("user", "summary"):
            prompt = text if message.kind == "user" else SUMMARY + text
            builder.add_request(UserPromptPart([*files, prompt] if files else prompt))
            files = []
        elif message.kind == "assistant":
            if text.strip():
                builder.add_response(TextPart(text))
        elif message.kind == "thinking":
            if meta.get("model") == model:
                for part in _thinking_parts(text, meta, system):
                    builder.add_response(part)
        elif message.kind == "tool_use":
            call = _tool_call_part(message, system if meta.get("model") == model else None)
            builder.add_tool_call(call, results.take(call.tool_call_id, index, call.tool_name))
    return builder.messages()


class _ConversationBuilder:
    """Builder of alternating requests and responses."""

    def __init__(self, system: str) -> None:
        self._system = system
        self._messages: list[ModelMessage] = []
        self._response_parts: list[ModelResponsePart] = []
        self._request_parts: list[ModelRequestPart] = []
        #: The results of the tool calls in the current response.
        self._results: list[ToolReturnPart] = []

    def add_request(self, part: ModelRequestPart) -> None:
        self._end_response()
        self._request_parts.append(part)

    def add_response(self, part: ModelResponsePart) -> None:
        if self._results:  # the model had the results when it continued
            self._end_response()
        self._end_request()
        self._response_parts.append(part)

    def add_tool_call(self, part: ToolCallPart, result: ToolReturnPart) -> None:
        self._end_request()
        self._response_parts.append(part)
        self._results.append(result)

    def messages(self) -> list[ModelMessage]:
        self._end_response()
        self._end_request()
        return self._messages

    def _end_response(self) -> None:
        from pydantic_ai.messages import ModelResponse

        if self._response_parts:
            self._messages.append(ModelResponse(self._response_parts, provider_name=self._system))
            self._request_parts += self._results
            self._response_parts, self._results = [], []

    def _end_request(self) -> None:
        from pydantic_ai.messages import ModelRequest

        if self._request_parts:
            self._messages.append(ModelRequest(self._request_parts))
            self._request_parts = []


class _Results:
    """Tool results by tool call; some servers use an id more than once."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._by_id: dict[str, list[tuple[int, Message]]] = {}
        for index, message in enumerate(messages):
            if message.kind == "tool_result":
                call_id = str(message.meta.get("tool_use_id", ""))
                self._by_id.setdefault(call_id, []).append((index, message))

    def take(self, call_id: str, after: int, name: str) -> ToolReturnPart:
        from pydantic_ai.messages import ToolReturnPart

        waiting = self._by_id.get(call_id, [])
        while waiting:
            index, message = waiting.pop(0)
            if index > after:
                failed = bool(message.meta.get("is_error"))
                return ToolReturnPart(
                    name, message.text, call_id, outcome="failed" if failed else "success"
                )
        return ToolReturnPart(name, NOT_RUN, call_id, outcome="failed")


def _tool_call_part(message: Message, system: str | None) -> ToolCallPart:
    from pydantic_ai.messages import ToolCallPart

    meta = message.meta
    stored = meta.get(META)
    details = stored.get("details") if system and isinstance(stored, dict) else None
    return ToolCallPart(
        _tool_name(meta.get("tool_name")),
        message.text,
        str(meta.get("tool_use_id", "")),
        provider_name=system if details else None,
        provider_details=details,
    )


def _tool_name(name: object) -> str:
    """Return a tool name with only the characters that model APIs allow."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", str(name or "tool"))[:64]


def _attachment_content(message: Message, dialect: Dialect) -> UserContent:
    from pydantic_ai.messages import BinaryContent

    name = message.meta.get("name") or "a file"
    if message.meta.get("encoding") != "base64":
        return f"Attached file {name}:\n\n{message.text}"
    declared = str(message.meta.get("mime_type") or "")
    mime_type = declared.partition(";")[0].strip().lower()
    if not mime_type.startswith(ACCEPTED_TYPES[dialect]):
        return f"(The attached file {name}, {declared}, is not shown: the model cannot read it.)"
    try:
        data = base64.b64decode(message.text, validate=True)
    except binascii.Error:
        return f"(The attached file {name} is not shown: its data is damaged.)"
    return BinaryContent(data, media_type=MIME_ALIASES.get(mime_type, mime_type))


# --- reasoning -----------------------------------------------------------------------------------


def _thinking_meta(parts: Sequence[ThinkingPart]) -> dict[str, Any] | None:
    """Return the metadata that is needed to send reasoning of one or more parts back."""
    stored = [
        {
            "length": len(part.content),
            **{
                name: value
                for name, value in (
                    ("id", part.id),
                    ("signature", part.signature),
                    ("details", part.provider_details),
                )
                if value
            },
        }
        for part in parts
    ]
    return _bounded({"parts": stored}) if any(len(each) > 1 for each in stored) else None


def _tool_meta(part: ToolCallPart) -> dict[str, Any] | None:
    """Return the metadata that is needed to send a tool call back."""
    return _bounded({"details": part.provider_details}) if part.provider_details else None


def _bounded(stored: dict[str, Any]) -> dict[str, Any] | None:
    return {META: stored} if len(str(stored)) <= META_CHARACTERS else None


def _thinking_parts(text: str, meta: Mapping[str, Any], system: str) -> Iterator[ThinkingPart]:
    """Yield the original parts of reasoning; none if it was changed or need not be sent back."""
    from pydantic_ai.messages import ThinkingPart

    stored = meta.get(META)
    parts = stored.get("parts", ()) if isinstance(stored, dict) else ()
    if sum(part["length"] for part in parts) != len(text):
        return
    start = 0
    for part in parts:
        content = text[start : start + part["length"]]
        start += part["length"]
        # Reasoning that was parsed from tags in the text has only the id "content"; omit it.
        if part.get("signature") or part.get("details") or part.get("id") not in (None, "content"):
            yield ThinkingPart(
                content,
                id=part.get("id"),
                signature=part.get("signature"),
                provider_name=system,
                provider_details=part.get("details"),
            )


# --- responses-----------------------------------------------------------------------------------

#: Our stop reasons, by pydantic-ai's finish reasons.
STOP_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_call": "tool_use",
    "content_filter": "refusal",
}


class ResponseReader:
    """Converter from the events of a response to deltas."""

    def __init__(self, endpoint: Endpoint, response: StreamedResponse) -> None:
        from pydantic_ai import messages

        self._kinds = messages
        self._endpoint = endpoint
        self._response = response
        self._usage = TokenUsage()
        self._has_text = False
        #: The parts of the current reasoning, which is one message until text follows.
        self._thinking: list[ThinkingPart] = []

    def read(self, event: ModelResponseStreamEvent) -> Iterator[Delta]:
        """Yield the deltas of an event."""
        kinds = self._kinds
        if self._usage == TokenUsage():  # input tokens are known early, output tokens at the end
            yield from self._usage_delta()
        if isinstance(event, kinds.PartStartEvent):
            if isinstance(event.part, kinds.TextPart):
                self._thinking = []
                yield from self._text(event.part.content)
            elif isinstance(event.part, kinds.ThinkingPart) and event.part.content:
                yield ThinkingText(event.part.content)
        elif isinstance(event, kinds.PartDeltaEvent):
            if isinstance(event.delta, kinds.TextPartDelta):
                yield from self._text(event.delta.content_delta)
            elif isinstance(event.delta, kinds.ThinkingPartDelta) and event.delta.content_delta:
                yield ThinkingText(event.delta.content_delta)
        elif isinstance(event, kinds.PartEndEvent) and isinstance(event.part, kinds.ThinkingPart):
            self._thinking.append(event.part)
            meta = _thinking_meta(self._thinking)
            if meta is not None:
                yield ThinkingText("", meta)

    def end(self) -> Iterator[Delta]:
        """Yield the deltas at the end of the stream. Raises if it ended too early."""
        from pydantic_ai.exceptions import UnexpectedModelBehavior

        response = self._response
        details = response.provider_details or {}
        reason = details.get("finish_reason")
        if reason is None and response.finish_reason is None:
            raise UnexpectedModelBehavior("the stream ended before the answer was complete")
        if self._endpoint.dialect == "anthropic" and isinstance(reason, str):
            stop_reason = reason
        else:
            stop_reason = STOP_REASONS.get(response.finish_reason or "") or str(reason).lower()
        refusal = details.get("refusal")
        if not self._has_text and isinstance(refusal, str):
            yield from self._text(refusal)
        for part in response.get().parts:
            if isinstance(part, self._kinds.ToolCallPart):
                arguments = _arguments(part)
                if arguments is None:
                    if stop_reason == "max_tokens":  # it was cut off and cannot be used
                        continue
                    arguments = {"_raw": str(part.args)}
                if stop_reason == "end_turn":  # some servers report only "stop"
                    stop_reason = "tool_use"
                yield ToolCall(part.tool_call_id, part.tool_name, arguments, _tool_meta(part))
        yield from self._usage_delta()
        yield Stop(stop_reason)

    def _text(self, text: str) -> Iterator[Delta]:
        if text:
            self._has_text = True
            yield Text(text)

    def _usage_delta(self) -> Iterator[Delta]:
        usage = self._response.usage
        used = TokenUsage(
            usage.input_tokens,
            usage.output_tokens,
            usage.cache_read_tokens,
            usage.cache_write_tokens,
        )
        if used != self._usage:
            self._usage = used
            yield used


def _arguments(part: ToolCallPart) -> dict[str, Any] | None:
    """Return the arguments of a tool call; None if they are not a JSON object."""
    try:
        return part.args_as_dict(raise_if_invalid=True)
    except (ValueError, AssertionError):
        return None

"""A conversation as the adapter takes it: requests and responses made of parts.

Servers are strict where a conversation is not: each use of a tool is followed by its result at
once, and a thought is given back whole and signed, to the model that had it, or not at all.
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

NOT_RUN = "This tool was not run: the turn was ended before."
SUMMARY = "This is a summary of the conversation so far, which is too long to be repeated:\n\n"

IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
#: Which files a server takes. For another, the model is told that it is there.
TAKES: dict[Dialect, tuple[str, ...]] = {
    "anthropic": (*IMAGES, "application/pdf"),
    "openai": (*IMAGES, "application/pdf", "audio/wav", "audio/x-wav", "audio/mpeg", "audio/mp3"),
    "compatible": (*IMAGES, "application/pdf", "audio/wav", "audio/x-wav", "audio/mpeg"),
    "google": ("image/", "application/pdf", "audio/", "video/"),
}
#: Other names of the same, as the adapter knows them.
SAME_AS = {"image/jpg": "image/jpeg", "audio/x-wav": "audio/wav", "audio/mp3": "audio/mpeg"}

#: What of the metadata of a message is the provider's. The whole of it is kept with a node, which
#: takes 64 KiB; a signature that does not fit is left out, and so is then what it signs.
META = "provider"
META_CHARACTERS = 48_000


def model_messages(
    messages: Sequence[Message], model: str, dialect: Dialect, system: str
) -> list[ModelMessage]:
    """The conversation for a model ("provider:model") of a server that calls itself `system`."""
    from pydantic_ai.messages import TextPart, UserPromptPart

    talk = _Exchange(system)
    results = _Results(messages)
    files: list[UserContent] = []
    for index, message in enumerate(messages):
        text, meta = message.text, message.meta
        if message.kind == "attachment":
            files.append(_file(message, dialect))
        elif message.kind in ("user", "summary"):
            said = text if message.kind == "user" else SUMMARY + text
            talk.ask(UserPromptPart([*files, said] if files else said))
            files = []
        elif message.kind == "assistant":
            if text.strip():
                talk.answer(TextPart(text))
        elif message.kind == "thinking":
            if meta.get("model") == model:
                for thought in _thoughts(text, meta, system):
                    talk.answer(thought)
        elif message.kind == "tool_use":
            use = _use(message, system if meta.get("model") == model else None)
            talk.use(use, results.take(use.tool_call_id, index, use.tool_name))
    return talk.messages()


class _Exchange:
    """Requests and responses in turn, growing at their end."""

    def __init__(self, system: str) -> None:
        self._system = system
        self._messages: list[ModelMessage] = []
        self._answered: list[ModelResponsePart] = []
        self._asked: list[ModelRequestPart] = []
        #: The results of the tools that the growing response uses.
        self._results: list[ToolReturnPart] = []

    def ask(self, part: ModelRequestPart) -> None:
        self._end_response()
        self._asked.append(part)

    def answer(self, part: ModelResponsePart) -> None:
        if self._results:  # what follows a tool's use has seen its result
            self._end_response()
        self._end_request()
        self._answered.append(part)

    def use(self, part: ToolCallPart, result: ToolReturnPart) -> None:
        self._end_request()
        self._answered.append(part)
        self._results.append(result)

    def messages(self) -> list[ModelMessage]:
        self._end_response()
        self._end_request()
        return self._messages

    def _end_response(self) -> None:
        from pydantic_ai.messages import ModelResponse

        if self._answered:
            self._messages.append(ModelResponse(self._answered, provider_name=self._system))
            self._asked += self._results
            self._answered, self._results = [], []

    def _end_request(self) -> None:
        from pydantic_ai.messages import ModelRequest

        if self._asked:
            self._messages.append(ModelRequest(self._asked))
            self._asked = []


class _Results:
    """What tools answered, each to be taken by its use; some servers use an id again."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._by_id: dict[str, list[tuple[int, Message]]] = {}
        for index, message in enumerate(messages):
            if message.kind == "tool_result":
                use = str(message.meta.get("tool_use_id", ""))
                self._by_id.setdefault(use, []).append((index, message))

    def take(self, use: str, after: int, name: str) -> ToolReturnPart:
        from pydantic_ai.messages import ToolReturnPart

        waiting = self._by_id.get(use, [])
        while waiting:
            index, message = waiting.pop(0)
            if index > after:
                failed = bool(message.meta.get("is_error"))
                return ToolReturnPart(
                    name, message.text, use, outcome="failed" if failed else "success"
                )
        return ToolReturnPart(name, NOT_RUN, use, outcome="failed")


def _use(message: Message, system: str | None) -> ToolCallPart:
    from pydantic_ai.messages import ToolCallPart

    meta = message.meta
    kept = meta.get(META)
    details = kept.get("details") if system and isinstance(kept, dict) else None
    return ToolCallPart(
        _tool_name(meta.get("tool_name")),
        message.text,
        str(meta.get("tool_use_id", "")),
        provider_name=system if details else None,
        provider_details=details,
    )


def _tool_name(name: object) -> str:
    """A tool's name as models take it."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", str(name or "tool"))[:64]


def _file(message: Message, dialect: Dialect) -> UserContent:
    from pydantic_ai.messages import BinaryContent

    name = message.meta.get("name") or "a file"
    if message.meta.get("encoding") != "base64":
        return f"The attached file {name}:\n\n{message.text}"
    given = str(message.meta.get("mime_type") or "")
    mime_type = given.partition(";")[0].strip().lower()
    if not mime_type.startswith(TAKES[dialect]):
        return f"(The file {name}, {given}, is attached, but this model takes no such files.)"
    try:
        data = base64.b64decode(message.text, validate=True)
    except binascii.Error:
        return f"(The file {name} is attached, but it is damaged.)"
    return BinaryContent(data, media_type=SAME_AS.get(mime_type, mime_type))


# --- thoughts ------------------------------------------------------------------------------------


def _thinking_meta(parts: Sequence[ThinkingPart]) -> dict[str, Any] | None:
    """What is kept with a thought, which may have come as several parts, to give it back."""
    kept = [
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
    return _fitting({"parts": kept}) if any(len(each) > 1 for each in kept) else None


def _tool_meta(part: ToolCallPart) -> dict[str, Any] | None:
    """What is kept with the use of a tool, to give it back."""
    return _fitting({"details": part.provider_details}) if part.provider_details else None


def _fitting(kept: dict[str, Any]) -> dict[str, Any] | None:
    return {META: kept} if len(str(kept)) <= META_CHARACTERS else None


def _thoughts(text: str, meta: Mapping[str, Any], system: str) -> Iterator[ThinkingPart]:
    """The parts that a thought came as; none if it is not as it came, or needs not go back."""
    from pydantic_ai.messages import ThinkingPart

    kept = meta.get(META)
    parts = kept.get("parts", ()) if isinstance(kept, dict) else ()
    if sum(part["length"] for part in parts) != len(text):
        return
    start = 0
    for part in parts:
        content = text[start : start + part["length"]]
        start += part["length"]
        # What stood between tags in the text is told apart by them, and by nothing else.
        if part.get("signature") or part.get("details") or part.get("id") not in (None, "content"):
            yield ThinkingPart(
                content,
                id=part.get("id"),
                signature=part.get("signature"),
                provider_name=system,
                provider_details=part.get("details"),
            )


# --- answers -------------------------------------------------------------------------------------

#: What the adapter calls the reasons to stop, as callers know them.
STOP_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_call": "tool_use",
    "content_filter": "refusal",
}


class ResponseReader:
    """Turns the events of an answer into deltas."""

    def __init__(self, endpoint: Endpoint, response: StreamedResponse) -> None:
        from pydantic_ai import messages

        self._kinds = messages
        self._endpoint = endpoint
        self._response = response
        self._used = TokenUsage()
        self._has_text = False
        #: The parts of the thought that is being thought: they are one until something is said.
        self._thinking: list[ThinkingPart] = []

    def read(self, event: ModelResponseStreamEvent) -> Iterator[Delta]:
        """Yield what is new with this event."""
        kinds = self._kinds
        if self._used == TokenUsage():  # what was sent is known early, and what came at the end
            yield from self._spent()
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
        """Yield what is known when the stream is over; raises if it ended too early."""
        from pydantic_ai.exceptions import UnexpectedModelBehavior

        response = self._response
        details = response.provider_details or {}
        word = details.get("finish_reason")
        if word is None and response.finish_reason is None:
            raise UnexpectedModelBehavior("the stream ended before the answer did")
        if self._endpoint.dialect == "anthropic" and isinstance(word, str):
            stop_reason = word
        else:
            stop_reason = STOP_REASONS.get(response.finish_reason or "") or str(word).lower()
        refusal = details.get("refusal")
        if not self._has_text and isinstance(refusal, str):
            yield from self._text(refusal)
        for part in response.get().parts:
            if isinstance(part, self._kinds.ToolCallPart):
                arguments = _arguments(part)
                if arguments is None:
                    if stop_reason == "max_tokens":  # it was cut off, and nobody can use it
                        continue
                    arguments = {"_raw": str(part.args)}
                if stop_reason == "end_turn":  # not every server tells the two apart
                    stop_reason = "tool_use"
                yield ToolCall(part.tool_call_id, part.tool_name, arguments, _tool_meta(part))
        yield from self._spent()
        yield Stop(stop_reason)

    def _text(self, text: str) -> Iterator[Delta]:
        if text:
            self._has_text = True
            yield Text(text)

    def _spent(self) -> Iterator[Delta]:
        usage = self._response.usage
        used = TokenUsage(
            usage.input_tokens,
            usage.output_tokens,
            usage.cache_read_tokens,
            usage.cache_write_tokens,
        )
        if used != self._used:
            self._used = used
            yield used


def _arguments(part: ToolCallPart) -> dict[str, Any] | None:
    """The arguments of a tool; None if they are no JSON object."""
    try:
        return part.args_as_dict(raise_if_invalid=True)
    except (ValueError, AssertionError):
        return None

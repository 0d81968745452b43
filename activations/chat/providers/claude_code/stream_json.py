"""The protocol of the `claude` program: one JSON object per line in both directions.

This module does no I/O: it decodes bytes to deltas and requests, and encodes lines. Unknown
messages are ignored, since the program is often newer than this module.

The messages that are read:
- `stream_event`: a piece of a message, as the API streams it; older programs write none.
- `assistant`: a complete block of a message, even if it was streamed before.
- `user`: the result of a tool.
- `system`: among others, a retry of the API (`api_retry`).
- `rate_limit_event`: when a limit is lifted.
- `control_request`: a request to us, such as for permission to call a tool (`can_use_tool`);
  `control_cancel_request` withdraws it.
- `result`: the end, with the usage.

A message with `parent_tool_use_id` comes from a subagent. It is not part of the answer and only
shows activity.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from activations.chat.providers.provider import (
    Delta,
    Retry,
    Text,
    ThinkingText,
    TokenUsage,
    ToolCall,
    ToolOutput,
    Verdict,
)
from plexus.errors import Failed, TooBig
from plexus.limits import Limits
from plexus.rpc import wire

__all__ = (
    "LINE_BYTES",
    "LineDecoder",
    "MessageReader",
    "Permission",
    "UnknownRequest",
    "WithdrawnRequest",
    "initialize_line",
    "prompt_line",
    "refusal_line",
    "verdict_line",
)

#: Maximum size of a line, which is one message. An image that a tool has read can have some MiB.
LINE_BYTES = 16 * 1024 * 1024
#: Limits for messages of our own process, which can be larger than those of network clients. The
#: depth stays below the 253 levels of the encoder, since messages are encoded again.
_LIMITS = Limits(
    message_bytes=LINE_BYTES,
    message_containers=500_000,
    message_members=500_000,
    message_values=500_000,
    message_depth=200,
)

#: The block type of each delta type.
_STREAMED = {"text_delta": "text", "thinking_delta": "thinking"}


class Permission(NamedTuple):
    """A request for permission to call a tool; the program waits for a `verdict_line`."""

    request: str
    tool: str
    call_id: str
    input: dict[str, Any]


class WithdrawnRequest(NamedTuple):
    """A request that the program has withdrawn."""

    request: str


class UnknownRequest(NamedTuple):
    """A request of an unknown type; the program waits for a `refusal_line`."""

    request: str
    subtype: str


class LineDecoder:
    """Incremental decoder from bytes to messages."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """Return the complete messages. Raises `provider_broke` if a message is too large."""
        *complete, rest = data.split(b"\n")
        messages = []
        for piece in complete:
            self._rest += piece
            message = self._message()
            if message is not None:
                messages.append(message)
        self._rest += rest
        self._check_size()
        return messages

    def end(self) -> list[dict[str, Any]]:
        """Return the message at the end of output, which may lack a newline."""
        return self.feed(b"\n")

    def _message(self) -> dict[str, Any] | None:
        self._check_size()
        line, self._rest = self._rest, bytearray()
        try:
            # Inexact numbers are acceptable: they are only displayed.
            value = wire.decode_value(line, _LIMITS, exact=False)
        except TooBig as error:
            raise _too_large() from error
        except ValueError:  # a diagnostic line of a library
            return None
        return value if isinstance(value, dict) else None

    def _check_size(self) -> None:
        if len(self._rest) > LINE_BYTES:
            raise _too_large()


def _too_large() -> Failed:
    return Failed(
        f"claude sent a message of more than {LINE_BYTES} bytes, or one that is nested too deeply;"
        " the answer was stopped",
        code="provider_broke",
        data={"provider": "claude-code", "limit": LINE_BYTES},
    )


class MessageReader:
    """Converter from messages to deltas and requests, with the state of the round."""

    def __init__(self) -> None:
        self.session_id: str | None = None
        #: The latest message of the conversation itself.
        self.message_uuid: str | None = None
        #: The `result` message, once received.
        self.result: dict[str, Any] | None = None
        #: The program's word for an API error, and when a limit is lifted, in Unix time.
        self.error: str | None = None
        self.resets_at: float | None = None
        #: The delay before the next retry that the program has announced.
        self.retry_s = 0.0
        #: Whether any output was received.
        self.has_output = False
        #: The ids of tool calls in progress.
        self.running: set[str] = set()
        self._tool_calls: set[str] = set()
        self._message_id = ""
        #: The streamed blocks, by message id and block type.
        self._streamed: set[tuple[str, str]] = set()

    def read(
        self, message: Mapping[str, Any]
    ) -> Iterator[Delta | Permission | WithdrawnRequest | UnknownRequest]:
        """Yield the deltas and requests of a message."""
        kind = message.get("type")
        self.retry_s = 0.0
        if kind == "control_request":
            yield _request(message)
        elif kind == "control_cancel_request":
            yield WithdrawnRequest(str(message.get("request_id")))
        elif kind == "result":
            yield from self._end(message)
        elif kind == "rate_limit_event":
            resets_at = _object(message.get("rate_limit_info")).get("resetsAt")
            self.resets_at = resets_at if isinstance(resets_at, int | float) else None
        elif kind == "system" and message.get("subtype") == "api_retry":
            yield self._retry(message)
        elif message.get("parent_tool_use_id") is None:
            yield from self._conversation(kind, message)

    def usage(self, resumed: bool) -> TokenUsage:
        """Return the usage of the round. `resumed`: the session had earlier rounds."""
        result = self.result or {}
        models = result.get("model_usage_since_last_result")
        if isinstance(models, dict) and models:  # includes subagents
            each = [_object(model) for model in models.values()]
            return TokenUsage(
                _sum(each, "inputTokens"),
                _sum(each, "outputTokens"),
                _sum(each, "cacheReadInputTokens"),
                _sum(each, "cacheCreationInputTokens"),
                float(sum(_number(model.get("costUSD")) for model in each)),
            )
        usage = [_object(result.get("usage"))]
        cost = result.get("total_cost_usd")
        # The total covers the whole session, and its value before this round is unknown.
        known = isinstance(cost, int | float) and not resumed
        return TokenUsage(
            _sum(usage, "input_tokens"),
            _sum(usage, "output_tokens"),
            _sum(usage, "cache_read_input_tokens"),
            _sum(usage, "cache_creation_input_tokens"),
            float(_number(cost)) if known else None,
        )

    # --- conversation ---------------------------------------------------------------------------

    def _conversation(self, kind: Any, message: Mapping[str, Any]) -> Iterator[Delta]:
        if kind == "stream_event":
            yield from self._stream(_object(message.get("event")))
        elif kind == "assistant" and message.get("error"):
            self.error = str(message["error"])  # the result repeats its text
        elif kind in ("assistant", "user"):
            inner = _object(message.get("message"))
            content = inner.get("content")
            for block in content if isinstance(content, list) else ():
                if isinstance(block, dict):
                    yield from (
                        self._assistant_block(block, str(inner.get("id")))
                        if kind == "assistant"
                        else self._tool_result(block)
                    )
            if isinstance(message.get("uuid"), str):
                self.message_uuid = message["uuid"]

    def _stream(self, event: Mapping[str, Any]) -> Iterator[Delta]:
        if event.get("type") == "message_start":
            self._message_id = str(_object(event.get("message")).get("id"))
        elif event.get("type") == "content_block_delta":
            delta = _object(event.get("delta"))
            kind = _STREAMED.get(str(delta.get("type")))
            if kind is not None:
                self._streamed.add((self._message_id, kind))
                yield from self._text(kind, delta.get(kind))

    def _assistant_block(self, block: Mapping[str, Any], message: str) -> Iterator[Delta]:
        kind = str(block.get("type"))
        if kind in _STREAMED.values():
            if (message, kind) not in self._streamed:
                yield from self._text(kind, block.get(kind))
        elif kind == "tool_use" and str(block.get("id")) not in self._tool_calls:
            call_id = str(block.get("id"))
            self._tool_calls.add(call_id)
            self.running.add(call_id)
            self.has_output = True
            yield ToolCall(call_id, str(block.get("name")), _object(block.get("input")))

    def _text(self, kind: str, text: Any) -> Iterator[Delta]:
        if isinstance(text, str) and text:
            self.has_output = True
            yield Text(text) if kind == "text" else ThinkingText(text)

    def _tool_result(self, block: Mapping[str, Any]) -> Iterator[Delta]:
        call_id = str(block.get("tool_use_id"))
        if block.get("type") == "tool_result" and call_id in self.running:
            self.running.discard(call_id)
            yield ToolOutput(call_id, _text_of(block.get("content")), bool(block.get("is_error")))

    # --- state of the round ---------------------------------------------------------------------

    def _end(self, message: Mapping[str, Any]) -> Iterator[Delta]:
        self.result = dict(message)
        self.running.clear()
        if isinstance(message.get("session_id"), str):
            self.session_id = message["session_id"]
        if not message.get("is_error") and not self.has_output:  # a program that streams no text
            yield from self._text("text", message.get("result"))

    def _retry(self, message: Mapping[str, Any]) -> Retry:
        self.retry_s = _number(message.get("retry_delay_ms")) / 1000
        status = message.get("error_status") or message.get("error") or "no connection"
        return Retry(self.retry_s, f"claude retries its API request ({status})")


def _request(message: Mapping[str, Any]) -> Permission | UnknownRequest:
    request = str(message.get("request_id"))
    body = _object(message.get("request"))
    subtype = str(body.get("subtype"))
    if subtype != "can_use_tool":
        return UnknownRequest(request, subtype)
    call_id = str(body.get("tool_use_id") or request)  # older programs omit it
    return Permission(request, str(body.get("tool_name")), call_id, _object(body.get("input")))


# --- encoding -------------------------------------------------------------------------------------


def initialize_line() -> bytes:
    """Return the first line, which sets an option that has no argument. Its response is ignored.

    By default a session records the system prompt of its first round and uses it in every later
    round, even if another is specified.
    """
    request = {"subtype": "initialize", "systemPromptSnapshot": False}
    return _line({"type": "control_request", "request_id": "initialize", "request": request})


def prompt_line(content: Sequence[Mapping[str, Any]]) -> bytes:
    """Return the line with the user message as content blocks.

    The text is not interpreted: `/command` runs no command, and `@` reads no file.
    """
    return _line(
        {
            "type": "user",
            "message": {"role": "user", "content": list(content)},
            "parent_tool_use_id": None,
            "client_composed": True,
        }
    )


def verdict_line(permission: Permission, verdict: Verdict) -> bytes:
    """Return the response to a request for permission."""
    answer: dict[str, Any] = (
        {"behavior": "allow", "updatedInput": permission.input}
        if verdict.allow
        else {
            "behavior": "deny",
            "message": verdict.message or "The user did not approve this tool call.",
        }
    )
    return _response({"subtype": "success", "request_id": permission.request, "response": answer})


def refusal_line(request: UnknownRequest) -> bytes:
    """Return the error response to an unknown request."""
    error = f"{request.subtype} is not supported"
    return _response({"subtype": "error", "request_id": request.request, "error": error})


def _response(response: Mapping[str, Any]) -> bytes:
    return _line({"type": "control_response", "response": response})


def _line(value: Mapping[str, Any]) -> bytes:
    return wire.encode(value) + b"\n"


# --- untrusted values -----------------------------------------------------------------------------


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _number(value: Any) -> float:
    return value if isinstance(value, int | float) else 0


def _sum(values: Sequence[Mapping[str, Any]], name: str) -> int:
    return int(sum(_number(value.get(name)) for value in values))


def _text_of(content: Any) -> str:
    """Return the content of a tool result as text; other blocks are replaced by their type."""
    if not isinstance(content, list):
        return content if isinstance(content, str) else ""
    blocks = [_object(block) for block in content]
    return "\n".join(
        str(block.get("text", "")) if block.get("type") == "text" else f"[{block.get('type')}]"
        for block in blocks
    )

"""The messages that the `claude` program writes and reads, one JSON object in a line.

No process and no loop is known here: bytes come in, deltas and requests come out, and lines to
be written are made. What is not known is passed over, for the program is often newer than we are.

What it writes, as far as we read it:
- `stream_event`: some more of a message, as the API streams it; older programs write none.
- `assistant`: a whole block of a message, also when it was streamed before.
- `user`: what a tool answered.
- `system`: among others, that the API is asked again (`api_retry`).
- `rate_limit_event`: when a limit is lifted.
- `control_request`: a question to us, as whether a tool may be used (`can_use_tool`);
  `control_cancel_request` takes it back.
- `result`: the end, with what it cost.

A message with `parent_tool_use_id` is that of an agent which the model has sent off: what it says
is no part of the answer. It shows only that somebody is at work.
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
    "TakenBack",
    "UnknownRequest",
    "initialize_line",
    "prompt_line",
    "refusal_line",
    "verdict_line",
)

#: A line is one message. The largest hold a picture that a tool has read, some MiB.
LINE_BYTES = 16 * 1024 * 1024
#: What comes from a program that was started for this may be larger than what comes from a wire,
#: and must still go out again: the encoder stops at 253 levels.
_LIMITS = Limits(
    message_bytes=LINE_BYTES,
    message_containers=500_000,
    message_members=500_000,
    message_values=500_000,
    message_depth=200,
)

#: Which deltas of a block are which kind of block.
_STREAMED = {"text_delta": "text", "thinking_delta": "thinking"}


class Permission(NamedTuple):
    """The program asks whether it may use a tool, and waits for a `verdict_line`."""

    request: str
    tool: str
    use: str
    input: dict[str, Any]


class TakenBack(NamedTuple):
    """The program no longer wants an answer to this request."""

    request: str


class UnknownRequest(NamedTuple):
    """The program asks something that we do not know, and waits for a `refusal_line`."""

    request: str
    subtype: str


class LineDecoder:
    """Cuts what the program writes into messages, however the bytes arrive."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """The messages that are complete by now; raises `provider_broke` for one too large."""
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
        """The program writes no more: what stands there without a newline is a message too."""
        return self.feed(b"\n")

    def _message(self) -> dict[str, Any] | None:
        self._check_size()
        line, self._rest = self._rest, bytearray()
        try:
            # Its numbers are only shown, and no reason to end an answer.
            value = wire.decode_value(line, _LIMITS, exact=False)
        except TooBig as error:
            raise _too_large() from error
        except ValueError:  # a word to a person, which a library has written there
            return None
        return value if isinstance(value, dict) else None

    def _check_size(self) -> None:
        if len(self._rest) > LINE_BYTES:
            raise _too_large()


def _too_large() -> Failed:
    return Failed(
        f"claude wrote a message that is larger than {LINE_BYTES} bytes or cannot be read for its"
        " depth; the answer was ended there",
        code="provider_broke",
        data={"provider": "claude-code", "limit": LINE_BYTES},
    )


class MessageReader:
    """What a stream of messages means, and what is known of the round by now."""

    def __init__(self) -> None:
        self.session_id: str | None = None
        #: The newest message of the conversation itself.
        self.message_uuid: str | None = None
        #: The `result`, once it has come.
        self.result: dict[str, Any] | None = None
        #: The program's word for what the API refused, and when a limit is lifted, in Unix time.
        self.error: str | None = None
        self.resets_at: float | None = None
        #: For how long the program has said that it will be silent.
        self.retry_s = 0.0
        #: Whether anything of the answer has come.
        self.said = False
        #: The tools that are at work.
        self.running: set[str] = set()
        self._called: set[str] = set()
        self._streaming = ""
        #: Which kinds of blocks of which message have come piece by piece.
        self._streamed: set[tuple[str, str]] = set()

    def read(
        self, message: Mapping[str, Any]
    ) -> Iterator[Delta | Permission | TakenBack | UnknownRequest]:
        """What this message means; nothing if it means nothing to us."""
        kind = message.get("type")
        self.retry_s = 0.0
        if kind == "control_request":
            yield _request(message)
        elif kind == "control_cancel_request":
            yield TakenBack(str(message.get("request_id")))
        elif kind == "result":
            yield from self._end(message)
        elif kind == "rate_limit_event":
            resets_at = _object(message.get("rate_limit_info")).get("resetsAt")
            self.resets_at = resets_at if isinstance(resets_at, int | float) else None
        elif kind == "system" and message.get("subtype") == "api_retry":
            yield self._retry(message)
        elif message.get("parent_tool_use_id") is None:
            yield from self._talk(kind, message)

    def used(self, resumed: bool) -> TokenUsage:
        """What the round has cost; `resumed` says that there were rounds before it."""
        result = self.result or {}
        models = result.get("model_usage_since_last_result")
        if isinstance(models, dict) and models:  # the work of agents included
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
        # The total is that of the whole session, and what it was before this round is not said.
        known = isinstance(cost, int | float) and not resumed
        return TokenUsage(
            _sum(usage, "input_tokens"),
            _sum(usage, "output_tokens"),
            _sum(usage, "cache_read_input_tokens"),
            _sum(usage, "cache_creation_input_tokens"),
            float(_number(cost)) if known else None,
        )

    # --- what is said ---------------------------------------------------------------------------

    def _talk(self, kind: Any, message: Mapping[str, Any]) -> Iterator[Delta]:
        if kind == "stream_event":
            yield from self._stream(_object(message.get("event")))
        elif kind == "assistant" and message.get("error"):
            self.error = str(message["error"])  # what it says comes again with the result
        elif kind in ("assistant", "user"):
            inner = _object(message.get("message"))
            content = inner.get("content")
            for block in content if isinstance(content, list) else ():
                if isinstance(block, dict):
                    yield from (
                        self._said(block, str(inner.get("id")))
                        if kind == "assistant"
                        else self._answered(block)
                    )
            if isinstance(message.get("uuid"), str):
                self.message_uuid = message["uuid"]

    def _stream(self, event: Mapping[str, Any]) -> Iterator[Delta]:
        if event.get("type") == "message_start":
            self._streaming = str(_object(event.get("message")).get("id"))
        elif event.get("type") == "content_block_delta":
            delta = _object(event.get("delta"))
            kind = _STREAMED.get(str(delta.get("type")))
            if kind is not None:
                self._streamed.add((self._streaming, kind))
                yield from self._words(kind, delta.get(kind))

    def _said(self, block: Mapping[str, Any], message: str) -> Iterator[Delta]:
        kind = str(block.get("type"))
        if kind in _STREAMED.values():
            if (message, kind) not in self._streamed:
                yield from self._words(kind, block.get(kind))
        elif kind == "tool_use" and str(block.get("id")) not in self._called:
            use = str(block.get("id"))
            self._called.add(use)
            self.running.add(use)
            self.said = True
            yield ToolCall(use, str(block.get("name")), _object(block.get("input")))

    def _words(self, kind: str, text: Any) -> Iterator[Delta]:
        if isinstance(text, str) and text:
            self.said = True
            yield Text(text) if kind == "text" else ThinkingText(text)

    def _answered(self, block: Mapping[str, Any]) -> Iterator[Delta]:
        use = str(block.get("tool_use_id"))
        if block.get("type") == "tool_result" and use in self.running:
            self.running.discard(use)
            yield ToolOutput(use, _text_of(block.get("content")), bool(block.get("is_error")))

    # --- what is said about it ------------------------------------------------------------------

    def _end(self, message: Mapping[str, Any]) -> Iterator[Delta]:
        self.result = dict(message)
        self.running.clear()
        if isinstance(message.get("session_id"), str):
            self.session_id = message["session_id"]
        if not message.get("is_error") and not self.said:  # a program that tells only the end
            yield from self._words("text", message.get("result"))

    def _retry(self, message: Mapping[str, Any]) -> Retry:
        self.retry_s = _number(message.get("retry_delay_ms")) / 1000
        status = message.get("error_status") or message.get("error") or "no connection"
        return Retry(self.retry_s, f"claude asks its API again ({status})")


def _request(message: Mapping[str, Any]) -> Permission | UnknownRequest:
    request = str(message.get("request_id"))
    asked = _object(message.get("request"))
    subtype = str(asked.get("subtype"))
    if subtype != "can_use_tool":
        return UnknownRequest(request, subtype)
    use = str(asked.get("tool_use_id") or request)  # older programs do not say which use
    return Permission(request, str(asked.get("tool_name")), use, _object(asked.get("input")))


# --- what is written to it ------------------------------------------------------------------------


def initialize_line() -> bytes:
    """The first line: what only a request can say. The answer to it is of no use to us.

    A session records the system prompt of its first round and would keep to that in every later
    one, though another is given.
    """
    request = {"subtype": "initialize", "systemPromptSnapshot": False}
    return _line({"type": "control_request", "request_id": "initialize", "request": request})


def prompt_line(content: Sequence[Mapping[str, Any]]) -> bytes:
    """What the user says, as content blocks. It is taken as it is: no `/command` in it is run,
    and no file named with `@` is read."""
    return _line(
        {
            "type": "user",
            "message": {"role": "user", "content": list(content)},
            "parent_tool_use_id": None,
            "client_composed": True,
        }
    )


def verdict_line(permission: Permission, verdict: Verdict) -> bytes:
    """The answer to a request for permission."""
    answer: dict[str, Any] = (
        {"behavior": "allow", "updatedInput": permission.input}
        if verdict.allow
        else {"behavior": "deny", "message": verdict.message or "The user does not allow this."}
    )
    return _response({"subtype": "success", "request_id": permission.request, "response": answer})


def refusal_line(request: UnknownRequest) -> bytes:
    """The answer to a request that we do not know."""
    error = f"{request.subtype} is not supported here"
    return _response({"subtype": "error", "request_id": request.request, "error": error})


def _response(response: Mapping[str, Any]) -> bytes:
    return _line({"type": "control_response", "response": response})


def _line(value: Mapping[str, Any]) -> bytes:
    return wire.encode(value) + b"\n"


# --- values that may be anything ------------------------------------------------------------------


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _number(value: Any) -> float:
    return value if isinstance(value, int | float) else 0


def _sum(values: Sequence[Mapping[str, Any]], name: str) -> int:
    return int(sum(_number(value.get(name)) for value in values))


def _text_of(content: Any) -> str:
    """The content of a tool's answer as text; what is no text is named."""
    if not isinstance(content, list):
        return content if isinstance(content, str) else ""
    blocks = [_object(block) for block in content]
    return "\n".join(
        str(block.get("text", "")) if block.get("type") == "text" else f"[{block.get('type')}]"
        for block in blocks
    )

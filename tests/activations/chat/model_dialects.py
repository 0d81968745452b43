"""Wire formats of model APIs, written by hand after their public descriptions.

Anthropic's Messages, OpenAI's Chat Completions and Google's streamGenerateContent, each as
server-sent events. A dialect is created for one answer and encodes its steps.
"""

from __future__ import annotations

import base64
import json
import re
from abc import ABC, abstractmethod
from typing import Any

__all__ = ("DIALECTS", "Dialect", "words")


def words(text: str) -> list[str]:
    """Split a text into words, each with its white space."""
    return re.findall(r"\s*\S+\s*|\s+", text)


class Dialect(ABC):
    """Encoder of one answer for one API."""

    #: The API's stop reasons, by those of Anthropic.
    stops: dict[str, str] = {}  # noqa: RUF012 - never changed

    def __init__(self, model: str, body: dict[str, Any], tokens: tuple[int, int]) -> None:
        self.model = model
        self.body = body
        self.sent, self.received = tokens

    @abstractmethod
    def start(self) -> bytes: ...

    @abstractmethod
    def say(self, text: str) -> bytes: ...

    @abstractmethod
    def think(self, text: str, signature: str) -> bytes: ...

    @abstractmethod
    def use(self, use: str, name: str, arguments: str) -> bytes: ...

    @abstractmethod
    def ping(self) -> bytes: ...

    @abstractmethod
    def fail(self, kind: str, message: str) -> bytes: ...

    @abstractmethod
    def end(self, stop: str) -> bytes: ...

    @staticmethod
    @abstractmethod
    def refusal(status: int, kind: str, message: str) -> dict[str, Any]: ...


def _data(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


class Anthropic(Dialect):
    """Anthropic's Messages."""

    def __init__(self, model: str, body: dict[str, Any], tokens: tuple[int, int]) -> None:
        super().__init__(model, body, tokens)
        self._index = -1
        self._open: str | None = None

    @staticmethod
    def _event(kind: str, **fields: Any) -> bytes:
        return f"event: {kind}\n".encode() + _data({"type": kind, **fields})

    def _block(self, kind: str, **fields: Any) -> bytes:
        """Open a block of this kind, unless one is open."""
        if self._open == kind:
            return b""
        closed = self._close()
        self._index += 1
        self._open = kind
        block = {"type": kind, **fields}
        return closed + self._event("content_block_start", index=self._index, content_block=block)

    def _close(self) -> bytes:
        if self._open is None:
            return b""
        self._open = None
        return self._event("content_block_stop", index=self._index)

    def _delta(self, kind: str, **fields: Any) -> bytes:
        delta = {"type": kind, **fields}
        return self._event("content_block_delta", index=self._index, delta=delta)

    def start(self) -> bytes:
        usage = {"input_tokens": self.sent, "output_tokens": 1}
        return self._event(
            "message_start",
            message={
                "id": "msg_1",
                "type": "message",
                "role": "assistant",
                "model": self.model,
                "content": [],
                "stop_reason": None,
                "stop_sequence": None,
                "usage": usage,
            },
        )

    def say(self, text: str) -> bytes:
        return self._block("text", text="") + self._delta("text_delta", text=text)

    def think(self, text: str, signature: str) -> bytes:
        opened = self._block("thinking", thinking="", signature="")
        deltas = b"".join(self._delta("thinking_delta", thinking=word) for word in words(text))
        signed = self._delta("signature_delta", signature=signature) if signature else b""
        return opened + deltas + signed + self._close()

    def use(self, use: str, name: str, arguments: str) -> bytes:
        opened = self._close() + self._block("tool_use", id=use, name=name, input={})
        half = len(arguments) // 2
        deltas = b"".join(
            self._delta("input_json_delta", partial_json=part)
            for part in ("", arguments[:half], arguments[half:])
        )
        return opened + deltas + self._close()

    def ping(self) -> bytes:
        return self._event("ping")

    def fail(self, kind: str, message: str) -> bytes:
        return self._event("error", error={"type": kind, "message": message})

    def end(self, stop: str) -> bytes:
        delta = {"stop_reason": stop, "stop_sequence": None}
        usage = {"output_tokens": self.received}
        return (
            self._close()
            + self._event("message_delta", delta=delta, usage=usage)
            + self._event("message_stop")
        )

    @staticmethod
    def refusal(status: int, kind: str, message: str) -> dict[str, Any]:  # noqa: ARG004
        return {"type": "error", "error": {"type": kind, "message": message}}


class OpenAI(Dialect):
    """OpenAI's Chat Completions."""

    stops = {  # noqa: RUF012
        "end_turn": "stop",
        "max_tokens": "length",
        "tool_use": "tool_calls",
        "refusal": "content_filter",
    }

    def __init__(self, model: str, body: dict[str, Any], tokens: tuple[int, int]) -> None:
        super().__init__(model, body, tokens)
        self._uses = 0

    def _chunk(self, delta: dict[str, Any] | None, finish: str | None = None, **more: Any) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return _data(
            {
                "id": "chatcmpl-1",
                "object": "chat.completion.chunk",
                "created": 1_700_000_000,
                "model": self.model,
                "choices": [] if delta is None else [choice],
                **more,
            }
        )

    def start(self) -> bytes:
        return self._chunk({"role": "assistant", "content": ""})

    def say(self, text: str) -> bytes:
        return self._chunk({"content": text})

    def think(self, text: str, signature: str) -> bytes:  # noqa: ARG002 - the API has no signatures
        return b"".join(self._chunk({"reasoning_content": word}) for word in words(text))

    def use(self, use: str, name: str, arguments: str) -> bytes:
        index, half = self._uses, len(arguments) // 2
        self._uses += 1
        named = {"index": index, "id": use, "type": "function"}
        calls: list[dict[str, Any]] = [
            {**named, "function": {"name": name, "arguments": ""}},
            {"index": index, "function": {"arguments": arguments[:half]}},
            {"index": index, "function": {"arguments": arguments[half:]}},
        ]
        return b"".join(self._chunk({"tool_calls": [call]}) for call in calls)

    def ping(self) -> bytes:
        return b": still at work\n\n"

    def fail(self, kind: str, message: str) -> bytes:
        return _data({"error": {"message": message, "type": kind, "code": None}})

    def end(self, stop: str) -> bytes:
        ended = self._chunk({}, self.stops.get(stop, stop))
        if (self.body.get("stream_options") or {}).get("include_usage"):
            usage = {
                "prompt_tokens": self.sent,
                "completion_tokens": self.received,
                "total_tokens": self.sent + self.received,
            }
            ended += self._chunk(None, usage=usage)
        return ended + b"data: [DONE]\n\n"

    @staticmethod
    def refusal(status: int, kind: str, message: str) -> dict[str, Any]:  # noqa: ARG004
        return {"error": {"message": message, "type": kind, "param": None, "code": None}}


class Google(Dialect):
    """Google's streamGenerateContent."""

    stops = {  # noqa: RUF012
        "end_turn": "STOP",
        "max_tokens": "MAX_TOKENS",
        "tool_use": "STOP",
        "refusal": "SAFETY",
    }

    def _chunk(self, *parts: dict[str, Any], finish: str | None = None) -> bytes:
        candidate: dict[str, Any] = {
            "content": {"role": "model", "parts": list(parts)},
            "index": 0,
        }
        if finish is not None:
            candidate["finishReason"] = finish
        return _data(
            {
                "candidates": [candidate],
                "usageMetadata": {
                    "promptTokenCount": self.sent,
                    "candidatesTokenCount": self.received,
                    "totalTokenCount": self.sent + self.received,
                },
                "modelVersion": self.model,
                "responseId": "response-1",
            }
        )

    def start(self) -> bytes:
        return b""

    def say(self, text: str) -> bytes:
        return self._chunk({"text": text})

    def think(self, text: str, signature: str) -> bytes:  # noqa: ARG002 - the API signs tool calls
        return b"".join(self._chunk({"text": word, "thought": True}) for word in words(text))

    def use(self, use: str, name: str, arguments: str) -> bytes:
        call = {"id": use, "name": name, "args": json.loads(arguments)}
        signature = base64.b64encode(f"signed {use}".encode()).decode()
        return self._chunk({"functionCall": call, "thoughtSignature": signature})

    def ping(self) -> bytes:
        return b": still at work\n\n"

    def fail(self, kind: str, message: str) -> bytes:
        code = {"overloaded_error": 503}.get(kind, 500)
        return _data({"error": {"code": code, "message": message, "status": "UNAVAILABLE"}})

    def end(self, stop: str) -> bytes:
        return self._chunk({"text": ""}, finish=self.stops.get(stop, stop))

    @staticmethod
    def refusal(status: int, kind: str, message: str) -> dict[str, Any]:  # noqa: ARG004
        states = {
            400: "INVALID_ARGUMENT",
            401: "UNAUTHENTICATED",
            403: "PERMISSION_DENIED",
            404: "NOT_FOUND",
            429: "RESOURCE_EXHAUSTED",
            500: "INTERNAL",
            503: "UNAVAILABLE",
        }
        state = states.get(status, "UNKNOWN")
        return {"error": {"code": status, "message": message, "status": state}}


#: The dialects with the paths of their requests.
DIALECTS: tuple[tuple[str, re.Pattern[str], type[Dialect]], ...] = (
    ("anthropic", re.compile(r"/v1/messages$"), Anthropic),
    ("openai", re.compile(r"/chat/completions$"), OpenAI),
    ("google", re.compile(r"/models/(?P<model>[^/:]+):streamGenerateContent$"), Google),
)

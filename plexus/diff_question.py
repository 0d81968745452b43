"""The question whether a change of a file is accepted: whole, in parts, edited, or not at all."""

from __future__ import annotations

from typing import Any, ClassVar, Final, NamedTuple

from plexus.errors import InvalidParams
from plexus.questions import Question

__all__ = ("REASON_CHARS", "DiffAnswer", "DiffQuestion")

#: Maximum characters of the reason of a rejection.
REASON_CHARS: Final = 4000


class DiffAnswer(NamedTuple):
    """What a person decided about a change."""

    accept: bool
    #: The final text, if the person edited it.
    text: str | None = None
    #: The numbers of the accepted hunks, if not all are.
    hunks: tuple[int, ...] | None = None
    #: Why it was rejected.
    reason: str | None = None


class DiffQuestion(Question[DiffAnswer]):
    """A proposed change of a file. Approving it without an answer accepts it as it is."""

    kind = "diff"
    approval: ClassVar[dict[str, Any]] = {"decision": "accept"}

    def __init__(self, message: str, details: dict[str, Any], hunks: int, text_bytes: int) -> None:
        """Describe a change: what views show, its number of hunks, and the largest final text."""
        super().__init__(message)
        self._details = details
        self._hunks = hunks
        self._text_bytes = text_bytes

    def details(self) -> dict[str, Any]:
        return self._details

    def schema(self) -> dict[str, Any]:
        hunk = {"type": "integer", "minimum": 0, "maximum": max(self._hunks - 1, 0)}
        return {
            "type": "object",
            "properties": {
                "decision": {"type": "string", "enum": ["accept", "reject"]},
                "text": {"type": "string"},
                "hunks": {"type": "array", "items": hunk},
                "reason": {"type": "string", "maxLength": REASON_CHARS},
            },
            "required": ["decision"],
            "additionalProperties": False,
        }

    def read(self, answer: Any) -> DiffAnswer:
        if not isinstance(answer, dict) or answer.get("decision") not in ("accept", "reject"):
            raise InvalidParams('the answer must have a "decision": "accept" or "reject"')
        unknown = answer.keys() - {"decision", "text", "hunks", "reason"}
        if unknown:
            raise InvalidParams(f"the answer has no field {min(map(str, unknown))[:100]!r}")
        text, hunks, reason = (answer.get(name) for name in ("text", "hunks", "reason"))
        if answer["decision"] == "reject":
            if text is not None or hunks is not None:
                raise InvalidParams("a rejected change has no text and no hunks")
            if not (reason is None or (isinstance(reason, str) and len(reason) <= REASON_CHARS)):
                raise InvalidParams(f"reason must be text of at most {REASON_CHARS} characters")
            return DiffAnswer(accept=False, reason=(reason or "").strip() or None)
        if reason is not None:
            raise InvalidParams("only a rejected change has a reason")
        if text is not None and hunks is not None:
            raise InvalidParams("give the final text or the accepted hunks, not both")
        return DiffAnswer(True, self._read_text(text), self._read_hunks(hunks))

    def _read_text(self, text: Any) -> str | None:
        if text is None:
            return None
        if not isinstance(text, str):
            raise InvalidParams("text must be the final text of the file")
        try:
            size = len(text.encode())
        except UnicodeEncodeError:
            raise InvalidParams("text contains a lone surrogate") from None
        if size > self._text_bytes:
            raise InvalidParams(f"text must have at most {self._text_bytes} bytes")
        return text

    def _read_hunks(self, hunks: Any) -> tuple[int, ...] | None:
        if hunks is None:
            return None
        if not isinstance(hunks, list) or not all(
            each.__class__ is int and 0 <= each < self._hunks for each in hunks
        ):
            raise InvalidParams(f"hunks must be a list of numbers from 0 to {self._hunks - 1}")
        return tuple(sorted(set(hunks)))

"""Questions that a run may put to its caller: confirm, prompt, select, form.

A question knows its own JSON Schema and how to read an answer, so that every view can show it
and every answer is checked in one place. Null as an answer means that the person declined.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from plexus.errors import InvalidParams
from plexus.validation import check, validator_of

__all__ = ("Choice", "Confirm", "Form", "Option", "Prompt", "Question", "Select", "SelectMany")

A = TypeVar("A")


class Question(Generic[A]):
    """Something to ask; `A` is the type of the answer."""

    kind: ClassVar[str]

    def __init__(self, message: str, *, default: A | None = None) -> None:
        self.message = message
        self.default = default

    def schema(self) -> dict[str, Any]:
        """The JSON Schema that an answer must fit."""
        raise NotImplementedError

    def read(self, answer: Any) -> A:
        """The answer as Python wants it; raises InvalidParams if it does not fit."""
        raise NotImplementedError

    def described_options(self) -> list[dict[str, str]] | None:
        """The choices, where there are any."""
        return None


class Confirm(Question[bool]):
    """Yes or no."""

    kind = "confirm"

    def schema(self) -> dict[str, Any]:
        return {"type": "boolean"}

    def read(self, answer: Any) -> bool:
        if not isinstance(answer, bool):
            raise InvalidParams("the answer must be true or false")
        return answer


class Prompt(Question[str]):
    """A line of text."""

    kind = "prompt"

    def schema(self) -> dict[str, Any]:
        return {"type": "string"}

    def read(self, answer: Any) -> str:
        if not isinstance(answer, str):
            raise InvalidParams("the answer must be text")
        return answer


class Option:
    """One choice: what the program gets and what the person sees."""

    def __init__(self, value: str, label: str | None = None) -> None:
        self.value = value
        self.label = label or value


class Choice(Question[A]):
    """A question that is answered out of a list."""

    def __init__(
        self, message: str, options: Sequence[str | Option], *, default: A | None = None
    ) -> None:
        super().__init__(message, default=default)
        self.options = [o if isinstance(o, Option) else Option(o) for o in options]

    @property
    def values(self) -> list[str]:
        """What may be chosen."""
        return [option.value for option in self.options]

    def described_options(self) -> list[dict[str, str]]:
        return [{"value": option.value, "label": option.label} for option in self.options]


class Select(Choice[str]):
    """One of several."""

    kind = "select"

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "enum": self.values}

    def read(self, answer: Any) -> str:
        if answer not in self.values:
            raise InvalidParams(f"the answer must be one of {', '.join(self.values)}")
        return str(answer)


class SelectMany(Choice[list[str]]):
    """Any number of several."""

    kind = "select_many"

    def schema(self) -> dict[str, Any]:
        items = {"type": "string", "enum": self.values}
        return {"type": "array", "items": items, "uniqueItems": True}

    def read(self, answer: Any) -> list[str]:
        if not isinstance(answer, list) or any(entry not in self.values for entry in answer):
            raise InvalidParams(f"the answer must be a list out of {', '.join(self.values)}")
        return list(dict.fromkeys(answer))


class Form(Question[A]):
    """Several fields at once, described by a pydantic model, a dataclass or a TypedDict."""

    kind = "form"

    def __init__(self, message: str, fields: type[A], *, default: A | None = None) -> None:
        super().__init__(message, default=default)
        self.fields = fields

    def schema(self) -> dict[str, Any]:
        from pydantic import TypeAdapter

        return TypeAdapter(self.fields).json_schema()

    def read(self, answer: Any) -> A:
        if not isinstance(answer, Mapping):
            raise InvalidParams("the answer must be an object")
        form: A = check("answer", validator_of(self.fields), answer)
        return form

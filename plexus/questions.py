"""Questions that a run can ask its caller: confirm, text, select, form, and others.

A question defines its JSON Schema and validates an answer, so that every view can show it and every
answer is checked in one place. A null answer means that the person declined.

Confirm, text, select and form questions can be shown to any person. A `Sample` goes to the caller's
model, `Roots` to its program, and an `OpenUrl` to its browser: a caller without these is not asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar, overload

from plexus.errors import InvalidParams
from plexus.registry.validation import check

__all__ = (
    "AskText",
    "Choice",
    "Confirm",
    "Form",
    "OpenUrl",
    "Option",
    "Question",
    "Root",
    "Roots",
    "Sample",
    "SampleResult",
    "Select",
    "SelectMany",
    "read_form",
)

A = TypeVar("A")


class Question(Generic[A]):
    """A question; `A` is the type of the answer."""

    kind: ClassVar[str]
    #: The answer that means approval, for a view that only approves; None if there is none.
    approval: ClassVar[Any] = None

    def __init__(self, message: str, *, default: A | None = None) -> None:
        self.message = message
        self.default = default

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema of an answer."""
        raise NotImplementedError

    def read(self, answer: Any) -> A:
        """Return the validated answer as a Python value. Raises InvalidParams."""
        raise NotImplementedError

    def describe_options(self) -> list[dict[str, str]] | None:
        """Return the choices, or None for a question without choices."""
        return None

    def details(self) -> dict[str, Any] | None:
        """Return what else a view needs to ask this, or None."""
        return None


class Confirm(Question[bool]):
    """A yes-or-no question."""

    kind = "confirm"

    def schema(self) -> dict[str, Any]:
        return {"type": "boolean"}

    def read(self, answer: Any) -> bool:
        if not isinstance(answer, bool):
            raise InvalidParams("the answer must be true or false")
        return answer


class AskText(Question[str]):
    """A question for a line of text."""

    kind = "prompt"

    def schema(self) -> dict[str, Any]:
        return {"type": "string"}

    def read(self, answer: Any) -> str:
        if not isinstance(answer, str):
            raise InvalidParams("the answer must be text")
        return answer


class Option:
    """One choice: the value for the program and the label for the person."""

    def __init__(self, value: str, label: str | None = None) -> None:
        self.value = value
        self.label = label or value


class Choice(Question[A]):
    """Base of questions with a list of choices."""

    def __init__(
        self, message: str, options: Sequence[str | Option], *, default: A | None = None
    ) -> None:
        super().__init__(message, default=default)
        self.options = [o if isinstance(o, Option) else Option(o) for o in options]

    @property
    def values(self) -> list[str]:
        """The values of the choices."""
        return [option.value for option in self.options]

    def describe_options(self) -> list[dict[str, str]]:
        return [{"value": option.value, "label": option.label} for option in self.options]


class Select(Choice[str]):
    """A choice of one option."""

    kind = "select"

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "enum": self.values}

    def read(self, answer: Any) -> str:
        if not isinstance(answer, str) or answer not in self.values:
            raise InvalidParams(f"the answer must be one of {', '.join(self.values)}")
        return str(answer)


class SelectMany(Choice[list[str]]):
    """A choice of any number of options."""

    kind = "select_many"

    def schema(self) -> dict[str, Any]:
        items = {"type": "string", "enum": self.values}
        return {"type": "array", "items": items, "uniqueItems": True}

    def read(self, answer: Any) -> list[str]:
        if not isinstance(answer, list) or not _all_among(answer, self.values):
            raise InvalidParams(f"the answer must be a list from {', '.join(self.values)}")
        return list(dict.fromkeys(answer))


class Form(Question[A]):
    """Several fields in one question, described by a pydantic model, a dataclass or a TypedDict.

    They can also be described by the JSON Schema of a flat object; the answer is then a dict.
    """

    kind = "form"

    @overload
    def __init__(self, message: str, fields: type[A], *, default: A | None = None) -> None: ...
    @overload
    def __init__(
        self: Form[dict[str, Any]],
        message: str,
        fields: dict[str, Any],
        *,
        default: dict[str, Any] | None = None,
    ) -> None: ...
    def __init__(self, message: str, fields: Any, *, default: Any = None) -> None:
        super().__init__(message, default=default)
        self.fields = fields
        self._schema: dict[str, Any] | None = None

    def schema(self) -> dict[str, Any]:
        if isinstance(self.fields, dict):
            return self.fields
        if self._schema is None:
            from pydantic import TypeAdapter

            self._schema = TypeAdapter(self.fields).json_schema()
        return self._schema

    def read(self, answer: Any) -> A:
        form: A
        if isinstance(self.fields, dict):
            form = read_form(self.fields, answer)  # type: ignore[assignment]  # A is a dict here
            return form
        if not isinstance(answer, Mapping):
            raise InvalidParams("the answer must be an object")
        self._refuse_containers(answer)
        form = check("answer", self.fields, answer)
        return form

    def _refuse_containers(self, answer: Mapping[str, Any]) -> None:
        """Raise InvalidParams for a list or an object where the form has a plain field or none.

        Validation would also refuse it, but copies what it refuses: 60 ms for 20,000 objects.
        """
        fields = self.schema().get("properties", {})
        known = {*fields, *getattr(self.fields, "model_fields", ())}
        for name, value in answer.items():
            if isinstance(value, list | dict):
                if name not in known:
                    raise InvalidParams(f"the form has no field {name[:100]!r}")
                if fields.get(name, {}).get("type") in (*_KINDS, "null"):
                    raise InvalidParams(f"{name!r} must be a {fields[name]['type']}")


class SampleResult(NamedTuple):
    """The answer of a model."""

    text: str
    model: str | None = None
    stop_reason: str | None = None


class Sample(Question[SampleResult]):
    """Request a completion of these messages from the caller's model.

    A string is a single message of a user; otherwise each message is `{"role": ..., "content":
    text}`.
    """

    kind = "sample"

    def __init__(
        self,
        messages: str | Sequence[dict[str, str]],
        *,
        max_tokens: int = 1024,
        system_prompt: str | None = None,
    ) -> None:
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        super().__init__(messages[-1]["content"] if messages else "")
        self.messages = list(messages)
        self.max_tokens = max_tokens
        self.system_prompt = system_prompt

    def details(self) -> dict[str, Any]:
        details: dict[str, Any] = {"messages": self.messages, "max_tokens": self.max_tokens}
        if self.system_prompt is not None:
            details["system_prompt"] = self.system_prompt
        return details

    def schema(self) -> dict[str, Any]:
        block = {"type": "object", "properties": {"text": {"type": "string"}}}
        message = {
            "type": "object",
            "properties": {
                "role": {"type": "string"},
                "content": {
                    "anyOf": [{"type": "string"}, block, {"type": "array", "items": block}]
                },
                "model": {"type": "string"},
                "stopReason": {"type": "string"},
            },
            "required": ["content"],
        }
        return {"anyOf": [{"type": "string"}, message]}

    def read(self, answer: Any) -> SampleResult:
        if isinstance(answer, str):
            return SampleResult(answer)
        if not isinstance(answer, dict) or "content" not in answer:
            raise InvalidParams("the answer must be text, or a message with content")
        model, stop_reason = answer.get("model"), answer.get("stopReason")
        if not isinstance(model, str | None) or not isinstance(stop_reason, str | None):
            raise InvalidParams("the model and the stopReason of an answer must be text")
        return SampleResult(_text_of(answer["content"]), model, stop_reason)


def _text_of(content: Any) -> str:
    """Return the text of a message; images and audio have none. Raises InvalidParams."""
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else [content]
    texts = []
    for block in blocks:
        text = block.get("text", "") if isinstance(block, dict) else None
        if not isinstance(text, str):
            raise InvalidParams("the content of an answer must be text or content blocks")
        texts.append(text)
    return "".join(texts)


class Root(NamedTuple):
    """A location that the caller works in, usually a folder."""

    uri: str
    name: str | None = None


class Roots(Question[list[Root]]):
    """A question for the locations that the caller works in."""

    kind = "roots"

    def __init__(self) -> None:
        super().__init__("Which folders do you work in?")

    def schema(self) -> dict[str, Any]:
        root = {
            "type": "object",
            "properties": {"uri": {"type": "string"}, "name": {"type": "string"}},
            "required": ["uri"],
        }
        roots = {"type": "array", "items": root}
        wrapped = {"type": "object", "properties": {"roots": roots}, "required": ["roots"]}
        return {"anyOf": [roots, wrapped]}

    def read(self, answer: Any) -> list[Root]:
        listed = answer.get("roots") if isinstance(answer, dict) else answer
        if not isinstance(listed, list):
            raise InvalidParams("the answer must be a list of roots")
        roots = []
        for entry in listed:
            uri = entry.get("uri") if isinstance(entry, dict) else None
            name = entry.get("name") if isinstance(entry, dict) else None
            if not isinstance(uri, str) or not isinstance(name, str | None):
                raise InvalidParams("each root needs a uri and may have a name, both text")
            roots.append(Root(uri, name))
        return roots


class OpenUrl(Confirm):
    """A request to open a URL; the answer is whether the person agreed."""

    kind = "visit"

    def __init__(self, message: str, url: str) -> None:
        super().__init__(message)
        self.url = url

    def details(self) -> dict[str, Any]:
        return {"url": self.url}


def read_form(schema: dict[str, Any], answer: Any) -> dict[str, Any]:
    """Return the fields of an answer, with defaults for the omitted ones. Raises InvalidParams.

    The schema is that of a flat object, whose properties are strings, numbers, booleans, one of
    several values, or a list of such; nothing else of JSON Schema is supported. Unknown fields are
    dropped.
    """
    if not isinstance(answer, dict):
        raise InvalidParams("the answer must be an object")
    required = schema.get("required", ())
    fields: dict[str, Any] = {}
    for name, field in schema.get("properties", {}).items():
        value = answer.get(name)
        if value is not None:
            fields[name] = _read(name, field, value)
        elif name in required:
            raise InvalidParams(f"the answer lacks the required field {name!r}")
        elif "default" in field:
            fields[name] = field["default"]
    return fields


def _all_among(entries: list[Any], texts: list[Any]) -> bool:
    """Return whether all entries are strings of this list, in linear time (1 MiB answers)."""
    known = {text for text in texts if isinstance(text, str)}
    return {str}.issuperset(map(type, entries)) and known.issuperset(entries)


def _read(name: str, field: dict[str, Any], value: Any) -> Any:
    kind = field.get("type")
    if kind == "array":
        if not isinstance(value, list):
            raise InvalidParams(f"{name!r} must be a list")
        items: dict[str, Any] = {"type": "string"} | field.get("items", {})
        choices = _choices(items)
        if choices is not None and _all_among(value, choices):
            return value
        return [_read(name, items, entry) for entry in value]
    if kind == "integer" and isinstance(value, float) and value.is_integer():
        value = int(value)  # JSON does not distinguish 5 from 5.0
    if kind in _KINDS:
        classes, words = _KINDS[kind]
        if not isinstance(value, classes) or (isinstance(value, bool) and kind != "boolean"):
            raise InvalidParams(f"{name!r} must be {words}")
    choices = _choices(field)
    if choices is not None and value not in choices:
        raise InvalidParams(f"{name!r} must be one of {', '.join(map(str, choices))}")
    return value


_KINDS: dict[str, tuple[type | tuple[type, ...], str]] = {
    "string": (str, "text"),
    "number": ((int, float), "a number"),
    "integer": (int, "a whole number"),
    "boolean": (bool, "true or false"),
}


def _choices(field: dict[str, Any]) -> list[Any] | None:
    """Return the allowed values in any of the notations of JSON Schema; None if unrestricted."""
    if "enum" in field:
        return list(field["enum"])
    for word in ("oneOf", "anyOf"):
        if word in field:
            return [option["const"] for option in field[word] if "const" in option]
    return None

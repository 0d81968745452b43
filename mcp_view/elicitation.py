"""Questions of a run as requests of the protocol, and responses of the client as answers.

A question to a person becomes a form with flat fields. Questions to a model, for the client's roots
or for a URL to open have their own requests. `Caller.question_kinds` lists the kinds that a client
supports; this module decides whether a question fits into a form.

A client without a handshake receives questions in a result, and repeats its request with the
answers and the request state of that result. A client could forge this state, so it is signed. It
names the run, the last item that the client has received, the request it belongs to, and its
expiry. The lookup of the run checks its owner.
"""

from __future__ import annotations

import binascii
from typing import Any, Final, NamedTuple

from mcp_view.catalogue import Names
from mcp_view.errors import MISSING_CAPABILITY, ProtocolError
from mcp_view.revisions import Revision
from plexus.errors import InvalidParams
from plexus.events import ErrorEvent, QuestionAsked, Terminal
from plexus.limits import Limits
from plexus.registry.schema import resolve_reference
from plexus.rpc import wire
from plexus.runtime.run import Run

__all__ = (
    "RequestState",
    "as_instructions",
    "missing_capability",
    "open_state",
    "parse_answer",
    "question_request",
    "request_digest",
    "seal_state",
)

Schema = dict[str, Any]

#: The field of a form with a single answer.
ANSWER: Final = "answer"

#: The schema keywords that a field may have, by its type.
FIELD_KEYS: Final[dict[str, frozenset[str]]] = {
    "string": frozenset({"type", "title", "description", "minLength", "maxLength", "format"}),
    "number": frozenset({"type", "title", "description", "minimum", "maximum"}),
    "integer": frozenset({"type", "title", "description", "minimum", "maximum"}),
    "boolean": frozenset({"type", "title", "description", "default"}),
    "array": frozenset({"type", "title", "description", "minItems", "maxItems", "items"}),
}
FORMATS: Final = frozenset({"email", "uri", "date", "date-time"})

#: The client capability that each kind of question requires, apart from forms.
CAPABILITIES: Final[dict[str, Schema]] = {
    "sample": {"sampling": {}},
    "roots": {"roots": {}},
    "visit": {"elicitation": {"url": {}}},
}
MAC_BYTES: Final = 32
LIMITS: Final = Limits()


def question_request(
    event: QuestionAsked, run: int, revision: Revision
) -> tuple[str, Schema] | None:
    """Return the method and params of the request for a question; None if it fits no form."""
    if event.kind == "sample":
        return "sampling/createMessage", _sampling(event.details or {})
    if event.kind == "roots":
        return "roots/list", {}
    params: Schema = {"message": event.message}
    if event.kind == "visit":
        params |= {"mode": "url", "url": (event.details or {})["url"]}
        if revision.elicitation_id:
            params["elicitationId"] = f"{run}.{event.request}"
        return "elicitation/create", params
    form = _form(event, revision)
    if form is None:
        return None
    if revision.elicitation_mode:
        params["mode"] = "form"
    return "elicitation/create", params | {"requestedSchema": form}


def parse_answer(event: QuestionAsked, result: Any, revision: Revision) -> Any:
    """Return the answer in a client's result; None if the client declined. Raises InvalidParams."""
    if not isinstance(result, dict):
        raise InvalidParams("The answer must be an object.")
    if event.kind == "sample":
        return result
    if event.kind == "roots":
        if not isinstance(result.get("roots"), list):
            raise InvalidParams("The answer must contain a list of roots.")
        return result["roots"]
    action = result.get("action")
    if action == "decline" and event.kind == "confirm":
        return False
    if action in ("decline", "cancel"):
        return None
    if action != "accept":
        raise InvalidParams("action must be accept, decline or cancel.")
    if event.kind == "visit":
        return True
    content = result.get("content")
    if event.kind == "confirm" and content is None:
        content = {}
    if not isinstance(content, dict):
        raise InvalidParams("An accepted form must have content.")
    if event.kind == "confirm":
        return content.get(ANSWER, True)
    if event.kind == "form":
        return content
    if event.kind == "select_many" and not revision.rich_forms:
        return [option for option in event.schema["items"]["enum"] if content.get(option) is True]
    if ANSWER not in content:
        raise InvalidParams(f"The content must have the field {ANSWER!r}.")
    return content[ANSWER]


def as_instructions(run: Run, questions: list[QuestionAsked], names: Names) -> str:
    """Return the questions as instructions for a model, which answers with a tool."""
    respond, attach = names.name_of("plexus.respond"), names.name_of("plexus.attach")
    lines = [f"Run {run.id} is waiting for an answer."]
    for event in questions:
        schema = wire.encode(event.schema).decode()
        lines.append(f"Question: {event.message}")
        lines.append(
            f'To answer, call the tool {respond} with run {run.id}, request "{event.request}" '
            f"and an answer that matches {schema} (null declines)."
        )
    lines.append(f"Then call {attach} with run {run.id} and after {run.log.last} to read the rest.")
    return "\n".join(lines)


def missing_capability(terminal: Terminal, revision: Revision) -> ProtocolError | None:
    """Return the error for a run that failed because its client does not support a question.

    None if the run ended for any other reason.
    """
    if revision.handshake or not isinstance(terminal, ErrorEvent) or terminal.code != "unsupported":
        return None
    kind = terminal.data.get("kind") if isinstance(terminal.data, dict) else None
    required = CAPABILITIES.get(str(kind))
    if required is None:
        return None
    return ProtocolError(MISSING_CAPABILITY, terminal.message, {"requiredCapabilities": required})


def _sampling(details: dict[str, Any]) -> Schema:
    params: Schema = {
        "messages": [
            {"role": message["role"], "content": {"type": "text", "text": message["content"]}}
            for message in details["messages"]
        ],
        "maxTokens": details["max_tokens"],
    }
    if details.get("system_prompt"):
        params["systemPrompt"] = details["system_prompt"]
    return params


# --- forms ------------------------------------------------------------------------------------


def _form(event: QuestionAsked, revision: Revision) -> Schema | None:
    if event.kind == "confirm":
        # Accept and decline are the two answers. With a field, a person would have to set the field
        # and then accept the form.
        return {"type": "object", "properties": {}}
    if event.kind == "form":
        return _fields(event.schema, revision)
    if event.kind == "select_many" and not revision.rich_forms:
        boxes = {
            option["value"]: {"type": "boolean", "title": option["label"]}
            for option in event.options or []
        }
        return {"type": "object", "properties": boxes}
    field = dict(event.schema)
    field.setdefault("title", "Answer")
    if event.kind in ("select", "select_many"):
        _title_choices(field, event.options or [], revision)
    if event.default is not None:
        field["default"] = event.default
    narrowed = _field(field, {}, revision)
    if narrowed is None:
        return None
    return {"type": "object", "properties": {ANSWER: narrowed}, "required": [ANSWER]}


def _title_choices(field: Schema, options: list[dict[str, str]], revision: Revision) -> None:
    """Add the labels of choices if they differ from the values."""
    if all(option["value"] == option["label"] for option in options):
        return
    titled = [{"const": option["value"], "title": option["label"]} for option in options]
    if field.get("type") == "array":
        field["items"] = {"anyOf": titled}
    elif revision.rich_forms:
        del field["enum"]
        field["oneOf"] = titled
    else:
        field["enumNames"] = [option["label"] for option in options]


def _fields(schema: Schema, revision: Revision) -> Schema | None:
    """Return a flat form for the schema of an object; None if a field is not flat."""
    shared = schema.get("$defs", {})
    properties = {}
    required = list(schema.get("required", []))
    for name, described in schema.get("properties", {}).items():
        field = _field(described, shared, revision)
        if field is None:
            return None
        properties[name] = field
    form: Schema = {"type": "object", "properties": properties}
    return form | {"required": required} if required else form


def _field(schema: Schema, shared: dict[str, Schema], revision: Revision) -> Schema | None:
    """Return a field with its allowed keywords; None if it is not flat."""
    schema = _resolved(schema, shared)
    keys = FIELD_KEYS.get(schema.get("type", ""))
    if keys is None:
        return None
    if schema["type"] == "array":
        items = _resolved(schema.get("items", {}), shared)
        if not revision.rich_forms or not ("enum" in items or "anyOf" in items):
            return None
        schema = schema | {"items": items}
    if revision.rich_forms:
        keys = keys | {"enum", "enumNames", "oneOf", "default"}
    elif schema["type"] == "string":
        keys = keys | {"enum", "enumNames"}
        choices = schema.get("oneOf")
        if choices:
            names = [choice.get("title", choice["const"]) for choice in choices]
            schema = schema | {"enum": [choice["const"] for choice in choices], "enumNames": names}
    field = {key: value for key, value in schema.items() if key in keys}
    if field.get("format", "email") not in FORMATS:
        del field["format"]
    return field


def _resolved(schema: Schema, shared: dict[str, Schema]) -> Schema:
    """Return the schema behind a reference or in a union with null."""
    schema = resolve_reference(schema, shared)
    choices = [choice for choice in schema.get("anyOf", []) if choice.get("type") != "null"]
    if len(choices) == 1 and "type" not in schema:
        rest = {key: value for key, value in schema.items() if key not in ("anyOf", "default")}
        return _resolved(choices[0] | rest, shared)
    return schema


# --- request state ----------------------------------------------------------------------------


class RequestState(NamedTuple):
    """The state of a suspended request, which identifies its run."""

    run: int
    #: The number of the last item that the client has received.
    seen: int
    #: The number of the last question sent to the client.
    asked: int
    #: Digest of the method and arguments: the state is not valid for another request.
    digest: str
    #: Wall-clock seconds.
    expires: int


def seal_state(state: RequestState, secret: bytes) -> str:
    """Encode and sign a state."""
    payload = wire.encode(list(state))
    return _text(_mac(payload, secret) + payload)


def open_state(text: Any, secret: bytes, now: float) -> RequestState:
    """Verify and decode a state. Raises InvalidParams if it is forged or has expired."""
    import hmac

    try:
        sealed = binascii.a2b_base64(text.replace("-", "+").replace("_", "/"), strict_mode=True)
        mac, payload = sealed[:MAC_BYTES], sealed[MAC_BYTES:]
    except (AttributeError, ValueError):
        raise InvalidParams("requestState is invalid.") from None
    if not hmac.compare_digest(mac, _mac(payload, secret)):
        raise InvalidParams("requestState is invalid.")
    state = RequestState(*wire.decode_value(payload, LIMITS))
    if state.expires < now:
        raise InvalidParams("requestState has expired. Repeat the request without it.")
    return state


def _mac(payload: bytes, secret: bytes) -> bytes:
    import hmac

    return hmac.digest(secret, payload, "sha256")


def _text(data: bytes) -> str:
    encoded = binascii.b2a_base64(data, newline=False).decode()
    return encoded.replace("+", "-").replace("/", "_")


def request_digest(method: str, arguments: dict[str, Any]) -> str:
    """Return the digest that identifies a request."""
    import hashlib

    return hashlib.sha256(wire.encode_canonical([method, arguments])).hexdigest()[:32]

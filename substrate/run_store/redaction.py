"""The recorded form of a call: its arguments as redacted, bounded JSON, and a one-line summary.

Never part of it: environment variables, parameters that are declared secret, values under names
that denote a secret, bytes, and whatever looks like a key, token or password inside of a text
(`substrate.run_store.secret_patterns`). Nothing here raises, whatever the arguments are.

The size is bounded before the work is: of a long text only the ends are read, of a large container
only the first entries. A text is searched a little beyond the place where it is cut, so that a
secret at the cut is still recognised.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import re
from collections.abc import Mapping
from itertools import islice
from typing import Any, Final, NamedTuple

from plexus.principal import Principal
from plexus.rpc import wire
from plexus.text import replace_controls
from substrate.run_store.secret_patterns import (
    PRIVATE_KEY_END,
    RANDOM_CHARS,
    Secrecy,
    Span,
    find_secrets,
    may_contain_secret,
    secrecy_of,
)

__all__ = ("ARGUMENTS_BYTES", "REDACTED", "SUMMARY_CHARS", "describe_call", "redact_text")

#: Maximum size of recorded arguments. A command or a message fits; a file that is passed does not.
ARGUMENTS_BYTES: Final = 16 * 1024
#: Maximum length of a summary: about two lines of a terminal.
SUMMARY_CHARS: Final = 200
REDACTED: Final = "[redacted]"
#: The key of a note about omitted entries.
MORE: Final = "..."

#: Characters that are searched beyond a cut. Most keys and tokens are shorter.
MARGIN: Final = 1024
KEY_CHARS: Final = 64
#: Characters of all texts that are searched, and values that are visited, in one attempt.
SEARCHED_CHARS: Final = 64 * 1024
VISITED: Final = 2000
#: Larger integers are described by their size.
INTEGER_LIMIT: Final = 2**63

#: Arguments of a usual call.
FEW: Final = 8

#: Arguments that summarise a call, the most telling first. Otherwise it is the first text.
TELLING: Final = ("command", "message", "prompt", "query", "text", "content", "code", "path")


class Bounds(NamedTuple):
    """How much of the arguments is kept."""

    chars: int
    entries: int
    depth: int


#: The last always fits: eight names and values of at most 6 bytes a character.
ATTEMPTS: Final = (
    Bounds(8192, 64, 8),
    Bounds(2048, 32, 6),
    Bounds(256, 16, 5),
    Bounds(48, 8, 3),
    Bounds(32, 8, 1),
)


def describe_call(
    method: str, arguments: Mapping[str, Any], secret_names: frozenset[str]
) -> tuple[str, str]:
    """Return the arguments of a call as JSON text, and a summary in one line. Never raises.

    secret_names: parameters of the method that are declared secret.
    """
    if len(arguments) == 1:
        # The usual call: one short text or number. A separate path is several times as fast as the
        # general one, and its result is the same.
        for name, value in arguments.items():
            if value.__class__ is int and name.isidentifier():
                line = f"{name}={value}"
                if (
                    len(line) <= SUMMARY_CHARS
                    and -INTEGER_LIMIT < value < INTEGER_LIMIT
                    and name not in secret_names
                    and not secrecy_of(name)
                ):
                    return wire.encode(arguments).decode(), line
            elif (
                value.__class__ is str
                and 0 < len(value) <= SUMMARY_CHARS
                and value.isprintable()
                and "  " not in value
                and name.isprintable()
                and name not in secret_names
                and not secrecy_of(name)
                and not may_contain_secret(value)
            ):
                return wire.encode(arguments).decode(), value.strip()
    if len(arguments) <= FEW and all(_is_plain(*each, secret_names) for each in arguments.items()):
        return wire.encode(dict(arguments)).decode(), _summary(method, arguments)
    for bounds in ATTEMPTS:
        members = _Reader(bounds, secret_names).read_arguments(arguments)
        text = wire.encode(members)
        if len(text) <= ARGUMENTS_BYTES:
            break
    return text.decode(), _summary(method, members)


def _is_plain(name: str, value: Any, secret_names: frozenset[str]) -> bool:
    """Return whether an argument can be recorded as it is."""
    if name in secret_names or not name.isprintable():
        return False
    kind = value.__class__
    if kind is str:
        # Not printable: control characters, line breaks, lone surrogates.
        is_short = len(value) <= SUMMARY_CHARS and value.isprintable()
        return is_short and not _hides(name, value) and not may_contain_secret(value)
    if kind is int:
        return -INTEGER_LIMIT < value < INTEGER_LIMIT and not _hides(name, value)
    return value is None or kind is bool


def redact_text(text: str) -> str:
    """Return a text with its secrets replaced by `[redacted]`."""
    return _replace(text, find_secrets(text)) if may_contain_secret(text) else text


def _replace(text: str, spans: Any, start: int = 0, end: int | None = None) -> str:
    """Return a part of a text, with the spans that it contains or touches replaced."""
    end = len(text) if end is None else end
    parts = []
    for span in spans:
        if span.end <= start:
            continue
        if span.start >= end:
            break
        parts += [text[start : span.start], REDACTED]
        start = span.end
    parts.append(text[start:end])
    return "".join(parts)


# --- arguments --------------------------------------------------------------------------------


class _Reader:
    """Converts values to redacted values of JSON, within bounds."""

    def __init__(self, bounds: Bounds, secret_names: frozenset[str]) -> None:
        self._bounds = bounds
        self._secret_names = secret_names
        self._chars_left = SEARCHED_CHARS
        self._values_left = VISITED

    def read_arguments(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        read = self._read(arguments, 0)
        return read if isinstance(read, dict) else {MORE: read}

    def _read(self, value: Any, depth: int, name: str = "") -> Any:
        """Return the recorded form of a value. `name` decides whether it is a secret."""
        self._values_left -= 1
        if self._values_left < 0:
            return MORE
        try:
            if name and _hides(name, value):
                return REDACTED
            return self._read_object(value, depth)
        except Exception:  # noqa: BLE001 - an author's class may raise anything when it is read
            return f"[{type(value).__name__}]"

    def _read_object(self, value: Any, depth: int) -> Any:
        if value is None or value is True or value is False:
            return value
        if isinstance(value, enum.Enum):
            return self._read(value.value, depth)
        if isinstance(value, int):
            number = int.__index__(value)
            fits = -INTEGER_LIMIT < number < INTEGER_LIMIT
            return number if fits else f"[integer of {number.bit_length()} bits]"
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else str(float(value))
        if isinstance(value, str):
            return self._text(str.__str__(value))
        if isinstance(value, bytes | bytearray | memoryview):
            return f"[{len(value)} bytes]"
        if isinstance(value, Principal) or hasattr(value, "get_secret_value"):
            return REDACTED
        if isinstance(value, list | set | frozenset) or value.__class__ is tuple:
            return self._list(value, depth)
        members = _members_of(value)
        if members is not None:
            return self._members(members, depth)
        text = _text_of(value)
        return f"[{type(value).__name__}]" if text is None else self._text(text)

    def _members(self, members: Mapping[Any, Any], depth: int) -> Any:
        count = len(members)
        if depth >= self._bounds.depth and count:
            return f"[object of {count} members]"
        read: dict[str, Any] = {}
        for key, value in islice(members.items(), self._bounds.entries):
            name = self._name(key)
            read[name] = self._member(key if isinstance(key, str) else name, value, depth)
        if count > self._bounds.entries:
            read[MORE] = f"{count - self._bounds.entries} more"
        # {"name": "Authorization", "value": ...}, as in lists of headers or variables.
        named = next((read[key] for key in ("name", "key") if key in read), None)
        if "value" in read and isinstance(named, str) and _hides(named, read["value"]):
            read["value"] = REDACTED
        return read

    def _member(self, name: str, value: Any, depth: int) -> Any:
        if depth == 0 and name in self._secret_names:
            return REDACTED
        return self._read(value, depth + 1, name)

    def _list(self, values: Any, depth: int) -> Any:
        count = len(values)
        if depth >= self._bounds.depth and count:
            return f"[list of {count} entries]"
        read: list[Any] = []
        name = ""
        for value in islice(values, self._bounds.entries):
            # ["--password", "x"] in a command, or ["Cookie", "x"] in a list of headers.
            is_flag = type(value) is str and value.startswith("-")
            read.append(self._read(value, depth + 1, "" if is_flag else name))
            may_name = type(value) is str and len(value) <= KEY_CHARS and (is_flag or count == 2)
            name = value if may_name else ""
        if count > self._bounds.entries:
            read.append(f"{MORE} {count - self._bounds.entries} more")
        return read

    def _name(self, key: Any) -> str:
        if not isinstance(key, str):
            is_plain = key is None or key.__class__ in (bool, int, float)
            return str(key)[:KEY_CHARS] if is_plain else f"[{type(key).__name__}]"
        text = self._text(key[: KEY_CHARS + MARGIN])
        return text if len(text) <= KEY_CHARS else text[:KEY_CHARS] + MORE

    def _text(self, text: str) -> str:
        size = min(len(text), self._bounds.chars + 2 * MARGIN)
        if size > self._chars_left:
            return f"[{len(text)} characters]"
        self._chars_left -= size
        cut = _cut(text, self._bounds.chars)
        if cut.isascii():
            return cut
        return cut.encode("utf-8", "backslashreplace").decode()  # JSON has no lone surrogates


def _hides(name: str, value: Any) -> bool:
    """Return whether a value must not be recorded because of its name."""
    secrecy = secrecy_of(name if len(name) <= KEY_CHARS else name[: 2 * KEY_CHARS])
    if not secrecy or value is None or isinstance(value, bool):
        return False
    if secrecy is Secrecy.ENVIRONMENT:
        # `environment = "production"` is none.
        return name.lower() == "env" or not isinstance(value, str)
    if isinstance(value, str):
        # The rules of texts decide which values are not secret, as in `tokens=100`.
        if secrecy is Secrecy.IF_RANDOM and len(value) < RANDOM_CHARS:
            return False
        text = str.__str__(value)[:MARGIN]
        return secrecy is Secrecy.ALWAYS or next(find_secrets(f"{name}={text}"), None) is not None
    if secrecy is Secrecy.IF_RANDOM:
        return False
    return secrecy is Secrecy.ALWAYS or not isinstance(value, int | float | Mapping)


def _members_of(value: Any) -> Mapping[Any, Any] | None:
    """Return the members of a mapping, a model, a dataclass or a named tuple."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, type):
        return None
    names: Any = getattr(value, "__struct_fields__", None) or getattr(value, "_fields", None)
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
    if isinstance(names, tuple | list):
        return {name: getattr(value, name, None) for name in names}
    if hasattr(value, "model_dump"):  # a pydantic model, without importing pydantic
        return dict(vars(value))
    return None


def _text_of(value: Any) -> str | None:
    """Return the text of a path, a time or another value that is written as text."""
    if hasattr(value, "__fspath__"):
        return str(value.__fspath__())
    if hasattr(value, "isoformat"):
        return str(value.isoformat())
    module = type(value).__module__
    return (
        str(value) if module in ("datetime", "decimal", "fractions", "ipaddress", "uuid") else None
    )


# --- texts ------------------------------------------------------------------------------------


def _cut(text: str, limit: int) -> str:
    """Return a text without its secrets; of a long one the head, a note and the tail."""
    if len(text) <= limit:
        return redact_text(text)
    head, tail = limit - limit // 4, limit // 4
    first = text[: head + MARGIN]
    begin = _replace(first, find_secrets(first), 0, head)
    last = text[-tail - MARGIN :]
    start = len(last) - tail
    if re.search(r"\s", last[:start]) is None:
        # A word that begins before what is searched could be the end of a key.
        space = re.compile(r"\s").search(last, start)
        start = len(last) if space is None else space.start()
    end = _replace(last, _spans_of_end(last), start)
    return f"{begin}[... {len(text) - head - len(last) + start} characters omitted ...]{end}"


def _spans_of_end(text: str) -> list[Span]:
    """Return the secrets in the end of a text, which may begin inside of a private key."""
    spans = [*find_secrets(text)]
    closing = re.search(PRIVATE_KEY_END, text)
    if closing is None or any(span.end >= closing.end() > span.start for span in spans):
        return spans
    return [Span(0, closing.end()), *(span for span in spans if span.start >= closing.end())]


def _summary(method: str, members: Mapping[str, Any]) -> str:
    """Return a line that says what a call does, from its redacted arguments."""
    chosen = members.get("command") if method == "bash.execute" else None
    if not _is_telling(chosen):
        texts = {name: each for name, each in members.items() if _is_telling(each) and name != MORE}
        chosen = next((texts[name] for name in TELLING if name in texts), None)
        chosen = chosen or next(iter(texts.values()), None)
    if chosen is None:
        chosen = ", ".join(f"{name}={_short(value)}" for name, value in members.items())
    line = " ".join(chosen[: 4 * SUMMARY_CHARS].split())
    if not line.isprintable():
        line = " ".join(replace_controls(line).split())
    return line if len(line) <= SUMMARY_CHARS else f"{line[: SUMMARY_CHARS - 3]}..."


def _is_telling(value: Any) -> bool:
    return value.__class__ is str and value != REDACTED and not value.isspace() and value != ""


def _short(value: Any) -> str:
    return value if isinstance(value, str) else wire.encode(value).decode()[: 2 * SUMMARY_CHARS]

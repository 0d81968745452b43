"""The errors of templates, with the numbers of the protocol that these tools come from.

The numbers mean other things in JSON-RPC and in MCP, so they are not error codes here: programs
that know them find them in `data["seed_code"]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from activations.templates.parameters import Fault
from plexus import InvalidParams, NotFound
from plexus.registry.validation import nearest
from plexus.text import shorten

__all__ = (
    "invalid_argument",
    "invalid_parameters",
    "invalid_uri",
    "unknown_category",
    "unknown_template",
    "unknown_toolchain",
)

NOT_FOUND: Final = -32000
INVALID_URI: Final = -32001
INVALID_PARAMETERS: Final = -32002
#: Maximum characters of a value from a caller in a message, and of a whole message.
VALUE_CHARACTERS: Final = 100
MESSAGE_CHARACTERS: Final = 4000
#: What people call the toolchains.
SYNONYMS: Final = {
    "bun": "node",
    "cargo": "rust",
    "golang": "go",
    "javascript": "node",
    "js": "node",
    "nodejs": "node",
    "npm": "node",
    "pip": "python-uv",
    "poetry": "python-uv",
    "py": "python-uv",
    "python": "python-uv",
    "python3": "python-uv",
    "rs": "rust",
    "rustc": "rust",
    "ts": "deno",
    "typescript": "deno",
    "uv": "python-uv",
}


def invalid_uri(uri: str, fault: str) -> InvalidParams:
    """Return the error for a URI that is not one of a template."""
    shown = shorten(uri, VALUE_CHARACTERS)
    text = (
        f"{shown!r} is not the URI of a template: {fault}. It is "
        "template://{category}/{toolchain}/{variant}, such as template://makefile/rust/cli."
    )
    errors = [{"at": "resource_uri", "fault": text}]
    return InvalidParams(text, data={"errors": errors, "seed_code": INVALID_URI})


def unknown_template(uri: str, known: Sequence[str], problem: str | None = None) -> NotFound:
    """Return the error for a template that does not exist, or could not be read."""
    # The scheme is the same everywhere, so it would make all of them similar.
    near = [
        f"template://{each}"
        for each in nearest(
            uri.removeprefix("template://"), [each.removeprefix("template://") for each in known]
        )
    ]
    if problem is not None:
        reason = f"The template {uri} cannot be used: {problem}."
    else:
        reason = f"Unknown template {uri!r}."
        reason += f" Did you mean {near[0]}?" if near else ""
    return NotFound(
        f"{reason} List templates with templates.list_templates.",
        data={"uri": uri, "nearest": near, "seed_code": NOT_FOUND},
    )


def unknown_toolchain(toolchain: str, known: Sequence[str]) -> InvalidParams:
    """Return the error for a toolchain without templates; it names the nearest one."""
    return _unknown("toolchain", toolchain, known, SYNONYMS.get(toolchain.lower()))


def unknown_category(category: str, known: Sequence[str]) -> InvalidParams:
    """Return the error for a category without templates; it names the nearest one."""
    return _unknown("category", category, known, None)


def _unknown(at: str, value: str, known: Sequence[str], synonym: str | None) -> InvalidParams:
    near = [synonym] if synonym in known else nearest(value, known, 1)
    text = f"unknown {at} {shorten(value, VALUE_CHARACTERS)!r}"
    text += f"; did you mean {near[0]!r}?" if near else ";"
    text += f" Known: {', '.join(known)}."
    return invalid_argument(at, text, nearest=near)


def invalid_argument(at: str, text: str, **data: Any) -> InvalidParams:
    """Return the error for one argument of a method."""
    errors = [{"at": at, "fault": text}]
    return InvalidParams(text, data={"errors": errors, "seed_code": INVALID_PARAMETERS} | data)


def invalid_parameters(subject: str, faults: Sequence[Fault]) -> InvalidParams:
    """Return the error with all faults of the parameters of a template."""
    lines = "".join(f"\n- {each.at} {each.fault}" for each in faults)
    errors = [{"at": f"parameters.{each.at}", "fault": each.fault} for each in faults]
    return InvalidParams(
        shorten(f"The parameters do not fit {subject}:{lines}", MESSAGE_CHARACTERS),
        data={"errors": errors, "seed_code": INVALID_PARAMETERS},
    )

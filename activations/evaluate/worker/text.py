"""Texts of values: bounded, and without characters that cannot be encoded."""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` would add to the start
if TYPE_CHECKING:
    from typing import Any

__all__ = ("clean", "cut", "kind_of", "message_of", "represent", "short_message")


def kind_of(value: Any) -> str:
    """Return the name of a value's type, with its module unless that is built in."""
    kind = type(value)
    module = getattr(kind, "__module__", "builtins")
    name = getattr(kind, "__qualname__", kind.__name__)
    return name if module in ("builtins", "__main__") else f"{module}.{name}"


def represent(value: Any) -> str:
    """Return `repr` of a value. Raises what that raises."""
    return clean(repr(value))


def message_of(error: BaseException) -> str:
    """Return the text of an exception."""
    try:
        return clean(str(error))
    except Exception as failure:
        return f"<its text raises {type(failure).__name__}>"


def short_message(error: BaseException) -> str:
    """Return an exception in one short line."""
    return f"{type(error).__name__}: {message_of(error)[:500]}"


def clean(text: str) -> str:
    """Return text that can be encoded."""
    return text.encode(errors="backslashreplace").decode()


def cut(text: str, limit: int) -> str:
    """Return a text with at most about this many characters: its head and its tail."""
    if len(text) <= limit:
        return clean(text)
    half = limit // 2
    return clean(
        f"{text[:half]}\n[... {len(text) - 2 * half} characters omitted ...]\n{text[-half:]}"
    )

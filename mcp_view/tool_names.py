"""How methods are called outside: with dots, or in a spelling that stricter hosts take.

Every spelling is accepted on the way in. The hub refuses two methods that differ only in dots
and underscores, so no spelling is ever ambiguous.
"""

from __future__ import annotations

from typing import Final, Literal, Protocol, TypeAlias

__all__ = ("SPELLINGS", "Names", "Spelling", "SpellingName")

SpellingName: TypeAlias = Literal["dot", "underscore", "dash"]


class Names(Protocol):
    """What tools and prompts are called by."""

    def name_of(self, method: str) -> str:
        """What this method is called outside."""
        ...

    def method_of(self, name: str) -> str:
        """The method that is meant by this name, as the hub knows it or would."""
        ...


class Spelling:
    """Names that put one character between the parts."""

    def __init__(self, separator: str) -> None:
        self._separator = separator

    def name_of(self, method: str) -> str:
        """The dots of the method's name, written as this spelling has them."""
        return method.replace(".", self._separator)

    def method_of(self, name: str) -> str:
        """Dashes as dots, which no method's name has; underscores are known to the hub."""
        return name.replace("-", ".")


SPELLINGS: Final[dict[SpellingName, Spelling]] = {
    "dot": Spelling("."),
    "underscore": Spelling("_"),
    "dash": Spelling("-"),
}

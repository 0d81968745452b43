"""Tool sets: which tools a client is offered in `tools/list`.

A host pays for every tool that it lists, so the default is the standard set: the methods that are
meant for models. What is not listed can still be called by its name.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from plexus.registry.selection import check_patterns, matches
from plexus.registry.signature import MethodSpec

__all__ = ("ALL_TOOLS", "STANDARD_TOOLS", "ToolSet")


class ToolSet:
    """A choice of tools; equal choices share one list."""

    __slots__ = ("_patterns", "key")

    def __init__(self, key: str) -> None:
        #: The choice as text: "standard", "all", or patterns, separated by commas.
        self.key = key
        self._patterns = tuple(each for each in key.split(",") if each not in _NAMED)

    @classmethod
    def parse(cls, text: str | Iterable[str]) -> ToolSet:
        """Read a choice: `standard`, `all`, or patterns such as `bash.*`, separated by commas.

        Raises ValueError for what is no pattern.
        """
        parts = text.split(",") if isinstance(text, str) else list(text)
        chosen = sorted({part.strip() for part in parts} - {""})
        check_patterns(each for each in chosen if each not in _NAMED)
        if "all" in chosen:
            return ALL_TOOLS
        return cls(",".join(chosen)) if chosen else STANDARD_TOOLS

    def includes(self, spec: MethodSpec) -> bool:
        """Whether a method is among the tools."""
        if not spec.listed:
            return False
        if self is ALL_TOOLS:
            return True
        if spec.audience == "model" and "standard" in self.key.split(","):
            return True
        return matches(spec.name, self._patterns)


_NAMED: Final = frozenset({"standard", "all"})
STANDARD_TOOLS: Final = ToolSet("standard")
ALL_TOOLS: Final = ToolSet("all")

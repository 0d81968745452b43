"""Choice of methods by patterns: what a server registers, and what a view lists.

A pattern is a method (`bash.execute`), a namespace with everything inside it (`arbor`), or either
with wildcards (`arbor.tree_*`, `chat.*`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import translate
from functools import lru_cache
from typing import Final, NamedTuple

__all__ = ("ALL", "OFF", "Selection", "check_patterns", "matches", "unmatched")

#: The namespace of the server itself, which clients read everything else from.
CORE: Final = "plexus"
#: Why a method that the operator did not choose cannot be called.
OFF: Final = "switched off by the operator"

_PATTERN: Final = re.compile(r"[a-z0-9_.*?\[\]!-]{1,128}")


class Selection(NamedTuple):
    """The methods that a server offers. Those of the server itself are always among them."""

    #: If there are any, only methods that match one of these.
    only: tuple[str, ...] = ()
    #: No methods that match one of these.
    without: tuple[str, ...] = ()

    def allows(self, name: str) -> bool:
        """Whether the method of this name is offered."""
        if name.startswith(f"{CORE}."):
            return True
        if self.only and not matches(name, self.only):
            return False
        return not (self.without and matches(name, self.without))

    def allows_some(self, namespace: str) -> bool:
        """Whether any method of a namespace may be offered, judged without knowing them."""
        if namespace == CORE:
            return True
        whole = any(matches(f"{namespace}.x", (each,)) and _is_whole(each) for each in self.without)
        if whole:
            return False
        return not self.only or any(_may_match(each, namespace) for each in self.only)


#: Everything.
ALL: Final = Selection()


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether a method matches one of these patterns."""
    return any(_compiled(pattern).match(name) for pattern in patterns)


def unmatched(patterns: Iterable[str], names: Iterable[str]) -> list[str]:
    """Return the patterns that match none of these methods: most likely they are misspelled."""
    known = list(names)
    return [each for each in patterns if not any(_compiled(each).match(name) for name in known)]


def check_patterns(patterns: Iterable[str]) -> None:
    """Raise ValueError for a text that cannot be a pattern."""
    for pattern in patterns:
        if not _PATTERN.fullmatch(pattern):
            raise ValueError(
                f"{pattern!r} is not a pattern; write a method, a namespace, or either with "
                "wildcards, as in bash.execute, arbor or arbor.tree_*"
            )


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    """Compile a pattern; a namespace matches all that begins with it and a dot."""
    return re.compile(f"(?:{translate(pattern)})|(?:{translate(pattern + '.*')})")


def _is_whole(pattern: str) -> bool:
    """Whether a pattern names namespaces, and not some methods of them."""
    return "." not in pattern or pattern.endswith(".*")


def _may_match(pattern: str, namespace: str) -> bool:
    head = pattern.partition(".")[0]
    return _compiled(head).match(namespace.partition(".")[0]) is not None

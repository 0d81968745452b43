"""Who is calling, and what they may call."""

from __future__ import annotations

from typing import Final

__all__ = ("LOCAL", "READ", "Principal", "is_scope")

#: The least scope, which everybody has.
READ: Final = "read"
_LETTERS: Final = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_.")


def is_scope(text: object) -> bool:
    """Whether this can be a scope: lower case letters, digits, underscores and dots."""
    return isinstance(text, str) and text != "" and _LETTERS.issuperset(text)


class Principal:
    """An identity. Runs, answers and keys belong to one and are invisible to all others.

    Who it is, is its name alone: the same principal may come with more scopes by one way and
    with fewer by another. `scopes` are what it may call this time; None stands for everything.
    `credential` identifies the token or session that it authenticated with; None for calls from
    inside this process. What a credential opened or began ends with it.
    """

    __slots__ = ("credential", "name", "scopes")

    def __init__(
        self, name: str, scopes: frozenset[str] | None = None, credential: bytes | None = None
    ) -> None:
        self.name: Final = name
        self.scopes: Final = scopes
        self.credential: Final = credential

    def may(self, scope: str) -> bool:
        """Whether it may call what has this scope."""
        return self.scopes is None or scope in self.scopes or scope == READ

    def covers(self, other: Principal) -> bool:
        """Whether this is the same principal by the same credential, with at least the scopes of
        the other: what belongs to the other may be passed on to this one."""
        if self.name != other.name or self.credential != other.credential:
            return False
        if self.scopes is None or other.scopes is None:
            return self.scopes is None
        return other.scopes - {READ} <= self.scopes

    def __eq__(self, other: object) -> bool:
        return self.name == other.name if isinstance(other, Principal) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        scopes = "everything" if self.scopes is None else " ".join(sorted(self.scopes)) or READ
        return f"<Principal {self.name}: {scopes}>"


#: The person at this machine: whoever started the process, or reaches it by loopback.
LOCAL = Principal("local")

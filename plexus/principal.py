"""Principals: the identity of a caller, and the scopes that it has."""

from __future__ import annotations

from typing import Final

__all__ = ("LOCAL", "READ", "Principal", "is_scope")

#: The minimal scope, which every principal has.
READ: Final = "read"
_LETTERS: Final = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_.")


def is_scope(text: object) -> bool:
    """Return whether this is a valid scope: lower case letters, digits, underscores and dots."""
    return isinstance(text, str) and text != "" and _LETTERS.issuperset(text)


class Principal:
    """An identity. Runs, answers and keys belong to one and are invisible to all others.

    The name alone is the identity: the same principal may have more scopes through one credential
    than through another. `scopes` are those of this call; None means all. `credential` identifies
    the token or session that authenticated it; None for calls from inside this process. When a
    credential is revoked, the connections and runs that were started with it end.
    """

    __slots__ = ("credential", "name", "scopes")

    def __init__(
        self, name: str, scopes: frozenset[str] | None = None, credential: bytes | None = None
    ) -> None:
        self.name: Final = name
        self.scopes: Final = scopes
        self.credential: Final = credential

    @property
    def is_operator(self) -> bool:
        """Whether this is the local operator, with all permissions."""
        return self.name == LOCAL.name and self.scopes is None

    def may(self, scope: str) -> bool:
        """Return whether it may call a method with this scope."""
        return self.scopes is None or scope in self.scopes or scope == READ

    def covers(self, other: Principal) -> bool:
        """Return whether the other's runs and connections may be passed on to this principal.

        That requires the same name, the same credential, and at least the same scopes.
        """
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


#: The local operator: the user who started the process, or who connects from loopback.
LOCAL = Principal("local")

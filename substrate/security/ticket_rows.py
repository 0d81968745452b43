"""Tickets as rows of a database that several servers share: any of them redeems a ticket, once.

A row holds the digest of a ticket and the credential that it stands for, encrypted with the ticket
itself. So the database reveals neither a ticket nor, for OAuth, the token of its owner.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

from plexus.principal import Principal
from plexus.rpc import wire
from plexus.storage.engine import Engine, Transaction
from substrate.security.authentication import Credential
from substrate.security.errors import TooMany
from substrate.security.tokens import digest_of, new_token
from substrate.server.limits import ServerLimits
from substrate.server.mailbox import NOW_MS

__all__ = ("TicketRows",)

#: Separates the key of the encryption from other uses of the ticket.
PURPOSE: Final = b"credential of a ticket\0"
#: So long ago that the token of a redeemed ticket is checked again.
UNCHECKED: Final = float("-inf")


class TicketRows:
    """Unused tickets of all servers of one database."""

    def __init__(self, engine: Engine, limits: ServerLimits) -> None:
        self._engine = engine
        self._limits = limits

    async def issue(self, holder: Credential, identity: bytes, path: str | None) -> str:
        """Return a new ticket. `identity` is the digest of the credential.

        Raises TooMany and Failed.
        """
        limits = self._limits
        ticket = new_token()
        sealed = _encrypt(_encode(holder), ticket)
        lifetime_ms = round(limits.ticket_s * 1000)

        def insert(tx: Transaction) -> TooMany | None:
            tx.run(f"DELETE FROM stream_tickets WHERE expires_ms <= {NOW_MS}")
            for condition, values, limit, whose in (
                (" WHERE identity = ?", (identity,), limits.tickets_per_credential, "credential"),
                ("", (), limits.tickets, "server"),
            ):
                row = tx.one(f"SELECT count(*) FROM stream_tickets{condition}", values)
                if row is not None and row[0] >= limit:
                    return TooMany(f"this {whose} has too many unused tickets", limit)
            tx.run(
                "INSERT INTO stream_tickets (digest, identity, path, holder, expires_ms)"
                f" VALUES (?, ?, ?, ?, {NOW_MS} + ?)",
                (digest_of(ticket), identity, path, sealed, lifetime_ms),
            )
            return None

        refused = await self._engine.write(insert)
        if refused is not None:
            raise refused
        return ticket

    async def redeem(self, ticket: str, path: str) -> Credential | None:
        """Return the holder of this ticket if it is valid for this path.

        Uses the ticket up either way. Raises Failed.
        """
        digest = digest_of(ticket)
        # A ticket can be sent without a token, and a read costs the database less than a write.
        known = await self._engine.read(
            lambda tx: tx.one("SELECT 1 FROM stream_tickets WHERE digest = ?", (digest,))
        )
        if known is None:
            return None
        row = await self._engine.write(
            lambda tx: tx.one(
                "DELETE FROM stream_tickets WHERE digest = ?"
                f" RETURNING path, holder, expires_ms > {NOW_MS}",
                (digest,),
            )
        )
        if row is None:
            return None
        bound, sealed, is_valid = row
        if not is_valid or bound not in (None, path):
            return None
        return _decode(_encrypt(bytes(sealed), ticket))


def _encrypt(data: bytes, ticket: str) -> bytes:
    """Encrypt or decrypt with a key that is used for nothing else: a ticket is random and unique.

    The credential is verified after decryption, so the data needs no signature.
    """
    key = hashlib.shake_256(PURPOSE + ticket.encode("utf-8", "surrogatepass")).digest(len(data))
    return bytes(one ^ other for one, other in zip(data, key, strict=True))


def _encode(credential: Credential) -> bytes:
    owner = credential.principal
    return wire.encode(
        {
            "name": owner.name,
            "scopes": None if owner.scopes is None else sorted(owner.scopes),
            "credential": None if owner.credential is None else owner.credential.hex(),
            "digest": credential.digest.hex(),
            "session": credential.session,
            "bearer": credential.bearer,
            "expires_s": credential.expires_s,
        }
    )


def _decode(data: bytes) -> Credential:
    about: dict[str, Any] = wire.decode_trusted(data)
    scopes, binding = about["scopes"], about["credential"]
    return Credential(
        Principal(
            about["name"],
            None if scopes is None else frozenset(scopes),
            None if binding is None else bytes.fromhex(binding),
        ),
        bytes.fromhex(about["digest"]),
        session=about["session"],
        bearer=about["bearer"],
        checked_at=UNCHECKED,
        expires_s=about["expires_s"],
    )

"""The errors that every engine raises, whatever its database calls them."""

from __future__ import annotations

from plexus.errors import Busy, Failed

__all__ = (
    "closed",
    "corrupt",
    "damaged",
    "locked",
    "newer",
    "queue_full",
    "read_only",
    "storage_failed",
    "storage_full",
)


def storage_failed(reason: str) -> Failed:
    """Failure for a reason that has no code of its own."""
    return Failed(f"the store could not do this: {reason}", code="storage")


def storage_full(reason: str) -> Failed:
    """Disk or quota full; nothing was written."""
    return Failed(f"the store's disk is full: {reason}", code="storage_full")


def read_only(reason: str) -> Failed:
    """The file, its folder or the disk cannot be written."""
    return Failed(f"the store cannot be written: {reason}", code="storage_read_only")


def corrupt(reason: str) -> Failed:
    """Not a database of this program, or a damaged one."""
    return Failed(f"the store cannot be read: {reason}", code="storage_corrupt")


def damaged(reason: str) -> Failed:
    """Files of the database were damaged, removed or replaced from outside."""
    return Failed(
        f"the store is damaged: {reason}; stop every process that uses it, and restore a backup"
        " or check what is there",
        code="storage_damaged",
    )


def newer(found: int, known: int) -> Failed:
    """The component's tables were written by a later version of this program."""
    return Failed(
        f"the store has schema version {found}, and this program knows versions up to {known}:"
        " it was written by a later version of this program",
        code="storage_newer",
        data={"found": found, "known": known},
    )


def closed() -> Failed:
    """The engine was closed."""
    return Failed("the store is closed", code="storage_closed")


def locked(seconds: float) -> Busy:
    """Other processes kept the database locked."""
    return Busy(f"the store was locked by others for {seconds:g} s; try again")


def queue_full(limit: int) -> Busy:
    """Too many operations are waiting already."""
    return Busy(f"{limit} operations wait for the store", data={"limit": limit})

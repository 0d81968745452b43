"""The errors that every engine raises, independent of its database."""

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
    """Failure without a more specific code."""
    return Failed(f"Storage operation failed: {reason}", code="storage")


def storage_full(reason: str) -> Failed:
    """Disk or quota full. Nothing was written."""
    return Failed(f"Storage is full: {reason}. Free some space and retry.", code="storage_full")


def read_only(reason: str) -> Failed:
    """The file, its folder or the disk is not writable."""
    return Failed(
        f"Storage is not writable: {reason}. Check the permissions.", code="storage_read_only"
    )


def corrupt(reason: str) -> Failed:
    """The file is not a database of this program, or is malformed."""
    return Failed(f"Storage cannot be read: {reason}", code="storage_corrupt")


def damaged(reason: str) -> Failed:
    """Database files were damaged, removed or replaced by another program."""
    return Failed(
        f"Storage is damaged: {reason}. Stop every process that uses it, then restore a backup or"
        " inspect the files.",
        code="storage_damaged",
    )


def newer(found: int, known: int) -> Failed:
    """The component's tables have a newer schema than this program supports."""
    return Failed(
        f"Storage has schema version {found}, but this program supports versions up to {known}."
        " Upgrade this program.",
        code="storage_newer",
        data={"found": found, "known": known},
    )


def closed() -> Failed:
    """The engine is closed."""
    return Failed("Storage is closed.", code="storage_closed")


def locked(seconds: float) -> Busy:
    """Another process held the database lock until the timeout."""
    return Busy(f"Storage was locked by another process for {seconds:g} s. Retry later.")


def queue_full(limit: int) -> Busy:
    """The queue of operations is full."""
    return Busy(
        f"The storage queue is full ({limit} operations). Retry later.", data={"limit": limit}
    )

"""Unexpected exceptions: what the server's log gets, and what a peer gets."""

from __future__ import annotations

import logging
import os

from plexus.errors import Internal

__all__ = ("report",)

logger = logging.getLogger("plexus.defects")


def report(subject: str, error: BaseException) -> Internal:
    """Log a defect, and make the error that says where to find it and nothing else."""
    log_id = os.urandom(4).hex()
    logger.error("%s failed [%s]", subject, log_id, exc_info=error)
    return Internal(
        f"{subject} failed with {type(error).__name__}; the server's log has it as {log_id}",
        data={"log_id": log_id},
    )

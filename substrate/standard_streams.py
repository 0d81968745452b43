"""The descriptors 0, 1 and 2 of this process.

The parent may have closed any of them, and the next file that is opened would then take its place.
"""

from __future__ import annotations

import os
import sys

__all__ = ("claim_stdio", "open_missing_descriptors")


def open_missing_descriptors() -> int:
    """Let closed descriptors below 3 refer to /dev/null. Returns another descriptor of it."""
    while (null := os.open(os.devnull, os.O_RDWR)) < 3:
        os.set_inheritable(null, True)
    return null


def claim_stdio() -> tuple[int, int]:
    """Duplicate stdin and stdout, return them, and redirect stdout to stderr."""
    if sys.stdout is not None:
        sys.stdout.flush()
    null = open_missing_descriptors()
    input_fd, output_fd = os.dup(0), os.dup(1)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return input_fd, output_fd

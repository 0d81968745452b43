"""How long fuzzing goes on, and from where it starts.

FUZZ_SECONDS  the time for all of this folder together, shared out among its tests (short form)
FUZZ_INPUTS   how many inputs each test makes, however long that takes (long form: 1000000)
FUZZ_SEED     where the random numbers begin; a failure says which input it was
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

__all__ = ("SEED", "TIMEOUT_S", "rounds")

SECONDS = float(os.environ.get("FUZZ_SECONDS", "40"))
INPUTS = int(os.environ.get("FUZZ_INPUTS", "0"))
SEED = int(os.environ.get("FUZZ_SEED", "1"))

#: When a test is given up: something hangs.
TIMEOUT_S = 60 + 2 * SECONDS + INPUTS / 100


def rounds(share: float, inputs_a_round: int = 1) -> Iterator[int]:
    """Count the rounds that a test may make with this share of the time."""
    number = 0
    until = time.monotonic() + share * SECONDS
    while number * inputs_a_round < INPUTS if INPUTS else time.monotonic() < until:
        yield number
        number += 1

"""Duration and seed of the fuzz tests.

FUZZ_SECONDS  seconds for all tests of this folder together (short form)
FUZZ_INPUTS   number of inputs of each test, without a time limit (long form: 1000000)
FUZZ_SEED     seed of the random numbers; a failure reports its input
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

__all__ = ("SEED", "TIMEOUT_S", "rounds")

SECONDS = float(os.environ.get("FUZZ_SECONDS", "40"))
INPUTS = int(os.environ.get("FUZZ_INPUTS", "0"))
SEED = int(os.environ.get("FUZZ_SEED", "1"))

#: Timeout of a test; exceeding it means that something hangs.
TIMEOUT_S = 60 + 2 * SECONDS + INPUTS / 100


def rounds(share: float, inputs_a_round: int = 1) -> Iterator[int]:
    """Count the rounds of a test with this share of the time."""
    number = 0
    until = time.monotonic() + share * SECONDS
    while number * inputs_a_round < INPUTS if INPUTS else time.monotonic() < until:
        yield number
        number += 1

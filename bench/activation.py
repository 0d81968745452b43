"""The activation that is measured: a stream of small events that never waits."""

from __future__ import annotations

from collections.abc import AsyncIterator

from plexus import Activation, Content, method

__all__ = ("Bench",)


class Bench(Activation):
    """Streams small events as fast as they are taken."""

    namespace = "bench"
    version = "1.0.0"

    @method
    async def count(self, to: int) -> AsyncIterator[Content]:
        """Count from 1 up to TO.

        Args:
            to: The last number.
        """
        for i in range(1, to + 1):
            yield Content(text=f"{i} ")

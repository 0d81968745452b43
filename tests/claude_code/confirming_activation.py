"""An activation that asks a yes-or-no question."""

from __future__ import annotations

from plexus import Activation, Confirm, Context, method


class Confirming(Activation):
    """Asks before it does anything."""

    namespace = "confirming"
    version = "1.0.0"

    @method
    async def delete(self, *, ctx: Context) -> str:
        """Delete files after a person has agreed."""
        agreed = await ctx.ask(Confirm("Delete 3 files?"))
        return f"confirmed {agreed}"

"""An activation that asks a yes-or-no question."""

from __future__ import annotations

from plexus import Activation, Confirm, Context, method


class Confirming(Activation):
    """A method that asks before it acts."""

    namespace = "confirming"
    version = "1.0.0"

    @method
    async def delete(self, *, ctx: Context) -> str:
        """Delete files after confirmation by the user."""
        agreed = await ctx.ask(Confirm("Delete 3 files?"))
        return f"confirmed {agreed}"

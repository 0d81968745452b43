"""A sign-in at another server, as a question of the run that needs it.

The question is withdrawn when the sign-in is complete, however a person got to its address. A
person whose browser runs on another machine than this server pastes the address of the page that
the browser could not open.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from activations.gateway.transports.oauth import SignIn
from mcp_view.client.errors import SignInRequired
from plexus.context import Context
from plexus.errors import Declined, PlexusError
from plexus.questions import AskText, OpenUrl

if TYPE_CHECKING:  # imported for annotations only: it imports what imports this module
    from activations.gateway.mount import Mount

__all__ = ("ask_to_sign_in",)

#: How long after a browser was opened the address is asked for.
PASTE_AFTER_S: Final = 20.0
PASTE: Final = (
    "If your browser then shows an error page, paste its address here; otherwise this question "
    "closes when you have signed in."
)


async def ask_to_sign_in(mount: Mount, ctx: Context | None, pending: SignIn) -> None:
    """Show a sign-in to the caller of a run, or on the terminal of a command.

    Returns when the question is asked. Raises SignInRequired if there is no person to ask.
    """
    name, show = mount.config.name, mount.gateway.show_sign_in
    if ctx is not None:
        task = asyncio.create_task(_ask(name, ctx, pending), name=f"sign-in to {name}")
    elif show is not None:
        task = asyncio.create_task(show(pending), name=f"sign-in to {name}")
    else:
        raise SignInRequired(
            f"{name} requires a sign-in. Call one of its tools or mounts.refresh, or run "
            f"`substrate mount refresh {name}`, and sign in."
        )
    mount.gateway.keep(task)
    pending.on_end(task.cancel)


async def _ask(name: str, ctx: Context, pending: SignIn) -> None:
    try:
        if ctx.can_ask(OpenUrl.kind):
            text = f"{name} requires you to sign in. Open the address in a browser."
            if not await ctx.ask(OpenUrl(text, pending.url), timeout_s=pending.limit_s):
                pending.refuse("The sign-in was declined.")
                return
            await asyncio.sleep(PASTE_AFTER_S)
            text = f"Sign in to {name} in your browser. {PASTE}"
        else:
            text = f"{name} requires you to sign in. Open {pending.url} in a browser. {PASTE}"
        while not pending.complete(await ctx.ask(AskText(text), timeout_s=pending.limit_s)):
            text = f"That is not the address at the end of the sign-in to {name}. {PASTE}"
    except Declined:
        pending.refuse("The sign-in was declined.")
    except PlexusError as error:
        pending.refuse(error.message)

"""Sessions: how one is set up, and finding them in the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from activations.arbor.model import Head
from activations.chat.events import Place, SessionData
from activations.chat.holding import SPACE, holder_of_run, is_held, recover, under_way
from activations.chat.setup import Setup
from plexus import Context
from plexus.errors import Busy, Failed, NotFound

if TYPE_CHECKING:  # a store is imported when it is opened
    from activations.arbor.store import Store

__all__ = (
    "Session",
    "find_session",
    "not_found",
    "session_data",
    "session_of",
    "taken",
    "turn_under_way",
)


class Session(NamedTuple):
    """A session as it is stored."""

    head: Head
    setup: Setup


def session_of(head: Head) -> Session:
    """The session that a head is."""
    data = head.data if isinstance(head.data, dict) else {}
    known = {name: value for name, value in data.items() if name in Setup._fields}
    for name in ("tools", "allowed_tools"):
        known[name] = tuple(known.get(name) or ())
    return Session(head, Setup(**{"model": "", **known}))


async def find_session(store: Store, ctx: Context, name: str) -> Session:
    """The session of this name; what a program that was ended has left of it is brought in."""
    principal = ctx.principal.name
    try:
        head = await store.get_head(principal, SPACE, name)
    except NotFound:
        raise not_found(name) from None
    if head.holder is not None and not is_held(head):
        head = await recover(store, principal, head, holder_of_run(ctx.run_id))
    return session_of(head)


def not_found(name: str) -> NotFound:
    """There is no session of this name."""
    return NotFound(f"Session {name[:256]!r} not found", data={"session": name[:256]})


def taken(error: Failed, name: str) -> Failed:
    """What to say of a name that is taken; anything else is said as it is."""
    if error.code != "name_taken":
        return error
    return Failed(
        f"there is a session {name!r} already; choose another name, or delete that one",
        code="name_taken",
        data={"session": name},
    )


def turn_under_way(error: Busy, name: str) -> Busy:
    """What to say of a session that somebody is at work on; anything else is said as it is."""
    return under_way(name) if error.code == "held" else error


def session_data(session: Session) -> SessionData:
    """A session as callers see it."""
    head, setup = session
    return SessionData(
        head.id,
        head.name,
        setup.model,
        Place(*head.position),
        head.created_ms,
        head.updated_ms,
        is_held(head),
        list(setup.tools),
        setup.approve,
        setup.overflow,
        setup.thinking,
        setup.system_prompt,
        setup.max_tokens,
        setup.temperature,
        setup.context_tokens,
        setup.working_dir,
        list(setup.allowed_tools) or None,
    )

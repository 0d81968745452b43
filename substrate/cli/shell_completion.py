"""What a shell offers for the names of runs, open questions and sessions.

A server is asked if one answers at once; whatever goes wrong, nothing is offered and nothing said.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

from plexus.errors import PlexusError
from substrate.cli.main import files_of, settings_of
from substrate.cli.target.local import LocalTarget
from substrate.cli.target.protocol import Target, result_of
from substrate.cli.target.selection import need_server, running_server
from substrate.cli.terminal.tables import is_work

__all__ = ("complete_approval", "complete_run", "complete_session")

#: How long a shell waits for the offers.
SUGGEST_S: Final = 1.0
MOST: Final = 200


def complete_run(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The numbers of runs, with what they do."""
    runs = _asked_server(ctx, "plexus.runs", {}) or []
    return [
        CompletionItem(str(run["run"]), help=f"{run['method']} ({run['state']})")
        for run in runs
        if is_work(run) and str(run["run"]).startswith(incomplete)
    ]


def complete_approval(
    ctx: click.Context, _: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """The questions that are open."""
    pending = _asked_server(ctx, "approvals.pending", {}) or {}
    return [
        CompletionItem(each["approval_id"], help=each["message"])
        for each in pending.get("approvals", ())
        if each["approval_id"].startswith(incomplete)
    ]


def complete_session(
    ctx: click.Context, _: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """The names of sessions."""
    params = {"limit": MOST}
    if ctx.params.get("local") or (ctx.params.get("url") is None and running_server(ctx) is None):
        own = LocalTarget(settings_of(ctx), Path.cwd(), files_of(ctx))
        ctx.call_on_close(own.close)
        page = _asked(own, "chat.list", params)
    else:
        page = _asked_server(ctx, "chat.list", params)
    return [
        CompletionItem(each["name"], help=each["model"])
        for each in (page or {}).get("sessions", ())
        if each["name"].startswith(incomplete)
    ]


def _asked_server(ctx: click.Context, method: str, params: dict[str, Any]) -> Any:
    with suppress(click.ClickException):
        return _asked(need_server(ctx, ctx.params.get("url")), method, params)
    return None


def _asked(target: Target, method: str, params: dict[str, Any]) -> Any:
    async def bounded() -> Any:
        async with asyncio.timeout(SUGGEST_S):
            return await result_of(target, method, params)

    with suppress(PlexusError, TimeoutError, click.ClickException):
        return target.run(bounded())
    return None

"""Shell completion of run numbers, pending approvals and session names.

Names come from a server that answers within a deadline. On any error there are no completions and
no message.
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
from substrate.cli.target.selection import Choice, choose_target, require_server, running_server

__all__ = ("complete_approval", "complete_namespace", "complete_run", "complete_session")

#: Deadline of a completion.
COMPLETE_S: Final = 1.0
MAX_ITEMS: Final = 200


def complete_run(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the number of a run."""
    runs = _call_server(ctx, "plexus.runs", {}) or []
    return [
        CompletionItem(str(run["run"]), help=f"{run['method']} ({run['state']})")
        for run in runs
        if str(run["run"]).startswith(incomplete)
    ]


def complete_approval(
    ctx: click.Context, _: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete the id of a pending approval."""
    pending = _call_server(ctx, "approvals.pending", {}) or {}
    return [
        CompletionItem(each["approval_id"], help=each["message"])
        for each in pending.get("approvals", ())
        if each["approval_id"].startswith(incomplete)
    ]


def complete_session(
    ctx: click.Context, _: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete the name of a chat session."""
    params = {"limit": MAX_ITEMS}
    if ctx.params.get("local") or (ctx.params.get("url") is None and running_server(ctx) is None):
        own = LocalTarget(settings_of(ctx), Path.cwd(), files_of(ctx))
        ctx.call_on_close(own.close)
        page = _call_in_time(own, "chat.list", params)
    else:
        page = _call_server(ctx, "chat.list", params)
    return [
        CompletionItem(each["name"], help=each["model"])
        for each in (page or {}).get("sessions", ())
        if each["name"].startswith(incomplete)
    ]


def complete_namespace(
    ctx: click.Context, _: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete the path of a namespace."""
    target = choose_target(ctx, Choice())
    return [
        CompletionItem(namespace.path, help=namespace.description)
        for namespace in target.catalogue.namespaces()
        if namespace.path.startswith(incomplete)
    ]


def _call_server(ctx: click.Context, method: str, params: dict[str, Any]) -> Any:
    with suppress(click.ClickException):
        return _call_in_time(require_server(ctx, ctx.params.get("url")), method, params)
    return None


def _call_in_time(target: Target, method: str, params: dict[str, Any]) -> Any:
    async def bounded() -> Any:
        async with asyncio.timeout(COMPLETE_S):
            return await result_of(target, method, params)

    with suppress(PlexusError, TimeoutError, click.ClickException):
        return target.run(bounded())
    return None

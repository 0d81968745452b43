"""`substrate chat`: an interactive conversation with a model, or a single message."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any, Final

import click

from plexus.errors import PlexusError
from substrate.cli.shell_completion import complete_session
from substrate.cli.target.catalogue import suggest
from substrate.cli.target.protocol import Target, result_of
from substrate.cli.target.selection import Choice, choose_target, target_options
from substrate.cli.terminal.chat_client import ChatClient, Session
from substrate.cli.terminal.chat_repl import ChatRepl
from substrate.cli.terminal.display import Streams, stdin_is_terminal
from substrate.cli.terminal.run_follower import INTERRUPTED

__all__ = ("chat",)

#: Name of the first session if none is given.
FIRST: Final = "chat"
PAGE: Final = 1000


@click.command(
    short_help="Chat with a model.",
    params=[
        click.Argument(["session"], required=False, shell_complete=complete_session),
        click.Option(
            ["-m", "--message"],
            metavar="TEXT",
            help="Send this message, print the answer and exit.",
        ),
        click.Option(["--model"], metavar="MODEL", help="Model to use, as in anthropic:..."),
        click.Option(["--new"], is_flag=True, help="Create a session named SESSION."),
        click.Option(
            ["--json", "as_json"],
            is_flag=True,
            help="With a single message: print events as lines of JSON.",
        ),
        *target_options(),
    ],
)
@click.pass_context
def chat(
    ctx: click.Context,
    *,
    session: str | None,
    message: str | None,
    model: str | None,
    new: bool,
    as_json: bool,
    local: bool,
    url: str | None,
) -> None:
    """Chat with a model in SESSION, or in the most recently used session.

    On a terminal every line is a message. /help lists the commands, Ctrl-C stops an answer (the
    partial answer is kept), Ctrl-D leaves. To send a single message, use -m or a pipe: stdout then
    contains only the answer.
    """
    if message is None and not stdin_is_terminal():
        message = _read_stdin()
        if not message.strip():
            raise click.UsageError("No message: stdin is empty. Pass a message with -m.", ctx)
    if as_json and message is None:
        raise click.UsageError("--json requires a single message, with -m or from a pipe.", ctx)
    target = choose_target(ctx, Choice(local, url))
    try:
        found = open_session(target, session, model, new=new, interactive=message is None)
        client = ChatClient(target, Streams(), found, as_json=as_json)
        if message is not None:
            ctx.exit(client.run_turn("chat.send", message=message))
        ChatRepl(client).run()
    except KeyboardInterrupt:
        ctx.exit(INTERRUPTED)


def _read_stdin() -> str:
    """Return the message from a pipe, without its final newline."""
    try:
        return sys.stdin.buffer.read().decode(errors="replace").removesuffix("\n")
    except (AttributeError, ValueError):
        return ""


# --- the session ----------------------------------------------------------------------------------


def open_session(
    target: Target, name: str | None, model: str | None, *, new: bool, interactive: bool
) -> Session:
    """Return the requested session, creating it if necessary. Raises ClickException.

    Without a name it is the most recently used session. If `interactive`, the user is asked before
    a missing session is created.
    """
    try:
        if new:
            return _create(target, name or time.strftime("%Y%m%d-%H%M%S"), model)
        found = _latest(target) if name is None else _find(target, name)
        if found is None and (name is None or (interactive and _confirm(name))):
            return _create(target, name or FIRST, model)
        if found is None:
            raise click.ClickException(_unknown_session(target, str(name)))
        if model is not None and model != found["model"]:
            params = {"session": found["name"], "model": model}
            found = target.run(result_of(target, "chat.configure", params))
    except PlexusError as error:
        raise click.ClickException(f"{error.message} ({error.code})") from error
    return found


def _create(target: Target, name: str, model: str | None) -> Session:
    params = {"name": name} | ({} if model is None else {"model": model})
    session: Session = target.run(result_of(target, "chat.create", params))
    return session


def _confirm(name: str) -> bool:
    return click.confirm(f"Session {name!r} does not exist. Create it?", True)


def _latest(target: Target) -> Session | None:
    return max(_sessions(target), key=lambda each: int(each["updated_ms"]), default=None)


def _find(target: Target, name: str) -> Session | None:
    try:
        session: Session = target.run(result_of(target, "chat.get", {"session": name}))
    except PlexusError as error:
        if error.code != "not_found":
            raise
        return None
    return session


def _sessions(target: Target) -> Iterator[Session]:
    after: dict[str, Any] = {}
    while True:
        params = {"limit": PAGE, **after}
        page = target.run(result_of(target, "chat.list", params))
        yield from page["sessions"]
        if page.get("next") is None:
            return
        after = {"after": page["next"]}


def _unknown_session(target: Target, name: str) -> str:
    advice = suggest(name, [each["name"] for each in _sessions(target)])
    return f"Unknown session {name!r}. {advice} Use --new to create it.".replace("  ", " ")

"""`substrate chat`: a conversation in the terminal, or one message of it."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any, Final

import click

from plexus.errors import PlexusError
from substrate.cli.shell_completion import complete_session
from substrate.cli.target.catalogue import nearest
from substrate.cli.target.protocol import Target, result_of
from substrate.cli.target.selection import Choice, choose_target, target_options
from substrate.cli.terminal.chat_client import ChatClient, Session
from substrate.cli.terminal.chat_repl import ChatRepl
from substrate.cli.terminal.display import Streams, stdin_is_terminal
from substrate.cli.terminal.run_follower import INTERRUPTED

__all__ = ("chat",)

#: What the first session is called if nobody says.
FIRST: Final = "chat"
PAGE: Final = 1000


@click.command(
    short_help="Talk with a model.",
    params=[
        click.Argument(["session"], required=False, shell_complete=complete_session),
        click.Option(["-m", "--message"], metavar="TEXT", help="Say this, and leave."),
        click.Option(["--model"], metavar="MODEL", help="Who answers, as in anthropic:..."),
        click.Option(["--new"], is_flag=True, help="Begin a session; SESSION is its name."),
        click.Option(
            ["--json", "as_json"], is_flag=True, help="With one message: events as lines of JSON."
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
    """Talk in SESSION, or in the one that was used last.

    At a terminal every line is a message; /help shows what else there is, Ctrl-C stops an answer,
    which is kept, and Ctrl-D leaves. One message alone is given with -m or through a pipe; then
    stdout has the answer and nothing else.
    """
    if message is None and not stdin_is_terminal():
        message = _piped()
        if not message.strip():
            raise click.UsageError("There is nothing to say: stdin is empty. Give it with -m.", ctx)
    if as_json and message is None:
        raise click.UsageError("--json is for one message: give it with -m or in a pipe.", ctx)
    target = choose_target(ctx, Choice(local, url))
    try:
        found = open_session(target, session, model, new=new, somebody=message is None)
        client = ChatClient(target, Streams(), found, as_json=as_json)
        if message is not None:
            ctx.exit(client.play("chat.send", message=message))
        ChatRepl(client).run()
    except KeyboardInterrupt:
        ctx.exit(INTERRUPTED)


def _piped() -> str:
    """The message that comes through a pipe, without the newline that ends its last line."""
    try:
        return sys.stdin.buffer.read().decode(errors="replace").removesuffix("\n")
    except (AttributeError, ValueError):
        return ""


# --- the session ----------------------------------------------------------------------------------


def open_session(
    target: Target, name: str | None, model: str | None, *, new: bool, somebody: bool
) -> Session:
    """The session that is meant, which may be made for it; raises ClickException.

    Without a name it is the one that was used last. `somebody` can be asked whether one that is
    not there shall be begun.
    """
    try:
        if new:
            return _create(target, name or time.strftime("%Y%m%d-%H%M%S"), model)
        found = _latest(target) if name is None else _find(target, name)
        if found is None and (name is None or (somebody and _agreed(name))):
            return _create(target, name or FIRST, model)
        if found is None:
            raise click.ClickException(_missing(target, str(name)))
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


def _agreed(name: str) -> bool:
    return click.confirm(f"There is no session {name!r}. Begin it?", True)


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


def _missing(target: Target, name: str) -> str:
    advice = nearest(name, [each["name"] for each in _sessions(target)])
    return f"there is no session {name!r}. {advice} `--new` begins it.".replace("  ", " ")

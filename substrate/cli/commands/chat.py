"""`substrate chat`: a conversation in the terminal, or one message of it."""

from __future__ import annotations

import sys

import click

from substrate.cli.shell_completion import complete_session
from substrate.cli.target.selection import Choice, choose_target, target_options
from substrate.cli.terminal.chat_client import ChatClient, open_session
from substrate.cli.terminal.chat_repl import ChatRepl
from substrate.cli.terminal.display import Streams
from substrate.cli.terminal.run_follower import INTERRUPTED

__all__ = ("chat",)


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
    at_terminal = _at_terminal()
    if message is None and not at_terminal:
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


def _at_terminal() -> bool:
    try:
        return sys.stdin.isatty()
    except (AttributeError, ValueError):  # there is no stdin, or it is closed
        return False


def _piped() -> str:
    """The message that comes through a pipe, without the newline that ends its last line."""
    try:
        return sys.stdin.buffer.read().decode(errors="replace").removesuffix("\n")
    except (AttributeError, ValueError):
        return ""

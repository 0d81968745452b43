"""`substrate respond`: answer what runs ask."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import click

from plexus.errors import PlexusError
from substrate.cli.schema_options import read_json
from substrate.cli.shell_completion import complete_approval
from substrate.cli.target.protocol import Target, ask, result_of
from substrate.cli.target.selection import need_server, server_option, spelled
from substrate.cli.terminal.display import DIM, coloured, pretty_json
from substrate.cli.terminal.prompter import Prompter
from substrate.cli.terminal.run_follower import INTERRUPTED
from substrate.cli.terminal.tables import print_json_line

__all__ = ("respond",)

Approval = Mapping[str, Any]

#: Kinds of questions that are answered with yes or no, and nothing else.
YES_OR_NO = ("confirm", "visit")
#: More than anybody answers in one go.
MOST = 1000


@click.command(
    short_help="Answer what runs ask.",
    params=[
        click.Argument(["approval"], required=False, shell_complete=complete_approval),
        click.Option(["--yes/--no", "approve"], default=None, help="Approve it, or refuse it."),
        click.Option(["--answer"], metavar="JSON", help="What the question wants to have."),
        click.Option(["--message"], metavar="TEXT", help="With --no: why not."),
        click.Option(["--json", "as_json"], is_flag=True, help="Lines of JSON; nobody is asked."),
        server_option(),
    ],
)
@click.pass_context
def respond(
    ctx: click.Context,
    *,
    approval: str | None,
    approve: bool | None,
    answer: str | None,
    message: str | None,
    as_json: bool,
    url: str | None,
) -> None:
    """Answer what your runs on the server ask.

    APPROVAL is the number of a question. Without one, everything that is open is listed, and on a
    terminal you are asked one after the other; Ctrl-D declines, Ctrl-C leaves the rest open.
    """
    given = _given(ctx, approve, answer, message)
    if given is not None and approval is None:
        raise click.UsageError(
            f"Say which question is meant; `{spelled(ctx, 'respond', '--json')}` lists them.", ctx
        )
    target = need_server(ctx, url)
    if approval is not None and given is not None:
        _answer(ctx, target, {"approval_id": approval, **given}, as_json=as_json)
        return
    pending = ask(target, "approvals.pending", {"limit": MOST})["approvals"]
    if approval is not None:
        pending = [each for each in pending if each["approval_id"] == approval]
        if not pending:
            raise click.ClickException(
                f"nothing called {approval!r} waits for an answer. `{spelled(ctx, 'respond')}` "
                "shows what does."
            )
    prompter = None if as_json else Prompter.at_terminal(sys.stderr)
    if prompter is not None:
        _ask_all(ctx, target, prompter, pending)
        return
    for each in pending:
        print_json_line(each)
    if pending and not as_json:
        one = spelled(ctx, "respond", str(pending[0]["approval_id"]), "--yes")
        click.echo(f"Nobody can be asked here. Answer with: {one}", err=True)


def _given(
    ctx: click.Context, approve: bool | None, answer: str | None, message: str | None
) -> dict[str, Any] | None:
    """What the flags say, as `approvals.respond` wants it; None if they say nothing."""
    if message is not None and approve is not False:
        raise click.UsageError("--message goes with --no.", ctx)
    if answer is None:
        if approve is None:
            return None
        return {"approve": approve} | ({} if message is None else {"message": message})
    if approve is False:
        raise click.UsageError("--no and --answer exclude each other.", ctx)
    try:
        value = read_json(answer)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param_hint="'--answer'") from None
    if isinstance(value, bool):  # a question of yes or no takes no other answer
        return {"approve": value}
    return {"approve": value is not None} | ({} if value is None else {"answer": value})


def _answer(ctx: click.Context, target: Target, params: dict[str, Any], *, as_json: bool) -> None:
    advice = {
        "not_found": "It may have been answered by now.",
        "invalid_params": f"`{spelled(ctx, 'respond', '--json')}` shows the schema of the answer.",
    }
    outcome = ask(target, "approvals.respond", params, advice)
    if as_json:
        print_json_line(outcome)
    else:
        done = "approved" if outcome["approved"] else "refused"
        click.echo(f"{outcome['approval_id']} is {done}.")


# --- asking ---------------------------------------------------------------------------------------


def _ask_all(
    ctx: click.Context, target: Target, prompter: Prompter, pending: list[Approval]
) -> None:
    if not pending:
        click.echo("Nothing waits for an answer.", err=True)
    for number, each in enumerate(pending, 1):
        counted = f"{number} of {len(pending)}: " if len(pending) > 1 else ""
        title = f"{counted}run {each['run']}, {each['method']}"
        click.echo(coloured(title, "cyan"), err=True)
        if each.get("details"):
            click.echo(coloured(pretty_json(each["details"]), DIM), err=True)
        try:
            target.run(_ask_one(target, prompter, each))
        except KeyboardInterrupt:
            click.echo("\nThe rest is left open.", err=True)
            ctx.exit(INTERRUPTED)


async def _ask_one(target: Target, prompter: Prompter, approval: Approval) -> None:
    """Ask until the answer fits, or nobody waits for it any more."""
    while True:
        answer = await prompter.answer(approval)
        params: dict[str, Any] = {"approval_id": approval["approval_id"]}
        if approval["kind"] in YES_OR_NO:
            params["approve"] = bool(answer)
        else:
            params |= {"approve": answer is not None, "answer": answer}
        try:
            await result_of(target, "approvals.respond", params)
        except PlexusError as error:
            click.echo(coloured(error.message, "red"), err=True)
            if error.code == "invalid_params":
                continue
        return

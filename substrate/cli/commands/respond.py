"""`substrate respond`: answer the questions of runs."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from plexus.errors import PlexusError
from plexus.text import escape_controls
from substrate.cli.schema_options import read_json
from substrate.cli.shell_completion import complete_approval
from substrate.cli.target.protocol import Target, call_method, result_of
from substrate.cli.target.run_reference import COMPLETE_DIGITS, LAST, MIN_DIGITS
from substrate.cli.target.selection import choose_runs_target, command_line, server_option
from substrate.cli.terminal.display import DIM, coloured, pretty_json
from substrate.cli.terminal.prompter import Prompter, Rejected
from substrate.cli.terminal.run_follower import INTERRUPTED
from substrate.cli.terminal.tables import print_json_line

__all__ = ("respond",)

Approval = Mapping[str, Any]

#: Kinds of questions whose only answers are yes and no.
YES_OR_NO = ("confirm", "visit")
#: Maximum number of questions to list.
MAX_ITEMS = 1000
#: An id whose run is not shortened. It may be past the first page of the questions.
COMPLETE_ID = re.compile(rf"\d{{{COMPLETE_DIGITS},}}\..+")
NO_QUESTIONS = "No pending questions."


@click.command(
    short_help="Answer the questions of runs.",
    params=[
        click.Argument(["approval"], required=False, shell_complete=complete_approval),
        click.Option(["--yes/--no", "approve"], default=None, help="Approve or reject."),
        click.Option(["--answer"], metavar="JSON", help="Answer for the question, as JSON."),
        click.Option(["--message"], metavar="TEXT", help="With --no: the reason."),
        click.Option(["--json", "as_json"], is_flag=True, help="Print JSON lines; do not prompt."),
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
    """Answer the questions of your runs.

    APPROVAL is the id of a question, or a run with one question: its number, the first digits of
    it, or `last` for the newest question. Without it, all pending questions are listed; on a
    terminal you are prompted for each. Ctrl-D declines a question, Ctrl-C leaves the rest pending.
    """
    decision = _decision(ctx, approve, answer, message)
    if decision is not None and approval is None:
        listing = command_line(ctx, "respond", "--json")
        raise click.UsageError(f"Pass the id of the question. `{listing}` lists them.", ctx)
    target = choose_runs_target(ctx, url)
    if approval is not None and decision is not None and COMPLETE_ID.fullmatch(approval):
        _answer(ctx, target, {"approval_id": approval, **decision}, as_json=as_json)
        return
    pending = call_method(target, "approvals.pending", {"limit": MAX_ITEMS})["approvals"]
    if approval is not None:
        pending = [_find(ctx, approval, pending)]
        if decision is not None:
            params = {"approval_id": pending[0]["approval_id"], **decision}
            _answer(ctx, target, params, as_json=as_json)
            return
    prompter = None if as_json else Prompter.at_terminal(sys.stderr)
    if prompter is not None:
        _ask_all(ctx, target, prompter, pending)
        return
    for each in pending:
        if as_json:
            print_json_line(each)
        else:
            click.echo(escape_controls(f"{each['approval_id']}  {_title(each)}"))
    if as_json:
        return
    if pending:
        example = command_line(ctx, "respond", str(pending[0]["approval_id"]), "--yes")
        click.echo(f"Prompting requires a terminal. Answer with: {example}", err=True)
    else:
        click.echo(NO_QUESTIONS, err=True)


def _title(approval: Approval) -> str:
    called = f"{approval['method']} {approval.get('summary') or ''}".rstrip()
    return f"{called} asks: {approval['message']}"


def _find(ctx: click.Context, reference: str, pending: Sequence[Approval]) -> Approval:
    """Return the question with this id or of this run. Raises ClickException."""
    if reference == LAST:
        found = [max(pending, key=lambda each: int(each["asked_ms"]))] if pending else []
    else:
        run, dot, request = reference.partition(".")
        found = [
            each
            for each in pending
            if each["approval_id"] == reference
            or (
                (str(each["run"]) == run or (len(run) >= MIN_DIGITS and _begins(each, run)))
                and (not dot or each["request"] == request)
            )
        ]
        exact = [each for each in found if each["approval_id"] == reference]
        found = exact or found
    if len(found) == 1:
        return found[0]
    listing = command_line(ctx, "respond", "--json")
    if not found:
        raise click.ClickException(
            f"No pending question {reference!r}. It may have been answered already. `{listing}` "
            "lists all questions."
        )
    ids = [escape_controls(f"{each['approval_id']}  {_title(each)}") for each in found]
    raise click.ClickException("\n  ".join([f"{len(found)} questions match {reference}:", *ids]))


def _begins(approval: Approval, digits: str) -> bool:
    return str(approval["run"]).startswith(digits)


def _decision(
    ctx: click.Context, approve: bool | None, answer: str | None, message: str | None
) -> dict[str, Any] | None:
    """Return the flags as parameters of `approvals.respond`, or None. Raises UsageError."""
    if message is not None and approve is not False:
        raise click.UsageError("--message requires --no.", ctx)
    if answer is None:
        if approve is None:
            return None
        return {"approve": approve} | ({} if message is None else {"message": message})
    if approve is False:
        raise click.UsageError("--no and --answer cannot be used together.", ctx)
    try:
        value = read_json(answer)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param_hint="'--answer'") from None
    if isinstance(value, bool):  # a yes/no question accepts no other answer
        return {"approve": value}
    return {"approve": value is not None} | ({} if value is None else {"answer": value})


def _answer(ctx: click.Context, target: Target, params: dict[str, Any], *, as_json: bool) -> None:
    listing = command_line(ctx, "respond", "--json")
    advice = {
        "not_found": "It may have been answered already.",
        "invalid_params": f"`{listing}` shows the schema of the answer.",
    }
    outcome = call_method(target, "approvals.respond", params, advice)
    if as_json:
        print_json_line(outcome)
    else:
        verb = "Approved" if outcome["approved"] else "Rejected"
        click.echo(f"{verb} {outcome['approval_id']}.")


# --- prompts --------------------------------------------------------------------------------------


def _ask_all(
    ctx: click.Context, target: Target, prompter: Prompter, pending: list[Approval]
) -> None:
    if not pending:
        click.echo(NO_QUESTIONS, err=True)
    for number, each in enumerate(pending, 1):
        counted = f"{number} of {len(pending)}: " if len(pending) > 1 else ""
        title = f"{counted}run {each['run']}, {each['method']}"
        click.echo(coloured(title, "cyan"), err=True)
        if each.get("details") and each["kind"] != "diff":  # the prompt shows the diff
            click.echo(coloured(pretty_json(each["details"]), DIM), err=True)
        try:
            target.run(_ask_one(target, prompter, each))
        except KeyboardInterrupt:
            click.echo("\nThe remaining questions stay pending.", err=True)
            ctx.exit(INTERRUPTED)


async def _ask_one(target: Target, prompter: Prompter, approval: Approval) -> None:
    """Prompt until the answer is valid or the question is no longer pending."""
    rejected: Rejected | None = None
    while True:
        answer = await prompter.answer(approval, rejected)
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
                rejected = Rejected.of(answer, error)
                continue
        return

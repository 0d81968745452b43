"""`substrate tasks`: the task list in the terminal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from activations.tasks.model import KINDS, PAGE_ITEMS
from activations.tasks.project import current_project
from activations.tasks.render import markdown, state_of, task_line
from plexus.errors import PlexusError
from substrate.cli.numbers import WholeNumber
from substrate.cli.target.protocol import Target, call_method, text_of
from substrate.cli.target.selection import Choice, choose_target, target_options
from substrate.cli.terminal.tables import new_console, new_table, print_json_line

__all__ = ("tasks",)

ALL_PROJECTS: Final = "*"
STYLES: Final = {
    "ready": "green",
    "in progress": "cyan",
    "blocked": "yellow",
    "stuck": "red",
    "done": "dim",
    "cancelled": "dim",
}
URGENT: Final = {0: "bold red", 1: "red"}
#: What to do about an error, by its code.
ADVICE: Final = {
    "claimed": "Use --force to take it.",
    "blocked": "Use --force to claim it nevertheless.",
    "stuck": "Use --force to claim it nevertheless.",
}

project_option = click.Option(
    ["--project"], metavar="FOLDER", help="Use the tasks of this project instead of this folder's."
)
all_option = click.Option(
    ["--all-projects"], is_flag=True, help="Include the tasks of all projects."
)
json_option = click.Option(
    ["--json", "as_json"], is_flag=True, help="Print each task as a line of JSON."
)
force_option = click.Option(["-f", "--force"], is_flag=True, help="Take the task from its holder.")


def _task_argument() -> click.Argument:
    return click.Argument(["task_id"], metavar="TASK")


@click.group(short_help="List, add, claim and close tasks.")
def tasks() -> None:
    """List and change the tasks that agents and people of this project share.

    TASK is an id, or its beginning.
    """


def _command(
    name: str, short_help: str, *params: click.Parameter
) -> Callable[[Callable[..., None]], click.Command]:
    """Return a decorator for a subcommand that calls methods of a target."""
    return tasks.command(
        name, short_help=short_help, params=[*params, json_option, *target_options()]
    )


def _target(ctx: click.Context, params: dict[str, Any]) -> Target:
    """Take the options of a target out of the parameters, and return the target."""
    return choose_target(ctx, Choice(params.pop("local"), params.pop("url")))


def _project(params: dict[str, Any]) -> str:
    """Take the options of a project out of the parameters: a server has its own folder."""
    chosen = params.pop("project", None)
    if params.pop("all_projects", False):
        if chosen is not None:
            raise click.UsageError("--all-projects and --project exclude each other. Omit one.")
        return ALL_PROJECTS
    if chosen is None:
        return current_project()
    # The folders of a server at an address may be those of another machine.
    if click.get_current_context().params.get("url") is None and not Path(chosen or "?").is_dir():
        raise click.UsageError(
            f"--project: there is no folder {chosen!r}. --all-projects lists the tasks of folders "
            "that are gone."
        )
    return str(Path(chosen).resolve())


_LIST_OPTIONS: Final = (
    click.Option(["--label"], metavar="LABEL", help="Only tasks with this label."),
    click.Option(["--text"], metavar="TEXT", help="Only tasks whose description contains this."),
    click.Option(
        ["--limit"],
        type=WholeNumber(1, PAGE_ITEMS),
        default=50,
        show_default=True,
        help="Maximum number of tasks.",
    ),
    project_option,
    all_option,
)


@_command(
    "list",
    "List tasks.",
    click.Option(
        ["--status"],
        type=click.Choice(["open", "ready", "blocked", "in_progress", "closed", "all"]),
        default="open",
        show_default=True,
        help="Which tasks.",
    ),
    *_LIST_OPTIONS,
)
@click.pass_context
def list_tasks(ctx: click.Context, /, **params: Any) -> None:
    """List the open tasks of this project, the most urgent first."""
    _print_list(ctx, params)


@_command("ready", "List tasks that can be started.", *_LIST_OPTIONS)
@click.pass_context
def ready(ctx: click.Context, /, **params: Any) -> None:
    """List the tasks that are free and not blocked, the most urgent first."""
    _print_list(ctx, params | {"status": "ready"})


def _print_list(ctx: click.Context, params: dict[str, Any]) -> None:
    target, as_json = _target(ctx, params), params.pop("as_json")
    given = {name: value for name, value in params.items() if value is not None}
    given["project"] = _project(given)
    found = call_method(target, "tasks.list_tasks", given)
    if as_json:
        for task in found["tasks"]:
            print_json_line(task)
        return
    _print_table(found["tasks"])
    hidden = found["total"] - len(found["tasks"])
    if hidden:
        click.echo(f"{hidden} more. Use --limit to see them.", err=True)


def _print_table(found: list[dict[str, Any]]) -> None:
    from rich.text import Text

    if not found:
        click.echo("No tasks.", err=True)
        return
    table = new_table()
    for title in ("Task", "State", "P", "Type"):
        table.add_column(title, no_wrap=True)
    table.add_column("Description", ratio=1)
    table.add_column("Holder")
    for task in found:
        state, priority = state_of(task), task.get("priority", 2)
        words = [task["description"].partition("\n")[0]]
        words += [f"#{label}" for label in task.get("labels", ())]
        table.add_row(
            task["id"],
            Text(state, style=STYLES.get(state, "")),
            Text(str(priority), style=URGENT.get(priority, "")),
            task.get("type", "task"),
            Text(" ".join(words)),
            Text(task.get("holder", "")),
        )
    new_console().print(table)


@_command(
    "add",
    "Add a task.",
    click.Argument(["description"]),
    click.Option(["-t", "--type"], type=click.Choice(KINDS), help="Kind of work.  [default: task]"),
    click.Option(
        ["-p", "--priority"],
        type=WholeNumber(0, 4),
        help="Priority; 0 is urgent.  [default: 2]",
    ),
    click.Option(["-l", "--label", "labels"], multiple=True, metavar="LABEL", help="Add a label."),
    click.Option(
        ["-a", "--acceptance"], multiple=True, metavar="TEXT", help="Add an acceptance criterion."
    ),
    click.Option(["--parent"], metavar="TASK", help="The task that this is part of."),
    click.Option(
        ["--blocked-by"], multiple=True, metavar="TASK", help="A task that must be closed first."
    ),
    project_option,
)
@click.pass_context
def add(ctx: click.Context, /, **params: Any) -> None:
    """Add a task with this DESCRIPTION, and print its id."""
    target, as_json = _target(ctx, params), params.pop("as_json")
    given = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in params.items()
        if value not in (None, ())
    }
    given["project"] = _project(given)
    _print_task(call_method(target, "tasks.create_task", given), as_json=as_json)


@_command("show", "Show everything about a task.", _task_argument())
@click.pass_context
def show(ctx: click.Context, /, *, task_id: str, **params: Any) -> None:
    """Show TASK with its links, runs, notes and history."""
    target, as_json = _target(ctx, params), params.pop("as_json")
    task = call_method(target, "tasks.get", {"task_id": task_id})
    if as_json:
        print_json_line(task)
        return
    console = new_console()
    console.print(f"[bold]{task['id']}[/bold] {state_of(task)}, project {task['project']}")
    console.print(markdown(task), markup=False, end="")
    page = call_method(target, "tasks.history", {"task_id": task_id, "limit": PAGE_ITEMS})
    for each in page["changes"]:
        why = each.get("details", {}).get("why", "")
        line = f"  {each['change']} by {each['actor']}" + (f": {why}" if why else "")
        console.print(line, markup=False, style="dim")


@_command(
    "claim",
    "Claim a task, or the next one.",
    click.Argument(["task_id"], metavar="[TASK]", required=False),
    force_option,
    project_option,
)
@click.pass_context
def claim(ctx: click.Context, /, *, task_id: str | None, force: bool, **params: Any) -> None:
    """Claim TASK, or without it the most urgent ready one.

    You keep it until you close it, or it is taken with --force.
    """
    target, as_json = _target(ctx, params), params.pop("as_json")
    if task_id is None:
        task = call_method(target, "tasks.next_task", {"project": _project(params)})
        if "id" not in task:
            raise click.ClickException(task["message"])
    else:
        given = {"task_id": task_id, "status": "in_progress", "force": force}
        task = call_method(target, "tasks.update_task", given, ADVICE)
    _print_task(task, as_json=as_json)


@_command(
    "close",
    "Close a task.",
    _task_argument(),
    click.Option(["-r", "--reason"], metavar="TEXT", help="What was done, or why not."),
    click.Option(["--cancel"], is_flag=True, help="Close it as cancelled instead of done."),
    force_option,
)
@click.pass_context
def close(
    ctx: click.Context,
    /,
    *,
    task_id: str,
    reason: str | None,
    cancel: bool,
    force: bool,
    **params: Any,
) -> None:
    """Close TASK, and print which tasks are no longer blocked."""
    target, as_json = _target(ctx, params), params.pop("as_json")
    given = {"task_id": task_id, "outcome": "cancelled" if cancel else "done", "force": force}
    if reason is not None:
        given["reason"] = reason
    _print_task(call_method(target, "tasks.close_task", given, ADVICE), as_json=as_json)


@_command(
    "export",
    "Print all tasks.",
    click.Option(
        ["--format"],
        type=click.Choice(["markdown", "jsonl"]),
        default="markdown",
        show_default=True,
        help="Markdown to read, or JSON Lines to import again.",
    ),
    project_option,
    all_option,
)
@click.pass_context
def export(ctx: click.Context, /, **params: Any) -> None:
    """Print all tasks of this project as Markdown, or as JSON Lines for `import`."""
    target = _target(ctx, params)
    chosen = "jsonl" if params["as_json"] else params["format"]
    given = {"format": chosen, "project": _project(params)}
    try:
        click.echo(target.run(text_of(target, "tasks.export", given)), nl=False)
    except PlexusError as error:
        raise click.ClickException(error.message) from error


@_command(
    "import",
    "Import exported tasks.",
    click.Argument(["file"], type=click.File("rb")),
    project_option,
)
@click.pass_context
def import_tasks(ctx: click.Context, /, *, file: Any, **params: Any) -> None:
    """Import the JSON Lines of FILE (- for stdin): all or nothing.

    Tasks that exist are not changed.
    """
    target, as_json = _target(ctx, params), params.pop("as_json")
    try:
        text = file.read().decode()
    except UnicodeDecodeError as error:
        raise click.ClickException(f"{file.name} is not UTF-8: {error}") from error
    given = {"text": text, "project": _project(params)}
    result = call_method(target, "tasks.import", given)
    if as_json:
        print_json_line(result)
    else:
        click.echo(f"Imported {result['imported']} tasks; {result['existing']} existed.")


def _print_task(task: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json_line(task)
        return
    click.echo(task_line(task))
    for name in ("unblocked", "unmet"):
        for each in task.get(name, ()):
            click.echo(f"  {name}: {each}")

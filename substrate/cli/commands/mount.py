"""`substrate mount`: the MCP servers whose tools this server offers.

The commands read and change files that all processes of the user share, so a running server
notices within a second.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, TypeVar

import click

from activations.gateway.activation import describe_held
from activations.gateway.catalogue import Catalogue
from activations.gateway.catalogue_store import CatalogueStore
from activations.gateway.mount_config import MountConfig
from activations.gateway.mount_file import LoadedMounts, load_mounts
from activations.gateway.names import method_names
from activations.gateway.visible_text import show_invisible
from plexus.errors import PlexusError
from plexus.text import escape_controls
from substrate.build_hub import user_mounts
from substrate.cli.commands.mount_add import add_mount, json_option, project_option
from substrate.cli.commands.mount_import import import_mounts
from substrate.cli.event_loop import run_async
from substrate.cli.main import files_of, settings_of
from substrate.cli.mount_document import MountDocument, mount_path
from substrate.cli.mounted_server import check_server, diagnose_server, make_gateway
from substrate.cli.terminal.display import coloured, stdin_is_terminal
from substrate.cli.terminal.tables import format_age, new_console, new_table, print_json_line
from substrate.settings import FILE

__all__ = ("mount",)

T = TypeVar("T")
#: What makes an argument an address and not a program.
SCHEMES: Final = ("http://", "https://", "ws://", "wss://")
COLOURS: Final = {"+": "green", "-": "red"}
#: Lines of standard error that `doctor` prints.
STDERR_LINES: Final = 20


@click.group(short_help="Offer the tools of other MCP servers.")
def mount() -> None:
    """Offer the tools of other MCP servers here, as NAME.tool.

    Every call is a run that can be watched, stopped and answered like any other.
    """


mount.add_command(add_mount)
mount.add_command(import_mounts)


@mount.command("list", short_help="List mounts.")
@json_option
@click.pass_context
def list_mounts(ctx: click.Context, /, *, as_json: bool) -> None:
    """List the mounts, with what each server offered when it was last listed."""
    loaded, store = _load(ctx), CatalogueStore()
    rows = [_row(config, store.read(config)) for config in loaded.mounts.values()]
    rows += [{"name": name, "error": reason} for name, reason in loaded.broken.items()]
    if as_json:
        for row in rows:
            print_json_line(row)
        return
    if not rows:
        click.echo("No mounts. `substrate mount import` takes those of your MCP hosts.", err=True)
        return
    table = new_table()
    for title in ("Name", "Tools", "Held", "Listed", "Session", "Server"):
        table.add_column(title)
    for row in rows:
        if "error" in row:
            table.add_row(row["name"], "", "", "", "", f"not mounted: {row['error']}")
            continue
        listed = "never" if row["listed_at"] is None else format_age(row["listed_at"] * 1000)
        where = row["where"] if row["enabled"] else f"(off) {row['where']}"
        held = str(len(row["held"]) or "")
        table.add_row(row["name"], str(row["tools"]), held, listed, row["session"], where)
    new_console().print(table)


def _row(config: MountConfig, catalogue: Catalogue | None) -> dict[str, Any]:
    return {
        "name": config.name,
        "where": escape_controls(config.where()),
        "origin": config.origin,
        "transport": config.transport,
        "session": config.session_scope,
        "scope": config.required_scope,
        "enabled": config.enabled,
        "tools": 0 if catalogue is None else len(catalogue.tools),
        "held": [] if catalogue is None else sorted(catalogue.held),
        "listed_at": None if catalogue is None else catalogue.listed_at,
        "pin": config.pin,
        "set": None if catalogue is None else catalogue.set_digest,
    }


@mount.command(short_help="Show the tools of a mount.")
@click.argument("name")
@json_option
@click.pass_context
def show(ctx: click.Context, /, *, name: str, as_json: bool) -> None:
    """Show the tools of a mount: method, name on the server, state and pin (SHA-256)."""
    config = _find(ctx, name)
    catalogue = CatalogueStore().read(config)
    if catalogue is None:
        raise click.ClickException(
            f"{name} was never listed. Run `substrate mount refresh {name}`."
        )
    methods = method_names(name, {*catalogue.tools, *catalogue.held}, config.rename)
    for tool, method in methods.items():
        digest = catalogue.digests.get(tool, "")
        state = "held" if tool in catalogue.held else "offered" if config.offers(tool) else "denied"
        row = {"method": method, "tool": tool, "state": state, "sha256": digest}
        if as_json:
            print_json_line(row)
        else:
            click.echo(f"{method}  {show_invisible(tool)}  {state}  {digest[:16]}")


@mount.command(short_help="Remove a mount.")
@click.argument("name")
@project_option
@json_option
@click.pass_context
def remove(ctx: click.Context, /, *, name: str, project: bool, as_json: bool) -> None:
    """Remove the mount NAME with its approvals."""
    path = mount_path(settings_of(ctx), "project" if project else "user")
    document = MountDocument(path)
    if name not in document.tables:
        raise click.ClickException(f"{path} has no mount {name!r}.")
    document.remove(name)
    document.save()
    CatalogueStore().delete(name)
    if as_json:
        print_json_line({"name": name, "file": str(path), "removed": True})
    else:
        click.echo(f"Removed {name} from {path}.")


@mount.command(short_help="List the tools of servers again.")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@json_option
@click.pass_context
def refresh(ctx: click.Context, /, *, names: tuple[str, ...], as_json: bool) -> None:
    """Start the server of each mount NAME and list its tools again. The default is all mounts."""
    failed = False
    for config in _chosen(ctx, names):
        state = check_server(config, as_json=as_json)
        failed = failed or ("error" in state and state["error"] is not None)
        if as_json:
            print_json_line({"name": config.name} | state)
    if failed:
        ctx.exit(1)


@mount.command(short_help="Start servers and report what is wrong.")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@json_option
@click.pass_context
def doctor(ctx: click.Context, /, *, names: tuple[str, ...], as_json: bool) -> None:
    """Start the server of each mount NAME, and report its state and stderr. The default is all."""
    failed = False
    broken = {} if names else _load(ctx).broken
    for name, reason in broken.items():
        failed = True
        if as_json:
            print_json_line({"name": name, "error": reason})
        else:
            click.echo(f"problem {name}: {escape_controls(reason)}")
    for config in _chosen(ctx, names):
        report = run_async(diagnose_server(config))
        failed = failed or report["error"] is not None
        if as_json:
            print_json_line(report)
            continue
        if report["error"] is None:
            click.echo(f"OK      {config.name}: {report['tools']} tools in {report['took_s']} s")
        else:
            click.echo(f"problem {config.name}: {escape_controls(report['error'])}")
        for line in report["stderr"].splitlines()[-STDERR_LINES:]:
            click.echo(f"        {escape_controls(line)}")
    if failed:
        ctx.exit(1)


@mount.command(short_help="Review and approve changed tools.")
@click.argument("name")
@click.argument("tools", nargs=-1, metavar="[TOOL]...")
@click.option("-y", "--yes", is_flag=True, help="Approve without asking.")
@json_option
@click.pass_context
def approve(
    ctx: click.Context, /, *, name: str, tools: tuple[str, ...], yes: bool, as_json: bool
) -> None:
    """Show what has changed in the held tools of a mount, and approve them.

    Invisible characters are shown as \\u{...}.
    """
    config = _find(ctx, name)
    gateway = make_gateway(config)
    waiting = [
        each for each in describe_held(gateway.find(name)) if not tools or each["tool"] in tools
    ]
    if not waiting:
        click.echo(f"{name} holds no tools.", err=True)
        return
    for each in waiting:
        if as_json:
            print_json_line(each)
            continue
        click.echo(f"{each['tool']}: {each['change']}")
        for line in each["difference"]:
            click.echo(coloured(f"  {line}", COLOURS.get(line[:1])))
    if not yes:
        if as_json or not stdin_is_terminal():
            raise click.ClickException("Nothing was approved. Run it again with --yes.")
        if not click.confirm(f"Approve {len(waiting)} tools of {name}?"):
            raise click.exceptions.Exit(1)
    try:
        approved = run_async(gateway.approve(name, tools or None))
    except PlexusError as error:
        raise click.ClickException(error.message) from error
    if not as_json:
        click.echo(f"Approved {', '.join(map(show_invisible, approved))}.")


# --- mounts -----------------------------------------------------------------------------------


def _load(ctx: click.Context) -> LoadedMounts:
    """Return the mounts of the user and of this folder, if it is trusted."""
    settings = settings_of(ctx)
    return load_mounts(user_mounts(settings), files_of(ctx).settings, str(Path.cwd() / FILE))


def _find(ctx: click.Context, name: str) -> MountConfig:
    loaded = _load(ctx)
    config = loaded.mounts.get(name)
    if config is None:
        reason = loaded.broken.get(name)
        known = ", ".join(sorted(loaded.mounts)) or "none"
        raise click.ClickException(
            f"{name} is not mounted: {reason}"
            if reason
            else f"Unknown mount {name!r}. Mounts: {known}."
        )
    return config


def _chosen(ctx: click.Context, names: tuple[str, ...]) -> list[MountConfig]:
    if names:
        return [_find(ctx, name) for name in names]
    return [each for each in _load(ctx).mounts.values() if each.enabled]

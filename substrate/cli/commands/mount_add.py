"""`substrate mount add`: mount a server by its command or URL."""

from __future__ import annotations

from typing import Any, Final

import click

from activations.gateway.mount_config import MountError, parse_mount
from plexus.registry.selection import check_patterns
from substrate.cli.main import settings_of
from substrate.cli.mcp_hosts.imported_entries import looks_secret
from substrate.cli.mount_document import MountDocument, mount_path
from substrate.cli.mounted_server import check_server
from substrate.cli.terminal.tables import print_json_line
from substrate.settings import FILE

__all__ = ("add_mount", "json_option", "project_option")

#: What makes an argument an address and not a program.
SCHEMES: Final = ("http://", "https://", "ws://", "wss://")


json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print each mount or tool as a line of JSON."
)
project_option = click.option(
    "--project", is_flag=True, help=f"Use {FILE} of this folder, not your own file."
)


@click.command("add", short_help="Mount a server: a command or a URL.")
@click.argument("name")
@click.argument(
    "target", nargs=-1, required=True, type=click.UNPROCESSED, metavar="URL | -- COMMAND..."
)
@click.option(
    "--header",
    "headers",
    multiple=True,
    metavar="'NAME: VALUE'",
    help="HTTP header. Write secrets as ${VARIABLE}. Repeatable.",
)
@click.option(
    "--env",
    "variables",
    multiple=True,
    metavar="NAME=VALUE",
    help="Variable of the process. Write secrets as ${VARIABLE}. Repeatable.",
)
@click.option(
    "--cwd",
    metavar="FOLDER",
    help="Working directory of the process.  [default: that of the caller]",
)
@click.option(
    "--transport",
    type=click.Choice(["http", "sse", "websocket"]),
    help="Transport of a URL.  [default: by the URL]",
)
@click.option(
    "--session",
    type=click.Choice(["connection", "principal", "shared", "call"]),
    help="Which callers share a session.  [default: connection; principal for a URL]",
)
@click.option(
    "--expose",
    metavar="all|search|PATTERNS",
    help="Tools that MCP clients list. All others are found by plexus.search.  [default: search]",
)
@click.option(
    "--call",
    type=click.Choice(["safe", "all"]),
    help="Which of its tools plexus.call may call: those that declare no damage, or all.  "
    "[default: safe]",
)
@click.option("--allow", metavar="PATTERNS", help="Offer only these tools.")
@click.option("--deny", metavar="PATTERNS", help="Do not offer these tools.")
@click.option("--scope", metavar="SCOPE", help="Scope that a token needs.  [default: NAME]")
@click.option(
    "--oauth",
    "client",
    multiple=True,
    metavar="NAME=VALUE",
    help="How to identify at the sign-in: client_id, client_secret, scope, issuer, metadata_url or "
    "grant. Repeatable.",
)
@click.option("--no-sign-in", is_flag=True, help="Never ask a person to sign in at the server.")
@click.option("--no-pin", is_flag=True, help="Offer changed tools without approval.")
@click.option("--no-check", is_flag=True, help="Do not start the server to list its tools now.")
@click.option("--force", is_flag=True, help="Replace a mount with the same name.")
@project_option
@json_option
@click.pass_context
def add_mount(ctx: click.Context, /, name: str, target: tuple[str, ...], **options: Any) -> None:
    """Mount a server under NAME, and list its tools.

    \b
        substrate mount add files -- npx -y @modelcontextprotocol/server-filesystem .
        substrate mount add docs https://example.org/mcp --header 'Authorization: Bearer ${TOKEN}'
    """
    table = _table(target, options)
    path = mount_path(settings_of(ctx), "project" if options["project"] else "user")
    try:
        config = parse_mount(name, table, str(path))
    except MountError as error:
        raise click.ClickException(str(error)) from error
    document = MountDocument(path)
    if name in document.tables and not options["force"]:
        raise click.ClickException(f"{name} is mounted already. Use --force to replace it.")
    document.put(name, table)
    document.save()
    if not options["as_json"]:
        click.echo(f"Mounted {name} in {path}.")
    state = {"name": name, "file": str(path)}
    if not options["no_check"]:
        state |= check_server(config, as_json=options["as_json"])
    if options["as_json"]:
        print_json_line(state)
    elif options["project"]:
        click.echo("Review and trust the changed folder with `substrate trust`.")


def _table(target: tuple[str, ...], options: dict[str, Any]) -> dict[str, Any]:
    """Return the table that the options describe. Raises ClickException for a bare secret."""
    is_url = len(target) == 1 and target[0].startswith(SCHEMES)
    table: dict[str, Any] = {"url": target[0]} if is_url else {"command": target[0]}
    if not is_url and target[1:]:
        table["args"] = list(target[1:])
    pairs = {
        "headers": (options["headers"], ":"),
        "env": (options["variables"], "="),
        "oauth": (options["client"], "="),
    }
    for key, (texts, separator) in pairs.items():
        for text in texts:
            label, found, value = text.partition(separator)
            if not found or not label.strip():
                raise click.ClickException(f"Write {text!r} as NAME{separator}VALUE.")
            _refuse_secret(label.strip(), value.strip())
            table.setdefault(key, {})[label.strip()] = value.strip()
    for key in ("cwd", "transport", "session", "scope", "call"):
        if options[key]:
            table[key] = options[key]
    for key in ("expose", "allow", "deny"):
        if options[key]:
            patterns = [each.strip() for each in options[key].lower().split(",") if each.strip()]
            try:
                check_patterns(patterns)
            except ValueError as error:
                raise click.ClickException(f"--{key}: {error}.") from error
            table[key] = patterns[0] if patterns[0] in ("all", "search") else patterns
    for key in ("pin", "sign_in"):
        if options[f"no_{key}"]:
            table[key] = "off"
    return table


def _refuse_secret(name: str, value: str) -> None:
    if looks_secret(name, value):
        raise click.ClickException(
            f"The value of {name} looks like a secret, which the file would contain. Set a "
            "variable in the environment of Substrate and refer to it, as in ${TOKEN}."
        )

"""`substrate token`: the token of the server that runs, and further tokens."""

from __future__ import annotations

import re
import time
from datetime import datetime
from http.client import HTTPConnection, HTTPException
from typing import Any, Final

import click

from plexus import wire
from substrate.access.exposure import reached_at, url_host
from substrate.access.lockfile import Running, find_running
from substrate.access.tokens import Token, TokenFile
from substrate.cli import settings_of
from substrate.commands.server import find_server

__all__ = ("token",)

#: How long the server may take to replace its token.
ROTATE_S: Final = 10.0
#: What stands for every scope.
EVERYTHING: Final = "*"
SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 24 * 3600, "w": 7 * 24 * 3600}


@click.group(
    invoke_without_command=True,
    short_help="Print the server's token, or make tokens for others.",
)
@click.option(
    "--link", is_flag=True, help="Print the address that opens the server in a browser with it."
)
@click.pass_context
def token(ctx: click.Context, *, link: bool) -> None:
    """Print the token of the server that runs on the port of the settings.

    \b
    curl -H "Authorization: Bearer $(substrate token)" ...
    """
    if ctx.invoked_subcommand is not None:
        return
    running = _running(ctx)
    click.echo(_link(ctx, running) if link else running.token)


@token.command(short_help="Replace the server's token.")
@click.pass_context
def rotate(ctx: click.Context) -> None:
    """Have the running server replace its token, and print the new one. The old one, and what was
    begun with it in browsers, is refused from then on."""
    running = _running(ctx)
    connection = HTTPConnection(reached_at(settings_of(ctx).bind), running.port, timeout=ROTATE_S)
    headers = {"Authorization": f"Bearer {running.token}", "Content-Type": "application/json"}
    try:
        connection.request("POST", "/token/rotate", b"{}", headers)
        answer = connection.getresponse()
        said = answer.read().decode(errors="replace")
    except (OSError, HTTPException) as error:
        raise click.ClickException(f"the server on port {running.port}: {error}") from error
    finally:
        connection.close()
    if answer.status != 200:
        raise click.ClickException(f"the server on port {running.port} refused: {said}")
    click.echo(_running(ctx).token)


@token.command(short_help="Make a further token and print it once.")
@click.argument("name")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    metavar="SCOPE",
    help="What it may call, besides what only reads; '*' for everything. May be repeated.",
)
@click.option(
    "--as",
    "principal",
    metavar="WHO",
    help="Whose runs, sessions and trees it reaches; 'local' for your own.  [default: NAME]",
)
@click.option("--expires", metavar="TIME", help="How long it lives, as in 12h, 30d or 8w.")
def create(
    *, name: str, scopes: tuple[str, ...], principal: str | None, expires: str | None
) -> None:
    """Make a token called NAME. It is printed once and kept nowhere; every server of yours takes
    it from now on. `substrate schema` shows the scope of each method."""
    allowed = None if EVERYTHING in scopes else frozenset(scopes) or frozenset({"read"})
    try:
        secret = TokenFile().add(name, allowed, principal=principal, lifetime_s=_lifetime(expires))
    except (OSError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(secret)


@token.command("list", short_help="List the further tokens.")
@click.option("--json", "as_json", is_flag=True, help="A line of JSON for each.")
def list_tokens(*, as_json: bool) -> None:
    """List the further tokens, without what they are."""
    tokens = _tokens(TokenFile())
    for each in tokens:
        described = _described(each)
        if as_json:
            click.echo(wire.encode(described))
            continue
        scopes = " ".join(described["scopes"] or ["everything"])
        click.echo(f"{each.name}  as {each.principal.name}  {scopes}  {_ending(each)}")
    if not tokens and not as_json:
        click.echo("There are none. `substrate token create NAME` makes one.", err=True)


@token.command(short_help="Remove a further token.")
@click.argument("name")
def revoke(*, name: str) -> None:
    """Remove the token NAME: it is refused from now on, also on connections that are open."""
    try:
        found = TokenFile().revoke(name)
    except (OSError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    if not found:
        raise click.ClickException(
            f"there is no token called {name!r}; `substrate token list` shows them."
        )


# --- parts ------------------------------------------------------------------------------------


def _running(ctx: click.Context) -> Running:
    """The server on the port of the settings; raises ClickException."""
    settings = settings_of(ctx)
    running = find_running(settings.port)
    if running is not None:
        return running
    if find_server(settings.port, reached_at(settings.bind)):
        raise click.ClickException(
            f"the server on port {settings.port} has no lock file of yours: it asks for no token, "
            "or somebody else started it."
        )
    raise click.ClickException(
        f"no server of yours runs on port {settings.port}. Start one with `substrate`, or name "
        "another port with `substrate --port PORT token`."
    )


def _link(ctx: click.Context, running: Running) -> str:
    host = url_host(reached_at(settings_of(ctx).bind))
    return f"http://{host}:{running.port}/#token={running.token}"


def _tokens(file: TokenFile) -> list[Token]:
    try:
        return file.read()
    except (OSError, ValueError) as error:
        raise click.ClickException(f"{file.path}: {error}") from error


def _described(token: Token) -> dict[str, Any]:
    scopes = token.principal.scopes
    return {
        "name": token.name,
        "principal": token.principal.name,
        "scopes": None if scopes is None else sorted(scopes),
        "created_ms": int(token.created_s * 1000),
        "expires_ms": None if token.expires_s is None else int(token.expires_s * 1000),
        "expired": token.expired(time.time()),
    }


def _ending(token: Token) -> str:
    if token.expires_s is None:
        return "until it is revoked"
    when = datetime.fromtimestamp(token.expires_s).astimezone().strftime("%Y-%m-%d %H:%M")
    return f"expired {when}" if token.expired(time.time()) else f"until {when}"


def _lifetime(text: str | None) -> float | None:
    if text is None:
        return None
    found = re.fullmatch(r"([1-9][0-9]{0,5})([smhdw])", text)
    if found is None:
        raise click.BadParameter(
            f"{text!r} is no time: a number and one of {', '.join(SECONDS)}, as in 30d.",
            param_hint="--expires",
        )
    return float(int(found[1]) * SECONDS[found[2]])

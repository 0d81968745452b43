"""`substrate token`: the token of the server that runs, and further tokens."""

from __future__ import annotations

import re
import time
from datetime import datetime
from http.client import HTTPConnection, HTTPException
from typing import Any, Final

import click

from substrate.cli.main import settings_of
from substrate.cli.target.server import find_server
from substrate.cli.terminal.tables import print_json_line
from substrate.security.exposure import connect_address, url_host
from substrate.security.lockfile import RunningServer, find_running
from substrate.security.page_sessions import Session, SessionFile, is_session_name
from substrate.security.tokens import Token, TokenFile

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
    """Have the running server replace its token, and print the new one. The old one, and the
    browser sessions that were begun with it, are refused from then on: what is open with them ends
    within a second, and their runs are cancelled."""
    running = _running(ctx)
    connection = HTTPConnection(
        connect_address(settings_of(ctx).bind), running.port, timeout=ROTATE_S
    )
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


@token.command("list", short_help="List the further tokens and the browser sessions.")
@click.option("--json", "as_json", is_flag=True, help="A line of JSON for each.")
def list_tokens(*, as_json: bool) -> None:
    """List the further tokens and the browser sessions, without their secrets."""
    tokens = _tokens(TokenFile())
    sessions = _sessions(SessionFile(), tokens)
    if as_json:
        for token in tokens:
            print_json_line(_described(token))
        for session in sessions:
            print_json_line(_described_session(session, tokens))
        return
    for token in tokens:
        scopes = " ".join(_described(token)["scopes"] or ["everything"])
        click.echo(f"{token.name}  as {token.principal.name}  {scopes}  {_ending(token)}")
    for session in sessions:
        described = _described_session(session, tokens)
        click.echo(
            f"{session.name}  as {session.principal}  begun {_moment(session.created_s)} with "
            f"{described['begun_with']}  last used {_moment(session.used_s)}  "
            f"until {_moment(session.expires_s)}  {session.user_agent}".rstrip()
        )
    if not tokens and not sessions:
        click.echo("There are none. `substrate token create NAME` makes one.", err=True)


@token.command(short_help="Remove a further token, or end a browser session.")
@click.argument("name")
def revoke(*, name: str) -> None:
    """Remove the token NAME, or end the browser session NAME. It is refused from now on: what is
    open with it ends within a second, and its runs are cancelled. With a token its sessions end."""
    file = SessionFile() if is_session_name(name) else TokenFile()
    try:
        found = file.revoke(name)
    except (OSError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    if not found:
        kind = "session" if is_session_name(name) else "token"
        raise click.ClickException(
            f"there is no {kind} called {name!r}; `substrate token list` shows them."
        )


# --- parts ------------------------------------------------------------------------------------


def _running(ctx: click.Context) -> RunningServer:
    """The server on the port of the settings; raises ClickException."""
    settings = settings_of(ctx)
    running = find_running(settings.port)
    if running is not None:
        return running
    if find_server(settings.port, connect_address(settings.bind)):
        raise click.ClickException(
            f"the server on port {settings.port} has no lock file of yours: it asks for no token, "
            "or somebody else started it."
        )
    raise click.ClickException(
        f"no server of yours runs on port {settings.port}. Start one with `substrate`, or name "
        "another port with `substrate --port PORT token`."
    )


def _link(ctx: click.Context, running: RunningServer) -> str:
    host = url_host(connect_address(settings_of(ctx).bind))
    return f"http://{host}:{running.port}/#token={running.token}"


def _tokens(file: TokenFile) -> list[Token]:
    try:
        return file.read()
    except (OSError, ValueError) as error:
        raise click.ClickException(f"{file.path}: {error}") from error


def _sessions(file: SessionFile, tokens: list[Token]) -> list[Session]:
    now = time.time()
    try:
        return file.read(frozenset(each.digest for each in tokens if not each.expired(now)))
    except (OSError, ValueError) as error:
        raise click.ClickException(f"{file.path}: {error}") from error


def _described(token: Token) -> dict[str, Any]:
    return {
        "kind": "token",
        "name": token.name,
        "principal": token.principal.name,
        "scopes": _scopes(token),
        "created_ms": int(token.created_s * 1000),
        "expires_ms": None if token.expires_s is None else int(token.expires_s * 1000),
        "expired": token.expired(time.time()),
    }


def _described_session(session: Session, tokens: list[Token]) -> dict[str, Any]:
    """A session has the scopes of the token that it was begun with."""
    source = next((each for each in tokens if each.digest == session.token), None)
    begun_with = (
        f"the server on port {session.port}" if source is None else f"the token {source.name}"
    )
    return {
        "kind": "session",
        "name": session.name,
        "principal": session.principal,
        "scopes": None if source is None else _scopes(source),
        "begun_with": begun_with,
        "created_ms": int(session.created_s * 1000),
        "used_ms": int(session.used_s * 1000),
        "expires_ms": int(session.expires_s * 1000),
        "idle_ends_ms": int(session.ends_s * 1000),
        "user_agent": session.user_agent,
    }


def _scopes(token: Token) -> list[str] | None:
    scopes = token.principal.scopes
    return None if scopes is None else sorted(scopes)


def _ending(token: Token) -> str:
    if token.expires_s is None:
        return "until it is revoked"
    when = _moment(token.expires_s)
    return f"expired {when}" if token.expired(time.time()) else f"until {when}"


def _moment(time_s: float) -> str:
    return datetime.fromtimestamp(time_s).astimezone().strftime("%Y-%m-%d %H:%M")


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

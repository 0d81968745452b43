"""`substrate token`: show the server token, and manage additional tokens and browser sessions."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, Final

import click

from plexus.errors import PlexusError
from plexus.principal import READ
from substrate.cli.main import files_of, settings_of
from substrate.cli.target.local import LocalTarget
from substrate.cli.target.protocol import Target
from substrate.cli.target.selection import running_server
from substrate.cli.target.server import find_server
from substrate.cli.terminal.tables import print_json_line
from substrate.security.exposure import connect_address, url_host
from substrate.security.lockfile import RunningServer, find_running
from substrate.security.page_sessions import Session, SessionFile, is_session_name
from substrate.security.tokens import Token, TokenFile
from substrate.settings import Settings

__all__ = ("page_link", "token")

#: Timeout of the request that replaces the server's token.
ROTATE_S: Final = 10.0
#: Stands for all scopes.
ALL_SCOPES: Final = "*"
SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 24 * 3600, "w": 7 * 24 * 3600}


@click.group(
    invoke_without_command=True,
    short_help="Show the server token, or manage additional tokens.",
)
@click.option(
    "--link", is_flag=True, help="Print a link that opens the server in a browser, with the token."
)
@click.option("--json", "as_json", is_flag=True, help="Print the token and its server as JSON.")
@click.pass_context
def token(ctx: click.Context, *, link: bool, as_json: bool) -> None:
    """Print the token of the running server on the configured port.

    \b
    curl -H "Authorization: Bearer $(substrate token)" ...
    """
    if ctx.invoked_subcommand is not None:
        return
    running = _running(ctx)
    if as_json:
        _print_fields(ctx, running)
    else:
        click.echo(page_link(settings_of(ctx), running) if link else running.token)


@token.command(short_help="Replace the server's token.")
@click.option("--json", "as_json", is_flag=True, help="Print the new token as a line of JSON.")
@click.pass_context
def rotate(ctx: click.Context, *, as_json: bool) -> None:
    """Replace the token of the running server, and print the new one.

    The old token and the browser sessions created with it stop working: their connections close
    within a second and their runs are cancelled.
    """
    running = _running(ctx)
    connection = HTTPConnection(
        connect_address(settings_of(ctx).bind), running.port, timeout=ROTATE_S
    )
    headers = {"Authorization": f"Bearer {running.token}", "Content-Type": "application/json"}
    try:
        connection.request("POST", "/token/rotate", b"{}", headers)
        response = connection.getresponse()
        body = response.read().decode(errors="replace")
    except (OSError, HTTPException) as error:
        message = f"Cannot reach the server on port {running.port}: {error}"
        raise click.ClickException(message) from error
    finally:
        connection.close()
    if response.status != 200:
        raise click.ClickException(f"The server on port {running.port} refused: {body}")
    if as_json:
        _print_fields(ctx, _running(ctx))
    else:
        click.echo(_running(ctx).token)


@token.command(short_help="Create an additional token and print it once.")
@click.argument("name")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    metavar="SCOPE",
    help="Scope to allow in addition to reading; '*' allows everything. Repeatable.",
)
@click.option(
    "--as",
    "principal",
    metavar="PRINCIPAL",
    help="Principal whose runs, sessions and trees it can access; 'local' is you.  [default: NAME]",
)
@click.option(
    "--expires", metavar="TIME", help="Lifetime, as in 12h, 30d or 8w.  [default: unlimited]"
)
@click.option("--json", "as_json", is_flag=True, help="Print the token as a line of JSON.")
@click.pass_context
def create(
    ctx: click.Context,
    *,
    name: str,
    scopes: tuple[str, ...],
    principal: str | None,
    expires: str | None,
    as_json: bool,
) -> None:
    """Create a token named NAME. It is printed once and never stored in clear text.

    All your servers accept it immediately. `substrate schema` shows the scope of each method.
    """
    _warn_of_unknown_scopes(ctx, scopes)
    allowed = None if ALL_SCOPES in scopes else frozenset(scopes) or frozenset({"read"})
    try:
        secret = TokenFile().add(
            name, allowed, principal=principal, lifetime_s=_parse_lifetime(expires)
        )
    except (OSError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        print_json_line({"name": name, "token": secret})
    else:
        click.echo(secret)


@token.command("list", short_help="List additional tokens and browser sessions.")
@click.option("--json", "as_json", is_flag=True, help="Print each as a line of JSON.")
def list_tokens(*, as_json: bool) -> None:
    """List additional tokens and browser sessions, without their secrets."""
    tokens = _tokens(TokenFile())
    sessions = _sessions(SessionFile(), tokens)
    if as_json:
        for token in tokens:
            print_json_line(_token_fields(token))
        for session in sessions:
            print_json_line(_session_fields(session, tokens))
        return
    for token in tokens:
        scopes = " ".join(_token_fields(token)["scopes"] or ["everything"])
        click.echo(f"{token.name}  as {token.principal.name}  {scopes}  {_format_expiry(token)}")
    for session in sessions:
        fields = _session_fields(session, tokens)
        click.echo(
            f"{session.name}  as {session.principal}  created {_format_time(session.created_s)} "
            f"with {fields['begun_with']}  last used {_format_time(session.used_s)}  "
            f"until {_format_time(session.expires_s)}  {session.user_agent}".rstrip()
        )
    if not tokens and not sessions:
        click.echo("No tokens. Create one with `substrate token create NAME`.", err=True)


@token.command(short_help="Revoke an additional token or a browser session.")
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as a line of JSON.")
def revoke(*, name: str, as_json: bool) -> None:
    """Revoke the token or browser session NAME. Sessions created with a revoked token end too.

    Open connections close within a second, and their runs are cancelled.
    """
    kind = "session" if is_session_name(name) else "token"
    tokens = _tokens(TokenFile())
    revoked = next((each for each in tokens if each.name == name), None)
    ended: list[str] = []
    with suppress(click.ClickException):  # damaged sessions must not keep a token valid
        ended = [
            each.name
            for each in _sessions(SessionFile(), tokens)
            if revoked is not None and each.token == revoked.digest
        ]
    try:
        found = (SessionFile() if kind == "session" else TokenFile()).revoke(name)
    except (OSError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    if not found:
        raise click.ClickException(
            f"Unknown {kind} {name!r}. `substrate token list` shows all tokens and sessions."
        )
    if as_json:
        print_json_line({"kind": kind, "name": name, "sessions_ended": ended})
        return
    owner = "" if revoked is None else f" of {revoked.principal.name}"
    sessions = f"{len(ended)} browser {'session' if len(ended) == 1 else 'sessions'}"
    click.echo(
        f"Revoked the {kind} {name}{owner}"
        + (f", which ends {sessions}." if ended else ".")
        + " Running servers close its connections and cancel its runs within a second."
    )


def _warn_of_unknown_scopes(ctx: click.Context, scopes: Sequence[str]) -> None:
    """Print a warning about scopes that no method has.

    A server in another folder may have methods with these scopes, so they are no error.
    """
    if not set(scopes) - {ALL_SCOPES}:
        return
    known = _known_scopes(ctx)
    unknown = [scope for scope in scopes if scope not in {*known, ALL_SCOPES}]
    if unknown:
        click.echo(
            f"Warning: no method here has the scope {', '.join(unknown)}. Known scopes: "
            f"{', '.join(sorted(known))}.",
            err=True,
        )


def _known_scopes(ctx: click.Context) -> set[str]:
    here = LocalTarget(settings_of(ctx), Path.cwd(), files_of(ctx))
    ctx.call_on_close(here.close)
    targets: list[Target] = [here]
    server = running_server(ctx)
    if server is not None:
        targets.append(server)
    found = {READ}
    for target in targets:
        with suppress(click.ClickException, PlexusError):
            for namespace in target.catalogue.namespaces():
                found |= {method.scope for method in namespace.methods if method.scope}
    return found


# --- parts ------------------------------------------------------------------------------------


def _running(ctx: click.Context) -> RunningServer:
    """Return the running server on the configured port. Raises ClickException."""
    settings = settings_of(ctx)
    running = find_running(settings.port)
    if running is not None:
        return running
    if find_server(settings.port, connect_address(settings.bind)):
        raise click.ClickException(
            f"The server on port {settings.port} has no lock file of yours: it requires no token, "
            "or another user started it."
        )
    raise click.ClickException(
        f"No server of yours runs on port {settings.port}. Start one with `substrate`, or select "
        "another port with `substrate --port PORT token`."
    )


def _print_fields(ctx: click.Context, running: RunningServer) -> None:
    page = page_link(settings_of(ctx), running)
    print_json_line({"token": running.token, "port": running.port, "link": page})


def page_link(settings: Settings, running: RunningServer) -> str:
    """Return the link that opens the page of a server, with its token."""
    host = url_host(connect_address(settings.bind))
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


def _token_fields(token: Token) -> dict[str, Any]:
    return {
        "kind": "token",
        "name": token.name,
        "principal": token.principal.name,
        "scopes": _scopes(token),
        "created_ms": int(token.created_s * 1000),
        "expires_ms": None if token.expires_s is None else int(token.expires_s * 1000),
        "expired": token.expired(time.time()),
    }


def _session_fields(session: Session, tokens: list[Token]) -> dict[str, Any]:
    """Return a session with the scopes of the token that created it."""
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


def _format_expiry(token: Token) -> str:
    if token.expires_s is None:
        return "until revoked"
    when = _format_time(token.expires_s)
    return f"expired {when}" if token.expired(time.time()) else f"until {when}"


def _format_time(time_s: float) -> str:
    return datetime.fromtimestamp(time_s).astimezone().strftime("%Y-%m-%d %H:%M")


def _parse_lifetime(text: str | None) -> float | None:
    if text is None:
        return None
    found = re.fullmatch(r"([1-9][0-9]{0,5})([smhdw])", text)
    if found is None:
        raise click.BadParameter(
            f"{text!r} is not a lifetime: use a number and one of {', '.join(SECONDS)}, as in 30d.",
            param_hint="--expires",
        )
    return float(int(found[1]) * SECONDS[found[2]])

"""Connections of a mount: its program or URL, with variables filled in and a sign-in if needed.

Imported at the first call of a mount.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from activations.gateway.mount_config import MountConfig, expand, unset_variables
from activations.gateway.transports.oauth import OAuth, OAuthClient, SignIn
from activations.gateway.transports.session import UpstreamSession
from activations.processes.supervisor_client import Command
from mcp_view.client.errors import BadMessage, Lost, NotReady, Refused
from mcp_view.client.items import Notice
from mcp_view.client.options import ClientOptions
from plexus.caller_environment import CallerEnvironment
from plexus.context import Context
from plexus.errors import Failed
from plexus.registry.lazy import resolve

if TYPE_CHECKING:  # it creates this
    from activations.gateway.mount import Mount
    from activations.gateway.transports.transport import Transport

__all__ = ("Connector",)

#: What this server answers for another one; what the caller cannot answer is refused then.
CAPABILITIES: Final = frozenset({"form", "url", "sampling", "roots", "tasks"})
#: The last revision with a handshake; a server that has it is not probed for a newer one.
LEGACY: Final = "2025-11-25"
#: Our own variables, which are not passed to other servers.
OWN_PREFIX: Final = "SUBSTRATE_"
STDIO: Final = "activations.gateway.transports.stdio:StdioTransport"
_TRANSPORTS: Final = {
    "http": "activations.gateway.transports.streamable_http:HttpTransport",
    "sse": "activations.gateway.transports.sse:SseTransport",
    "websocket": "activations.gateway.transports.websocket:WebSocketTransport",
}

#: Shows a sign-in to a person.
OnSignIn = Callable[[SignIn], Awaitable[None]]
OnNotice = Callable[[UpstreamSession, Notice], None]


class Connector:
    """Connects to the server of one mount."""

    def __init__(self, mount: Mount) -> None:
        self._mount = mount
        self._config = mount.config
        #: What the program wrote at the last attempt that failed.
        self.stderr = ""

    async def connect(
        self, ctx: Context | None, on_notice: OnNotice, on_sign_in: OnSignIn
    ) -> UpstreamSession:
        """Open a session for the owner of a call. Raises PlexusError."""
        known = self._mount.catalogue
        revision = None if known is None else known.server.get("revision")
        legacy = isinstance(revision, str) and revision <= LEGACY
        make = partial(self._connect, ctx, on_notice, on_sign_in)
        try:
            return await make(is_legacy=legacy)
        except (Refused, BadMessage, NotReady, Lost):
            if not legacy:
                raise
            # It may have been updated to a revision without a handshake.
            return await make(is_legacy=False)

    async def _connect(
        self, ctx: Context | None, on_notice: OnNotice, on_sign_in: OnSignIn, *, is_legacy: bool
    ) -> UpstreamSession:
        era: Any = "legacy" if is_legacy else "auto"
        options = ClientOptions(capabilities=CAPABILITIES, era=era, log_level="info")
        transport = self._transport(ctx, on_sign_in)
        session: UpstreamSession | None = None

        def notify(notice: Notice) -> None:
            if session is not None:
                on_notice(session, notice)

        session = UpstreamSession(transport, options, on_notice=notify)
        try:
            await session.open()
        except BaseException:
            self.stderr = session.stderr
            await session.close()
            raise
        return session

    def _environment(self, ctx: Context | None) -> CallerEnvironment:
        """Return the environment of the caller, if the session is only for it; else our own."""
        if ctx is not None and self._config.session_scope in ("connection", "call"):
            caller = ctx.caller
            if caller is not None:
                return caller
        return CallerEnvironment(str(self._mount.gateway.folder), os.environ)

    def _transport(self, ctx: Context | None, on_sign_in: OnSignIn) -> Transport:
        config, caller = self._config, self._environment(ctx)
        variables = caller.variables
        missing = unset_variables(config, variables)
        if missing:
            names = ", ".join(missing)
            raise Failed(
                f"{config.name} refers to variables that are not set: {names}. Set them in the "
                "environment of Substrate, or write ${NAME:-default}.",
                code="mount_variables",
            )
        if config.transport == "stdio":
            command = _command(config, caller)
            stdio: Transport = resolve(STDIO)(command, self._mount.gateway.launcher)
            return stdio
        fill = partial(expand, variables=variables)
        url = fill(config.url)
        options: dict[str, Any] = {
            "headers": {name: fill(value) for name, value in config.headers.items()}
        }
        if config.signs_in:
            client = {name: fill(value) for name, value in config.oauth.items()}
            options["auth"] = self._authorization(ctx, url, client, on_sign_in)
        transport: Transport = resolve(_TRANSPORTS[config.transport])(url, **options)
        return transport

    def _authorization(
        self, ctx: Context | None, url: str, client: dict[str, str], on_sign_in: OnSignIn
    ) -> OAuth:
        """Return the authorization of the owner of a session.

        Only a shared session uses the sign-in of the operator for all callers: a caller that signs
        in elsewhere must not lend its account to others.
        """
        account = ""
        shared = self._config.session_scope == "shared"
        if ctx is not None and not shared and not ctx.principal.is_operator:
            account = ctx.principal.name
        names: dict[str, Any] = {
            {"client_id": "id", "client_secret": "secret"}.get(name, name): value
            for name, value in client.items()
        }
        return OAuth(
            url,
            self._mount.gateway.tokens,
            on_sign_in=on_sign_in,
            client=OAuthClient(**names),
            account=account,
        )


def _command(config: MountConfig, caller: CallerEnvironment) -> Command:
    """Return the command of a server on stdio. Raises Failed if its program does not exist."""
    variables = caller.variables
    environment = {
        name: value for name, value in variables.items() if not name.startswith(OWN_PREFIX)
    }
    environment |= {name: expand(value, variables) for name, value in config.env.items()}
    folder = expand(config.cwd, variables) or caller.directory
    first, *rest = (expand(each, variables) for each in config.command)
    program = shutil.which(first, path=environment.get("PATH"))
    if program is None:
        raise Failed(
            f"{config.name} starts {first!r}, which is not a program on PATH. Install it, or "
            "change the command of the mount.",
            code="unreachable",
        )
    if not Path(folder).is_dir():
        raise Failed(f"{config.name}: the folder {folder!r} does not exist.", code="unreachable")
    return Command((program, *rest), folder, environment)

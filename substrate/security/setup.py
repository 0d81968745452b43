"""Opening the doors of a server as the settings say, and saying in its lock file how to come in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from plexus.registry.lazy import resolve
from plexus.runtime.hub import Plexus
from substrate.security.authentication import Access, OAuthServer
from substrate.security.exposure import reached_at, url_host
from substrate.security.lockfile import LockFile
from substrate.security.page_sessions import SessionFile
from substrate.security.tokens import TokenFile, new_token
from substrate.server.limits import ServerLimits
from substrate.settings import Settings, SettingsError

__all__ = ("open_access",)

OAUTH: Final = "substrate.security.oauth:OAuth"


@contextmanager
def open_access(
    settings: Settings, hub: Plexus, port: int, project: Path
) -> Iterator[tuple[Access, str]]:
    """Everybody who may come in, and the server's token, empty if it asks for none. The lock
    file is there meanwhile. Raises SettingsError."""
    if settings.auth == "off":
        yield Access("", port=port, hosts=settings.hosts, origins=settings.origins), ""
        return
    limits = ServerLimits.of(hub.limits)
    lock = LockFile(port, project)
    token = new_token()
    try:
        lock.write(token)
    except OSError as error:
        raise SettingsError(
            f"the lock file {lock.path} cannot be written: {error.strerror or error}. Name another "
            "folder with XDG_STATE_HOME, or start with --auth off."
        ) from error
    try:
        access = Access(
            token,
            TokenFile(),
            SessionFile(limits=limits),
            port=port,
            hosts=settings.hosts,
            origins=settings.origins,
            oauth=_oauth(settings, hub, port),
            publish=lock.write,
            limits=limits,
        )
        yield access, token
    finally:
        lock.remove()


def _oauth(settings: Settings, hub: Plexus, port: int) -> OAuthServer | None:
    if not settings.oauth_issuer:
        return None
    # A server with names is behind something that speaks TLS, or should be.
    own = f"http://{url_host(reached_at(settings.bind))}:{port}"
    address = f"https://{settings.hosts[0]}" if settings.hosts else own
    oauth: OAuthServer = resolve(OAUTH)(
        settings.oauth_issuer,
        f"{address}/mcp",
        hub.scopes,
        audience=settings.oauth_audience or None,
    )
    return oauth

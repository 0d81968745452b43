"""Where a server can be reached from, and what it needs before that may be elsewhere.

One that other machines reach needs names that it answers for and a token: without the one any web
page could rebind its way in, without the other anybody could come.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Final

from substrate.settings import Settings, SettingsError

__all__ = ("check_exposure", "is_local", "is_loopback", "reached_at", "url_host")

HOST: Final = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9]([a-z0-9.-]*[a-z0-9])?)(:[0-9]{1,5})?")
#: The address of nearly every client.
HERE: Final = "127.0.0.1"
ORIGIN: Final = re.compile(rf"[a-z][a-z0-9+.-]*://{HOST.pattern}")


def check_exposure(settings: Settings) -> None:
    """Raise SettingsError for what would let in whom nobody has invited."""
    for host in settings.hosts:
        if not HOST.fullmatch(host.lower()):
            raise SettingsError(
                f"hosts: {host!r} is no name of a host: write it as in example.org or "
                "example.org:8443, without a scheme, a path or '*'."
            )
    for origin in settings.origins:
        if not ORIGIN.fullmatch(origin.lower()):
            raise SettingsError(
                f"origins: {origin!r} is no origin: write it as in https://example.org, without "
                "a path or '*'."
            )
    if settings.auth == "off" and settings.oauth_issuer:
        raise SettingsError("oauth_issuer says who may call, so auth cannot be off: leave it out.")
    local = is_loopback(settings.bind)
    if local and not settings.hosts:
        return
    where = settings.hosts[0] if local else settings.bind
    where = f"{where} can be reached from other machines"
    if settings.auth == "off":
        raise SettingsError(f"{where}, so auth cannot be off there: leave --auth off out.")
    if not settings.hosts:
        raise SettingsError(
            f"{where}, so the names that it is called by must be listed: add --allow-host NAME."
        )


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches this address; raises SettingsError if it is none."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        raise SettingsError(
            f"bind: {address!r} is no address of this machine, such as 127.0.0.1, ::1 or 0.0.0.0."
        ) from None


def is_local(address: str) -> bool:
    """Whether a client at this address is on this machine."""
    if address == HERE:
        return True
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return (mapped or found).is_loopback


def reached_at(bind: str) -> str:
    """Where a program on this machine finds a server that listens there."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(bind, bind)


def url_host(address: str) -> str:
    """An address as it is written in a URL."""
    return f"[{address}]" if ":" in address else address

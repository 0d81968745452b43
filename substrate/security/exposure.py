"""Network exposure: which addresses reach the server, and what it requires before others may.

A server that other machines can reach needs a list of its host names and a token: without the list,
any web page could use DNS rebinding; without the token, any client could connect.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Final

from substrate.settings import Settings, SettingsError

__all__ = ("check_exposure", "connect_address", "is_local", "is_loopback", "url_host")

HOST: Final = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9]([a-z0-9.-]*[a-z0-9])?)(:[0-9]{1,5})?")
#: The address of nearly every client.
LOOPBACK: Final = "127.0.0.1"
ORIGIN: Final = re.compile(rf"[a-z][a-z0-9+.-]*://{HOST.pattern}")


def check_exposure(settings: Settings) -> None:
    """Raise SettingsError for settings that would admit unintended clients."""
    for host in settings.hosts:
        if not HOST.fullmatch(host.lower()):
            raise SettingsError(
                f"hosts: {host!r} is not a host name. Write it as example.org or "
                "example.org:8443, without a scheme, a path or '*'."
            )
    for origin in settings.origins:
        if not ORIGIN.fullmatch(origin.lower()):
            raise SettingsError(
                f"origins: {origin!r} is not an origin. Write it as https://example.org, without "
                "a path or '*'."
            )
    if settings.auth == "off" and settings.oauth_issuer:
        raise SettingsError("oauth_issuer requires authentication: remove auth = 'off'.")
    local = is_loopback(settings.bind)
    if local and not settings.hosts:
        return
    where = settings.hosts[0] if local else settings.bind
    where = f"{where} can be reached from other machines"
    if settings.auth == "off":
        raise SettingsError(f"{where}, so authentication is required: remove --auth off.")
    if not settings.hosts:
        raise SettingsError(f"{where}, so its host names must be listed: add --allow-host NAME.")


def is_loopback(address: str) -> bool:
    """Return whether only this machine reaches the address.

    Raises SettingsError if it is invalid.
    """
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        raise SettingsError(
            f"bind: {address!r} is not an IP address. Use 127.0.0.1, ::1, 0.0.0.0 or similar."
        ) from None


def is_local(address: str) -> bool:
    """Return whether a client at this address is on this machine."""
    if address == LOOPBACK:
        return True
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return (mapped or found).is_loopback


def connect_address(bind: str) -> str:
    """Return the address at which a local program reaches a server that is bound to this one."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(bind, bind)


def url_host(address: str) -> str:
    """Format an address for use in a URL."""
    return f"[{address}]" if ":" in address else address

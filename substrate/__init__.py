"""The program: command line, settings, transports, guard and HTTP app.

`serve`, `asgi_app` and `local` serve activations from Python code. They are imported when they are
first used, because every start of the program imports this package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plexus.registry.lazy import resolve

if TYPE_CHECKING:
    from substrate.api import local, serve
    from substrate.server.embedded import asgi_app

__all__ = ("asgi_app", "local", "serve")

_NAMES = {
    "asgi_app": "substrate.server.embedded:asgi_app",
    "local": "substrate.api:local",
    "serve": "substrate.api:serve",
}


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module 'substrate' has no attribute {name!r}")
    return resolve(_NAMES[name])

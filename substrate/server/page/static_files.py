"""Serving the page: its HTML at `/`, and its scripts and styles below `/page/`.

The page takes the token from behind the `#` of the address, where no server and no log ever sees
it, exchanges it for a session secret, and drops it. Everything else comes by calls, so the files
are the same for everybody and hold nothing secret.

They are read once, when a browser first asks, and only what is in the folder is served. The session
is in localStorage, where every script of this origin can read it. So the policy below lets only the
files of this folder run: nothing inline, nothing of another origin, no worker, and text that came
from elsewhere cannot become a script or markup. The page can send nothing to another origin.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from starlette.types import Receive, Scope, Send

from substrate.server.asgi import Headers, header, send_bytes, send_empty, send_wrong_method

__all__ = ("ASSETS", "INDEX_FILE", "PageFiles", "send_page")

ASSETS: Final = Path(__file__).parent / "assets"
INDEX_FILE: Final = "index.html"
TYPES: Final = {
    ".html": b"text/html; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".svg": b"image/svg+xml",
}
POLICY: Final = b"; ".join(
    (
        b"default-src 'none'",
        b"script-src 'self'",
        b"script-src-attr 'none'",
        b"worker-src 'none'",
        b"style-src 'self'",
        b"connect-src 'self'",
        b"img-src 'self' data:",
        b"media-src data:",
        b"base-uri 'none'",
        b"form-action 'none'",
        b"frame-ancestors 'none'",
        # No text becomes markup or a script, not by mistake either.
        b"require-trusted-types-for 'script'",
        b"trusted-types 'none'",
    )
)
SAFE: Final[Headers] = [
    (b"content-security-policy", POLICY),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
]


class File(NamedTuple):
    """One file, as it is sent."""

    content: bytes
    headers: Headers
    kind: bytes
    tag: bytes


@cache
def _files() -> dict[str, File]:
    return {
        path.name: _file(path)
        for path in sorted(ASSETS.iterdir())
        if path.is_file() and path.suffix in TYPES
    }


def _file(path: Path) -> File:
    content = path.read_bytes()
    tag = b'"%b"' % hashlib.sha256(content).hexdigest()[:32].encode()
    # A new version of the program is seen at once, and an old file is not sent again. At `/`
    # there is JSON for others, so nobody keeps what was found there.
    kept = b"no-store" if path.name == INDEX_FILE else b"no-cache"
    caching = [(b"cache-control", kept), (b"etag", tag)]
    return File(content, SAFE + caching, TYPES[path.suffix], tag)


async def send_page(scope: Scope, send: Send) -> None:
    """Send the page itself."""
    await _send(scope, send, _files()[INDEX_FILE])


async def _send(scope: Scope, send: Send, file: File) -> None:
    if header(scope, b"if-none-match") == file.tag:
        await send(
            {"type": "http.response.start", "status": 304, "headers": file.headers},
        )
        await send({"type": "http.response.body", "body": b""})
    else:
        await send_bytes(send, 200, file.content, file.kind, file.headers)


class PageFiles:
    """`GET /page/{name}`: what the page is made of."""

    async def __call__(self, scope: Scope, _: Receive, send: Send) -> None:
        """Answer, the same for everybody."""
        if scope["method"] not in ("GET", "HEAD"):
            await send_wrong_method(send, "GET", "HEAD")
            return
        file = _files().get(scope["path_params"]["name"])
        if file is None:
            await send_empty(send, 404)
        else:
            await _send(scope, send, file)

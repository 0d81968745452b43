"""Serves the web page: its HTML at `/`, its scripts and styles below `/page/`.

The page reads the token from the fragment of its URL, which browsers send to no server, exchanges
it for a session secret, and discards it. All data comes from calls, so the files are the same for
every client and contain nothing secret.

The files are read once, at the first request, and only files in the folder are served. The session
secret is in localStorage, where every script of this origin can read it. The policy below therefore
allows only the scripts of this folder: no inline scripts, no other origins, no workers, and no text
that becomes a script or markup. The page can send nothing to another origin.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from starlette.types import Receive, Scope, Send

from substrate.server.asgi import Headers, header, send_bytes, send_empty, send_wrong_method

__all__ = ("ASSETS", "INDEX_FILE", "PageFiles", "send_page")

ASSETS: Final = Path(__file__).resolve().parent / "assets"
INDEX_FILE: Final = "index.html"
TYPES: Final = {
    ".html": b"text/html; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".mjs": b"text/javascript; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".svg": b"image/svg+xml",
}
#: The modules of the first view; others are loaded with their views.
FIRST: Final = ("app.js", "views/runs.js")
IMPORTS: Final = re.compile(r'^(?:import|export)\b[^;]*?\bfrom "(\.[^"]+)";', re.MULTILINE)
PRELOAD: Final = '<link rel="modulepreload" href="/page/{}">\n'
IMPORT_MAP: Final = re.compile(r'<script type="importmap">(.*?)</script>', re.DOTALL)
POLICY: Final = b"; ".join(
    (
        b"default-src 'none'",
        # The hash is that of the import map, which must be in the HTML.
        b"script-src 'self' 'sha256-%b'",
        b"script-src-attr 'none'",
        b"worker-src 'none'",
        b"style-src 'self'",
        b"connect-src 'self'",
        b"img-src 'self' data:",
        b"frame-src data:",  # HTML of a run, in a frame without scripts
        b"media-src data:",
        b"base-uri 'none'",
        b"form-action 'none'",
        b"frame-ancestors 'none'",
        # Text cannot become markup or a script, even by mistake.
        b"require-trusted-types-for 'script'",
        b"trusted-types 'none'",
    )
)
SAFE: Final[Headers] = [
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
]


class PageFile(NamedTuple):
    """One file with its response headers."""

    content: bytes
    headers: Headers
    media_type: bytes
    tag: bytes


@cache
def _files() -> dict[str, PageFile]:
    """Return all files by their paths below the folder."""
    paths = {
        path.relative_to(ASSETS).as_posix(): path
        for path in sorted(ASSETS.rglob("*"))
        if path.is_file() and path.suffix in TYPES
    }
    index = _with_preloads(paths.pop(INDEX_FILE).read_text(), paths)
    policy = (b"content-security-policy", POLICY % _import_map_hash(index))
    found = {name: _file(path.read_bytes(), path.suffix, policy) for name, path in paths.items()}
    # `/` also serves JSON, so its response must not be stored.
    found[INDEX_FILE] = _file(index.encode(), ".html", policy, b"no-store")
    return found


def _with_preloads(index: str, paths: Mapping[str, Path]) -> str:
    """Return the HTML with links that load all modules of the first view in parallel."""
    waiting = [ASSETS / name for name in FIRST]
    found: set[Path] = set()
    while waiting:
        module = waiting.pop()
        if module not in found:
            found.add(module)
            imported = IMPORTS.findall(module.read_text())
            waiting += [(module.parent / name).resolve() for name in imported]
    names = [
        name for name, path in paths.items() if path.resolve() in found or path.suffix == ".mjs"
    ]
    return index.replace("</head>", "".join(map(PRELOAD.format, names)) + "</head>")


def _import_map_hash(index: str) -> bytes:
    found = IMPORT_MAP.search(index)
    assert found is not None, "the page has an import map"
    return base64.b64encode(hashlib.sha256(found[1].encode()).digest())


def _file(
    content: bytes, suffix: str, policy: tuple[bytes, bytes], caching: bytes = b"no-cache"
) -> PageFile:
    # Browsers revalidate, so they use a new version of the program immediately and do not fetch
    # unchanged files again.
    tag = b'"%b"' % hashlib.sha256(content).hexdigest()[:32].encode()
    headers = [policy, *SAFE, (b"cache-control", caching), (b"etag", tag)]
    return PageFile(content, headers, TYPES[suffix], tag)


async def send_page(scope: Scope, send: Send) -> None:
    """Send the HTML of the page."""
    await _send(scope, send, _files()[INDEX_FILE])


async def _send(scope: Scope, send: Send, file: PageFile) -> None:
    if header(scope, b"if-none-match") == file.tag:
        await send(
            {"type": "http.response.start", "status": 304, "headers": file.headers},
        )
        await send({"type": "http.response.body", "body": b""})
    else:
        await send_bytes(send, 200, file.content, file.media_type, file.headers)


class PageFiles:
    """`GET /page/{name:path}`: the scripts and styles of the page."""

    async def __call__(self, scope: Scope, _: Receive, send: Send) -> None:
        """Send a file. No authentication: the files contain nothing secret."""
        if scope["method"] not in ("GET", "HEAD"):
            await send_wrong_method(send, "GET", "HEAD")
            return
        file = _files().get(scope["path_params"]["name"])
        if file is None:
            await send_empty(send, 404)
        else:
            await _send(scope, send, file)

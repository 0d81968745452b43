"""Serves the web page: its HTML at `/`, its scripts and styles below `/page/`.

The page reads the token from the fragment of its URL, which browsers send to no server, exchanges
it for a session secret, and discards it. All data comes from calls, so the files are the same for
every client and contain nothing secret.

The files are read once, at the first request, and only files in the folder are served. Two things
are made from them, so that the page appears soon: the HTML has the navigation before any script is
loaded, and all styles are one file. The session
secret is in localStorage, where every script of this origin can read it. The policy below therefore
allows only the scripts of this folder: no inline scripts, no other origins, no workers, and no text
that becomes a script or markup. The page can send nothing to another origin.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from starlette.types import Receive, Scope, Send

from substrate.server.asgi import Headers, header, send_bytes, send_empty, send_wrong_method

__all__ = ("ASSETS", "INDEX_FILE", "STYLES_FILE", "PageFiles", "send_page")

ASSETS: Final = Path(__file__).resolve().parent / "assets"
INDEX_FILE: Final = "index.html"
TYPES: Final = {
    ".html": b"text/html; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".mjs": b"text/javascript; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".svg": b"image/svg+xml",
}
#: `gzip` in a list of encodings, unless its weight is 0.
GZIP: Final = re.compile(
    rb"(?:^|[\s,])gzip(?!\s*;\s*q=0(?:\.0*)?\s*(?:,|$))\s*(?:[,;]|$)", re.IGNORECASE
)
#: The modules of the first view; others are loaded with their views.
FIRST: Final = ("app.js", "views/runs.js")
#: Libraries of other views.
LATER: Final = ("vendor/codemirror.mjs",)
IMPORTS: Final = re.compile(r'^(?:import|export)\b[^;]*?\bfrom "(\.[^"]+)";', re.MULTILINE)
PRELOAD: Final = '<link rel="modulepreload" href="/page/{}">\n'
#: The links of the HTML to the styles, in their order, and the file that is served instead of them.
STYLE_LINKS: Final = re.compile(r'(?:<link rel="stylesheet" href="/page/styles/\w+\.css">\n)+')
STYLE_NAME: Final = re.compile(r'href="/page/([\w/]+\.css)"')
STYLES_FILE: Final = "styles.css"
STYLES_LINK: Final = f'<link rel="stylesheet" href="/page/{STYLES_FILE}">\n'
#: The views of the navigation. Scripts replace it with the views that the server has.
VIEWS_FILE: Final = "core/views.js"
VIEW: Final = re.compile(r'^  \{ name: "(\w+)", title: "([^"]+)"', re.MULTILINE)
NAVIGATION: Final = "<ul></ul>"
VIEW_LINK: Final = '<li><a href="#/{}">{}</a></li>'
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


class Variant(NamedTuple):
    """The content of a file in one encoding, with its response headers."""

    content: bytes
    headers: Headers
    tag: bytes


class PageFile:
    """One file, compressed when a client first accepts that."""

    __slots__ = ("_compressed", "_headers", "media_type", "plain")

    def __init__(self, content: bytes, media_type: bytes, headers: Headers, caching: bytes) -> None:
        self.media_type = media_type
        self._headers: Headers = [*headers, (b"vary", b"accept-encoding")]
        self._headers.append((b"cache-control", caching))
        self.plain = self._variant(content, b"")
        self._compressed: Variant | None = None

    @property
    def compressed(self) -> Variant:
        """The file in gzip."""
        if self._compressed is None:
            content = gzip.compress(self.plain.content, mtime=0)
            self._compressed = self._variant(content, b"gzip")
        return self._compressed

    def _variant(self, content: bytes, encoding: bytes) -> Variant:
        # Browsers revalidate, so they use a new version of the program immediately and do not
        # fetch unchanged files again.
        tag = b'"%b"' % hashlib.sha256(content).hexdigest()[:32].encode()
        headers = [*self._headers, (b"etag", tag)]
        if encoding:
            headers.append((b"content-encoding", encoding))
        return Variant(content, headers, tag)


@cache
def _files() -> dict[str, PageFile]:
    """Return all files by their paths below the folder."""
    paths = {
        path.relative_to(ASSETS).as_posix(): path
        for path in sorted(ASSETS.rglob("*"))
        if path.is_file() and path.suffix in TYPES
    }
    source = paths.pop(INDEX_FILE).read_text()
    views = VIEW.findall(paths[VIEWS_FILE].read_text())
    index = _with_preloads(_with_navigation(STYLE_LINKS.sub(STYLES_LINK, source), views), paths)
    policy = (b"content-security-policy", POLICY % _import_map_hash(index))
    found = {name: _file(path.read_bytes(), path.suffix, policy) for name, path in paths.items()}
    styles = b"".join(paths[name].read_bytes() for name in STYLE_NAME.findall(source))
    found[STYLES_FILE] = _file(styles, ".css", policy)
    # `/` also serves JSON, so its response must not be stored.
    found[INDEX_FILE] = _file(index.encode(), ".html", policy, b"no-store")
    return found


def _with_navigation(index: str, views: Sequence[tuple[str, str]]) -> str:
    """Return the HTML with links to all views."""
    links = "".join(VIEW_LINK.format(name, html.escape(title)) for name, title in views)
    return index.replace(NAVIGATION, f"<ul>{links}</ul>")


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
        name
        for name, path in paths.items()
        if path.resolve() in found or (path.suffix == ".mjs" and name not in LATER)
    ]
    return index.replace("</head>", "".join(map(PRELOAD.format, names)) + "</head>")


def _import_map_hash(index: str) -> bytes:
    found = IMPORT_MAP.search(index)
    assert found is not None, "the page has an import map"
    return base64.b64encode(hashlib.sha256(found[1].encode()).digest())


def _file(
    content: bytes, suffix: str, policy: tuple[bytes, bytes], caching: bytes = b"no-cache"
) -> PageFile:
    return PageFile(content, TYPES[suffix], [policy, *SAFE], caching)


async def send_page(scope: Scope, send: Send) -> None:
    """Send the HTML of the page."""
    await _send(scope, send, _files()[INDEX_FILE])


async def _send(scope: Scope, send: Send, file: PageFile) -> None:
    accepts = GZIP.search(header(scope, b"accept-encoding")) is not None
    variant = file.compressed if accepts else file.plain
    if header(scope, b"if-none-match") == variant.tag:
        await send(
            {"type": "http.response.start", "status": 304, "headers": variant.headers},
        )
        await send({"type": "http.response.body", "body": b""})
    else:
        await send_bytes(send, 200, variant.content, file.media_type, variant.headers)


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

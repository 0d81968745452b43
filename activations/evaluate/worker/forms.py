"""The richest form in which a value shows itself: a picture, HTML, JSON and others."""

from __future__ import annotations

import base64
import io
import json

from .text import clean, kind_of

TYPE_CHECKING = False  # `typing` would add to the start
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = ("FIGURE", "PyplotFinder", "find_form")

#: Maximum bytes of a picture, and of any other form of a value.
IMAGE_BYTES = 700_000
FORM_CHARACTERS = 900_000
#: Maximum width and height of a picture, beyond which hosts reject it.
IMAGE_PIXELS = 2000
#: Resolutions at which a figure is drawn, until it is small enough.
FIGURE_DPI = (100, 60, 30)
#: Methods by which values show themselves, with the media type of the result.
FORMS = (
    ("_repr_png_", "image/png"),
    ("_repr_jpeg_", "image/jpeg"),
    ("_repr_svg_", "image/svg+xml"),
    ("_repr_html_", "text/html"),
    ("_repr_markdown_", "text/markdown"),
    ("_repr_latex_", "text/latex"),
    ("_repr_json_", "application/json"),
)
FIGURE = "matplotlib.figure.Figure"
#: Beginnings of the files of these pictures.
MAGIC = (b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"RIFF")
BINARY = ("image/png", "image/jpeg", "image/gif", "image/webp")


def find_form(value: Any) -> tuple[str, str] | None:
    """Return the media type and the data of the richest form of a value; None if it is text."""
    if isinstance(value, type):
        return None
    try:
        if kind_of(value) == FIGURE:
            return _figure(value)
        bundle = getattr(value, "_repr_mimebundle_", None)
        forms = _first(bundle()) if callable(bundle) else None
        for name, media in FORMS:
            show = getattr(value, name, None)
            given = forms.get(media) if forms else _first(show()) if callable(show) else None
            if given is not None:
                return _form(value, media, given)
    except Exception:
        return None  # a value that cannot show itself is shown as text
    return None


def _first(given: Any) -> Any:
    """Return a form without its metadata."""
    return given[0] if isinstance(given, tuple) else given


def _form(value: Any, media: str, given: Any) -> tuple[str, str] | None:
    if media in BINARY:
        data = base64.b64decode(given) if isinstance(given, str) else bytes(given)
        return _picture(value, media, data)
    text = json.dumps(given, default=str) if media == "application/json" else str(given)
    return (media, clean(text)) if len(text) <= FORM_CHARACTERS else None


def _figure(figure: Any) -> tuple[str, str] | None:
    for dpi in FIGURE_DPI:
        width, height = figure.get_size_inches() * dpi
        fitting = min(dpi, dpi * IMAGE_PIXELS / max(width, height, 1))
        file = io.BytesIO()
        figure.savefig(file, format="png", dpi=fitting, bbox_inches="tight")
        if file.tell() <= IMAGE_BYTES:
            return "image/png", base64.b64encode(file.getvalue()).decode()
    return None


def _picture(value: Any, media: str, data: bytes) -> tuple[str, str] | None:
    """Return a picture that is small enough; it is reduced if it can reduce itself."""
    size = getattr(value, "size", None)
    is_large = isinstance(size, tuple) and max(size) > IMAGE_PIXELS
    if (len(data) > IMAGE_BYTES or is_large) and hasattr(value, "thumbnail"):
        for pixels in (IMAGE_PIXELS, IMAGE_PIXELS // 2, IMAGE_PIXELS // 4):
            reduced = value.copy()
            reduced.thumbnail((pixels, pixels))
            file = io.BytesIO()
            reduced.save(file, "PNG")
            media, data = "image/png", file.getvalue()
            if len(data) <= IMAGE_BYTES:
                break
    if len(data) > IMAGE_BYTES or not data.startswith(MAGIC):
        return None
    return media, base64.b64encode(data).decode()


class PyplotFinder:
    """Makes `pyplot.show` show the open figures, when pyplot is imported."""

    def __init__(self, show: Callable[..., None]) -> None:
        self._show = show
        self._is_searching = False

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> Any:
        if name != "matplotlib.pyplot" or self._is_searching:
            return None
        import importlib.util

        self._is_searching = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._is_searching = False
        if spec is None or spec.loader is None:
            return spec
        loader: Any = spec.loader
        execute = loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            # A function, because matplotlib sets attributes of it.
            module.show = lambda *_, **__: self._show()

        loader.exec_module = exec_module
        return spec

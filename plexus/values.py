"""The event form of plain values, so that a method can yield or return what it already has.

| A method yields or returns | Event |
|---|---|
| an `Event` | itself |
| `str` | `Content` |
| an image of PIL, a figure of matplotlib | `Image`, as PNG |
| `bytes` of a known image or audio format | `Image` or `Audio` |
| other `bytes` | `Resource` with a blob |
| anything else with a JSON form | `Data` when yielded, the result itself when returned |

Libraries are never imported here: a value of PIL exists only after PIL was imported.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from typing import Any, Final

from plexus.events import Audio, Content, Data, Event, Image, Resource

__all__ = ("PLAIN", "converter_for", "media_of", "media_type_of", "renders", "result_of")

Convert = Callable[[Any], Event]

#: The first bytes of formats, the offset at which they begin, and the media type.
SIGNATURES: Final = (
    (b"\x89PNG\r\n\x1a\n", 0, "image/png"),
    (b"\xff\xd8\xff", 0, "image/jpeg"),
    (b"GIF8", 0, "image/gif"),
    (b"WEBP", 8, "image/webp"),
    (b"ID3", 0, "audio/mpeg"),
    (b"\xff\xfb", 0, "audio/mpeg"),
    (b"OggS", 0, "audio/ogg"),
    (b"fLaC", 0, "audio/flac"),
    (b"WAVE", 8, "audio/wav"),
)
_BYTES: Final = (bytes, bytearray, memoryview)


def converter_for(kind: type) -> Convert | None:
    """Return the function that makes events of values of this class; None for events."""
    if issubclass(kind, Event):
        return None
    if issubclass(kind, str):
        return Content
    if issubclass(kind, _BYTES):
        return _of_bytes
    render = _renderer_for(kind)
    if render is not None:
        return lambda value: Image.of_bytes(render(value), "image/png")
    return Data


def result_of(value: Any) -> Any:
    """Return the result of a plain method: media as an event, every other value as it is."""
    if isinstance(value, list) and value:
        media = [media_of(each) for each in value]
        return value if None in media else media
    return media_of(value) or value


def media_of(value: Any) -> Event | None:
    """Return an image, sound or file as its event; None for every other value."""
    kind = value.__class__
    if issubclass(kind, _BYTES) or _renderer_for(kind) is not None:
        convert = converter_for(kind)
        assert convert is not None, "bytes and pictures are no events"
        return convert(value)
    return value if isinstance(value, Image | Audio | Resource | Content) else None


def media_type_of(data: bytes) -> str | None:
    """Return the media type of an image or sound by its first bytes; None if it is unknown."""
    for signature, offset, media_type in SIGNATURES:
        if data[offset : offset + len(signature)] == signature:
            return media_type
    return None


#: Classes whose values are results as they are, so that the common case needs no search.
PLAIN: Final = frozenset({str, int, float, bool, dict})


def _of_bytes(value: bytes | bytearray | memoryview) -> Event:
    data = bytes(value)
    media_type = media_type_of(data)
    if media_type is None:
        digest = hashlib.sha256(data).hexdigest()
        return Resource.of_bytes(f"urn:sha256:{digest}", data, "application/octet-stream")
    kind = Image if media_type.startswith("image/") else Audio
    return kind.of_bytes(data, media_type)


def _renderer_for(kind: type) -> Callable[[Any], bytes] | None:
    """Return the function that draws values of a picture class as PNG; None for other classes."""
    for base in kind.__mro__:
        name = f"{base.__module__}.{base.__qualname__}"
        if name in _RENDERERS:
            return _RENDERERS[name]
    return None


def renders(kind: type) -> bool:
    """Whether values of a class are pictures that are drawn as PNG."""
    return _renderer_for(kind) is not None


def _draw_image(image: Any) -> bytes:
    buffer = io.BytesIO()
    try:
        image.save(buffer, format="PNG")
    except OSError:  # a mode that PNG does not have, such as CMYK
        image.convert("RGB").save(buffer, format="PNG")
    return buffer.getvalue()


def _draw_figure(figure: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", bbox_inches="tight")
    return buffer.getvalue()


_RENDERERS: Final[dict[str, Callable[[Any], bytes]]] = {
    "PIL.Image.Image": _draw_image,
    "matplotlib.figure.Figure": _draw_figure,
}

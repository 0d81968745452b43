"""The event form of plain values."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any

import pytest

from plexus.events import Audio, Content, Data, Image, Log, Resource
from plexus.values import converter_for, media_type_of, result_of


def png() -> bytes:
    """Return a PNG of one black pixel."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(kind + body))
        return struct.pack(">I", len(body)) + kind + body + checksum

    header = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)
    rows = zlib.compress(b"\x00\x00")
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
    )


def convert(value: Any) -> Any:
    converter = converter_for(type(value))
    return value if converter is None else converter(value)


def test_an_event_is_itself() -> None:
    event = Log(level="info", message="hello")
    assert convert(event) is event


def test_a_text_is_content() -> None:
    assert convert("hello") == Content("hello")


@pytest.mark.parametrize("value", [1, 1.5, True, None, {"a": 1}, [1, 2], (1, 2)])
def test_every_other_value_is_data(value: Any) -> None:
    assert convert(value) == Data(value)


def test_bytes_become_the_medium_that_they_are() -> None:
    image = convert(png())
    assert isinstance(image, Image)
    assert image.mime_type == "image/png"
    assert base64.b64decode(image.data) == png()
    sound = convert(bytearray(b"RIFF\x00\x00\x00\x00WAVEfmt "))
    assert isinstance(sound, Audio)
    assert sound.mime_type == "audio/wav"


def test_bytes_of_an_unknown_format_become_a_resource_with_a_blob() -> None:
    resource = convert(memoryview(b"\x00\x01"))
    assert isinstance(resource, Resource)
    assert resource.uri.startswith("urn:sha256:")
    assert resource.mime_type == "application/octet-stream"
    assert base64.b64decode(resource.blob or "") == b"\x00\x01"


@pytest.mark.parametrize("data", [b"", b"x", b"\x89PN", b"RIFF0000AVI "])
def test_other_bytes_have_no_media_type(data: bytes) -> None:
    assert media_type_of(data) is None


def test_a_result_keeps_plain_values_and_turns_media_into_events() -> None:
    assert result_of({"a": 1}) == {"a": 1}
    assert result_of(None) is None
    assert isinstance(result_of(png()), Image)
    assert [type(each) for each in result_of([png(), Content("x")])] == [Image, Content]
    assert result_of([png(), 1]) == [png(), 1]
    assert result_of([]) == []


def test_a_picture_of_pil_becomes_a_png() -> None:
    pil = pytest.importorskip("PIL.Image")
    for mode in ("RGB", "CMYK", "P"):
        image = convert(pil.new(mode, (2, 2)))
        assert isinstance(image, Image)
        assert base64.b64decode(image.data).startswith(b"\x89PNG")

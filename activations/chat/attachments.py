"""Files that come with a message: checked, read where they are named by an address, and made into
messages of their own."""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Sequence
from typing import Any

from activations.chat.message import Message
from plexus import Context, InvalidParams, Resource
from plexus.errors import TooBig

__all__ = ("ATTACHMENTS", "ATTACHMENT_BYTES", "Attachment", "attachment_messages")

#: One attachment. As base64 it just fits into a node.
ATTACHMENT_BYTES = 3 * 1024 * 1024
#: The attachments of one message.
ATTACHMENTS = 20
PLAIN = "text/plain"


@dataclasses.dataclass(frozen=True)
class Attachment:
    """A file: its `text`, its `data` (base64), or the `uri` of a resource of this server."""

    name: str | None = None
    mime_type: str | None = None
    text: str | None = None
    data: str | None = None
    uri: str | None = None


async def attachment_messages(ctx: Context, given: Sequence[Attachment]) -> list[Message]:
    """Return these attachments as messages; raises before anything is stored."""
    if len(given) > ATTACHMENTS:
        raise TooBig(
            f"a message has at most {ATTACHMENTS} attachments", data={"limit": ATTACHMENTS}
        )
    return [await _message(ctx, index, each) for index, each in enumerate(given)]


async def _message(ctx: Context, index: int, given: Attachment) -> Message:
    where = f"attachments[{index}]"
    if [given.text, given.data, given.uri].count(None) != 2:
        raise _invalid(where, "has one of text, data and uri")
    if given.uri is not None:
        given = await _read(ctx, where, given, given.uri)
    name = given.name or f"attachment {index + 1}"
    data = given.data
    if data is None:
        text = given.text or ""
        _check_size(where, len(text.encode("utf-8", "surrogatepass")))
        return _made(name, given.mime_type or PLAIN, text, "text")
    try:
        size = len(base64.b64decode(data, validate=True))
    except ValueError as error:
        raise _invalid(where, f"data is no base64: {error}") from error
    _check_size(where, size)
    if not given.mime_type:
        raise _invalid(where, "data needs a mime_type, as in image/png")
    return _made(name, given.mime_type, data, "base64")


async def _read(ctx: Context, where: str, given: Attachment, uri: str) -> Attachment:
    """What is at the address, read as the caller."""
    spec, arguments = ctx.plexus.find_resource(uri)
    value: Any = await ctx.call(spec.name, **arguments)
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, str):
        value = Resource(uri, None, PLAIN, value)
    if not isinstance(value, Resource):
        raise _invalid(where, f"{uri} is not one text or file")
    name, mime_type = given.name or uri, given.mime_type or value.mime_type or PLAIN
    if value.blob is not None:
        return Attachment(name, mime_type, data=value.blob)
    return Attachment(name, mime_type, text=value.content or "")


def _made(name: str, mime_type: str, text: str, encoding: str) -> Message:
    meta = {"name": name[:256], "mime_type": mime_type[:256], "encoding": encoding}
    return Message("attachment", text, meta)


def _check_size(where: str, size: int) -> None:
    if size > ATTACHMENT_BYTES:
        raise TooBig(
            f"{where} is larger than {ATTACHMENT_BYTES} bytes",
            code="attachment_too_big",
            data={"limit": ATTACHMENT_BYTES, "size": size},
        )


def _invalid(where: str, fault: str) -> InvalidParams:
    return InvalidParams.at(where, fault, code="bad_attachment")

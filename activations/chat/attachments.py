"""Attachments of a user message: validation, reading of resources, conversion to messages."""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Sequence
from typing import Any

from activations.chat.message import Message
from plexus import Context, InvalidParams, Resource
from plexus.errors import TooBig

__all__ = ("ATTACHMENTS", "ATTACHMENT_BYTES", "Attachment", "attachment_messages")

#: Maximum size of an attachment. Encoded as base64 it just fits into a node.
ATTACHMENT_BYTES = 3 * 1024 * 1024
#: Maximum number of attachments of a message.
ATTACHMENTS = 20
PLAIN = "text/plain"


@dataclasses.dataclass(frozen=True)
class Attachment:
    """`text`, or `data` (base64) with `mime_type`, or the `uri` of a resource of this server."""

    name: str | None = None
    mime_type: str | None = None
    text: str | None = None
    data: str | None = None
    uri: str | None = None


async def attachment_messages(ctx: Context, attachments: Sequence[Attachment]) -> list[Message]:
    """Return attachments as messages. Raises TooBig or InvalidParams before anything is stored."""
    if len(attachments) > ATTACHMENTS:
        raise TooBig(
            f"{len(attachments)} attachments are too many; a message can have {ATTACHMENTS}",
            data={"limit": ATTACHMENTS},
        )
    return [await _message(ctx, index, each) for index, each in enumerate(attachments)]


async def _message(ctx: Context, index: int, attachment: Attachment) -> Message:
    path = f"attachments[{index}]"
    if [attachment.text, attachment.data, attachment.uri].count(None) != 2:
        raise _invalid(path, "must have exactly one of text, data and uri")
    if attachment.uri is not None:
        attachment = await _read(ctx, path, attachment, attachment.uri)
    name = attachment.name or f"attachment {index + 1}"
    data = attachment.data
    if data is None:
        text = attachment.text or ""
        _check_size(path, len(text.encode("utf-8", "surrogatepass")))
        return _attachment_message(name, attachment.mime_type or PLAIN, text, "text")
    try:
        size = len(base64.b64decode(data, validate=True))
    except ValueError as error:
        raise _invalid(path, f"data is not valid base64: {error}") from error
    _check_size(path, size)
    if not attachment.mime_type:
        raise _invalid(path, "data requires a mime_type, such as image/png")
    return _attachment_message(name, attachment.mime_type, data, "base64")


async def _read(ctx: Context, path: str, attachment: Attachment, uri: str) -> Attachment:
    """Read a resource as the caller. Raises InvalidParams if it is not a single text or file."""
    spec, arguments = ctx.plexus.find_resource(uri)
    value: Any = await ctx.call(spec.name, **arguments)
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, str):
        value = Resource(uri, None, PLAIN, value)
    if not isinstance(value, Resource):
        raise _invalid(path, f"{uri} is not a single text or file")
    name, mime_type = attachment.name or uri, attachment.mime_type or value.mime_type or PLAIN
    if value.blob is not None:
        return Attachment(name, mime_type, data=value.blob)
    return Attachment(name, mime_type, text=value.content or "")


def _attachment_message(name: str, mime_type: str, text: str, encoding: str) -> Message:
    meta = {"name": name[:256], "mime_type": mime_type[:256], "encoding": encoding}
    return Message("attachment", text, meta)


def _check_size(path: str, size: int) -> None:
    if size > ATTACHMENT_BYTES:
        raise TooBig(
            f"{path} has {size} bytes; the limit is {ATTACHMENT_BYTES}",
            code="attachment_too_big",
            data={"limit": ATTACHMENT_BYTES, "size": size},
        )


def _invalid(path: str, fault: str) -> InvalidParams:
    return InvalidParams.at(path, fault, code="bad_attachment")

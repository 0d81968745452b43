"""The first message of a front, which describes the caller, and the replies of the server.

    front                                   server
    the hello: a length, then fields    ->
                                        <-  OK PORT, or NO REASON
    stdin and stdout as descriptors     ->
                                        <-  END EXIT_CODE MESSAGE

Descriptors are passed only to a server that has accepted the front. After that the server itself
reads and writes them, so a front adds nothing to the time of a call, and it only waits for the end.
If the connection ends without an END, the server has died.

The hello is binary, because values of environment variables may be any bytes except NUL.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from substrate.settings import Settings, SettingsError, parse_setting

__all__ = (
    "LENGTH_BYTES",
    "MAX_HELLO_BYTES",
    "VIEW_SETTINGS",
    "Hello",
    "apply_view_settings",
    "view_settings",
)

#: The name and version of this format.
FORMAT: Final = b"substrate front 1"
PROTOCOLS: Final = (b"native", b"mcp")
#: Size of the length before a hello, which is big-endian.
LENGTH_BYTES: Final = 4
#: Linux limits the arguments and variables of a process to 6 MiB.
MAX_HELLO_BYTES: Final = 8 * 1024 * 1024
#: The settings that belong to a front: two fronts of one server may differ in them.
VIEW_SETTINGS: Final = (
    "eof_grace_s",
    "mcp_page_size",
    "mcp_progress",
    "mcp_progress_rate",
    "mcp_result_chars",
    "mcp_stream_s",
    "mcp_tool_names",
    "mcp_tools",
    "on_disconnect",
    "plexus_call",
)


class Hello(NamedTuple):
    """What a server must know about a front."""

    #: `native` or `mcp`.
    protocol: str
    #: The working directory of the front.
    directory: str
    #: The values of `VIEW_SETTINGS` as texts, in this order.
    settings: tuple[str, ...]
    #: The environment variables of the front.
    variables: Mapping[str, str]

    def encode(self) -> bytes:
        """Return the message."""
        pairs = (f"{name}={value}" for name, value in self.variables.items())
        texts = (self.protocol, self.directory, *self.settings, *pairs)
        body = b"\0".join((FORMAT, *map(os.fsencode, texts)))
        return len(body).to_bytes(LENGTH_BYTES, "big") + body

    @classmethod
    def decode(cls, body: bytes) -> Hello:
        """Return the content of a message, without its length. Raises ValueError."""
        fields = body.split(b"\0")
        start = 3 + len(VIEW_SETTINGS)
        if len(fields) < start or fields[0] != FORMAT:
            raise ValueError("this is not the hello of a front of the same version")
        if fields[1] not in PROTOCOLS:
            raise ValueError("the protocol is unknown")
        directory = os.fsdecode(fields[2])
        if not directory.startswith("/"):
            raise ValueError("the working directory is not an absolute path")
        pairs = (os.fsdecode(field).partition("=") for field in fields[start:])
        return cls(
            fields[1].decode(),
            directory,
            tuple(map(os.fsdecode, fields[3:start])),
            {name: value for name, _, value in pairs if name},
        )

    def __repr__(self) -> str:
        """Show no values of variables."""
        return f"<Hello {self.protocol}, {self.directory}, {len(self.variables)} variables>"


def view_settings(settings: Settings) -> tuple[str, ...]:
    """Return the settings of a front as texts."""
    return tuple(_text(getattr(settings, name)) for name in VIEW_SETTINGS)


def apply_view_settings(settings: Settings, texts: Sequence[str]) -> Settings:
    """Return the settings of a server with those of a front. Raises ValueError."""
    try:
        values = {
            name: parse_setting(name, text, "the front", is_text=True)
            for name, text in zip(VIEW_SETTINGS, texts, strict=True)
        }
    except SettingsError as error:
        raise ValueError(str(error)) from None
    return replace(settings, **values)


def _text(value: Any) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value)

"""Reading server-sent events, sans-IO: bytes in, the data of whole events out.

Only `data` matters to a client that counts items itself; comments, ids, names and the time to
come back after are skipped. A line ends with LF, CR or CRLF, however the bytes arrive.
"""

from __future__ import annotations

from native_rpc.client.errors import ProtocolError

__all__ = ("EventStreamReader",)


class EventStreamReader:
    """Cuts a stream into events; keeps no more than the limit of one that is not whole."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._rest = bytearray()
        self._data: list[bytes] = []
        self._size = 0
        self._after_cr = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """The data of the events that are whole by now; raises ProtocolError past the limit."""
        if self._after_cr and chunk:
            chunk = chunk.removeprefix(b"\n")
            self._after_cr = False
        if chunk.endswith(b"\r"):
            self._after_cr = True
        if b"\r" in chunk:
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, rest = chunk.split(b"\n")
        events: list[bytes] = []
        for line in lines:
            if self._rest:
                self._rest += line
                self._line(bytes(self._rest), events)
                self._rest.clear()
            else:
                self._line(line, events)
        self._rest += rest
        if self._size + len(self._rest) > self._max_bytes:
            raise ProtocolError(f"an event is over the limit of {self._max_bytes} bytes")
        return events

    def _line(self, line: bytes, events: list[bytes]) -> None:
        if not line:
            if self._data:
                events.append(b"\n".join(self._data))
                self._data = []
                self._size = 0
            return
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
            self._size += len(value)

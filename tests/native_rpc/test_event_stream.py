"""Reading server-sent events."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from native_rpc.client.http import EventStreamReader
from native_rpc.errors import ProtocolError
from native_rpc.framing import EVENT_STREAM


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_only_the_data_of_whole_events_comes_out(end: bytes) -> None:
    lines = [
        b": keep-alive", b"", b"retry: 500", b"",
        b"id: 5:1", b"event: item", b"data: one", b"",
        b"data:two", b"data:  lines", b"", b"data", b"", b"data: unfinished",
    ]  # fmt: skip
    assert EventStreamReader(100).feed(end.join(lines)) == [b"one", b"two\n lines", b""]


@given(st.lists(st.sampled_from([b"data: a", b"id: 1", b":", b"", b"x"])), st.data())
def test_it_does_not_matter_how_the_bytes_arrive(lines: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(line + data.draw(st.sampled_from([b"\n", b"\r\n"])) for line in lines)
    whole = EventStreamReader(1000).feed(stream)
    reader = EventStreamReader(1000)
    assert [event for i in range(len(stream)) for event in reader.feed(stream[i : i + 1])] == whole


def test_it_reads_what_the_server_writes() -> None:
    template = EVENT_STREAM.template(EVENT_STREAM.outline("count.up"), 5, 5)
    frames = EVENT_STREAM.items(template, 1, [b'{"type":"start"}', b'{"type":"complete"}'])
    events = EventStreamReader(1000).feed(b"".join(frames))
    assert [event.endswith(b"}}") for event in events] == [True, True]
    assert b'"seq":2' in events[1]


@pytest.mark.parametrize("stream", [b"data: " + b"x" * 100, b"data: 12345678\n" * 20])
def test_an_event_that_never_ends_is_refused(stream: bytes) -> None:
    reader = EventStreamReader(90)
    with pytest.raises(ProtocolError, match="over the limit of 90"):
        _ = [reader.feed(stream[i : i + 1]) for i in range(len(stream))]

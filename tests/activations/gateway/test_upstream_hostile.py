"""A server that misbehaves is contained: its calls fail by name, and nothing is left running."""

from __future__ import annotations

import asyncio
import os
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from gateway_kit import until
from upstream_sessions import HOSTILE, WAIT_S, calling, hostile, processes_with, program, text_of

from activations.gateway.transports.session import UpstreamSession
from activations.gateway.transports.transport import SessionLimits
from activations.gateway.transports.upstream_call import UpstreamCall
from mcp_view.client.call import ITEMS_MAX
from mcp_view.client.errors import (
    BadMessage,
    Cancelled,
    Late,
    Lost,
    NotReady,
    TooLarge,
    Unreachable,
)
from mcp_view.client.items import Junk, Notice, Progress, Question
from mcp_view.client.options import ClientOptions
from plexus.limits import KIB, MIB, Limits

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

FORMS = ClientOptions(capabilities=frozenset({"form"}))


async def test_a_flood_of_progress_is_bounded_and_the_result_arrives() -> None:
    async with hostile("floods") as session, asyncio.timeout(WAIT_S):
        async with session.start("tools/call", {"name": "tool"}) as call:
            await unread(call)
            items = [item async for batch in call for item in batch]
        assert len(items) <= ITEMS_MAX + 1
        # None is lost without a count, and the newest is among them.
        assert len(items) + call.dropped == 200_000
        assert max(item.progress for item in items if isinstance(item, Progress)) == 200_000
        assert text_of(call.result) == "ok"


async def unread(call: UpstreamCall) -> None:
    """Wait for the end of a call as an owner that does not read."""
    while not call.is_done:  # noqa: ASYNC110 - nothing else reports it
        await asyncio.sleep(0.05)


async def test_a_flood_does_not_stop_the_loop() -> None:
    async with hostile("floods") as session, asyncio.timeout(WAIT_S):
        # Processor time of the loop: a busy machine makes a turn longer, and costs nothing here.
        longest, before = 0.0, time.thread_time()
        call = session.start("tools/call", {"name": "tool"})
        while not call.is_done:
            await asyncio.sleep(0.001)
            now = time.thread_time()
            longest, before = max(longest, now - before), now
        assert longest < 2.0


async def test_a_death_in_mid_call_is_named_with_its_last_words() -> None:
    async with hostile("dies") as session:
        with pytest.raises(Lost, match=r"exited with code 7\. It wrote: out of cheese"):
            await calling(session)
        assert not session.is_open
        async with asyncio.timeout(WAIT_S):
            await session.wait_closed()
        with pytest.raises(Lost, match="exited with code 7"):
            await calling(session, "ok")


async def test_an_answer_after_cancel_is_ignored() -> None:
    async with hostile("answers after cancel") as session, asyncio.timeout(WAIT_S):
        call = session.start("tools/call", {"name": "tool"})
        call.cancel("enough")
        with pytest.raises(Cancelled, match="enough"):
            await call.wait()
        assert text_of(await calling(session, "ok")) == "ok"
        with pytest.raises(Cancelled):
            _ = call.result


async def test_a_second_answer_is_ignored() -> None:
    async with hostile("answers twice") as session:
        assert text_of(await calling(session)) == "first"
        assert text_of(await calling(session, "ok")) == "ok"


async def test_an_answer_of_50_megabytes_fails_its_call_only() -> None:
    limits = Limits(message_bytes=MIB)
    async with hostile("sends 50 MB", options=ClientOptions(limits=limits)) as session:
        with pytest.raises(TooLarge, match="At most 1048576 are accepted") as caught:
            await calling(session)
        assert caught.value.data["size"] > 50_000_000
        assert text_of(await calling(session, "ok")) == "ok"


async def test_a_message_without_an_end_uses_no_memory() -> None:
    limits = Limits(message_bytes=64 * KIB)
    options = ClientOptions(limits=limits)
    async with hostile("sends 50 MB without an end", options=options) as session:
        before = resident_bytes()
        call = session.start("tools/call", {"name": "tool"}, timeout_s=1.5)
        with pytest.raises(Late, match=r"no result within 1\.5 s"):
            await call.wait()
        assert resident_bytes() - before < 32 * MIB


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def test_a_hundred_questions_are_bounded_and_the_others_refused() -> None:
    async with hostile("asks 100 times", options=FORMS) as session, asyncio.timeout(WAIT_S):
        call = session.start("tools/call", {"name": "tool"})
        asked = [item async for batch in call for item in batch if isinstance(item, Question)]
        assert len(asked) == 64
        assert text_of(call.result) == "36 refused"


async def test_a_question_that_was_not_declared_is_refused_by_number() -> None:
    async with hostile("asks for what was not declared") as session:
        assert text_of(await calling(session)) == "-32601"


async def test_text_on_stdout_is_reported_and_tolerated() -> None:
    notices: list[Notice] = []
    async with hostile("prints", notices=notices) as session:
        assert text_of(await calling(session)) == "ok"
        assert list(session.junk) == ["Welcome!", "Listening on nothing"]
        assert [each for each in notices if isinstance(each, Junk)] == [
            Junk("Welcome!"),
            Junk("Listening on nothing"),
        ]
        assert 0 < len(session.stderr) <= 16 * KIB


async def test_a_result_that_is_no_object_is_an_error() -> None:
    async with hostile("answers nonsense") as session:
        with pytest.raises(BadMessage, match="no object"):
            await calling(session)


async def test_five_thousand_tools_are_listed() -> None:
    async with hostile("lists") as session, asyncio.timeout(WAIT_S):
        assert len(await session.list_all("tools")) == 5000


@pytest.mark.parametrize("kind", ["same", "new"])
async def test_a_list_without_an_end_is_an_error(kind: str) -> None:
    async with hostile("lists without an end", kind) as session, asyncio.timeout(WAIT_S):
        with pytest.raises(BadMessage, match="repeats the cursor" if kind == "same" else "pages"):
            await session.list_all("tools")


async def test_a_server_that_never_initializes_is_reported_in_time() -> None:
    limits = SessionLimits(init_s=1.0, probe_s=0.3, close_s=0.2)
    async with (
        hostile("never initializes", limits=limits, opens=False) as session,
        asyncio.timeout(WAIT_S),
    ):
        with pytest.raises(NotReady, match="within 1 s"):
            await session.open()
        assert session.error is not None


async def test_a_program_that_does_not_exist_is_unreachable() -> None:
    async with program("/nowhere/to/be/found", opens=False) as session:
        with pytest.raises(Unreachable, match=r"cannot be started.*No such file"):
            await session.open()


async def test_a_closed_input_ends_the_session_by_name() -> None:
    async with hostile("closes stdin", opens=False) as session:
        with pytest.raises(Lost, match="closed its standard input"):
            await opened_and_called(session)


async def test_a_closed_output_ends_the_session_by_name() -> None:
    async with hostile("closes stdout", opens=False) as session:
        with pytest.raises(Lost, match="closed its standard output"):
            await opened_and_called(session)


async def opened_and_called(session: UpstreamSession) -> None:
    async with asyncio.timeout(WAIT_S):
        await session.open()
        await session.start("tools/call", {"name": "tool"}, timeout_s=WAIT_S).wait()


async def test_a_program_that_exits_at_the_probe_is_started_again() -> None:
    async with hostile("exits at the probe") as session:
        assert session.server.revision.name == "2025-11-25"
        assert text_of(await calling(session, "ok")) == "ok"


async def test_a_program_that_ignores_the_probe_gets_a_handshake() -> None:
    async with hostile("ignores the probe", limits=SessionLimits(probe_s=0.3)) as session:
        assert session.server.name == "ignores the probe"


async def test_a_call_without_an_answer_times_out_by_name() -> None:
    async with hostile("never answers") as session, asyncio.timeout(WAIT_S):
        with pytest.raises(Late) as caught:
            await session.start("tools/call", {"name": "tool"}, timeout_s=0.2).wait()
        assert caught.value.code == "upstream_timeout"
        assert caught.value.data == {"limit_s": 0.2}
        assert text_of(await calling(session, "ok")) == "ok"


async def test_no_process_of_the_tree_is_left() -> None:
    mark = f"mark-{uuid.uuid4()}"
    async with hostile("forks", mark, limits=SessionLimits(close_s=0.2)):
        await until(lambda: len(processes_with(mark)) == 3)  # the last may not have started yet
    await until(lambda: processes_with(mark) == [])


async def test_no_process_is_left_when_this_program_is_killed() -> None:
    mark = f"mark-{uuid.uuid4()}"
    source = (
        "import asyncio, sys\n"
        "from upstream_sessions import hostile\n"
        "async def main():\n"
        "    async with hostile('forks', sys.argv[1]):\n"
        "        print('ready', flush=True)\n"
        "        await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    paths = [str(HOSTILE.parent), str(HOSTILE.parents[3])]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        source,
        mark,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    async with asyncio.timeout(WAIT_S):
        assert await process.stdout.readline() == b"ready\n"
        process.kill()
        await process.wait()
        while processes_with(mark):  # noqa: ASYNC110 - the kernel reports it nowhere else
            await asyncio.sleep(0.05)


async def test_one_hanging_server_does_not_delay_another() -> None:
    async with hostile("never answers") as stuck, hostile("answers twice") as fine:
        waiting: Any = stuck.start("tools/call", {"name": "tool"})
        async with asyncio.timeout(WAIT_S):
            assert text_of(await calling(fine, "ok")) == "ok"
        assert not waiting.is_done

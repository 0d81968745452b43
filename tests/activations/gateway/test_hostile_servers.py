"""Servers that behave badly: each gives a named error or is contained, and nothing is left."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from gateway_kit import MountedHub, entry, is_running, mounted, until

from plexus.errors import InvalidParams, PlexusError
from plexus.events import Cancelled, ContentResult, ErrorEvent, Progress
from plexus.principal import LOCAL

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(90)]


async def error_of(here: MountedHub, method: str, **arguments: Any) -> ErrorEvent:
    terminal = await here.end_of(method, **arguments)
    assert isinstance(terminal, ErrorEvent), terminal
    return terminal


async def test_a_flood_of_progress_reaches_the_run_in_order_and_its_result_comes_last(
    tmp_path: Path,
) -> None:
    async with mounted(tmp_path, {"bad": entry(), "good": entry()}) as here:
        events = await here.caller().events("bad.flood", n=20_000)
        steps = [event.done for event in events if isinstance(event, Progress)]
        assert steps == sorted(steps)
        assert steps[-1] == 19_999
        assert isinstance(events[-1], ContentResult)
        assert await here.text_of("good.echo", text="on") == "on"


async def test_a_server_that_dies_in_a_call_ends_the_call_and_the_next_call_starts_it_again(
    tmp_path: Path,
) -> None:
    async with mounted(tmp_path, {"bad": entry(session="shared")}) as here:
        error = await error_of(here, "bad.die")
        assert (error.code, error.message.startswith("bad: ")) == ("upstream_lost", True)
        state = here.gateway.mounts["bad"].describe_state()
        assert state["restarts"] == 1
        assert "out of cheese" in state["stderr"]
        assert await here.text_of("bad.echo", text="again") == "again"


async def test_a_server_that_keeps_dying_opens_the_circuit_and_calls_fail_at_once(
    tmp_path: Path,
) -> None:
    tables = {"bad": entry(session="shared"), "good": entry()}
    async with mounted(tmp_path, tables) as here:
        codes = []
        for _ in range(6):
            codes.append((await error_of(here, "bad.die")).code)
            if codes[-1] == "mount_down":
                break
        assert codes[0] == "upstream_lost"
        assert codes[-1] == "mount_down"
        starts = here.gateway.mounts["bad"].describe_state()["restarts"]
        error = await error_of(here, "bad.echo", text="x")
        assert error.data["retry_s"] > 0
        # It fails at once, since the server is not started for it.
        assert here.gateway.mounts["bad"].describe_state()["restarts"] == starts
        assert "substrate mount doctor bad" in error.message
        assert await here.text_of("good.echo", text="on") == "on"
        # The tools stay listed, so that a client's list does not change with the weather.
        assert "bad.echo" in here.names()


async def test_a_server_that_never_initializes_is_reported_and_delays_no_other(
    tmp_path: Path,
) -> None:
    async with mounted(tmp_path, {"good": entry(), "mute": entry("mute")}, listed=False) as here:
        await until(lambda: "good.echo" in here.names())
        assert await here.text_of("good.echo", text="on") == "on"
        await until(lambda: here.gateway.mounts["mute"].describe_state()["error"])
        state = here.gateway.mounts["mute"].describe_state()
        assert state["state"] in ("failed", "down")
        with pytest.raises(PlexusError, match=r"mute: .*handshake"):
            await here.gateway.mounts["mute"].check_health()


async def test_a_program_that_is_missing_is_logged_once_however_often_it_is_tried(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tables = {"missing": {"command": "no-such-program-anywhere"}}

    def warnings() -> list[str]:
        return [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]

    async with mounted(tmp_path, tables, listed=False) as here:
        await until(warnings)
        mount = here.gateway.mounts["missing"]
        for _ in range(2):
            mount.calls.pool.error = None
            mount._list_at = 0.0  # noqa: SLF001 - the next attempt is due
            await until(lambda: mount.calls.pool.error)
    [warning] = warnings()
    assert "mount missing: missing starts 'no-such-program-anywhere'" in warning


async def test_a_server_that_exits_at_its_start_is_reported_with_its_own_words(
    tmp_path: Path,
) -> None:
    async with mounted(tmp_path, {"gone": entry("exit")}, listed=False) as here:
        with pytest.raises(PlexusError, match="cannot find the license"):
            await here.gateway.refresh("gone")


async def test_of_five_thousand_tools_the_first_thousand_are_offered_and_the_rest_reported(
    tmp_path: Path,
) -> None:
    async with mounted(tmp_path, {"bad": entry("many")}) as here:
        names = [name for name in here.names() if name.startswith("bad.")]
        assert 1000 <= len(names) <= 1010
        problems = here.gateway.mounts["bad"].describe_state()["problems"]
        assert any("more than 1000 tools" in each for each in problems)
        found = await here.caller().call("plexus.search", query="echo a text", limit=3)
        assert found[0]["name"] == "bad.echo"


async def test_malformed_definitions_are_left_out_and_break_no_list_search_or_schema(
    tmp_path: Path,
) -> None:
    async with mounted(tmp_path, {"bad": entry("wrong")}) as here:
        names = here.names()
        assert {"bad.a_b", "bad.true_properties", "bad.properties_list", "bad.echo"} <= names
        assert not any(len(name) > 64 for name in names)
        assert len([name for name in names if name.startswith("bad.a_b")]) == 2
        problems = here.gateway.mounts["bad"].describe_state()["problems"]
        assert len(problems) >= 6
        here.hub.schema()
        assert await here.caller().call("plexus.search", query="properties", limit=5)
        terminal = await here.end_of("bad.true_properties", a=[1])
        assert terminal.as_text() or terminal.failed  # the server decides


async def test_an_answer_after_the_cancel_is_dropped_and_the_server_was_notified(
    tmp_path: Path,
) -> None:
    late = tmp_path / "late"
    table = entry(session="shared", env={"LATE_FILE": str(late)})
    async with mounted(tmp_path, {"bad": table}) as here:
        assert await here.text_of("bad.count") == "1"
        call = here.hub.call("bad.late", {}, LOCAL)
        await until(lambda: here.gateway.mounts["bad"].calls.pool.describe_state()["sessions"])
        await asyncio.sleep(0.2)
        call.run.cancel("a person stopped it")
        await until(lambda: call.run.terminal is not None)
        assert isinstance(call.run.terminal, Cancelled)
        await until(late.exists)
        assert late.read_text() == "cancelled"
        assert await here.text_of("bad.count") == "2"  # the same session goes on


async def test_two_questions_of_one_call_are_both_asked_and_answered(tmp_path: Path) -> None:
    async with mounted(tmp_path, {"bad": entry()}) as here:
        answers: list[Any] = [{"name": "Ann"}, None]
        text = (await here.end_of("bad.ask_twice", answers=answers)).as_text()
        outcomes = sorted(each["action"] for each in json.loads(text))
        assert outcomes == ["accept", "decline"]


async def test_lines_on_stdout_that_are_no_messages_change_nothing(tmp_path: Path) -> None:
    async with mounted(tmp_path, {"bad": entry()}) as here:
        assert await here.text_of("bad.print") == "printed"
        assert await here.text_of("bad.echo", text="on") == "on"


async def test_a_result_of_50_megabytes_is_a_named_error_and_other_mounts_continue(
    tmp_path: Path,
) -> None:
    async with mounted(tmp_path, {"bad": entry(), "good": entry()}) as here:
        error = await error_of(here, "bad.big")
        assert error.code in ("upstream_too_big", "upstream_lost", "too_big")
        assert await here.text_of("good.echo", text="on") == "on"


async def test_a_server_that_closes_its_input_is_replaced(tmp_path: Path) -> None:
    async with mounted(tmp_path, {"bad": entry(session="shared")}) as here:
        first = await here.text_of("bad.pid")
        await here.end_of("bad.close")
        pids = {first}
        for _ in range(6):  # the first may still be read, the next ends the server
            terminal = await here.end_of("bad.pid")
            if isinstance(terminal, ContentResult):
                pids.add(terminal.as_text())
        assert len(pids) == 2
        await until(lambda: not is_running(int(first)))


async def test_forked_children_end_with_the_mount_even_in_sessions_of_their_own(
    tmp_path: Path,
) -> None:
    async with mounted(tmp_path, {"bad": entry()}) as here:
        child = int(await here.text_of("bad.fork"))
        server = int(await here.text_of("bad.pid"))
        assert is_running(child)
    await until(lambda: not is_running(child) and not is_running(server))


async def test_ten_megabytes_of_standard_error_are_read_and_their_end_is_kept(
    tmp_path: Path,
) -> None:
    async with mounted(tmp_path, {"bad": entry(session="shared")}) as here:
        assert await here.text_of("bad.stderr") == "written"
        stderr = here.gateway.mounts["bad"].describe_state()["stderr"]
        assert stderr.rstrip().endswith("end of stderr")
        assert len(stderr) < 100_000


async def test_an_error_of_the_server_keeps_its_data_and_shows_invisible_characters(
    tmp_path: Path,
) -> None:
    async with mounted(tmp_path, {"bad": entry()}) as here:
        error = await error_of(here, "bad.error")
        assert error.code == "upstream_error"
        assert "no way\\u{202E}" in error.message
        assert error.data["code"] == -32050


async def test_arguments_are_checked_against_the_schema_of_the_tool(tmp_path: Path) -> None:
    async with mounted(tmp_path, {"bad": entry()}) as here:
        with pytest.raises(InvalidParams, match="text: is missing"):
            await here.end_of("bad.echo")
        with pytest.raises(InvalidParams, match="text: must be a text"):
            await here.end_of("bad.echo", text=5)
        with pytest.raises(InvalidParams, match="at least 0"):
            await here.end_of("bad.flood", n=-1)

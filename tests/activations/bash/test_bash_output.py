"""Output of a command: live, complete, in order, and within limits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from bash_calls import (
    LOOPS,
    Call,
    Gate,
    calling,
    collect,
    end_of,
    exit_of,
    is_alive,
    play,
    run,
    stderr,
    stdout,
)

from activations.bash import Bash, Exit, Start, Stderr, Stdout, Truncated
from activations.bash.events import Budget, read_output
from plexus.errors import DeadlineExceeded


@pytest.mark.parametrize("loop", LOOPS)
def test_a_call_starts_writes_and_exits(loop: str) -> None:
    events = play(lambda bash: collect(bash, "echo out; echo err >&2"), loop=loop)

    assert isinstance(events[0], Start)
    assert events[0].pid > 0
    assert stdout(events) == "out\n"
    assert stderr(events) == "err\n"
    end = exit_of(events)
    assert (end.exit_code, end.signal, end.truncated, end.failed) == (0, None, False, False)
    assert end.type == "complete"


@pytest.mark.parametrize("loop", LOOPS)
def test_a_prompt_without_a_newline_is_seen_before_it_is_answered(
    loop: str, tmp_path: Path
) -> None:
    gate = Gate(tmp_path / "gate")

    async def scenario(bash: Bash) -> list[str]:
        script = "printf 'name? '" + gate.wait + "echo hello"
        async with calling(bash, script) as stream:
            call = Call(stream)
            await call.next()
            prompt = await call.next()
            gate.open()
            return [prompt.as_text(), (await call.next()).as_text()]

    assert play(scenario, loop=loop) == ["name? ", "hello\n"]


def test_the_two_outputs_arrive_in_the_order_in_which_they_are_written(tmp_path: Path) -> None:
    gates = [Gate(tmp_path / f"gate{number}") for number in range(3)]

    async def scenario(bash: Bash) -> list[object]:
        # Each line waits until the one before it was seen, so the order is no accident.
        first, second, third = (gate.wait for gate in gates)
        script = f"echo 1 {first} echo 2 >&2 {second} echo 3 {third} echo 4 >&2"
        seen: list[object] = []
        async with calling(bash, script) as stream:
            async for event in stream:
                if isinstance(event, Stdout | Stderr):
                    seen.append((type(event), event.data))
                    if len(seen) < 4:
                        gates[len(seen) - 1].open()
        return seen

    assert play(scenario) == [(Stdout, "1\n"), (Stderr, "2\n"), (Stdout, "3\n"), (Stderr, "4\n")]


def test_a_character_whose_bytes_arrive_separately_is_never_split(tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")

    async def scenario(bash: Bash) -> list[str]:
        script = r"printf 'a\xe2\x82'" + gate.wait + r"printf '\xacb'"
        texts = []
        async with calling(bash, script) as stream:
            async for event in stream:
                if isinstance(event, Stdout):
                    texts.append(event.data)
                    if event.data == "a":
                        gate.open()
        return texts

    assert play(scenario) == ["a", "€b"]


def test_bytes_that_are_not_text_stay_visible() -> None:
    assert stdout(run(r"printf 'a\xff\x00b'")) == "a\\xff\x00b"


def test_half_a_character_at_the_end_is_shown() -> None:
    assert stdout(run(r"printf 'a\xe2\x82'")) == "a\\xe2\\x82"


def test_a_large_output_arrives_complete_and_in_chunks() -> None:
    events = run("head -c 3000000 /dev/zero | tr '\\0' x; printf '%0500000d' 0 >&2")
    assert len(stdout(events)) == 3_000_000
    assert len(stderr(events)) == 500_000
    assert max(len(event.as_text()) for event in events) <= 64 * 1024


def test_undecodable_bytes_do_not_make_events_larger() -> None:
    events = run(r"head -c 200000 /dev/zero | tr '\0' '\377'")
    assert len(stdout(events)) == 800_000
    assert max(len(event.as_text()) for event in events) <= 64 * 1024


@pytest.mark.parametrize("loop", LOOPS)
def test_a_command_that_writes_too_much_is_truncated_marked_and_killed(loop: str) -> None:
    events = play(lambda bash: collect(bash, "exec yes", max_output_bytes=100_001), loop=loop)

    assert stdout(events) == "y\n" * 50_000 + "y"
    assert events[-2] == Truncated(limit_bytes=100_001)
    assert "100001" in events[-2].as_text()
    end = exit_of(events)
    assert (end.truncated, end.exit_code, end.signal) == (True, 137, "SIGKILL")
    assert end.failed


def test_the_cap_counts_both_outputs_together() -> None:
    events = run("printf '%0600d' 0; printf '%0600d' 0 >&2; sleep 60", max_output_bytes=1000)
    assert len(stdout(events)) + len(stderr(events)) == 1000
    assert exit_of(events).truncated


def test_an_output_as_large_as_the_cap_is_not_truncated() -> None:
    events = run("printf 12345", max_output_bytes=5)
    assert stdout(events) == "12345"
    assert not exit_of(events).truncated
    assert exit_of(events).exit_code == 0


def test_truncation_never_shows_part_of_a_character() -> None:
    assert stdout(run("printf a€€", max_output_bytes=5)) == "a€"


@pytest.mark.parametrize("loop", LOOPS)
def test_a_consumer_that_stops_reading_blocks_the_command(loop: str) -> None:
    total = 200 * 65536

    def written(pid: int) -> int:
        return int(Path(f"/proc/{pid}/io").read_text().split()[3])

    async def scenario(bash: Bash) -> tuple[int, int]:
        script = "exec dd if=/dev/zero bs=65536 count=200 status=none"
        async with calling(bash, script, max_output_bytes=total) as stream:
            call = Call(stream)
            await call.next()
            received = len((await call.next()).as_text())
            # The loop keeps running meanwhile, so any read-ahead would happen.
            before, held = -1, 0
            while before != held:
                before = held
                await asyncio.sleep(0.1)
                held = written(call.pid)
            while not isinstance(event := await call.next(), Exit):
                received += len(event.as_text())
            return held, received

    held, received = play(scenario, loop=loop)
    # What was delivered, what the kernel's pipe holds, and one chunk that waits to be taken.
    assert held <= 4 * 65536
    assert received == total


def test_output_that_is_in_the_pipe_when_the_command_ends_is_delivered() -> None:
    async def scenario(bash: Bash) -> list[str]:
        async with calling(bash, "head -c 60000 /dev/zero; echo end >&2") as stream:
            call = Call(stream)
            await call.next()
            await end_of(call.pid)  # without a reader meanwhile
            return [event.as_text() async for event in stream]

    texts = play(scenario)
    assert len("".join(texts)) == 60_004


def test_a_command_that_closes_its_outputs_still_runs_to_its_end(tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    events = run(f"exec >&- 2>&-; sleep 0.3; echo done > {proof}")
    assert exit_of(events).exit_code == 0
    assert proof.read_text() == "done\n"


def test_a_filter_that_bash_does_not_wait_for_may_finish_writing(tmp_path: Path) -> None:
    log = tmp_path / "log"
    events = run(f"exec > >(tee {log}); echo kept")
    assert stdout(events) == "kept\n"
    assert log.read_text() == "kept\n"


def test_what_was_written_before_the_deadline_is_delivered_and_then_the_run_fails() -> None:
    async def scenario(bash: Bash) -> tuple[str, int, DeadlineExceeded]:
        async with calling(bash, "echo early; sleep 60", timeout_s=0.3) as stream:
            call = Call(stream)
            with pytest.raises(DeadlineExceeded) as caught:
                await call.rest()
        return call.text, call.pid, caught.value

    text, pid, error = play(scenario)
    assert text == "early\n"
    assert error.data == {"limit_s": 0.3}
    assert not is_alive(pid)


def test_a_deadline_also_applies_to_a_command_without_a_reader() -> None:
    async def scenario(bash: Bash) -> int:
        async with calling(bash, "exec yes", timeout_s=0.2) as stream:
            call = Call(stream)
            await call.next()
            await end_of(call.pid)
            return call.pid

    assert play(scenario) > 0


def test_a_deadline_that_is_not_reached_does_nothing() -> None:
    assert exit_of(run("echo quick", timeout_s=20)).exit_code == 0


def test_a_budget_reports_once_that_it_is_exceeded() -> None:
    told = []
    budget = Budget(4, lambda: told.append("told"))
    assert [budget.take(b"abc"), budget.take(b"def"), budget.take(b"g")] == [b"abc", b"d", b""]
    assert told == ["told"]


def test_bytes_that_arrive_one_at_a_time_decode_to_the_same_text() -> None:
    text = "aé€𝄞\n"

    async def scenario() -> list[str]:
        async def pipe() -> AsyncIterator[bytes]:
            for byte in text.encode():
                yield bytes([byte])

        budget = Budget(100, lambda: None)
        return [event.data async for event in read_output(pipe(), Stdout, budget)]

    assert asyncio.run(scenario()) == list(text)

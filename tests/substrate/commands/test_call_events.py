"""Output of a run: JSON lines, readable text, and prompts."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from command_line import (
    COUNT,
    add_plugin,
    lines,
    run,
    server,
    started,
    terminal,
    without_colours,
)

ALL_KINDS = '''
    from collections.abc import AsyncIterator
    from plexus import (
        Activation, Complete, Content, Event, Image, Log, Progress, ToolResult, ToolUse, method,
    )
    from plexus.events import Restarted

    class Reading(Event):
        """What an instrument says."""
        degrees: int

    class Spoken(Event):
        """An event that knows how it is read."""
        word: str

        def as_text(self) -> str:
            return f"<{self.word}>"

    class Total(Complete):
        """What it came to."""
        total: int

    class Kinds(Activation):
        """Says things of every kind."""
        namespace = "kinds"
        version = "1.0.0"

        @method
        async def all(
            self,
        ) -> AsyncIterator[
            Content | Log | Progress | Restarted | ToolUse | ToolResult | Image | Reading | Spoken
            | Total
        ]:
            """Yield one of each."""
            print("printed by the method")
            yield Progress(done=1, total=4, message="working")
            yield Content(text="half a ")
            yield Content(text="line")
            yield Log(level="warning", message="careful")
            yield Restarted(epoch=1)
            yield ToolUse(tool_name="hammer", tool_use_id="1", input={"nail": 1})
            yield ToolResult(tool_use_id="1", output="bang")
            yield Image(data="AAAA", mime_type="image/png")
            yield Reading(degrees=21)
            yield Spoken(word="hello")
            yield Total(total=3)

        @method
        async def value(self) -> dict[str, list[int]]:
            """Return something."""
            return {"numbers": [1, 2]}
'''

ASKS = '''
    import dataclasses
    from plexus import (
        Activation, AskText, Confirm, Context, Form, Option, Select, SelectMany, method,
    )

    @dataclasses.dataclass
    class Order:
        dish: str
        plates: int = 1

    class Asks(Activation):
        """Asks the person."""
        namespace = "asks"
        version = "1.0.0"

        @method
        async def confirm(self, *, ctx: Context) -> bool:
            """Ask yes or no."""
            return await ctx.ask(Confirm("Really?"))

        @method
        async def everything(self, *, ctx: Context) -> list[object]:
            """Ask in every way."""
            return [
                await ctx.ask(Confirm("Really?", default=True)),
                await ctx.ask(AskText("Your name?")),
                await ctx.ask(Select("Colour?", options=["red", Option("blue", "Deep blue")])),
                await ctx.ask(SelectMany("Fruits?", options=["apple", "pear", "plum"])),
                dataclasses.asdict(await ctx.ask(Form("Your order", fields=Order))),
            ]

        @method
        async def briefly(self, *, ctx: Context) -> bool:
            """Ask and not wait."""
            return await ctx.ask(Confirm("Quick?"), timeout_s=0.3)
'''


# --- JSON lines -----------------------------------------------------------------------------------


def test_with_json_each_event_is_a_line_as_on_the_wire(tmp_path: Path) -> None:
    add_plugin(tmp_path, "count", COUNT)
    called = run("call", "--json", "count.up", "2", cwd=tmp_path)
    assert called.stdout == (
        '{"type":"content","text":"1 "}\n{"type":"content","text":"2 "}\n{"type":"complete"}\n'
    )
    assert called.stderr == ""


@pytest.mark.parametrize("where", [["--json", "plexus.hash"], ["plexus.hash", "--json"]])
def test_on_a_terminal_json_prints_lines_of_json(where: list[str], tmp_path: Path) -> None:
    with terminal("call", *where, cwd=tmp_path) as screen:
        code, text = screen.end()
    assert code == 0
    assert json.loads(text)["type"] == "complete"


def test_output_printed_by_a_method_is_not_mixed_with_events(tmp_path: Path) -> None:
    add_plugin(tmp_path, "kinds", ALL_KINDS)
    called = run("call", "--json", "kinds.all", cwd=tmp_path)
    assert [event["type"] for event in lines(called.stdout)] == [
        "progress",
        "content",
        "content",
        "log",
        "restarted",
        "tool_use",
        "tool_result",
        "image",
        "reading",
        "spoken",
        "complete",
    ]
    assert called.stderr == "printed by the method\n"


def test_the_terminal_of_a_failed_run_is_a_line_too(tmp_path: Path) -> None:
    called = run("call", "--json", "bash.execute", "true", "--cwd", "/nowhere/at/all", cwd=tmp_path)
    assert called.returncode == 1
    last = lines(called.stdout)[-1]
    assert (last["type"], last["code"]) == ("error", "spawn_failed")


@pytest.mark.parametrize("mode", ["here", "server"])
@pytest.mark.parametrize("form", [["--json"], []])
def test_output_is_seen_while_the_command_still_runs(
    mode: str, form: list[str], tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    script = f"printf 'no newline'; until [ -e {gate} ]; do sleep 0.01; done; echo over"

    def check(*flags: str) -> None:
        with started(*flags, "call", "bash.execute", script, *form, cwd=tmp_path) as process:
            process.out.wait_for("no newline")
            assert "over" not in process.out.text
            gate.touch()
            process.out.wait_for("over")
            assert process.end() == 0

    if mode == "here":
        check()
    else:
        with server(tmp_path) as port:
            check("--port", port)


# --- readable text --------------------------------------------------------------------------------


def test_both_outputs_of_a_command_go_where_they_belong(tmp_path: Path) -> None:
    script = "printf out; printf err >&2"
    called = run("call", "bash.execute", script, cwd=tmp_path)
    assert (called.returncode, called.stdout, called.stderr) == (0, "out", "err")


@pytest.mark.parametrize("mode", ["here", "server"])
def test_every_kind_of_event_is_readable(mode: str, tmp_path: Path) -> None:
    add_plugin(tmp_path, "kinds", ALL_KINDS)
    if mode == "here":
        called = run("call", "kinds.all", cwd=tmp_path)
        spoken = "<hello>"
    else:
        with server(tmp_path) as port:
            called = run("--port", port, "call", "kinds.all", cwd=tmp_path)
        spoken = "spoken  word=hello"

    assert called.returncode == 0
    reading = "reading  degrees=21"
    assert called.stdout.splitlines() == [
        "half a line",
        "[image image/png]",
        reading,
        spoken,
        "{",
        '  "total": 3',
        "}",
    ]
    tools = ('-> hammer {"nail":1}', "<- bang")
    for remark in ("1/4 working", "warning: careful", "[restarted]", *tools):
        assert remark in called.stderr.splitlines()


def test_a_value_is_pretty_json_and_a_text_is_itself(tmp_path: Path) -> None:
    add_plugin(tmp_path, "kinds", ALL_KINDS)
    value = run("call", "kinds.value", cwd=tmp_path).stdout
    assert json.loads(value) == {"numbers": [1, 2]}
    assert value.startswith('{\n  "numbers"')
    text = run("call", "plexus.hash", cwd=tmp_path).stdout
    assert len(text.strip()) == 64


def test_on_a_terminal_text_comes_bare_and_the_last_line_is_ended(tmp_path: Path) -> None:
    add_plugin(tmp_path, "count", COUNT)
    with terminal("call", "count.up", "3", cwd=tmp_path) as screen:
        code, text = screen.end()
    assert (code, text) == (0, "1 2 3 \r\n")


def test_on_a_terminal_progress_is_a_bar_that_is_gone_at_the_end(tmp_path: Path) -> None:
    source = '''
        import pathlib, asyncio
        from collections.abc import AsyncIterator
        from plexus import Activation, Content, Progress, method

        class Work(Activation):
            """Works."""
            namespace = "work"
            version = "1.0.0"

            @method
            async def hard(self, gate: str) -> AsyncIterator[Progress | Content]:
                """Work until the gate is open."""
                yield Progress(done=1, total=4, message="hammering")
                while not pathlib.Path(gate).exists():
                    await asyncio.sleep(0.01)
                yield Content(text="finished\\n")
        '''
    add_plugin(tmp_path, "work", source)
    gate = tmp_path / "gate"
    with terminal("call", "work.hard", str(gate), cwd=tmp_path) as screen:
        screen.screen.wait_for("hammering.*1/4")
        gate.touch()
        code, text = screen.end()
    assert code == 0
    # Only the text after the last erased line stays visible.
    assert text.rpartition("\x1b[2K")[2].strip() == "finished"


def test_a_failed_command_shows_its_exit_code_on_a_terminal(tmp_path: Path) -> None:
    with terminal("call", "bash.execute", "printf abc; kill -9 $$", cwd=tmp_path) as screen:
        code, text = screen.end()
    assert code == 1
    assert without_colours(text) == "abc\nexit code 137 (SIGKILL)\n"


def test_a_value_of_python_is_printed_as_python_prints_it(tmp_path: Path) -> None:
    code = (
        "class Page:\n    def _repr_html_(self): return '<b>hi</b>'\n"
        "    def __repr__(self): return 'hi'\n"
        "print('counting', end='')\ndisplay(Page())\n3 + 4"
    )
    with server(tmp_path) as port:
        for flags in ((), ("--port", port)):
            piped = run(*flags, "call", "python.evaluate", "3 + 4", cwd=tmp_path)
            assert (piped.stdout, piped.stderr) == ("7\n", "")
        shown = run("--port", port, "call", "python.evaluate", code, cwd=tmp_path)
        assert shown.stdout == "counting\nhi\n7\n"
        with terminal("--port", port, "call", "python.evaluate", "3 + 4", cwd=tmp_path) as screen:
            _, text = screen.end()
    assert re.fullmatch(r"7\r\n\x1b\[90m\d+ ms\x1b\[0m\r\n", text), text


def test_an_exception_in_python_is_its_traceback_and_is_shown_once(tmp_path: Path) -> None:
    called = run("call", "python.evaluate", "import json\njson.loads('{')", cwd=tmp_path)
    assert (called.returncode, called.stdout) == (1, "")
    first, *_, last = called.stderr.splitlines()
    assert first == "Traceback (most recent call last):"
    assert last.startswith("json.decoder.JSONDecodeError: Expecting property name")
    assert called.stderr.count("JSONDecodeError") == 1
    with terminal("call", "python.evaluate", "1 / 0", cwd=tmp_path) as screen:
        _, text = screen.end()
    assert text.endswith("\x1b[31mZeroDivisionError: division by zero\x1b[0m\r\n")


def test_colours_can_be_turned_off(tmp_path: Path) -> None:
    with terminal("call", "bash.execute", "exit 3", cwd=tmp_path, NO_COLOR="1") as screen:
        _, text = screen.end()
    assert text == "exit code 3\r\n"


# --- questions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["here", "server"])
def test_the_user_is_prompted_at_a_terminal(mode: str, tmp_path: Path) -> None:
    add_plugin(tmp_path, "asks", ASKS)

    def check(*flags: str) -> None:
        with terminal(*flags, "call", "asks.everything", "--json", cwd=tmp_path) as screen:
            for question, answer in [
                (r"Really\? \[Y/n\] $", "what\n"),
                (r"Type y or n.*\s+Really\? \[Y/n\] $", "\n"),
                (r"Your name\?: $", "Zoë\n"),
                (r"2\. Deep blue\s+Choose: $", "9\n"),
                (r"number from 1 to 2.*\s+Choose: $", "2\n"),
                (r"3\. plum\s+Choose: $", "1, plum\n"),
                (r"Dish: $", "soup\n"),
                (r"Plates \[1\]: $", "few\n"),
                (r"not a whole number.\s+Plates \[1\]: $", "2\n"),
            ]:
                screen.screen.wait_for(question)
                screen.type(answer)
            code, text = screen.end()
        assert code == 0
        last = json.loads(text.strip().splitlines()[-1])
        assert last["result"] == [
            True,
            "Zoë",
            "blue",
            ["apple", "plum"],
            {"dish": "soup", "plates": 2},
        ]

    if mode == "here":
        check()
    else:
        with server(tmp_path) as port:
            check("--port", port)


@pytest.mark.parametrize("mode", ["here", "server"])
def test_of_a_rejected_form_only_the_wrong_field_is_asked_again(mode: str, tmp_path: Path) -> None:
    source = '''
        from dataclasses import dataclass
        from typing import Annotated
        from pydantic import Field
        from plexus import Activation, Context, Form, method

        @dataclass
        class Order:
            dish: str
            plates: Annotated[int, Field(le=9)]
            note: str = ""

        class Kitchen(Activation):
            """Takes orders."""
            namespace = "kitchen"
            version = "1.0.0"

            @method
            async def order(self, *, ctx: Context) -> str:
                """Ask for an order."""
                made = await ctx.ask(Form("Your order", fields=Order))
                return f"{made.plates} {made.dish} {made.note}"
        '''
    add_plugin(tmp_path, "kitchen", source)

    def check(*flags: str) -> None:
        with terminal(*flags, "call", "kitchen.order", cwd=tmp_path) as screen:
            for question, answer in [
                (r"Dish: $", "soup\n"),
                (r"Plates: $", "10\n"),
                (r"Note.*: $", "hot\n"),
                (r"(?s)less than or equal to 9.*Plates: $", "2\n"),
            ]:
                screen.screen.wait_for(question)
                screen.type(answer)
            code, text = screen.end()
        assert code == 0, text
        assert text.endswith("2 soup hot\r\n")
        assert text.count("Dish: ") == 1

    if mode == "here":
        check()
    else:
        with server(tmp_path) as port:
            check("--port", port)


def test_ending_the_input_declines(tmp_path: Path) -> None:
    add_plugin(tmp_path, "asks", ASKS)
    with terminal("call", "asks.confirm", cwd=tmp_path) as screen:
        screen.screen.wait_for(r"\[y/n\] $")
        screen.type("\x04")
        code, text = screen.end()
    assert code == 1
    assert "Error: declined: Really?" in text


def test_a_question_that_times_out_is_withdrawn(tmp_path: Path) -> None:
    add_plugin(tmp_path, "asks", ASKS)
    with terminal("call", "asks.briefly", cwd=tmp_path) as screen:
        code, text = screen.end()
    assert code == 1
    assert "Quick? [y/n] " in text
    assert "Error (no_answer): No answer within 0.3 s" in text


def test_without_a_terminal_the_answering_command_is_printed(tmp_path: Path) -> None:
    add_plugin(tmp_path, "asks", ASKS)
    with (
        server(tmp_path) as port,
        started("--port", port, "call", "--json", "asks.confirm", cwd=tmp_path) as process,
    ):
        asked = process.err.wait_for(r"The run asks: Really\?\n  Answer with: substrate (.*)\n")
        answered = run(*asked[1].split(), cwd=tmp_path)
        assert answered.returncode == 0, answered.stderr
        assert process.end() == 0
        assert lines(process.out.rest())[-1] == {"type": "complete", "result": True}


def test_without_a_terminal_or_server_a_question_is_declined(tmp_path: Path) -> None:
    add_plugin(tmp_path, "asks", ASKS)
    called = run("call", "--json", "asks.confirm", cwd=tmp_path)
    assert called.returncode == 1
    assert lines(called.stdout)[-1]["code"] == "declined"
    assert "Declined, because there is no terminal to answer on" in called.stderr

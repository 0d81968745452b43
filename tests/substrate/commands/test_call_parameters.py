"""Conversion of command-line arguments to a method's parameters by its schema."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from command_line import add_plugin

from substrate.cli.main import cli

ECHO = '''
    import enum
    from typing import Any, Literal
    from plexus import Activation, method

    class Size(enum.Enum):
        SMALL = "small"
        VERY_LARGE = "very_large"

    class Echo(Activation):
        """Gives back what it is given."""
        namespace = "echo"
        version = "1.0.0"

        @method
        async def one(self, text: str, times: int = 1, share: float | None = 0.5) -> dict[str, Any]:
            """Take simple values.

            Args:
                text: What to say.
                times: How often.
            """
            return {"text": text, "times": times, "share": share}

        @method
        async def rich(
            self,
            loud: bool = True,
            colour: Literal["red", "dark_green"] = "red",
            size: Size | None = None,
            level: Literal[1, 2] = 1,
            labels: dict[str, int] | None = None,
            anything: Any = None,
            either: int | str = 0,
            note: str | None = None,
            title: str | None = "untitled",
            words: list[str] | None = None,
        ) -> dict[str, Any]:
            """Take everything there is."""
            return {k: v for k, v in locals().items() if k != "self"}

        @method
        async def like_flags(self, text: str, url: str, local: int, json: bool) -> list[Any]:
            """Have parameters that are called like flags of the command."""
            return [text, url, local, json]

        @method
        async def numbers(self, first: int, rest: list[int]) -> list[int]:
            """Take a list."""
            return [first, *rest]
'''

Call = Callable[..., Result]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Call a method of `echo` in this process."""
    add_plugin(tmp_path, "echo", ECHO)
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("SUBSTRATE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SUBSTRATE_PORT", "0")

    def invoke(*arguments: str, stdin: str | None = None) -> Result:
        return CliRunner().invoke(cli, ["call", "--json", *arguments], input=stdin)

    return invoke


def result_of(called: Result) -> Any:
    assert called.exit_code == 0, called.output
    return json.loads(called.stdout.splitlines()[-1])["result"]


def test_values_fill_parameters_in_order_and_options_by_name(call: Call) -> None:
    expected = {"text": "hello", "times": 3, "share": 0.25}
    assert result_of(call("echo.one", "hello", "3", "0.25")) == expected
    assert result_of(call("echo.one", "--share", "0.25", "--times", "3", "hello")) == expected
    assert result_of(call("echo.one", "hello", "--times=3", "--share=0.25")) == expected


def test_an_omitted_parameter_keeps_the_methods_default(call: Call) -> None:
    assert result_of(call("echo.one", "x")) == {"text": "x", "times": 1, "share": 0.5}


@pytest.mark.parametrize("flag", ["--max-output-bytes", "--max_output_bytes"])
def test_underscores_and_dashes_are_the_same(flag: str, call: Call) -> None:
    called = call("bash.execute", "echo too long", flag, "3")
    assert [json.loads(line)["type"] for line in called.stdout.splitlines()].count("truncated") == 1


@pytest.mark.parametrize(
    ("arguments", "name", "value"),
    [
        (["--loud"], "loud", True),
        (["--no-loud"], "loud", False),
        (["--colour", "dark_green"], "colour", "dark_green"),
        (["--size", "very_large"], "size", "very_large"),
        (["--level", "2"], "level", 2),
        (["--labels", '{"a": 1}'], "labels", {"a": 1}),
        (["--anything", "[1, null]"], "anything", [1, None]),
        (["--anything", '"text"'], "anything", "text"),
        (["--either", "5"], "either", 5),
        (["--either", "five"], "either", "five"),
        (["--words", "a", "--words", "b c"], "words", ["a", "b c"]),
        (["--words", "null"], "words", ["null"]),
        # The default is null, so the text "null" has no special meaning.
        (["--note", "null"], "note", "null"),
        (["--title", "null"], "title", None),
    ],
)
def test_each_schema_type_has_a_command_line_format(
    arguments: list[str], name: str, value: Any, call: Call
) -> None:
    assert result_of(call("echo.rich", *arguments))[name] == value


def test_a_nullable_number_can_be_null(call: Call) -> None:
    assert result_of(call("echo.one", "x", "--share", "null"))["share"] is None


def test_a_list_takes_all_remaining_values(call: Call) -> None:
    assert result_of(call("echo.numbers", "1", "2", "3")) == [1, 2, 3]


def test_params_is_the_whole_object_and_options_take_precedence(call: Call) -> None:
    whole = '{"text": "a", "times": 2}'
    assert result_of(call("echo.one", "--params", whole))["times"] == 2
    assert result_of(call("echo.one", "--params", whole, "--times", "9"))["times"] == 9
    assert result_of(call("echo.one", "--params", "-", stdin=whole))["text"] == "a"


def test_parameters_take_precedence_over_flags_of_the_same_name(call: Call) -> None:
    arguments = ["--text", "t", "--url", "http://x", "--local", "1", "--json"]
    assert result_of(call("echo.like_flags", *arguments)) == ["t", "http://x", 1, True]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["echo.one"], "Missing parameter text. Pass it as --text TEXT"),
        (["echo.one", "x", "many"], "Invalid value for '--times': 'many' is not a whole number."),
        (["echo.one", "x", "--times", str(2**64)], "does not fit into 64 bits"),
        (["echo.one", "x", "--share", "nan"], "'nan' is not a finite number"),
        (["echo.one", "x", "--tmies", "1"], "'--times'"),
        (["echo.one", "x", "--text", "y"], "Parameter text is set twice"),
        (["echo.one", "x", "1", "1", "y"], "Too many values: 'y' has no parameter"),
        (["echo.one", "--params", "[]"], "must be a JSON object"),
        (["echo.one", "--params", "{"], "is not JSON"),
        (["echo.one", "--params", '{"text": 1, "n": 2}'], "  n: is not known here"),
        (
            ["bash.execute", "--params", '{"comand": "ls"}'],
            "comand: is not known here; did you mean 'command'?",
        ),
        (["echo.one", "--txet", "a"], "No such option '--txet'"),
        (["echo.rich", "--colour", "blue"], "'blue' is not one of red, dark_green."),
        (["echo.rich", "--labels", "a=1"], "'a=1' is not JSON"),
        (["echo.rich", "--anything", "text"], "A string needs quotes"),
        (["echo.rich", "maybe"], "'maybe' is neither true nor false"),
        (["echo.oen"], "Unknown method 'echo.oen'. Did you mean echo.one"),
        (["one"], "Did you mean echo.one?"),
        (["echo"], "'echo' is a namespace. Its methods are: echo.like_flags, echo.numbers"),
        (["nothing.like.it"], "`substrate list` shows all methods."),
        (["--json", "echo.one", "x", "--text"], "'--text' requires an argument"),
        (["bash.execute", "true", "--timeout-s", "-1"], "timeout_s: must be above zero"),
    ],
)
def test_an_invalid_call_is_a_usage_error_with_advice(
    arguments: list[str], complaint: str, call: Call
) -> None:
    called = call(*arguments)
    assert called.exit_code == 2, called.output
    assert complaint in called.output


def test_the_help_of_a_method_is_its_schema(call: Call) -> None:
    text = call("echo.one", "--help").stdout
    assert "call echo.one [OPTIONS] [TEXT] ..." in text.splitlines()[0]
    assert "Take simple values." in text
    assert "--text TEXT" in text
    assert "What to say.  [required]" in text
    assert "How often.  [default: 1]" in text
    flags = call("echo.rich", "--help").stdout
    assert "--loud / --no-loud" in flags
    assert "--colour [red|dark_green]" in flags
    assert "--labels JSON" in flags


def test_without_a_method_all_are_listed(call: Call) -> None:
    called = call()
    assert called.exit_code == 0
    assert "echo.numbers" in called.stdout


def test_the_legacy_name_with_underscores_is_accepted(call: Call) -> None:
    assert result_of(call("echo_one", "x"))["text"] == "x"

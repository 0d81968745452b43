"""Any arguments end a command with an exit code and a message, never with a traceback."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from command_children import CommandChildren
from fuzz_budget import SEED, TIMEOUT_S, rounds

from substrate.cli.main import cli

pytestmark = pytest.mark.timeout(TIMEOUT_S)

#: Commands that would serve until they are stopped, read a conversation, or start programs that an
#: argument names. The first word of a command that has subcommands counts.
EXCLUDED = {"serve", "dev", "chat", "open", "watch", "mount"}
#: Success, failure, a wrong call.
CODES = (0, 1, 2)
#: Never a file of the machine: a command with `--force` would replace it.
VALUES = (
    *("", " ", "-", "--", "@", "@/nowhere", "@@", "\n", "'", "$(id)", "%s{}", "a" * 5000),
    *("0", "-1", "9" * 30, "NaN", "1e400", "١٢", "{}", "[", "null", "true"),
    *("*", "a.b.c", "bash.execute", "last", "ws://[", "ws://..", "http://x:99999", "stdio://x"),
    *("\udcff", "é\u202e\x1b[31m", "../..", "/nowhere/x"),
)


def commands(group: click.Command, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield every command as its words."""
    yield path
    if isinstance(group, click.Group) and path != ("call",):
        for name in group.list_commands(click.Context(group)):
            if name not in EXCLUDED:
                found = group.get_command(click.Context(group), name)
                assert found is not None
                yield from commands(found, (*path, name))


def options(path: tuple[str, ...]) -> list[click.Option]:
    """Return the options of a command."""
    command: click.Command = cli
    for word in path:
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), word)
        assert found is not None
        command = found
    return [each for each in command.params if isinstance(each, click.Option)]


def arguments(path: tuple[str, ...], chance: random.Random) -> list[str]:
    """Return a command with options and values that it does not expect."""
    words = ["--port", "0"]
    for option in chance.sample(options(()), chance.choice((0, 0, 1))):
        words += _given(option, chance)
    words += path
    found = options(path)
    for option in chance.sample(found, min(len(found), chance.choice((0, 1, 1, 2)))):
        words += _given(option, chance)
    return words + [chance.choice(VALUES) for _ in range(chance.choice((0, 1, 1, 2)))]


def _given(option: click.Option, chance: random.Random) -> list[str]:
    name = option.opts[-1]
    return [name] if option.is_flag else [name, chance.choice(VALUES)]


def test_no_arguments_end_a_command_with_a_traceback(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    found = [path for path in commands(cli, ()) if path]
    with CommandChildren(tmp_path) as children:
        for _ in rounds(0.1):
            words = arguments(chance.choice(found), chance)
            ended = children.run(words)
            assert ended.code in CODES, (words, ended.errors)
            assert "Traceback" not in ended.errors, (words, ended.errors)
            # A report with findings exits with 1 and is on stdout.
            assert ended.code != 2 or ended.errors.strip(), words


#: Command lines, and the exit code and the message of each.
WRONG = (
    (["tasks", "list", "--url", "\udcff"], 2, "is not a server URL"),
    (["tasks", "list", "--url", "../.."], 2, "is not a server URL"),
    (["runs", "--url", "ws://["], 2, "is not a server URL"),
    (["runs", "--url", "http://x:99999"], 2, "is not a server URL"),
    (["runs", "--url", "stdio://true"], 2, "is not a server URL"),
    (["runs", "--url", "a" * 5000], 2, "is not a server URL"),
    (["--stdio", "list"], 2, "--stdio serves"),
    (["--mcp", "list"], 2, "--mcp serves"),
    (["--eof-grace", "1e400", "list"], 2, "'1e400' is not a number of at least 0"),
    # No host has this name, so no server answers.
    (["--port", "1", "--bind", "../..", "list"], 0, ""),
    # The file name is part of the output.
    (["check", "--json", "\udcff"], 1, ""),
)


def test_wrong_arguments_are_named(tmp_path: Path) -> None:
    with CommandChildren(tmp_path) as children:
        for words, code, message in WRONG:
            ended = children.run(words)
            assert ended.code == code, (words, ended.errors)
            assert message in ended.errors, words
            assert "Traceback" not in ended.errors, words

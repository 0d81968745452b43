"""`docs/commands.md` lists every command with the summary from its help text.

`python tests/substrate/commands/test_commands_document.py` regenerates it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from substrate.cli.main import cli

#: The group whose commands are the methods.
METHODS = "call"
DOCUMENT = Path(__file__).parents[3] / "docs" / "commands.md"

HEAD = """\
# Commands

`substrate` without a command starts a server. `substrate COMMAND --help` explains a command. Flags before the command are settings (see `substrate config`): `substrate --port 4445 runs`.

- If a server runs on the configured port, commands use it; otherwise they work in their own process. `--local` never uses a server, `--url` selects one. `runs`, `show`, `replay`, `watch`, `attach`, `cancel` and `respond` see the runs of all processes of the project either way ([history.md](history.md)).
- On a terminal the output is readable text. Piped, or with `--json`, it is one JSON object per line.
- `--only PATTERNS` and `--without PATTERNS` choose what is offered, `--mcp-tools standard|all|PATTERNS` what MCP lists: `substrate --without bash,chat list`. A pattern is a method, a namespace, or either with wildcards (`arbor.tree_*`); separate several with commas. See [operating.md](operating.md#choose-what-is-offered) and [mcp.md](mcp.md#choose-which-tools-a-host-lists).
- A script that calls `serve()` has the same commands: `python tools.py call count.up 3`, with its own activations instead of the built-in ones.
- Exit codes: 0 success, 1 failure, 2 invalid call, 130 interrupted by Ctrl-C.

| Command | |
|---|---|
"""  # noqa: E501 - a paragraph of Markdown is one line


def commands(group: click.Group, ctx: click.Context, path: str) -> Iterator[tuple[str, str]]:
    """Yield every subcommand with the first paragraph of its help."""
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        assert command is not None
        if command.hidden:
            continue
        words = [each.make_metavar(ctx) for each in command.params if is_plain(each)]
        if name == METHODS:
            assert isinstance(command, click.Group)
            words.append(command.subcommand_metavar or "")
        usage = " ".join([path, name, *words])
        yield usage, " ".join((command.help or "").partition("\n\n")[0].split())
        if isinstance(command, click.Group) and name != METHODS:
            yield from commands(command, click.Context(command, parent=ctx), f"{path} {name}")


def is_plain(parameter: click.Parameter) -> bool:
    return isinstance(parameter, click.Argument)


def document() -> str:
    ctx = click.Context(cli, info_name="substrate")
    rows = [(escaped(usage), escaped(text)) for usage, text in commands(cli, ctx, "substrate")]
    return HEAD + "".join(f"| `{usage}` | {text} |\n" for usage, text in rows)


def escaped(text: str) -> str:
    """Escape a text for a cell of the table."""
    return text.replace("|", r"\|")


def test_every_command_is_in_the_document_with_its_help() -> None:
    assert DOCUMENT.read_text() == document(), (
        "run `python tests/substrate/commands/test_commands_document.py`"
    )


def test_every_command_has_a_summary() -> None:
    ctx = click.Context(cli, info_name="substrate")
    for usage, text in commands(cli, ctx, "substrate"):
        assert text.endswith((".", ":")), usage


if __name__ == "__main__":
    DOCUMENT.write_text(document())

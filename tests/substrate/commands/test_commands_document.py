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

```sh
substrate help            # all commands, by what they are for
substrate help runs pin   # one command; the same as `substrate runs pin --help`
```

`substrate` without a command is `substrate serve`. The commands are at the [end of this page](#all-commands).

## Call a method

```sh
substrate list                                          # your methods, and the built-in namespaces
substrate list bash                                     # the methods of a namespace
substrate schema bash.execute                           # its parameters and events
substrate call bash.execute 'seq 3'                     # plain values fill the parameters in order
substrate call bash.execute --command ls --timeout-s 5  # or set them by name
```

You see the output while the method runs. Ctrl-C stops the run. A question of the run is a prompt.

## Use a method in a pipe

```sh
substrate call bash.execute 'seq 3' | wc -l
echo hello | substrate call bash.execute cat
substrate call --json bash.execute 'seq 3'
```

A pipe gets the plain text of the output, as the terminal does, without colours. Progress, log messages and errors go to stderr. With `--json`, every command that lists, reports or changes something prints one JSON value per line instead: `call` prints every event of the run with its fields.

Text on stdin becomes the parameter `stdin` of a method that has an optional one, such as `bash.execute`. Any other parameter can also be read from stdin or from a file:

```sh
echo 'echo $((6 * 7))' > script.sh
substrate call bash.execute @script.sh                  # the text of a file
echo ls | substrate call bash.execute --command -       # the text on stdin
echo '{"command": "ls"}' | substrate call bash.execute --params -
substrate call bash.execute cat --stdin @@home          # the text "@home"
```

A value from stdin or a file has at most 1 MiB (`limits.message_bytes`) and is UTF-8 text. A command waits until stdin ends: in a script that keeps stdin open, add `< /dev/null`.

## Check how a call ended

<!-- tested by: substrate/commands/test_commands_examples.py -->
```sh
substrate call bash.execute 'exit 3'                    # exits with 1
substrate call --exit-code bash.execute 'exit 3'        # exits with 3
substrate call bash.execute --timeout-s soon ls         # exits with 2
```

Every command exits with 0 for success, 1 for a failure, 2 for wrong parameters and 130 after Ctrl-C; a server that Ctrl-C stops exits with 0. With `--exit-code`, `call` and `attach` pass on the exit code of the command that the method has run.

An unexpected exception of a plugin is shown with its text and its line to you; a client with another token gets a reference number for the server's log only, except from `substrate dev` on this machine.

## Find and follow runs

```sh
substrate runs                        # active runs, and the latest that have ended
substrate runs --since 2d --state failed --search pear
substrate show last                   # what was called, by what client, and its output
substrate runs --system               # also calls that only watch or control the server
```

The list shows the first digits of each number. Every command that takes a RUN accepts them (at least four), or `last` for the newest run. If two runs begin with the same digits, the error lists both.

`runs`, `show`, `replay`, `watch`, `attach`, `cancel` and `respond` see the runs of all processes of the project, with a server or without ([history.md](history.md)). Calls that only watch or control the server are not recorded and are kept apart, so they never displace your runs.

## Choose where a command runs

```sh
substrate call --local bash.execute ls                  # in this process, without a server
substrate --port 4445 runs                              # the server on another port
```

If a server runs on the configured port, commands use it; otherwise they work in their own process. `--local` never uses a server, `--url` selects one. Flags before the command are settings: `substrate config` lists them, `substrate serve --help` explains them.

A server loads plugins when it starts. If it lacks a method that your project has, `call` reports which server answered: add `--local`, or restart the server. `--activation`, `--only`, `--without`, `--bash-sandbox` and `--database` configure what a server has configured for itself, so a command with one of them uses its own process. So does a script that calls `serve()`: `python tools.py call count.up 3`.

## Choose what is offered

```sh
substrate --without bash,chat list
substrate --only health,'arbor.tree_*' list
```

`--only PATTERNS` and `--without PATTERNS` choose what is offered, `--mcp-tools standard|all|PATTERNS` what MCP lists. A pattern is a method, a namespace, or either with wildcards; separate several with commas. See [operating.md](operating.md#choose-what-is-offered) and [mcp.md](mcp.md#choose-which-tools-a-host-lists).

## All commands

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

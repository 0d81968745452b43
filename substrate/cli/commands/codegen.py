"""`substrate codegen`: generate a typed client from the schema."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Final

import click

from substrate.cli.target.catalogue import suggest
from substrate.cli.target.selection import Choice, choose_target, target_options
from substrate.devtools.codegen.interface import BadName, UnknownNamespace
from substrate.devtools.codegen.python import write_python
from substrate.devtools.codegen.typescript import write_typescript

__all__ = ("codegen",)

LANGUAGES: Final[dict[str, Callable[..., str]]] = {
    "python": write_python,
    "typescript": write_typescript,
}


@click.command(
    short_help="Generate a typed client.",
    params=[
        click.Argument(["language"], type=click.Choice(sorted(LANGUAGES))),
        click.Option(
            ["-o", "--output"],
            type=click.Path(dir_okay=False, path_type=Path),
            metavar="FILE",
            help="File to write.  [default: stdout]",
        ),
        click.Option(
            ["--namespace", "namespaces"],
            multiple=True,
            metavar="NAMESPACE",
            help="Include only this namespace and its children. Repeatable.",
        ),
        click.Option(
            ["--check"],
            type=click.Path(dir_okay=False, path_type=Path),
            metavar="FILE",
            help="Write nothing; exit with 1 if FILE differs from the generated client.",
        ),
        *target_options(),
    ],
)
@click.pass_context
def codegen(
    ctx: click.Context,
    *,
    language: str,
    output: Path | None,
    namespaces: tuple[str, ...],
    check: Path | None,
    local: bool,
    url: str | None,
) -> None:
    """Generate a client in LANGUAGE as a single file, with a type for everything in the schema.

    The schema comes from the running server, if any, else from this project. The same schema
    always produces the same bytes.
    """
    if output is not None and check is not None:
        raise click.UsageError("--output and --check cannot be used together.", ctx)
    chosen = sorted(set(namespaces))
    command = ["substrate", "codegen", language]
    command += [word for name in chosen for word in ("--namespace", name)]
    catalogue = choose_target(ctx, Choice(local, url)).catalogue
    try:
        text = LANGUAGES[language](catalogue.schema(), chosen, command)
    except UnknownNamespace as error:
        known = [namespace.path for namespace in catalogue.namespaces()]
        advice = suggest(error.name, known) or "`substrate list` shows all namespaces."
        raise click.UsageError(f"Unknown namespace {error.name!r}. {advice}", ctx) from error
    except BadName as error:
        raise click.ClickException(f"{error}.") from error
    if check is not None:
        _check(check, text, command)
    elif output is not None:
        _write(output, text)
    else:
        click.echo(text, nl=False)


def _check(file: Path, text: str, command: list[str]) -> None:
    again = f"Generate it with `{shlex.join([*command, '-o', str(file)])}`."
    try:
        found = file.read_bytes()
    except FileNotFoundError as error:
        raise click.ClickException(f"{file} does not exist. {again}") from error
    except OSError as error:
        raise click.ClickException(f"Cannot read {file}: {error.strerror}") from error
    if found != text.encode():
        raise click.ClickException(f"{file} is out of date. {again}")


def _write(file: Path, text: str) -> None:
    try:
        file.write_bytes(text.encode())
    except OSError as error:
        raise click.ClickException(f"Cannot write {file}: {error.strerror}") from error

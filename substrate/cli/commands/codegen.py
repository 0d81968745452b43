"""`substrate codegen`: a typed client of what there is, written from its schema."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Final

import click

from substrate.cli.target.catalogue import nearest
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
    short_help="Write a typed client.",
    params=[
        click.Argument(["language"], type=click.Choice(sorted(LANGUAGES))),
        click.Option(
            ["-o", "--output"],
            type=click.Path(dir_okay=False, path_type=Path),
            metavar="FILE",
            help="Where to write it.  [default: stdout]",
        ),
        click.Option(
            ["--namespace", "namespaces"],
            multiple=True,
            metavar="NAMESPACE",
            help="Only this one and those inside it. May be repeated.",
        ),
        click.Option(
            ["--check"],
            type=click.Path(dir_okay=False, path_type=Path),
            metavar="FILE",
            help="Write nothing; exit with 1 if the file is not what would be written.",
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
    """Write a client in LANGUAGE, in one file, with a type for everything in the schema.

    The same schema gives the same file to the byte. The schema is that of the server if one runs,
    and else of what is found here.
    """
    if output is not None and check is not None:
        raise click.UsageError("--output and --check exclude each other.", ctx)
    chosen = sorted(set(namespaces))
    command = ["substrate", "codegen", language]
    command += [word for name in chosen for word in ("--namespace", name)]
    catalogue = choose_target(ctx, Choice(local, url)).catalogue
    try:
        text = LANGUAGES[language](catalogue.described(), chosen, command)
    except UnknownNamespace as error:
        known = [namespace.path for namespace in catalogue.namespaces()]
        advice = nearest(error.name, known) or "`substrate list` shows what there is."
        raise click.UsageError(f"There is no namespace {error.name}. {advice}", ctx) from error
    except BadName as error:
        raise click.ClickException(f"{error}.") from error
    if check is not None:
        _check(check, text, command)
    elif output is not None:
        _write(output, text)
    else:
        click.echo(text, nl=False)


def _check(file: Path, text: str, command: list[str]) -> None:
    again = f"`{shlex.join([*command, '-o', str(file)])}` writes it."
    try:
        found = file.read_bytes()
    except FileNotFoundError as error:
        raise click.ClickException(f"{file} is not there. {again}") from error
    except OSError as error:
        raise click.ClickException(f"{file} cannot be read: {error.strerror}") from error
    if found != text.encode():
        raise click.ClickException(f"{file} is stale. {again}")


def _write(file: Path, text: str) -> None:
    try:
        file.write_bytes(text.encode())
    except OSError as error:
        raise click.ClickException(f"{file} cannot be written: {error.strerror}") from error

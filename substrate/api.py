"""Activations served from Python code: as a command line, or in the same process.

    count.serve()                            # the whole command line, in a script
    async with local(count) as plexus: ...   # in a notebook

`substrate.server.embedded` serves them inside an ASGI application. A program serves its own
activations and the server's own methods. Built-in activations, such as bash, are not included.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import click

from plexus.errors import RegistrationError
from plexus.principal import LOCAL
from plexus.registry.plugin_namespaces import Registrable
from plexus.testing import WITHIN_S, Answers, Local
from substrate.build_hub import build_hub, open_hub
from substrate.cli.main import Program, cli
from substrate.settings import ProjectFiles, Settings

__all__ = ("local", "serve")


def serve(*activations: Registrable, args: Sequence[str] | None = None) -> None:
    """Run the command line of `substrate` with these activations, and exit.

    `args` are the words of the command line, by default those of the process. Raises SystemExit.
    """
    script = Path(sys.argv[0])
    command = (sys.executable, str(script.absolute()))
    try:
        cli(args=args, prog_name=script.name, obj=Program(activations, command))
    except RegistrationError as error:
        click.echo(f"Error: {error.message}", err=True)
        sys.exit(1)


@asynccontextmanager
async def local(
    *activations: Registrable,
    answers: Iterable[Any] = (),
    settings: Settings | None = None,
    within_s: float = WITHIN_S,
) -> AsyncIterator[Local]:
    """Call activations in this process, with storage and worker threads as on a server.

    `answers` are given to the questions of runs, in their order. `within_s` is how long a call may
    take until its next event. Raises RegistrationError.
    """
    files = ProjectFiles(activations=activations)
    hub, broken = build_hub(settings or Settings(), Path.cwd(), files)
    try:
        broken += await open_hub(hub)
        for each in broken:
            raise RuntimeError(f"{each.source}: {each.reason}")
        yield Local(hub, Answers(answers), LOCAL, within_s)
    finally:
        await hub.close()

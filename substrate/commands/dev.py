"""`substrate dev`: serve, and load activations again as they are written."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from pathlib import Path

import click

from plexus.hub import Plexus
from plexus.plugins import Broken, load_plugins
from substrate.assembly import MakeHub, built_in_hub
from substrate.cli import settings_of
from substrate.logs import announce, escaped
from substrate.reloading import Reloader
from substrate.settings import Settings
from substrate.sources import NoSource, Sources, find_sources, sources_here

__all__ = ("dev",)


@click.command(short_help="Serve, and reload activations as their files change.")
@click.argument("source", required=False, metavar="[PATH|MODULE]")
@click.option("--stdio", is_flag=True, help="Speak newline-delimited JSON-RPC on stdin and stdout.")
@click.option("--mcp", is_flag=True, help="With --stdio: speak MCP, as hosts for models do.")
@click.option("--port", type=click.IntRange(0, 65535), help="Port to listen on.  [default: 4444]")
@click.pass_context
def dev(
    ctx: click.Context, *, source: str | None, stdio: bool, mcp: bool, port: int | None
) -> None:
    """Serve what `substrate` would and the activations of PATH, and load those again whenever
    their files change.

    PATH is a Python file, a folder of them, or a project whose pyproject.toml names activations;
    MODULE is module or module:Class. Without either it is the project in this folder. Runs that
    are under way go on, clients are told, and a file with an error is reported while what was
    there before stays.

    \b
    In Claude Code, with changes as you make them:
      claude mcp add NAME -- substrate dev --stdio --mcp /path/to/project
    """
    settings = settings_of(ctx)
    if port is not None:
        settings = dataclasses.replace(settings, port=port)
    root = ctx.find_root().params
    stdio, mcp = stdio or root["stdio"], mcp or root["mcp"]
    if mcp and not stdio:
        raise click.UsageError("--mcp goes with --stdio; over HTTP, MCP is always at /mcp.", ctx)
    try:
        sources = sources_here(settings, Path.cwd())
        if source is not None:
            sources = sources.joined(find_sources(source))
    except NoSource as error:
        raise click.UsageError(str(error), ctx) from error
    if not sources.current():
        announce(
            "There are no activations here yet: they can be files in "
            f"{settings.activations_folder}/, and `substrate new NAME` writes a package."
        )
    entry = "substrate.server:serve_http"
    if stdio:
        entry = "substrate.mcp_stdio:serve_mcp_stdio" if mcp else "substrate.stdio:serve_stdio"
    module, _, name = entry.partition(":")
    serve: Callable[[Settings, MakeHub], None] = getattr(importlib.import_module(module), name)
    serve(settings, _maker(sources))


def _maker(sources: Sources) -> MakeHub:
    """What makes a hub whose activations are those of the sources, as they are at any moment."""

    def make(settings: Settings, project: Path) -> tuple[Plexus, list[Broken]]:
        sources.make_importable()
        hub = built_in_hub(settings, project)
        reloader = Reloader(hub, sources, project, lambda text: announce(escaped(text)))
        broken = load_plugins(hub, (), None)
        reloader.load()
        return hub, broken

    return make

"""`substrate dev`: serve, and load activations again as they are written."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import click

from plexus.registry.plugins import BrokenPlugin, load_plugins
from plexus.runtime.hub import Plexus
from plexus.text import escape_controls
from substrate.build_hub import MakeHub, built_in_hub, finder
from substrate.cli.main import server_entry, setting_option, settings_of
from substrate.cli.project_package import UNTRUSTED, files_for_author, project_package
from substrate.devtools.plugin_sources import NoSource, PluginSources, find_sources, project_sources
from substrate.devtools.reload import Reloader
from substrate.settings import ProjectFiles, Settings
from substrate.telemetry.logging import announce

__all__ = ("dev",)


@click.command(short_help="Serve, and reload activations as their files change.")
@click.argument("source", required=False, metavar="[PATH|MODULE]")
@click.option("--stdio", is_flag=True, help="Speak newline-delimited JSON-RPC on stdin and stdout.")
@click.option("--mcp", is_flag=True, help="With --stdio: speak MCP, as hosts for models do.")
@setting_option("--port", "Port to listen on.")
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
    settings, files = settings_of(ctx), files_for_author(ctx)
    if port is not None:
        settings = dataclasses.replace(settings, port=port)
    root = ctx.find_root().params
    stdio, mcp = stdio or root["stdio"], mcp or root["mcp"]
    serve = server_entry(ctx, stdio=stdio, mcp=mcp)
    try:
        if source is not None:
            author, refused = find_sources(source), False
        else:
            author, refused = project_package(ctx, stdio=stdio)
    except NoSource as error:
        raise click.UsageError(str(error), ctx) from error
    if refused:
        announce(UNTRUSTED.format(command="dev"), "WARNING")
    fixed, sources = _sources(settings, files)
    sources = sources.merged_with(author)
    if fixed:
        announce(
            "The files of this folder are trusted as they are now, and are not loaded again when "
            "they change. `substrate trust --always` changes that."
        )
    if not (sources.current() or fixed or refused or files.skipped):
        announce(
            "There are no activations here yet: they can be files in "
            f"{settings.activations_folder}/, and `substrate new NAME` writes a package."
        )
    serve(settings, files, _maker(fixed, sources))


def _sources(settings: Settings, files: ProjectFiles) -> tuple[tuple[str, ...], PluginSources]:
    """What is loaded once, because it is trusted only as it is now, and what is watched."""
    here = project_sources(settings, files)
    fixed = files.plugins
    if files.names_activations and not files.live:
        fixed += settings.activation
    return fixed, here._replace(names=tuple(name for name in here.names if name not in fixed))


def _maker(fixed: Sequence[str], sources: PluginSources) -> MakeHub:
    """What makes a hub whose activations are those of the sources, as they are at any moment."""

    def make(
        settings: Settings, project: Path, files: ProjectFiles
    ) -> tuple[Plexus, list[BrokenPlugin]]:
        sources.add_to_sys_path()
        hub = built_in_hub(settings, project, files)
        find = finder(settings, project, files)
        reloader = Reloader(
            hub, sources, project, lambda text: announce(escape_controls(text)), find
        )
        broken = load_plugins(hub, fixed, None, find)
        reloader.load()
        return hub, broken

    return make

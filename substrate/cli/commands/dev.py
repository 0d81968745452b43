"""`substrate dev`: serve activations and reload them when their files change."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click
from msgspec.structs import replace

from plexus.registry.plugins import BrokenPlugin, load_plugins
from plexus.runtime.hub import Plexus
from plexus.text import escape_controls
from substrate.build_hub import MakeHub, built_in_hub, finder
from substrate.cli.main import script_of, server_entry, setting_option, settings_of
from substrate.cli.project_package import UNTRUSTED, author_files, project_package
from substrate.devtools.plugin_sources import NoSource, PluginSources, find_sources, project_sources
from substrate.devtools.reload import Reloader
from substrate.settings import ProjectFiles, Settings
from substrate.telemetry.logging import announce

__all__ = ("dev",)


@click.command(short_help="Serve, and reload activations when files change.")
@click.argument("source", required=False, metavar="[PATH|MODULE]")
@click.option("--stdio", is_flag=True, help="Serve newline-delimited JSON-RPC on stdin and stdout.")
@click.option("--mcp", is_flag=True, help="With --stdio: serve MCP instead, for MCP hosts.")
@setting_option("--port", "Port to listen on; 0 picks a free port.")
@click.pass_context
def dev(
    ctx: click.Context, *, source: str | None, stdio: bool, mcp: bool, port: int | None
) -> None:
    """Serve like `substrate`, plus the activations of PATH, and reload those when files change.

    PATH is a Python file, a folder of Python files, or a project whose pyproject.toml names
    activations. MODULE is module or module:Class. Without either, the project in this folder is
    served. After a reload, active runs continue and clients are notified. If a file has an error,
    the error is reported and the previous version stays loaded.

    \b
    To develop with Claude Code:
      claude mcp add NAME -- substrate dev --stdio --mcp /path/to/project
    """
    settings, files = settings_of(ctx), author_files(ctx)
    if port is not None:
        settings = replace(settings, port=port)
    root = ctx.find_root().params
    stdio, mcp = stdio or root["stdio"], mcp or root["mcp"]
    serve = server_entry(ctx, stdio=stdio, mcp=mcp)
    try:
        source = source or script_of(ctx)
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
            "The files of this folder are trusted only in their current version, so changes are "
            "not reloaded. Run `substrate trust --always` to reload them."
        )
    if not (sources.current() or fixed or refused or files.skipped):
        announce(
            "This folder has no activations yet. Add Python files to "
            f"{settings.activations_folder}/, or create a package with `substrate new NAME`."
        )
    serve(settings, files, _maker(fixed, sources))


def _sources(settings: Settings, files: ProjectFiles) -> tuple[tuple[str, ...], PluginSources]:
    """Return the plugins that are loaded once, and the sources that are watched for changes.

    A plugin is loaded only once if only its current version is trusted.
    """
    here = project_sources(settings, files)
    fixed = files.plugins
    if files.names_activations and not files.live:
        fixed += settings.activation
    return fixed, here._replace(names=tuple(name for name in here.names if name not in fixed))


def _maker(fixed: Sequence[str], sources: PluginSources) -> MakeHub:
    """Return a function that builds a hub whose activations follow the sources' files."""

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

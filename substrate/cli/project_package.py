"""The package in the current folder, for `substrate dev` and `substrate check`.

Without a path, both commands load the package of the current folder, which may come from an
untrusted source. It is imported only if the folder is trusted always or for this start, or if the
user agrees. Trust in file digests does not cover the package: its files change during development,
and it may import anything in the folder.
"""

from __future__ import annotations

from pathlib import Path

import click

from plexus.text import escape_controls
from substrate.cli.main import FILES, files_of, may_ask
from substrate.devtools.plugin_sources import PluginSources, find_package
from substrate.security.folder_trust.decision import can_prompt, decide
from substrate.settings import ProjectFiles

__all__ = ("UNTRUSTED", "author_files", "project_package")

UNTRUSTED = (
    "The package named in pyproject.toml was not loaded because this folder is not trusted. Run "
    "`substrate trust --always` here, or pass the path: `substrate {command} .`"
)


def author_files(ctx: click.Context) -> ProjectFiles:
    """Return what may be loaded from the folder, including files that are created later."""
    files = files_of(ctx)
    if files == ProjectFiles():  # no files existed, so the trust record was not read
        found = decide(Path.cwd())
        if found.live:
            ctx.meta[FILES] = files = found
    return files


def project_package(ctx: click.Context, *, stdio: bool = False) -> tuple[PluginSources, bool]:
    """Return the package of the current folder, and whether a package was left out as untrusted.

    Raises NoSource if pyproject.toml cannot be read.
    """
    package = find_package(Path.cwd())
    if package is None:
        return PluginSources(), False
    if author_files(ctx).live or (_can_ask(ctx, stdio=stdio) and _confirm(package)):
        return package, False
    return PluginSources(), True


def _can_ask(ctx: click.Context, *, stdio: bool) -> bool:
    return may_ask(ctx.find_root(), stdio=stdio) and can_prompt()


def _confirm(package: PluginSources) -> bool:
    names = escape_controls(", ".join(package.names))
    click.echo(
        f"pyproject.toml in {escape_controls(str(Path.cwd()))} names activations: {names}.",
        err=True,
    )
    click.echo("Importing this package runs its code with your permissions.", err=True)
    return click.confirm("Import it for this start?", default=False, err=True)

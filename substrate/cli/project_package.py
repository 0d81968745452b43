"""The package that is written in the current folder, for `substrate dev` and `substrate check`.

Without a path these two mean the folder they are started in, which may be a stranger's: its
package is imported only if the folder is trusted always or for this start, or if the person agrees.
A digest does not cover it: it is there to be changed, and imports what it likes of the folder.
"""

from __future__ import annotations

from pathlib import Path

import click

from plexus.text import escape_controls
from substrate.cli.main import FILES, files_of, may_ask
from substrate.devtools.plugin_sources import PluginSources, find_package
from substrate.security.folder_trust.decision import can_prompt, decide
from substrate.settings import ProjectFiles

__all__ = ("UNTRUSTED", "files_for_author", "project_package")

UNTRUSTED = (
    "The package that pyproject.toml names was not loaded: this folder is not trusted. Run "
    "`substrate trust --always` in it, or name it: `substrate {command} .`"
)


def files_for_author(ctx: click.Context) -> ProjectFiles:
    """What may be loaded from the folder, files that come later included."""
    files = files_of(ctx)
    if files == ProjectFiles():  # there were none, so no record was looked for
        found = decide(Path.cwd())
        if found.live:
            ctx.meta[FILES] = files = found
    return files


def project_package(ctx: click.Context, *, stdio: bool = False) -> tuple[PluginSources, bool]:
    """The package of the current folder, and whether there is one that may not be loaded.

    Raises NoSource if pyproject.toml cannot be read.
    """
    package = find_package(Path.cwd())
    if package is None:
        return PluginSources(), False
    if files_for_author(ctx).live or (_can_ask(ctx, stdio=stdio) and _agreed(package)):
        return package, False
    return PluginSources(), True


def _can_ask(ctx: click.Context, *, stdio: bool) -> bool:
    return may_ask(ctx.find_root(), stdio=stdio) and can_prompt()


def _agreed(package: PluginSources) -> bool:
    names = escape_controls(", ".join(package.names))
    click.echo(
        f"pyproject.toml in {escape_controls(str(Path.cwd()))} names activations: {names}.",
        err=True,
    )
    click.echo("Importing this package runs its code with your rights.", err=True)
    return click.confirm("Import it for this start?", default=False, err=True)

"""The file with mounts, as a command edits it: one table, every other byte unchanged."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click

from activations.gateway.mount_config import MountError
from activations.gateway.mount_file import SECTION, parse_mounts
from plexus.private_files import make_folders, open_private
from substrate.cli.mcp_hosts import toml_text
from substrate.cli.mcp_hosts.config_file import ConfigFile, FileChanged
from substrate.settings import FILE, Settings

__all__ = ("MountDocument", "mount_path", "with_mount")

#: Where mounts are written.
SCOPES: Final = ("user", "project")


def mount_path(settings: Settings, scope: str) -> Path:
    """Return the file of a scope: that of the user, or `substrate.toml` of this folder."""
    if scope == "project":
        return Path.cwd() / FILE
    if settings.mounts_file == "off":
        raise click.ClickException("The setting mounts_file is off, so no server is mounted.")
    if settings.mounts_file:
        return Path(settings.mounts_file).expanduser().absolute()
    folder = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(folder).expanduser().absolute() / "substrate" / "mounts.toml"


class MountDocument:
    """The text of a file with mounts."""

    def __init__(self, path: Path) -> None:
        """Read the file; a missing one is empty. Raises ClickException."""
        self.path = path
        try:
            self.file = ConfigFile(path)
            self.text = self.file.text()
            self.tables: dict[str, Any] = parse_mounts(self.text.encode())
        except OSError as error:
            raise click.ClickException(f"Cannot read {path}: {error.strerror}.") from error
        except UnicodeDecodeError as error:
            raise click.ClickException(f"{path} is not UTF-8.") from error
        except MountError as error:
            raise click.ClickException(f"{path}: {error}") from error

    def put(self, name: str, table: Mapping[str, Any]) -> None:
        """Add or replace a mount."""
        text = toml_text.remove(self.text, (SECTION, name))
        if name in self._read(text):
            self._refuse(name)
        self.text = with_mount(text, name, table)
        self.tables = self._read(self.text)
        if self.tables.get(name) != table:
            self._refuse(name)

    def remove(self, name: str) -> None:
        """Remove a mount."""
        self.text = toml_text.remove(self.text, (SECTION, name))
        self.tables = self._read(self.text)
        if name in self.tables:
            self._refuse(name)

    def _read(self, text: str) -> dict[str, Any]:
        try:
            return parse_mounts(text.encode())
        except MountError as error:
            raise click.ClickException(f"{self.path}: {error}") from error

    def _refuse(self, name: str) -> None:
        raise click.ClickException(
            f"{self.path} has no separate table [{SECTION}.{name}]. Edit the file yourself."
        )

    def save(self) -> None:
        """Write the file, for its owner only if it is new. Raises ClickException."""
        try:
            if self.file.former is None:
                make_folders(self.path.parent)
                os.close(open_private(self.path, os.O_WRONLY))
                self.file = ConfigFile(self.path)
            self.file.replace(self.text)
        except FileChanged:
            raise click.ClickException(
                f"{self.path} was changed by another program meanwhile. Run the command again."
            ) from None
        except OSError as error:
            raise click.ClickException(f"Cannot write {self.path}: {error.strerror}.") from error


def with_mount(text: str, name: str, table: Mapping[str, Any]) -> str:
    """Return the text with the table of a mount at its end."""
    gap = "\n" if text.strip() else ""
    start = text if not text or text.endswith("\n") else text + "\n"
    return start + gap + toml_text.snippet(SECTION, name, table)

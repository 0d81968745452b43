"""Folders of templates for tests, and a hub with them."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from activations.templates import Templates
from plexus.testing import Local, local

__all__ = ("METADATA", "NAME", "URI", "offering", "snapshot", "write_template")

#: A template without parameters, and its description.
NAME = "text/any/plain"
URI = f"template://{NAME}"
METADATA = 'name = "A"\ndescription = "A template."\npath = "a.txt"\n'
#: Timeout of an event on a busy machine.
WITHIN_S = 40.0


def write_template(root: Path, text: str, metadata: str = METADATA, name: str = NAME) -> Path:
    """Write a template to a folder, and return the path of its text."""
    file = root / f"{name}.j2"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.with_suffix(".toml").write_text(metadata)
    return file


@asynccontextmanager
async def offering(
    *folders: Path, answers: Iterable[Any] = (), workspace: Path | None = None
) -> AsyncIterator[Local]:
    """Open a hub with the built-in templates and those of folders."""
    templates = Templates(folders, workspace, ("substrate.toml", "activations.d"))
    async with local(templates, answers=answers, within_s=WITHIN_S) as plexus:
        yield plexus


def snapshot(folder: Path) -> dict[str, bytes]:
    """Return the content of all files of a folder by their paths."""
    return {
        os.path.relpath(Path(parent, name), folder): Path(parent, name).read_bytes()
        for parent, _, names in os.walk(folder)
        for name in names
    }

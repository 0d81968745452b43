"""The record of the templates that a project was generated from: `.substrate-templates.json`.

It has the template, its parameters and a hash of the content for each file whose content is that of
the template, so that it can be found out later what was changed since, in the project or in the
template. A file of that name that is not such a record is not touched.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

from activations.templates.model import RECORD, Template
from activations.templates.parameters import Values
from activations.templates.project_folder import Moved, ProjectFolder
from plexus import Failed
from plexus.errors import PlexusError
from plexus.limits import Limits
from plexus.rpc import wire
from plexus.version import __version__

__all__ = ("hash_of", "record_entry", "update_record")

FORMAT: Final = 1
#: Files in a record.
MAX_FILES: Final = 2_000
_LIMITS: Final = Limits()


def hash_of(content: bytes) -> str:
    """Return the hash of a content."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def record_entry(template: Template, values: Values, content: bytes) -> dict[str, Any]:
    """Return the entry of a file."""
    return {
        "template": template.uri,
        "template_version": template.version,
        "template_hash": template.hash,
        "source": template.source,
        "parameters": {name: value for name, value in values.items() if value is not None},
        "content_hash": hash_of(content),
        "substrate_version": __version__,
    }


def update_record(folder: ProjectFolder, entries: Mapping[str, dict[str, Any]]) -> str | None:
    """Add entries to the record of a folder. Returns why that is not possible, or None."""
    try:
        with folder.locked():
            return _update(folder, entries)
    except Moved:
        return f"{RECORD} was changed by another program"
    except Failed as error:
        return error.message


def _update(folder: ProjectFolder, entries: Mapping[str, dict[str, Any]]) -> str | None:
    found = folder.read(RECORD)
    files: dict[str, Any] = {}
    if found is not None:
        if found.content is None:
            return f"{RECORD} {found.obstacle}"
        files = _files_of(found.content)
        if not files and found.content:
            return f"{RECORD} is not a record of this program"
    files |= entries
    if len(files) > MAX_FILES:
        return f"{RECORD} has more than {MAX_FILES:,} files"
    record = {"format": FORMAT, "files": {name: files[name] for name in sorted(files)}}
    content = wire.encode_pretty(record) + b"\n"
    if found is None:
        folder.create(RECORD, content)
    elif content != found.content:
        assert found.content is not None, "checked above"
        folder.replace(RECORD, content, found.content)
    return None


def _files_of(content: bytes) -> dict[str, Any]:
    """Return the files of a record; empty for something else."""
    try:
        record = wire.decode_value(content, _LIMITS, exact=False)
    except (ValueError, PlexusError):
        return {}
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        return {}
    files = record.get("files")
    return files if isinstance(files, dict) else {}

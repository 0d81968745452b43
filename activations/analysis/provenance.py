"""Drift of a project from the templates that it was made from.

`templates.scaffold_project` records in a file which template each file came from, and the digest of
what it wrote. Any program can edit the record, so its paths and its size are checked.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path, PurePosixPath
from typing import Any, Final

from plexus import Context, PlexusError
from plexus.errors import NotFound
from plexus.limits import Limits
from plexus.rpc import wire

__all__ = ("RECORD", "read_drift", "template_provenance")

RECORD: Final = ".substrate-templates.json"
RECORD_BYTES: Final = 1024 * 1024
#: Maximum size of a file whose digest is compared.
FILE_BYTES: Final = 16 * 1024 * 1024
MAX_FILES: Final = 1000
_LIMITS: Final = Limits(message_bytes=RECORD_BYTES)


def read_drift(root: Path) -> dict[str, Any]:
    """Return the state of each recorded file, or the reason why there is none."""
    try:
        fd = os.open(root / RECORD, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            content = file.read(RECORD_BYTES + 1)
    except FileNotFoundError:
        return {"absent": f"The project has no {RECORD}, so it was not made from templates."}
    except OSError as error:
        return {"absent": f"{RECORD} cannot be read: {error.strerror}"}
    try:
        entries = _entries(content)
        rows = [_row(root, path, entry) for path, entry in sorted(entries.items())[:MAX_FILES]]
    except (PlexusError, ValueError, KeyError, TypeError, AttributeError) as error:
        return {"absent": f"{RECORD} is invalid: {error}"}
    return {"record": RECORD, "files": rows}


def _entries(content: bytes) -> dict[str, dict[str, Any]]:
    if len(content) > RECORD_BYTES:
        raise ValueError("it is larger than 1 MiB")
    record = wire.decode_value(content, _LIMITS)
    if not isinstance(record, dict) or record.get("format") != 1:
        raise ValueError("it has another format")
    entries: dict[str, dict[str, Any]] = record["files"]
    return entries


def _row(root: Path, path: str, entry: dict[str, Any]) -> dict[str, Any]:
    parts = PurePosixPath(path).parts
    if path.startswith("/") or ".." in parts or "\0" in path:
        raise ValueError(f"the path {path[:80]!r} leads out of the project")
    row = {"file": path, "template": str(entry["template"]), "hash": str(entry["template_hash"])}
    try:
        # A link in the path could lead out of the project.
        if os.path.realpath(root / path) != str(root / path):
            return row | {"state": "replaced by a link"}
        fd = os.open(root / path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            content = file.read(FILE_BYTES)
    except FileNotFoundError:
        return row | {"state": "deleted"}
    except OSError as error:
        return row | {"state": f"unreadable: {error.strerror}"}
    digest = "sha256:" + hashlib.sha256(content).hexdigest()
    return row | {"state": "unchanged" if digest == entry["content_hash"] else "changed"}


async def template_provenance(drift: dict[str, Any], ctx: Context) -> dict[str, Any]:
    """Return the drift with the state of each template, as far as it can be asked for."""
    if "absent" in drift:
        return drift
    states: dict[tuple[str, str], str] = {}
    for row in drift["files"]:
        recorded = row.pop("hash")
        uri = row["template"]
        if (uri, recorded) not in states:
            states[uri, recorded] = await _template_state(uri, recorded, ctx)
        row["template_state"] = states[uri, recorded]
    changed = sum(row["state"] != "unchanged" for row in drift["files"])
    return {**drift, "drifted": changed, "total": len(drift["files"])}


async def _template_state(uri: str, recorded: str, ctx: Context) -> str:
    try:
        found = await ctx.call("templates.describe_template", resource_uri=uri)
    except NotFound:
        return "the template no longer exists"
    except PlexusError as error:
        return f"not measured: {error}"
    digest = found.get("hash") if isinstance(found, dict) else getattr(found, "hash", None)
    if digest is None:
        return "not measured: the template has no digest"
    return "unchanged" if digest == recorded else "the template has changed"

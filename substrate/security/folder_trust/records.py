"""Records of trusted folders: one file each, in the user's state folder.

A record is a separate file, named by a digest of the folder's real path and replaced atomically, so
that concurrent writers leave one complete record, and a damaged record affects one folder only.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import stat
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from plexus.private_files import state_folder
from substrate.security.private_files import ensure_private_folder, read_json, write_private

__all__ = ("Record", "RecordError", "list_records", "read_record", "remove_record", "write_record")

SUFFIX: Final = ".json"


class RecordError(Exception):
    """A record cannot be read or written. The message says which, why and what to do."""


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """Trust in a folder."""

    folder: str
    #: Whether it is trusted regardless of its contents.
    always: bool
    #: The digest of each trusted file, by its name relative to the folder.
    files: dict[str, str]
    since_s: float
    #: The namespaces that its plugins define and the classes that they extend: while the plugins
    #: are not loaded, a built-in activation of that namespace or class is off.
    replaces: tuple[str, ...] = ()


def write_record(folder: Path, files: dict[str, str] | None, replaces: Iterable[str] = ()) -> None:
    """Trust a folder with these files, or with any files if None. Raises RecordError."""
    path = _path(folder)
    entry = {
        "folder": str(folder),
        "always": files is None,
        "files": files or {},
        "replaces": sorted(replaces),
        "since": round(time.time(), 3),
    }
    try:
        ensure_private_folder(path.parent.parent)
        ensure_private_folder(path.parent)
        write_private(path, entry)
    except OSError as error:
        raise RecordError(
            f"The trust in this folder cannot be stored: {error.filename or path}: "
            f"{error.strerror}. Make that path writable, or set XDG_STATE_HOME to another folder."
        ) from error


def read_record(folder: Path) -> Record | None:
    """Return the record of a folder, by its real path; None if not trusted. Raises RecordError."""
    path = _path(folder)
    record = _read(path)
    if record is not None and record.folder != str(folder):
        raise _damaged(path, "it belongs to another folder")
    return record


def remove_record(folder: Path) -> bool:
    """Remove the trust in a folder. False if it was not trusted. Raises RecordError."""
    path = _path(folder)
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise RecordError(f"{path} cannot be removed: {error.strerror}.") from error
    return True


def list_records() -> tuple[list[Record], list[str]]:
    """Return all records, sorted by folder, and the errors of those that cannot be read."""
    records, errors = [], []
    for path in sorted(_folder().glob(f"*{SUFFIX}")):
        try:
            record = _read(path)
        except RecordError as error:
            errors.append(str(error))
        else:
            if record is not None:
                records.append(record)
    return sorted(records, key=lambda each: each.folder), errors


def _folder() -> Path:
    return state_folder() / "trust"


def _path(folder: Path) -> Path:
    try:
        key = str(folder).encode()
    except UnicodeEncodeError:
        raise RecordError(f"The path {str(folder)!a} is not UTF-8 and cannot be trusted.") from None
    return _folder() / f"{hashlib.sha256(key).hexdigest()[:32]}{SUFFIX}"


def _read(path: Path) -> Record | None:
    try:
        found, around = path.lstat(), path.parent.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _damaged(path, error.strerror or "it cannot be read") from error
    if not stat.S_ISREG(found.st_mode):
        raise _damaged(path, "it is not a regular file")
    for each in (found, around):
        if each.st_uid != os.geteuid() or each.st_mode & 0o022:
            raise _damaged(path, "another user can write to it")
    try:
        return _record(read_json(path))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it contains no valid record"
        raise _damaged(path, str(reason)) from error


def _record(value: Any) -> Record:
    folder, always, files, since = (value[key] for key in ("folder", "always", "files", "since"))
    if not (isinstance(folder, str) and isinstance(always, bool)):
        raise TypeError
    if not all(isinstance(digest, str) for digest in files.values()):
        raise TypeError
    replaces = tuple(value.get("replaces", ()))
    if not all(isinstance(name, str) for name in replaces):
        raise TypeError
    return Record(folder, always, dict(files), float(since), replaces)


def _damaged(path: Path, reason: str) -> RecordError:
    return RecordError(
        f"The trust record {path} cannot be used: {reason}. "
        f"Remove it, and run `substrate trust` in the folder again."
    )

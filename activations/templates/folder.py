"""Reads the templates of one folder, which may be hostile.

    parameters.toml                        parameters that templates share
    partials/NAME.j2                       texts that templates include
    CATEGORY/TOOLCHAIN/VARIANT.toml        what the template is
    CATEGORY/TOOLCHAIN/VARIANT.j2          its text

Every file is opened below the folder without following symbolic links, must be regular, and is
bounded in size, as are their number and their total size. A file that cannot be used is a problem
that is reported; the others are still read.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from activations.templates.model import Template, is_part
from activations.templates.parameters import MAX_PARAMETERS, Parameter, read_parameter
from plexus.registry.validation import nearest
from plexus.text import escape_controls, shorten

__all__ = ("Folder", "read_folder")

#: Size of one file, and of all files of a folder.
FILE_BYTES: Final = 256 * 1024
FOLDER_BYTES: Final = 8 * 1024 * 1024
#: Entries of a folder, and templates in it.
MAX_ENTRIES: Final = 5_000
MAX_TEMPLATES: Final = 500
#: Problems that are kept, and characters of each.
MAX_PROBLEMS: Final = 100
PROBLEM_CHARACTERS: Final = 300
SHARED: Final = "parameters.toml"
PARTIALS: Final = "partials"
_OPEN: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY

#: The keys of a template, and their types.
_KEYS: Final[dict[str, type]] = {
    "name": str,
    "description": str,
    "path": str,
    "mime_type": str,
    "version": str,
    "tags": list,
    "uses": list,
    "parameters": dict,
}
_REQUIRED: Final = ("name", "description", "path")
_MAX_TEXT: Final = 500


class _Unusable(Exception):
    """A file or a folder that cannot be used; the text says why."""


@dataclass
class Folder:
    """The templates of a folder."""

    source: str
    templates: list[Template] = field(default_factory=list)
    #: The texts that a render process gets: templates and partials by name.
    texts: dict[str, str] = field(default_factory=dict)
    #: What could not be used, by its path in the folder.
    problems: dict[str, str] = field(default_factory=dict)
    digest: str = ""

    def add_problem(self, path: str, problem: str) -> None:
        """Record a problem, within bounds."""
        if len(self.problems) < MAX_PROBLEMS:
            self.problems[path] = escape_controls(shorten(problem, PROBLEM_CHARACTERS))


def read_folder(path: Path, source: str) -> Folder:
    """Read a folder. Raises OSError if it cannot be opened."""
    folder = Folder(source)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        files = _Reader(folder).read(fd)
    finally:
        os.close(fd)
    shared = _read_shared(folder, files)
    folder.texts = {name: text for name, text in files.items() if name.endswith(".j2")}
    folder.digest = _hash([text for each in sorted(files.items()) for text in each])
    partials = [files[name] for name in sorted(files) if name.startswith(f"{PARTIALS}/")]
    for name in sorted(files):
        parts = name.removesuffix(".toml").split("/")
        if len(parts) != 3 or not name.endswith(".toml"):
            continue
        if len(folder.templates) == MAX_TEMPLATES:
            folder.add_problem(name, f"there are more than {MAX_TEMPLATES} templates")
            break
        try:
            folder.templates.append(_read_template(folder, parts, files, shared, partials))
        except (_Unusable, ValueError, RecursionError) as error:
            folder.add_problem(name, str(error) or "it is nested too deeply")
    described = {each.file for each in folder.templates}
    for name in folder.texts:
        if name not in described and not name.startswith(f"{PARTIALS}/"):
            toml = f"{name.removesuffix('.j2')}.toml"
            if toml not in folder.problems:
                folder.add_problem(name, f"{toml} is missing")
    return folder


class _Reader:
    """Reads the files of a folder by their paths, within the bounds."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._entries = 0
        self._bytes = 0

    def read(self, root: int) -> dict[str, str]:
        """Return the texts of all files that may belong to templates."""
        return dict(self._walk(root, ""))

    def _walk(self, fd: int, prefix: str) -> Iterator[tuple[str, str]]:
        depth = prefix.count("/")
        for name in self._names(fd, prefix):
            path = prefix + name
            try:
                if name.endswith((".toml", ".j2")):
                    if self._belongs(path):
                        yield path, self._read_file(fd, name)
                elif depth < 2 and is_part(name):
                    with _opened(fd, name, os.O_DIRECTORY) as inner:
                        yield from self._walk(inner, f"{path}/")
            except _Unusable as error:
                self._folder.add_problem(path, str(error))

    def _names(self, fd: int, prefix: str) -> list[str]:
        """Return the names in a folder, sorted, without hidden ones."""
        names = []
        with os.scandir(fd) as entries:
            for entry in entries:
                self._entries += 1
                if self._entries > MAX_ENTRIES:
                    problem = f"the folder has more than {MAX_ENTRIES:,} entries"
                    self._folder.add_problem(prefix or ".", problem)
                    break
                if not entry.name.startswith("."):
                    names.append(entry.name)
        return sorted(names)

    @staticmethod
    def _belongs(path: str) -> bool:
        parts = path.split("/")
        if len(parts) == 2:
            return parts[0] == PARTIALS and path.endswith(".j2")
        stem = parts[-1].removesuffix(".toml").removesuffix(".j2")
        return path == SHARED or (len(parts) == 3 and is_part(stem))

    def _read_file(self, fd: int, name: str) -> str:
        with _opened(fd, name) as file:
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode):
                raise _Unusable("it is not a regular file")
            # The size may grow meanwhile, and that of a file in /proc is 0.
            data = b""
            while chunk := os.read(file, FILE_BYTES + 1 - len(data)):
                data += chunk
                if len(data) > FILE_BYTES:
                    raise _Unusable(f"it is larger than {FILE_BYTES:,} bytes")
        self._bytes += len(data)
        if self._bytes > FOLDER_BYTES:
            raise _Unusable(f"the folder has more than {FOLDER_BYTES:,} bytes")
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            raise _Unusable("it is not UTF-8") from error
        return text.removeprefix("\ufeff").replace("\r\n", "\n")


@contextmanager
def _opened(fd: int, name: str, flags: int = 0) -> Iterator[int]:
    """Open a file or a folder in a folder, but no symbolic link. Raises _Unusable."""
    try:
        opened = os.open(name, _OPEN | flags, dir_fd=fd)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR) and _is_link(fd, name):
            raise _Unusable("it is a symbolic link, which is not followed") from error
        if error.errno == errno.ENOTDIR:
            raise _Unusable("it is not a folder") from error
        raise _Unusable(f"it cannot be opened: {error.strerror}") from error
    try:
        yield opened
    except OSError as error:
        raise _Unusable(f"it cannot be read: {error.strerror}") from error
    finally:
        os.close(opened)


def _is_link(fd: int, name: str) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode)
    except OSError:
        return False


# --- metadata ---------------------------------------------------------------------------------


def _read_toml(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise _Unusable(f"it is not valid TOML: {reason}") from error


class _Shared:
    """The parameters that the templates of a folder share."""

    def __init__(self, tables: Mapping[str, Any]) -> None:
        parameters, toolchains = tables.get("parameters", {}), tables.get("toolchains", {})
        for key in tables:
            if key not in ("parameters", "toolchains"):
                raise ValueError(f"unknown table {key[:60]!r}; known: parameters, toolchains")
        _check_tables("parameters", parameters)
        _check_tables("toolchains", toolchains)
        for name, overrides in toolchains.items():
            _check_tables(f"toolchains.{name[:60]}", overrides)
        self._parameters: dict[str, Any] = parameters
        self._toolchains: dict[str, Any] = toolchains

    def get(self, name: str, toolchain: str) -> Parameter:
        """Return a parameter as a toolchain has it. Raises ValueError."""
        own = self._toolchains.get(toolchain, {}).get(name)
        if own is None and name not in self._parameters:
            near = nearest(name, self._parameters, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"{SHARED} has no parameter {name[:60]!r}{hint}")
        return read_parameter(name, {**self._parameters.get(name, {}), **(own or {})})


def _check_tables(where: str, tables: Any) -> None:
    if not isinstance(tables, dict) or not all(isinstance(each, dict) for each in tables.values()):
        raise ValueError(f"{where} must contain only tables")


def _read_shared(folder: Folder, files: Mapping[str, str]) -> _Shared:
    try:
        return _Shared(_read_toml(files[SHARED]) if SHARED in files else {})
    except (_Unusable, ValueError) as error:
        folder.add_problem(SHARED, str(error))
        return _Shared({})


def _read_template(
    folder: Folder,
    parts: list[str],
    files: Mapping[str, str],
    shared: _Shared,
    partials: list[str],
) -> Template:
    """Return a template. Raises _Unusable and ValueError."""
    category, toolchain, variant = parts
    stem = "/".join(parts)
    if f"{stem}.j2" not in files:
        problem = folder.problems.get(f"{stem}.j2")
        raise _Unusable(f"{variant}.j2 is missing" if problem is None else f"the text: {problem}")
    table = _read_toml(files[f"{stem}.toml"])
    for key, value in table.items():
        if key not in _KEYS:
            near = nearest(key, _KEYS, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"unknown key {key[:60]!r}{hint}")
        if not isinstance(value, _KEYS[key]):
            raise _Unusable(f"{key} must be a {_KEYS[key].__name__}")
        if isinstance(value, str) and len(value) > _MAX_TEXT:
            raise ValueError(f"{key} has more than {_MAX_TEXT} characters")
    missing = [key for key in _REQUIRED if not table.get(key)]
    if missing:
        raise ValueError(f"{' and '.join(missing)} must be set")
    text = files[f"{stem}.j2"]
    return Template(
        category=category,
        toolchain=toolchain,
        variant=variant,
        name=_line(table["name"]),
        description=_line(table["description"]),
        version=_line(table.get("version", "1")),
        tags=tuple(map(_line, _texts("tags", table))),
        path=_line(table["path"]),
        mime_type=_line(table.get("mime_type", "text/plain")),
        parameters=_read_parameters(table, shared, toolchain),
        text=text,
        hash=f"sha256:{_hash([files[f'{stem}.toml'], text, files.get(SHARED, ''), *partials])}",
        source=folder.source,
        folder=folder.digest,
    )


def _read_parameters(
    table: Mapping[str, Any], shared: _Shared, toolchain: str
) -> tuple[Parameter, ...]:
    own = table.get("parameters", {})
    _check_tables("parameters", own)
    found = {name: shared.get(name, toolchain) for name in _texts("uses", table)}
    found |= {name: read_parameter(name, each) for name, each in own.items()}
    if len(found) > MAX_PARAMETERS:
        raise ValueError(f"there are more than {MAX_PARAMETERS} parameters")
    return tuple(found.values())


def _texts(key: str, table: Mapping[str, Any]) -> list[str]:
    values: list[Any] = table.get(key, [])
    if len(values) > MAX_PARAMETERS or not all(isinstance(each, str) for each in values):
        raise ValueError(f"{key} must be a list of at most {MAX_PARAMETERS} texts")
    return values


def _line(text: str) -> str:
    """Return a text of a template for lists: on one line, bounded."""
    return escape_controls(shorten(text, _MAX_TEXT))


def _hash(texts: list[str]) -> str:
    """Return the SHA-256 of texts, each with its length."""
    digest = hashlib.sha256()
    for text in texts:
        data = text.encode()
        digest.update(b"%d:" % len(data) + data)
    return digest.hexdigest()

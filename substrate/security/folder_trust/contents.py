"""Contents of a project folder that this program would load: every file, read once, with a digest.

Rules:

- Nothing is executed here. `substrate.toml` is searched for the names of further files only if the
  caller allows it, which it does for content that is trusted already or is about to be shown.
- Only regular files are opened, and read up to a limit: a FIFO, a device or an endless file is
  refused by name.
- Links are followed, and their targets count. A dangling link counts by its text.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from plexus.registry.activation_tree import NAME_LENGTH
from plexus.registry.plugin_namespaces import namespaces_in
from substrate.settings import ACTIVATIONS_FOLDER, FILE, FOLDER_VARIABLE, is_there, operator_folder

__all__ = (
    "Contents",
    "Entry",
    "Unreadable",
    "plugin_folder",
    "read_contents",
    "read_settings_file",
)

#: Plugins are a few files. A larger folder is something else, and hashing it would delay starts.
MAX_FILES: Final = 500
#: Maximum size of all files together; a start reads and hashes them.
MAX_BYTES: Final = 16 * 1024 * 1024
#: Maximum depth of nested folders.
MAX_DEPTH: Final = 16
#: Settings are about a page.
MAX_SETTINGS_BYTES: Final = 256 * 1024
#: Maximum size of all names together, so that a record of them can be stored and read again.
MAX_NAME_BYTES: Final = 128 * 1024
READ_BYTES: Final = 1024 * 1024


class Unreadable(Exception):
    """The files cannot be read completely. The message names the file and the reason."""


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """One file."""

    size: int
    #: SHA-256 of the content.
    digest: str
    #: The content of code and settings; None for other files.
    content: bytes | None


@dataclasses.dataclass(frozen=True, slots=True)
class Contents:
    """All files, by their names relative to the folder."""

    entries: dict[str, Entry]
    #: The names of the plugin files.
    plugins: tuple[str, ...]

    def digests(self) -> dict[str, str]:
        """Return the digest of each file."""
        return {name: entry.digest for name, entry in self.entries.items()}

    def replaces(self) -> set[str]:
        """Return the namespaces that the plugins define and the classes that they extend.

        Found by reading the text of the Python files, not by running them.
        """
        names: set[str] = set()
        for name, entry in self.entries.items():
            if name != FILE and entry.content is not None:
                text = entry.content.decode(errors="replace")
                words = {word: word for word in re.findall(r"\w+", text)}
                names |= namespaces_in(text, words)
        return set(sorted(name for name in names if len(name) <= NAME_LENGTH)[:MAX_FILES])

    def settings(self) -> bytes | None:
        """Return the content of `substrate.toml`."""
        return self.entries[FILE].content if FILE in self.entries else None


def plugin_folder(settings: bytes | None) -> str:
    """Return the folder of plugin files, from the environment, these settings or the default."""
    named = _settings_table(settings).get("activations_folder")
    default = named if isinstance(named, str) else ACTIVATIONS_FOLDER
    return os.environ.get(FOLDER_VARIABLE) or default


def read_settings_file(folder: Path) -> Entry | None:
    """Read `substrate.toml` of the folder; None if it does not exist. Raises Unreadable."""
    if not is_there(folder / FILE):
        return None
    return _Reader().read(folder / FILE, FILE, MAX_SETTINGS_BYTES)


def read_contents(folder: Path, may_follow: Callable[[str], bool] = lambda _: True) -> Contents:
    """Read every file that would be loaded from this folder. Raises Unreadable.

    These include the files that `substrate.toml` names, if `may_follow` allows that for its digest.
    """
    reader = _Reader()
    settings = read_settings_file(folder)
    followed = None
    if settings is not None:
        reader.entries[FILE] = settings
        followed = settings.content if may_follow(settings.digest) else None
    named = plugin_folder(followed)
    if not operator_folder():
        reader.walk(folder / named, named)
    plugins = tuple(name for name in reader.entries if _is_plugin(name, f"{named}/"))
    for name in _named_files(followed):
        if name not in reader.entries:
            reader.walk(folder / name, name)
    return Contents(reader.entries, plugins)


def _is_plugin(name: str, prefix: str) -> bool:
    """Return whether this is a Python file directly in the folder, as in `*.py`."""
    inside = name.removeprefix(prefix)
    return inside != name and "/" not in inside and inside.endswith(".py")


def _named_files(settings: bytes | None) -> Iterator[str]:
    """Yield the Python files that the setting `activation` names.

    Other files are never verified, and so never loaded from a folder that is trusted by digest.
    """
    names = _settings_table(settings).get("activation")
    for name in names if isinstance(names, list) else ():
        if isinstance(name, str) and name.endswith(".py") and "\0" not in name:
            yield name


def _settings_table(settings: bytes | None) -> dict[str, Any]:
    """Return the parsed settings; empty if they are invalid, which the loader reports."""
    if settings is None:
        return {}
    import tomllib

    try:
        return tomllib.loads(settings.decode())
    except (ValueError, RecursionError):
        return {}


class _Reader:
    """Reader of files within shared limits."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self._bytes = 0
        self._name_bytes = 0
        #: Number of files and folders. Folders count, because links can multiply them.
        self._visited = 0

    def walk(self, path: Path, name: str, above: tuple[tuple[int, int], ...] = ()) -> None:
        """Read a file, or everything below a folder. Raises Unreadable.

        A missing path contains nothing.
        """
        try:
            name.encode()
        except UnicodeEncodeError:
            raise Unreadable(f"the name {name!a} is not UTF-8") from None
        self._visited += 1
        if self._visited > MAX_FILES:
            raise Unreadable(f"there are more than {MAX_FILES} files and folders")
        try:
            found = path.stat()
        except OSError as error:
            if path.is_symlink():
                self._add(name, _dangling(path))
                return
            if isinstance(error, FileNotFoundError):
                return
            raise Unreadable(f"{name} cannot be read: {error.strerror}") from error
        if not stat.S_ISDIR(found.st_mode):
            self._add(name, self.read(path, name))
            return
        identity = (found.st_dev, found.st_ino)
        if identity in above:
            raise Unreadable(f"{name} is a link to one of its parent folders")
        if len(above) >= MAX_DEPTH:
            raise Unreadable(f"{name} is more than {MAX_DEPTH} folders deep")
        try:
            inside = sorted(_list_names(path))
        except OSError as error:
            raise Unreadable(f"{name} cannot be read: {error.strerror}") from error
        for each in inside:
            self.walk(path / each, f"{name}/{each}", (*above, identity))

    def read(self, path: Path, name: str, limit: int = MAX_BYTES) -> Entry:
        """Read a regular file. Raises Unreadable."""
        try:
            content = self._content(path, name, min(limit, MAX_BYTES - self._bytes))
        except OSError as error:
            raise Unreadable(f"{name} cannot be read: {error.strerror}") from error
        self._bytes += len(content)
        keep = name == FILE or name.endswith(".py")
        digest = hashlib.sha256(content).hexdigest()
        return Entry(len(content), digest, content if keep else None)

    def _content(self, path: Path, name: str, limit: int) -> bytes:
        # Checked first, because opening a device can have effects, and again after opening, because
        # it may have been replaced. Non-blocking, in case it is not a regular file after all.
        if not stat.S_ISREG(path.stat().st_mode):
            raise Unreadable(f"{name} is not a regular file")
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        descriptor = os.open(path, flags)
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise Unreadable(f"{name} is not a regular file")
            parts, left = [], limit + 1
            while left and (part := file.read(min(left, READ_BYTES))):
                parts.append(part)
                left -= len(part)
        if not left:
            raise Unreadable(f"{name} is too large: the limit is {limit:,} bytes")
        return b"".join(parts)

    def _add(self, name: str, entry: Entry) -> None:
        self.entries[name] = entry
        self._name_bytes += len(name.encode())
        if self._name_bytes > MAX_NAME_BYTES:
            raise Unreadable("the names of the files are too long")


def _list_names(path: Path) -> list[str]:
    """Return the names in a folder, or enough of them to see that there are too many."""
    names = []
    with os.scandir(path) as found:
        for entry in found:
            names.append(entry.name)
            if len(names) > MAX_FILES:
                break
    return names


def _dangling(path: Path) -> Entry:
    text = os.fsencode(path.readlink())
    return Entry(0, hashlib.sha256(b"link to nothing: " + text).hexdigest(), None)

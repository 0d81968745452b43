"""What a project folder would have this program load: every file, read once, with its digest.

Rules:
- Nothing is executed here. `substrate.toml` is searched for the names of further files only if the
  caller says so, which it does for content that is trusted already or is about to be shown.
- A file is opened only if it is a regular one, and read up to a bound: a FIFO, a device or a file
  without an end is refused with its name.
- Links are followed, and what they lead to is what counts. A link that leads nowhere counts by its
  text.
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
from substrate.settings import FILE, FOLDER_VARIABLE, Settings, is_there, operator_folder

__all__ = (
    "Contents",
    "Entry",
    "Unreadable",
    "plugin_folder",
    "read_contents",
    "read_settings_file",
)

#: Plugins are a few files. A folder of more is something else, and hashing it would delay starts.
MAX_FILES: Final = 500
#: All files together; a start reads and hashes them.
MAX_BYTES: Final = 16 * 1024 * 1024
#: Folders inside folders.
MAX_DEPTH: Final = 16
#: A file of settings is a page.
MAX_SETTINGS_BYTES: Final = 256 * 1024
#: All names together, so that a record of them can be stored and read again.
MAX_NAME_BYTES: Final = 128 * 1024
READ_BYTES: Final = 1024 * 1024


class Unreadable(Exception):
    """The files cannot be read whole; the message names the file and the reason."""


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """One file."""

    size: int
    #: SHA-256 of the content.
    digest: str
    #: The content of what can be executed or obeyed; None for other files.
    content: bytes | None


@dataclasses.dataclass(frozen=True, slots=True)
class Contents:
    """All files, by their names relative to the folder."""

    entries: dict[str, Entry]
    #: The names of the files that are plugins of their own.
    plugins: tuple[str, ...]

    def digests(self) -> dict[str, str]:
        """The digest of each file."""
        return {name: entry.digest for name, entry in self.entries.items()}

    def replaces(self) -> set[str]:
        """The namespaces that the Python files name, and the classes that they extend without
        naming one, as far as their text shows it."""
        names: set[str] = set()
        for name, entry in self.entries.items():
            if name != FILE and entry.content is not None:
                text = entry.content.decode(errors="replace")
                words = {word: word for word in re.findall(r"\w+", text)}
                names |= namespaces_in(text, words)
        return set(sorted(name for name in names if len(name) <= NAME_LENGTH)[:MAX_FILES])

    def settings(self) -> bytes | None:
        """The content of `substrate.toml`."""
        return self.entries[FILE].content if FILE in self.entries else None


def plugin_folder(settings: bytes | None) -> str:
    """The folder of plugin files, as the variable, these settings or the default name it."""
    named = _settings_table(settings).get("activations_folder")
    default = named if isinstance(named, str) else Settings.activations_folder
    return os.environ.get(FOLDER_VARIABLE) or default


def read_settings_file(folder: Path) -> Entry | None:
    """`substrate.toml` of the folder; None if there is none. Raises Unreadable."""
    if not is_there(folder / FILE):
        return None
    return _Reader().read(folder / FILE, FILE, MAX_SETTINGS_BYTES)


def read_contents(folder: Path, may_follow: Callable[[str], bool] = lambda _: True) -> Contents:
    """Read every file that this folder would have loaded.

    These include the files that `substrate.toml` names, if `may_follow` allows that for its digest.
    Raises Unreadable.
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
    """Whether this is a Python file directly in the folder; one of `*.py`, as a glob means it."""
    inside = name.removeprefix(prefix)
    return inside != name and "/" not in inside and inside.endswith(".py")


def _named_files(settings: bytes | None) -> Iterator[str]:
    """The Python files that `activation` names. Files of other kinds are never verified, and so
    never loaded from a folder that is trusted as it is."""
    names = _settings_table(settings).get("activation")
    for name in names if isinstance(names, list) else ():
        if isinstance(name, str) and name.endswith(".py") and "\0" not in name:
            yield name


def _settings_table(settings: bytes | None) -> dict[str, Any]:
    """The settings, or nothing if they cannot be parsed; the loader reports that."""
    if settings is None:
        return {}
    import tomllib

    try:
        return tomllib.loads(settings.decode())
    except (ValueError, RecursionError):
        return {}


class _Reader:
    """Reads files, all within the same bounds."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self._bytes = 0
        self._name_bytes = 0
        #: Files and folders; folders count, because links can multiply them.
        self._visited = 0

    def walk(self, path: Path, name: str, above: tuple[tuple[int, int], ...] = ()) -> None:
        """Read a file, or everything below a folder; raises Unreadable. One that does not exist
        has nothing."""
        try:
            name.encode()
        except UnicodeEncodeError:
            raise Unreadable(f"{name!a} is a name that is not UTF-8") from None
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
            raise Unreadable(f"{name} is a link to a folder that it is in")
        if len(above) >= MAX_DEPTH:
            raise Unreadable(f"{name} is more than {MAX_DEPTH} folders deep")
        try:
            inside = sorted(_listed(path))
        except OSError as error:
            raise Unreadable(f"{name} cannot be read: {error.strerror}") from error
        for each in inside:
            self.walk(path / each, f"{name}/{each}", (*above, identity))

    def read(self, path: Path, name: str, bound: int = MAX_BYTES) -> Entry:
        """Read a regular file; raises Unreadable."""
        try:
            content = self._content(path, name, min(bound, MAX_BYTES - self._bytes))
        except OSError as error:
            raise Unreadable(f"{name} cannot be read: {error.strerror}") from error
        self._bytes += len(content)
        keep = name == FILE or name.endswith(".py")
        digest = hashlib.sha256(content).hexdigest()
        return Entry(len(content), digest, content if keep else None)

    def _content(self, path: Path, name: str, bound: int) -> bytes:
        # Looked at first, because opening a device can have effects, and again when it is open,
        # because it may have been replaced. Not to block covers what looks like a file and is none.
        if not stat.S_ISREG(path.stat().st_mode):
            raise Unreadable(f"{name} is not a regular file")
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        descriptor = os.open(path, flags)
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise Unreadable(f"{name} is not a regular file")
            parts, left = [], bound + 1
            while left and (part := file.read(min(left, READ_BYTES))):
                parts.append(part)
                left -= len(part)
        if not left:
            raise Unreadable(f"{name} is too large: at most {bound:,} bytes are read")
        return b"".join(parts)

    def _add(self, name: str, entry: Entry) -> None:
        self.entries[name] = entry
        self._name_bytes += len(name.encode())
        if self._name_bytes > MAX_NAME_BYTES:
            raise Unreadable("the names of the files are too long")


def _listed(path: Path) -> list[str]:
    """The names in a folder, as far as they are needed to see that there are too many."""
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

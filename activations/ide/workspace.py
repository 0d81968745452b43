"""The files of a workspace: found, read and written inside its folder only.

Every path is resolved first, and then opened from the folder of the workspace on, one part after
the other, without following links: a part that is replaced by a link meanwhile is an error and
leads nowhere. Only regular files are opened, so a device or a pipe cannot block the server.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, Literal, NamedTuple

from activations.ide.ignore import IgnoreFile, is_ignored, parse_ignore
from plexus import Failed, InvalidParams, NotFound
from plexus.errors import TooBig

__all__ = (
    "DOCUMENT_BYTES",
    "FolderEntry",
    "FolderList",
    "TextFile",
    "Workspace",
    "check_size",
    "digest_of",
)

#: Maximum size of a document in the editor: with its JSON it must fit into one message.
DOCUMENT_BYTES: Final = 512 * 1024
#: Maximum entries of a folder in a list.
MAX_ENTRIES: Final = 2000
#: Maximum files that a search for names visits, and maximum depth of their folders.
MAX_VISITED: Final = 50_000
MAX_DEPTH: Final = 40
#: Maximum size of a `.gitignore` that is read.
IGNORE_BYTES: Final = 64 * 1024
MAX_PATH: Final = 4096
GIT: Final = ".git"

Kind = Literal["folder", "file", "link", "other"]


@dataclasses.dataclass(frozen=True, slots=True)
class FolderEntry:
    """A file or folder in a list."""

    name: str
    path: str
    kind: Kind
    size: int | None
    ignored: bool


@dataclasses.dataclass(frozen=True, slots=True)
class FolderList:
    """The content of a folder; `more` is the number of entries that are not listed."""

    path: str
    entries: list[FolderEntry]
    more: int


class TextFile(NamedTuple):
    """The content of a file."""

    text: str
    digest: str


def digest_of(text: str) -> str:
    """Return a digest of the bytes of a text file."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def check_size(text: str, limit: int, subject: str) -> bytes:
    """Return the encoded text. Raises TooBig, and InvalidParams for what is not Unicode."""
    try:
        data = text.encode()
    except UnicodeEncodeError:
        raise InvalidParams(
            f"{subject} contains a lone surrogate, which no file can store"
        ) from None
    if len(data) > limit:
        raise TooBig(
            f"{subject} has {len(data):,} bytes. The maximum is {limit:,}.", data={"limit": limit}
        )
    return data


class Workspace:
    """One folder, and the files in it. All methods block: call them in a thread."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(os.path.realpath(folder))

    @property
    def name(self) -> str:
        """The name of the folder."""
        return self.folder.name or "/"

    # --- paths --------------------------------------------------------------------------------

    def relative(self, path: str) -> str:
        """Return a path relative to the workspace, with links resolved; "" for the folder itself.

        The path may be absolute. Raises InvalidParams for a path outside the workspace.
        """
        if "\0" in path or len(path) > MAX_PATH:
            raise InvalidParams.at("path", "contains a NUL character, or is too long")
        if path.startswith("file://"):
            raise InvalidParams.at("path", "must be a path, not a URI")
        try:
            resolved = Path(os.path.realpath(self.folder / path))
        except (OSError, ValueError) as error:
            raise InvalidParams.at("path", f"cannot be resolved: {error}") from None
        try:
            found = resolved.relative_to(self.folder)
        except ValueError:
            raise InvalidParams(
                f"path: {_shown(path)} is outside the workspace {self.folder}",
                data={"workspace": str(self.folder)},
            ) from None
        return "" if found == Path() else found.as_posix()

    def absolute(self, path: str) -> str:
        """Return the absolute path of a path in the workspace."""
        return str(self.folder / path)

    @contextlib.contextmanager
    def _open_parent(self, path: str) -> Iterator[tuple[int, str]]:
        """Open the folder that contains a resolved path. Raises NotFound and Failed."""
        folder, _, name = path.rpartition("/")
        with self._open_folder(folder) as fd:
            yield fd, name

    @contextlib.contextmanager
    def _open_folder(self, path: str) -> Iterator[int]:
        """Open a folder by its resolved path. Raises NotFound and Failed."""
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        fd = os.open(self.folder, flags)
        try:
            for part in path.split("/") if path else ():
                with _failing(path):
                    deeper = os.open(part, flags | os.O_NOFOLLOW, dir_fd=fd)
                os.close(fd)
                fd = deeper
            yield fd
        finally:
            os.close(fd)

    # --- reading ------------------------------------------------------------------------------

    def read(self, path: str, limit: int = DOCUMENT_BYTES) -> TextFile:
        """Return the content of a text file.

        Raises NotFound, InvalidParams for what is no file, TooBig, and Failed with the code
        `not_text` for bytes that are not UTF-8.
        """
        if not path:
            raise InvalidParams.at("path", "is a folder, not a file")
        with self._open_parent(path) as (folder, name), _failing(path):
            _check_regular(os.stat(name, dir_fd=folder, follow_symlinks=False), path)
            flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
            fd = os.open(name, flags, dir_fd=folder)
            with os.fdopen(fd, "rb") as file:
                found = os.fstat(file.fileno())
                _check_regular(found, path)
                # One byte more than allowed: files of /proc and growing files declare no size.
                data = file.read(limit + 1) if found.st_size <= limit else None
        if data is None or len(data) > limit:
            raise TooBig(f"{_shown(path)} is larger than {limit:,} bytes.", data={"limit": limit})
        try:
            text = data.decode()
        except UnicodeDecodeError:
            text = "\0"
        if "\0" in text:
            raise Failed(f"{_shown(path)} is not a text file in UTF-8.", code="not_text")
        return TextFile(text, hashlib.sha256(data).hexdigest())

    def digest(self, path: str) -> str | None:
        """Return the digest of a file now; None if it does not exist or is no text any more."""
        try:
            return self.read(path).digest
        except NotFound:
            return None
        except (InvalidParams, TooBig, Failed):
            return ""

    def stamp(self, paths: Iterable[str]) -> int:
        """Return a number that differs as soon as one of these files is written or replaced."""
        return hash(tuple(map(self._stamp, paths)))

    def _stamp(self, path: str) -> tuple[str, int, int, int]:
        try:
            with self._open_parent(path) as (folder, name):
                found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except (OSError, NotFound, Failed):
            return path, 0, 0, 0
        return path, found.st_mtime_ns, found.st_size, found.st_ino

    def exists(self, path: str) -> bool:
        """Return whether a file or folder exists at a resolved path."""
        try:
            with self._open_parent(path) as (folder, name):
                os.stat(name, dir_fd=folder, follow_symlinks=False)
        except (OSError, NotFound, Failed, InvalidParams):
            return False
        return True

    # --- writing ------------------------------------------------------------------------------

    def write(self, path: str, text: str, expected: str | None, *, force: bool = False) -> str:
        """Replace the content of a file atomically; return the new digest.

        `expected` is the digest that the file must have now, None for a file that must not exist.
        The mode of the file is kept. Raises Failed with the code `conflict` if the file has
        changed, unless `force` is set.
        """
        data = check_size(text, DOCUMENT_BYTES, "The text")
        with self._open_parent(path) as (folder, name), _failing(path):
            mode = 0o666 & ~_umask()
            try:
                found = os.stat(name, dir_fd=folder, follow_symlinks=False)
            except FileNotFoundError:
                pass
            else:
                _check_regular(found, path)
                mode = stat.S_IMODE(found.st_mode)
                if not os.access(name, os.W_OK, dir_fd=folder):
                    raise PermissionError(13, "Permission denied")
            unfinished = f".{name[:200]}.{os.urandom(8).hex()}"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
            fd = os.open(unfinished, flags, 0o600, dir_fd=folder)
            try:
                with os.fdopen(fd, "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fchmod(file.fileno(), mode)
                    os.fsync(file.fileno())
                if not force:
                    # As late as possible: another program may write the file meanwhile.
                    self._check_unchanged(path, expected)
                os.replace(unfinished, name, src_dir_fd=folder, dst_dir_fd=folder)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(unfinished, dir_fd=folder)
        return hashlib.sha256(data).hexdigest()

    def _check_unchanged(self, path: str, expected: str | None) -> None:
        now = self.digest(path)
        if now == expected:
            return
        reason = "disk_deleted" if now is None else "exists" if expected is None else "disk_changed"
        what = {
            "disk_deleted": "was deleted on the disk",
            "exists": "exists already",
            "disk_changed": "was changed on the disk by another program",
        }[reason]
        raise Failed(
            f"{_shown(path)} {what}. Compare it and save with force, or revert to the disk.",
            code="conflict",
            data={"path": path, "reason": reason},
        )

    # --- lists --------------------------------------------------------------------------------

    def check(self) -> None:
        """Check that the folder of the workspace can be read. Raises NotFound and Failed."""
        next(self._scan(""), None)

    def list_folder(self, path: str, *, ignored: bool = False) -> FolderList:
        """List a folder: folders first, at most MAX_ENTRIES. Raises NotFound and InvalidParams."""
        parts = tuple(path.split("/")) if path else ()
        rules = self._ignore_files(parts)
        found = []
        for entry in self._scan(path):
            is_folder = entry.is_dir(follow_symlinks=False)
            skip = is_ignored(rules, (*parts, entry.name), is_folder=is_folder)
            if entry.name == GIT or (skip and not ignored):
                continue
            found.append(_entry(entry, path, ignored=skip))
        found.sort(key=lambda each: (each.kind != "folder", each.name.casefold(), each.name))
        return FolderList(path, found[:MAX_ENTRIES], max(len(found) - MAX_ENTRIES, 0))

    def find_files(self, query: str, limit: int) -> tuple[list[str], bool]:
        """Return the files whose paths contain the letters of the query in order, best first.

        Ignored files are not searched. The second value is whether some files were not visited.
        """
        wanted = query.casefold().replace(" ", "")
        found: list[tuple[int, int, str]] = []
        visited, complete = 0, True
        waiting: list[tuple[str, tuple[IgnoreFile, ...]]] = [("", ())]
        while waiting:
            path, rules = waiting.pop()
            parts = tuple(path.split("/")) if path else ()
            rules = (*rules, *self._ignore_file(parts))
            try:
                entries = list(self._scan(path))
            except (NotFound, Failed, InvalidParams):
                continue  # deleted or not readable
            for entry in entries:
                visited += 1
                if visited > MAX_VISITED:
                    complete, waiting = False, []
                    break
                is_folder = entry.is_dir(follow_symlinks=False)
                full = (*parts, entry.name)
                if entry.name == GIT or is_ignored(rules, full, is_folder=is_folder):
                    continue
                name = "/".join(full)
                if not is_folder:
                    score = _score(wanted, name)
                    if score is not None:
                        found.append((score, len(name), name))
                elif len(full) < MAX_DEPTH:
                    waiting.append((name, rules))
        found.sort()
        return [name for _, _, name in found[:limit]], not complete or len(found) > limit

    def _scan(self, path: str) -> Iterator[os.DirEntry[str]]:
        """Yield the entries of a folder whose names are text."""
        with self._open_folder(path) as folder, os.scandir(folder) as entries:
            for entry in entries:
                with contextlib.suppress(UnicodeEncodeError):
                    entry.name.encode()
                    yield entry

    def _ignore_files(self, parts: tuple[str, ...]) -> list[IgnoreFile]:
        """Return the patterns that apply in a folder, the outermost first."""
        files = []
        for depth in range(len(parts) + 1):
            files += self._ignore_file(parts[:depth])
        return files

    def _ignore_file(self, parts: tuple[str, ...]) -> list[IgnoreFile]:
        try:
            text = self.read("/".join((*parts, ".gitignore")), IGNORE_BYTES).text
        except (NotFound, InvalidParams, TooBig, Failed):
            return []
        return [parse_ignore(text, parts)]


def _umask() -> int:
    """Return the umask of this process, as /proc has it: reading it otherwise would set it."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    except (OSError, ValueError):
        pass
    return 0o022


def _entry(entry: os.DirEntry[str], folder: str, *, ignored: bool) -> FolderEntry:
    path = f"{folder}/{entry.name}" if folder else entry.name
    kind: Kind = "other"
    size = None
    try:
        found = entry.stat(follow_symlinks=False)
    except OSError:
        return FolderEntry(entry.name, path, kind, size, ignored)
    if stat.S_ISDIR(found.st_mode):
        kind = "folder"
    elif stat.S_ISREG(found.st_mode):
        kind, size = "file", found.st_size
    elif stat.S_ISLNK(found.st_mode):
        kind = "link"
    return FolderEntry(entry.name, path, kind, size, ignored)


def _score(wanted: str, path: str) -> int | None:
    """Return how far apart the letters are in a path, less for its last part; None without them."""
    folded = path.casefold()
    name = folded.rpartition("/")[2]
    if wanted in name:
        return name.index(wanted) - 1000
    at, first = -1, -1
    for letter in wanted:
        at = folded.find(letter, at + 1)
        if at < 0:
            return None
        first = at if first < 0 else first
    return at - first


def _check_regular(found: os.stat_result, path: str) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise InvalidParams(f"path: {_shown(path)} is a folder, not a file")
    if not stat.S_ISREG(found.st_mode):
        raise InvalidParams(f"path: {_shown(path)} is not a regular file")


@contextlib.contextmanager
def _failing(path: str) -> Iterator[None]:
    """Convert errors of the system to errors of ours."""
    try:
        yield
    except FileNotFoundError:
        raise NotFound(f"No file {_shown(path)} in the workspace.") from None
    except OSError as error:
        raise Failed(
            f"{_shown(path)}: {error.strerror or error}.", code="file", data={"path": path}
        ) from error


def _shown(path: str) -> str:
    return repr(path if len(path) <= 200 else f"{path[:100]}...{path[-97:]}")

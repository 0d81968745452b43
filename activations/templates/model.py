"""Templates and their URIs, the limits, and the paths that a template may write to."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from activations.templates.errors import invalid_uri
from activations.templates.parameters import Parameter

__all__ = (
    "CONTENT_BYTES",
    "PRIVATE_FOLDERS",
    "RECORD",
    "SCHEME",
    "TEMPLATE_URI",
    "Template",
    "is_part",
    "parse_uri",
    "path_fault",
)

SCHEME: Final = "template://"
TEMPLATE_URI: Final = "template://{category}/{toolchain}/{variant}"
#: Size of a generated file. An event with the file must stay below the limit of events, and
#: escaping multiplies its size by up to six.
CONTENT_BYTES: Final = 128 * 1024
#: The file that records what a project was generated from.
RECORD: Final = ".substrate-templates.json"
#: Characters of a URI, and of a path; parts of a path.
URI_CHARACTERS: Final = 256
PATH_CHARACTERS: Final = 512
PATH_PARTS: Final = 16
NAME_BYTES: Final = 255
#: Folders whose files are executed or trusted without confirmation.
PRIVATE_FOLDERS: Final = frozenset({".git", ".hg", ".svn", ".ssh"})
_PART: Final = re.compile(r"[a-z0-9](?:[a-z0-9._+-]{0,62}[a-z0-9+])?")
_PATH_CHARACTERS: Final = re.compile(
    r"[^\x00-\x1f\x7f-\x9f\\:*?\"<>|\u2028\u2029\u202a-\u202e\ud800-\udfff]+"
)


@dataclass(frozen=True, slots=True)
class Template:
    """A template: what it generates, from which parameters."""

    category: str
    toolchain: str
    variant: str
    name: str
    description: str
    version: str
    tags: tuple[str, ...]
    #: Where its file belongs in a project; a template itself.
    path: str
    mime_type: str
    parameters: tuple[Parameter, ...]
    text: str
    #: SHA-256 of everything that its output depends on, other than the parameters.
    hash: str
    #: Where it comes from, for people.
    source: str
    #: The digest of the folder that it may include files of.
    folder: str

    @property
    def uri(self) -> str:
        """The URI of the template."""
        return f"{SCHEME}{self.category}/{self.toolchain}/{self.variant}"

    @property
    def file(self) -> str:
        """The name of its file in its folder."""
        return f"{self.category}/{self.toolchain}/{self.variant}.j2"

    @property
    def file_name(self) -> str:
        """The last part of its path."""
        return self.path.rpartition("/")[2]


def is_part(text: str) -> bool:
    """Return whether a text may be a part of the URI of a template."""
    return _PART.fullmatch(text) is not None and ".." not in text


def parse_uri(uri: str) -> tuple[str, str, str]:
    """Return the category, toolchain and variant of a URI. Raises InvalidParams."""
    if len(uri) > URI_CHARACTERS:
        raise invalid_uri(uri, f"it has {len(uri)} characters; the maximum is {URI_CHARACTERS}")
    if not uri.startswith(SCHEME):
        raise invalid_uri(uri, f"it does not begin with {SCHEME}")
    parts = uri.removeprefix(SCHEME).split("/")
    if len(parts) != 3:
        raise invalid_uri(uri, f"it has {len(parts)} parts, not three")
    for part in parts:
        if not is_part(part):
            raise invalid_uri(
                uri, f"the part {part[:60]!r} must be lower case letters, digits and . _ + -"
            )
    return parts[0], parts[1], parts[2]


def path_fault(path: str) -> str | None:
    """Return why a generated path must not be written to; None if it may be."""
    parts = path.split("/")
    if not path or len(path) > PATH_CHARACTERS or len(parts) > PATH_PARTS:
        return f"must have 1 to {PATH_CHARACTERS} characters in at most {PATH_PARTS} parts"
    for part in parts:
        if part in ("", ".", ".."):
            return "must be relative and must not contain empty parts, . or .."
        if _PATH_CHARACTERS.fullmatch(part) is None or part != part.strip():
            return "contains characters that are not allowed in file names"
        if len(part.encode(errors="replace")) > NAME_BYTES:
            return f"has a part of more than {NAME_BYTES} bytes"
        if part.casefold() in PRIVATE_FOLDERS:
            return f"is in {part}, which templates must not write to"
    if path.casefold() == RECORD:
        return "is the record of generated files"
    return None

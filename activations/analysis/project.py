"""The folder of an analysis, and the values of its arguments: all errors are reported together."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from activations.analysis.languages import TOOLCHAINS, nearest_toolchain
from plexus import InvalidParams
from plexus.caller_environment import caller_directory

__all__ = (
    "ArgumentErrors",
    "check_patterns",
    "check_toolchain",
    "project_folder",
    "source_path",
)

#: Maximum characters of a file pattern.
PATTERN_CHARACTERS: Final = 500


class ArgumentErrors:
    """Collects what is wrong with the arguments of a call."""

    def __init__(self) -> None:
        self._errors: list[dict[str, str]] = []

    def add(self, argument: str, message: str) -> None:
        """Add an error about an argument."""
        self._errors.append({"at": argument, "fault": message})

    def check(self) -> None:
        """Raise InvalidParams with all errors, if there are any."""
        if self._errors:
            text = "; ".join(f"{each['at']}: {each['fault']}" for each in self._errors)
            raise InvalidParams(text, data={"errors": self._errors})


def check_toolchain(toolchain: str, errors: ArgumentErrors) -> tuple[str, ...]:
    """Return the languages of a toolchain."""
    if toolchain in TOOLCHAINS:
        return TOOLCHAINS[toolchain]
    nearest = nearest_toolchain(toolchain)
    cure = f"Did you mean {nearest!r}?" if nearest else f"Use one of {', '.join(TOOLCHAINS)}."
    errors.add("toolchain", f"Unknown toolchain {toolchain[:80]!r}. {cure}")
    return ()


def check_patterns(argument: str, patterns: list[str], errors: ArgumentErrors) -> None:
    """Check file patterns, which have the syntax of `.gitignore`."""
    try:
        from pathspec import GitIgnoreSpec
    except ImportError:
        return  # the missing extra is reported next
    for pattern in patterns:
        if len(pattern) > PATTERN_CHARACTERS:
            errors.add(
                argument, f"{pattern[:40]!r}... has more than {PATTERN_CHARACTERS} characters."
            )
            continue
        try:
            GitIgnoreSpec.from_lines([pattern])
        except ValueError as error:
            errors.add(argument, f"{pattern!r} is no file pattern: {error}")


def project_folder(project_path: str, errors: ArgumentErrors, workspace: Path | None) -> Path:
    """Return the folder to analyse. A relative path starts at the directory of the caller."""
    shown = project_path[:200]
    folder = Path()
    try:
        folder = Path(os.path.realpath(caller_directory() / Path(project_path).expanduser()))
        if not folder.exists():
            errors.add("project_path", f"{shown!r} does not exist. Pass the path of a folder.")
        elif not folder.is_dir():
            errors.add("project_path", f"{shown!r} is not a folder. Pass the folder of a project.")
        elif not os.access(folder, os.R_OK | os.X_OK):
            errors.add("project_path", f"{shown!r} cannot be read by the server.")
        else:
            str(folder).encode()
    except (OSError, ValueError, RuntimeError) as error:  # a NUL, a loop of links, an unknown user
        errors.add("project_path", f"{shown!r} cannot be opened: {error}")
    if workspace is not None and not folder.is_relative_to(workspace):
        errors.add("project_path", f"{shown!r} is outside the workspace {str(workspace)!r}.")
    return folder


def source_path(path: str, errors: ArgumentErrors, workspace: Path | None) -> Path:
    """Return the absolute path of a file. Links are followed, so that no link leads out."""
    shown = path[:200]
    file = Path()
    try:
        file = Path(os.path.realpath(caller_directory() / Path(path).expanduser()))
        if not file.is_file():
            errors.add("paths", f"{shown!r} is not a file.")
        str(file).encode()
    except (OSError, ValueError, RuntimeError) as error:
        errors.add("paths", f"{shown!r} cannot be opened: {error}")
    if workspace is not None and not file.is_relative_to(workspace):
        errors.add("paths", f"{shown!r} is outside the workspace {str(workspace)!r}.")
    return file

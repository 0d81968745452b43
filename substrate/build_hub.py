"""Putting the server together: the hub, what is built in, and the plugins."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

from activations.approvals import Approvals
from activations.arbor import Arbor
from activations.arbor.model import Retention
from activations.bash import Bash, OwnPaths
from activations.chat import Chat, ClaudeCode, LazyProviders
from activations.health import Health
from plexus.activation import Activation
from plexus.errors import PluginError
from plexus.private_files import data_folder, state_folder
from plexus.registry.plugins import Broken, Find, find_activations, is_file_name, load_plugins
from plexus.runtime.builtin import PlexusItself
from plexus.runtime.hub import Notice, Plexus
from substrate.settings import FILE, ProjectFiles, Settings, operator_folder

__all__ = ("NO_FILES", "MakeHub", "build_hub", "built_in_hub", "finder")

#: Makes the hub of a project, and names the plugins that could not be loaded.
MakeHub: TypeAlias = Callable[[Settings, Path, ProjectFiles], tuple[Plexus, list[Broken]]]

#: Nothing of a project folder is loaded.
NO_FILES = ProjectFiles()
DAY_S = 24 * 3600.0


def build_hub(
    settings: Settings, project: Path, files: ProjectFiles = NO_FILES
) -> tuple[Plexus, list[Broken]]:
    """The hub of this project, and the plugins that could not be loaded."""
    hub = built_in_hub(settings, project, files)
    names = (*files.plugins, *settings.activation)
    folder = files.folder or operator_folder()
    return hub, load_plugins(hub, names, folder, finder(settings, project, files))


def finder(settings: Settings, project: Path, files: ProjectFiles) -> Find:
    """What finds activations by name, in verified content first.

    What a folder names that is trusted only as it is must be verified, or installed: no digest
    covers a module of the folder, nor what that imports.
    """
    verified = settings.activation if files.names_activations and not files.live else ()

    def find(name: str) -> Iterator[type[Activation]]:
        source = files.sources.get(name)
        here = None if name in verified else project
        if source is None and here is None and is_file_name(name):
            raise PluginError(f"{FILE} names {name}, which is not as it was trusted")
        yield from find_activations(name, source=source, here=here)

    return find


def built_in_hub(settings: Settings, project: Path, files: ProjectFiles = NO_FILES) -> Plexus:
    """A hub with the built-in activations, and a notice of files that were skipped."""
    hub = Plexus(limits=settings.limits)
    if (skipped := files.skipped) is not None:
        details = list(skipped.details)
        hub.notices.append(Notice(f"folder_{skipped.code}", skipped.message, skipped.next, details))
    # Tests check what is built in; checking it at every start would import pydantic.
    hub.register(PlexusItself(hub), checked=True)
    hub.register(Health(), checked=True)
    hub.register(Approvals(), checked=True)
    bash = Bash(settings.bash_sandbox, str(project), _own_paths(settings, project))
    hub.register(bash, checked=True)
    retention = Retention(
        scheduled_s=settings.arbor_scheduled_days * DAY_S,
        archived_s=settings.arbor_archived_days * DAY_S,
    )
    arbor = Arbor(settings.database, retention)
    hub.register(arbor, checked=True)
    providers = LazyProviders(
        settings.chat_endpoints,
        settings.chat_claude_command,
        settings.chat_silent_s,
        refuse_claude=settings.bash_sandbox != "off" and not settings.chat_claude_unconfined,
    )
    chat = Chat(arbor, providers, settings.chat_model)
    hub.register(chat, checked=True)
    hub.register(ClaudeCode(chat), checked=True)
    return hub


def _own_paths(settings: Settings, project: Path) -> OwnPaths:
    """Return which files of ours a confined command must not see, and which it must not change."""
    if settings.bash_sandbox == "off":
        return OwnPaths()
    database = settings.database.removeprefix("sqlite:///")
    is_file = bool(database) and "://" not in database
    executed = [Path(FILE), Path(settings.activations_folder), Path(sys.prefix)]
    for name in settings.activation:
        if name.endswith(".py") or "/" in name:
            executed.append(Path(name).absolute())
            continue
        # A module is found in the project folder if it is installed nowhere.
        package = name.partition(":")[0].partition(".")[0]
        places = (project / package, project / f"{package}.py")
        executed += [place for place in places if place.exists()]
    return OwnPaths(
        private_folders=(state_folder(), data_folder()),
        databases=(Path(database).expanduser().absolute(),) if is_file else (),
        executed=tuple(executed),
    )

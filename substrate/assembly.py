"""Putting the server together: the hub, what is built in, and the plugins."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from activations.approvals import Approvals
from activations.arbor import Arbor
from activations.arbor.model import Windows
from activations.bash import Bash, OwnPaths
from activations.chat import Chat, ClaudeCode, LazyProviders
from activations.health import Health
from plexus.hub import Plexus
from plexus.itself import PlexusItself
from plexus.plugins import Broken, load_plugins
from substrate.access.files import data_folder, state_folder
from substrate.settings import FILE, Settings

__all__ = ("MakeHub", "build_hub", "built_in_hub")

#: What makes the hub of a project, and names the plugins that could not be loaded.
MakeHub: TypeAlias = Callable[[Settings, Path], tuple[Plexus, list[Broken]]]

DAY_S = 24 * 3600.0


def build_hub(settings: Settings, project: Path) -> tuple[Plexus, list[Broken]]:
    """The hub of this project, and the plugins that could not be loaded."""
    hub = built_in_hub(settings, project)
    broken = load_plugins(hub, settings.activation, project / settings.activations_folder)
    return hub, broken


def built_in_hub(settings: Settings, project: Path) -> Plexus:
    """A hub with what is built in, and nothing else."""
    hub = Plexus(limits=settings.limits)
    # Tests check what is built in; checking it at every start would import pydantic.
    hub.register(PlexusItself(hub), checked=True)
    hub.register(Health(), checked=True)
    hub.register(Approvals(), checked=True)
    bash = Bash(settings.bash_sandbox, str(project), _own_paths(settings, project))
    hub.register(bash, checked=True)
    windows = Windows(
        scheduled_s=settings.arbor_scheduled_days * DAY_S,
        archived_s=settings.arbor_archived_days * DAY_S,
    )
    arbor = Arbor(settings.database, windows)
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

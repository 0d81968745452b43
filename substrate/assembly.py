"""Putting the server together: the hub, what is built in, and the plugins."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from activations.approvals import Approvals
from activations.arbor import Arbor
from activations.arbor.model import Windows
from activations.bash import Bash
from activations.chat import Chat, ClaudeCode, LazyProviders
from activations.health import Health
from plexus.hub import Plexus
from plexus.itself import PlexusItself
from plexus.plugins import Broken, load_plugins
from substrate.settings import Settings

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
    hub.register(PlexusItself(hub))
    hub.register(Health())
    hub.register(Approvals())
    hub.register(Bash(sandbox=settings.bash_sandbox, workspace=str(project)))
    windows = Windows(
        scheduled_s=settings.arbor_scheduled_days * DAY_S,
        archived_s=settings.arbor_archived_days * DAY_S,
    )
    arbor = Arbor(settings.database, windows)
    hub.register(arbor)
    providers = LazyProviders(
        settings.chat_endpoints, settings.chat_claude_command, settings.chat_silent_s
    )
    chat = Chat(arbor, providers, settings.chat_model)
    hub.register(chat)
    hub.register(ClaudeCode(chat))
    return hub

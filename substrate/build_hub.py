"""The hub of the program: what is built in, the plugins, and the end of its event loop."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

from plexus.activation import Activation
from plexus.errors import PluginError
from plexus.private_files import data_folder, state_folder
from plexus.registry.activation_tree import Node
from plexus.registry.lazy import Manifest, resolve
from plexus.registry.plugin_namespaces import BuiltIns
from plexus.registry.plugins import BrokenPlugin, Find, find_activations, is_file_name, load_plugins
from plexus.runtime.changes import Notice
from plexus.runtime.hub import Plexus
from substrate.settings import FILE, ProjectFiles, Settings, operator_folder

__all__ = (
    "MANIFEST",
    "NO_FILES",
    "ROOT",
    "MakeHub",
    "build_hub",
    "built_in_hub",
    "built_ins",
    "close_runner",
    "finder",
    "packaged_manifest",
)

#: Makes the hub of a project, and names the plugins that could not be loaded.
MakeHub: TypeAlias = Callable[[Settings, Path, ProjectFiles], tuple[Plexus, list[BrokenPlugin]]]

#: Nothing of a project folder is loaded.
NO_FILES = ProjectFiles()
DAY_S = 24 * 3600.0
#: Why a built-in activation is off when the files of the folder that replaced it are not loaded.
SKIPPED: Final = "its replacement in the project folder is not loaded"
#: The built-in activations as data, made by `python -m substrate.devtools.manifest`.
MANIFEST: Final = Path(__file__).with_name("manifest.json")
#: The folder that the packages are in.
ROOT: Final = MANIFEST.parents[1]
ARBOR: Final = "activations.arbor:Arbor"
CHAT: Final = "activations.chat:Chat"


def build_hub(
    settings: Settings, project: Path, files: ProjectFiles = NO_FILES
) -> tuple[Plexus, list[BrokenPlugin]]:
    """The hub of this project, and the plugins that could not be loaded."""
    hub = built_in_hub(settings, project, files)
    built_in = BuiltIns(hub)
    names = (*files.plugins, *settings.activation)
    folder = files.folder or operator_folder()
    broken = load_plugins(hub, names, folder, finder(settings, project, files))
    # A built-in must not serve in place of a plugin that is skipped: it may grant more.
    built_in.switch_off_named(files.replaced, SKIPPED)
    return hub, broken


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


def built_in_hub(
    settings: Settings,
    project: Path,
    files: ProjectFiles = NO_FILES,
    manifest: Manifest | None = None,
) -> Plexus:
    """A hub with the built-in activations, and a notice of files that were skipped."""
    hub = Plexus(limits=settings.limits)
    if (skipped := files.skipped) is not None:
        details = list(skipped.details)
        hub.notices.append(Notice(f"folder_{skipped.code}", skipped.message, skipped.next, details))
    # Tests check what is built in; checking it at every start would import pydantic.
    for node in built_ins(hub, settings, project, manifest or packaged_manifest()).values():
        hub.register(node, checked=True)
    return hub


def packaged_manifest() -> Manifest:
    """The manifest of the built-in activations, unless their sources were changed since."""
    return Manifest.read(MANIFEST, ROOT)


def built_ins(
    hub: Plexus, settings: Settings, project: Path, manifest: Manifest
) -> dict[str, Node]:
    """The activations that come with the program, by what their classes are imported from."""
    if settings.bash_sandbox != "off" and project.resolve() == Path("/"):
        # Bash itself refuses that only at its first call.
        raise ValueError("the workspace of a sandbox must not be the whole file system")
    started = time.monotonic()

    def make_bash(bash: Any) -> Any:
        own_paths = resolve("activations.bash:OwnPaths")(**_own_paths(settings, project))
        return bash(settings.bash_sandbox, str(project), own_paths)

    def make_arbor(arbor: Any) -> Any:
        retention = resolve("activations.arbor.model:Retention")(
            scheduled_s=settings.arbor_scheduled_days * DAY_S,
            archived_s=settings.arbor_archived_days * DAY_S,
        )
        return arbor(settings.database, retention)

    def make_chat(chat: Any) -> Any:
        open_providers = partial(
            resolve("activations.chat.providers.registry:Providers"),
            settings.chat_endpoints,
            settings.chat_claude_command,
            settings.chat_silent_s,
            refuse_claude=settings.bash_sandbox != "off" and not settings.chat_claude_unconfined,
        )
        return chat(nodes[ARBOR].activation, open_providers, settings.chat_model)

    makers: dict[str, Callable[[Any], Any]] = {
        "plexus.runtime.builtin:PlexusActivation": lambda itself: itself(hub),
        "activations.health:Health": lambda health: health(started),
        "activations.approvals:Approvals": lambda approvals: approvals(),
        "activations.bash:Bash": make_bash,
        ARBOR: make_arbor,
        CHAT: make_chat,
        "activations.chat:ClaudeCode": lambda code: code(nodes[CHAT].activation),
    }
    nodes: dict[str, Node] = {}
    for reference, make in makers.items():
        nodes[reference] = manifest.node(reference, make)
    return nodes


def _own_paths(settings: Settings, project: Path) -> dict[str, tuple[Path, ...]]:
    """Return which files of ours a confined command must not see, and which it must not change."""
    if settings.bash_sandbox == "off":
        return {}
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
    return {
        "private_folders": (state_folder(), data_folder()),
        "databases": (Path(database).expanduser().absolute(),) if is_file else (),
        "executed": tuple(executed),
    }


def close_runner(runner: asyncio.Runner, hub: Plexus) -> None:
    """Close the loop that a hub ran on.

    A method that ignores being cancelled was given up by the hub, but closing the loop would
    wait for it for ever. It is left to end with this process, and nobody needs to hear of it a
    second time.
    """
    if all(task.done() for task in hub.pump.tasks):
        runner.close()
    else:
        runner.get_loop().set_exception_handler(lambda _loop, _context: None)

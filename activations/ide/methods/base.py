"""Shared by the methods: the state, its background tasks, and notifications to editor clients."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final

from activations.ide.checks import Checks
from activations.ide.document import Document
from activations.ide.endpoint import SERVICE, EditorClient, EditorEndpoint
from activations.ide.events import DocumentInfo, IdeStatus
from activations.ide.findings import Findings
from activations.ide.formatter import Formatters
from activations.ide.positions import Range, range_of, text_in
from activations.ide.programs import Programs
from activations.ide.state import DISK_CHECK_S, EditorState
from activations.ide.workspace import Workspace
from activations.processes.sandbox.hidden_paths import OwnPaths
from activations.processes.sandbox.profiles import Profile
from plexus import Activation, Context

__all__ = ("EditorActivation", "selection_fields")

#: Seconds between a change of the selection and its notification, so that dragging sends few.
SELECTION_S: Final = 0.1
#: Maximum characters of selected text in a notification.
SELECTED_CHARS: Final = 100_000


class EditorActivation(Activation):
    """An activation with the state of one workspace."""

    def __init__(
        self,
        sandbox: Profile = "off",
        workspace: str | None = None,
        own_paths: OwnPaths | None = None,
        checkers: tuple[str, ...] = (),
        formatters: tuple[str, ...] = (),
    ) -> None:
        """Configure the folder, the sandbox of checkers and formatters, and which of them to use.

        Empty `checkers` means all that are installed; `formatters` are rules such as
        `py=ruff format -`. Raises ValueError for a rule that is none.
        """
        self.workspace = Workspace(Path(workspace or "."))
        self.state = EditorState(self.workspace)
        programs = Programs(self.workspace, sandbox, own_paths)
        self.programs = programs
        self.checks = Checks(self.state, programs, Findings(lambda: self.plexus), checkers)
        self.formatters = Formatters(self.workspace, programs, formatters)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._selection_timer: asyncio.TimerHandle | None = None
        self._watchers = 0
        self._disk_watch: asyncio.Task[None] | None = None
        self._stop_following: Callable[[], None] | None = None
        #: The clients that have received the selection.
        self._greeted: set[int] = set()

    # --- background tasks ---------------------------------------------------------------------

    def start_task(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run something in the background until the server stops."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def add_watcher(self) -> None:
        """Compare open documents with their files as long as a client watches."""
        self._watchers += 1
        if self._disk_watch is None:
            self._disk_watch = self.start_task(self._watch_disk())

    def remove_watcher(self) -> None:
        """Stop comparing after the last watcher."""
        self._watchers -= 1
        if not self._watchers and self._disk_watch is not None:
            self._disk_watch.cancel()
            self._disk_watch = None

    async def _watch_disk(self) -> None:
        while True:
            await asyncio.sleep(DISK_CHECK_S)
            for document in await self.state.check_disk():
                self.checks.request(document.path)

    async def close(self) -> None:
        """End the background tasks, and all programs that were started."""
        if self._selection_timer is not None:
            self._selection_timer.cancel()
        if self._stop_following is not None:
            self._stop_following()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self.checks.close()
        await self.programs.close()

    # --- the endpoint -------------------------------------------------------------------------

    @property
    def endpoint(self) -> EditorEndpoint | None:
        """The listener for editor clients; None if the program has none."""
        found: EditorEndpoint | None = self.plexus.services.get(SERVICE)
        if found is not None and self._stop_following is None:
            self._stop_following = found.on_change(self._on_clients)
        return found

    @property
    def clients(self) -> list[EditorClient]:
        """The connected clients that can be notified."""
        endpoint = self.endpoint
        return [] if endpoint is None else [each for each in endpoint.clients if each.is_ready]

    def client_of(self, ctx: Context) -> EditorClient | None:
        """Return the client that made a call; None if it was none of an editor."""
        endpoint, connection = self.endpoint, ctx.connection
        if endpoint is None or connection is None:
            return None
        return next((each for each in endpoint.clients if each.connection is connection), None)

    def status(self) -> IdeStatus:
        """Return the event with the state of the endpoint."""
        endpoint = self.endpoint
        return IdeStatus(
            on=endpoint is not None and endpoint.port is not None,
            available=endpoint is not None,
            port=None if endpoint is None else endpoint.port,
            lock_file=None if endpoint is None else endpoint.lock_file,
            workspace=str(self.workspace.folder),
            name=self.workspace.name,
            connections=[self._describe(each) for each in (endpoint.clients if endpoint else ())],
            checkers=self.checks.names(),
            formatters=self.formatters.names(),
            reason=None if endpoint is None else endpoint.reason,
        )

    def _describe(self, client: EditorClient) -> dict[str, Any]:
        connection = client.connection
        return {
            "id": client.number,
            "client": client.client,
            "pid": client.pid,
            "claude_code": client.is_claude_code,
            "connected_ms": client.connected_ms,
            "diffs": sum(
                connection is not None and each.connection is connection
                for each in self.state.diffs.values()
            ),
        }

    def _on_clients(self) -> None:
        """Report a change of the connections, and send the selection to new clients."""
        clients = self.clients
        self.send_selection([each for each in clients if each.number not in self._greeted])
        self._greeted = {each.number for each in clients}
        self.state.changes.notify(self.status())

    # --- the selection ------------------------------------------------------------------------

    def set_range(
        self, document: Document, start: tuple[int, int], end: tuple[int, int]
    ) -> DocumentInfo:
        """Select a range, and make its document the active one."""
        document.selection = range_of(document.text, start, end)
        if not document.selection.is_empty or self.state.latest is None:
            self.state.latest = document.path
        self.state.activate(document)
        self.schedule_selection()
        return self.state.info(document)

    def schedule_selection(self) -> None:
        """Notify the clients of the selection, once it has not changed for a moment."""
        if self._selection_timer is None:
            loop = asyncio.get_running_loop()
            self._selection_timer = loop.call_later(SELECTION_S, self._on_selection_timer)

    def _on_selection_timer(self) -> None:
        self._selection_timer = None
        self.send_selection(self.clients)

    def send_selection(self, clients: list[EditorClient]) -> None:
        """Notify these clients of the selection in the active document, if there is one."""
        document = self.state.documents.get(self.state.active or "")
        if document is None or document.selection is None or not clients:
            return
        path, selection = self.workspace.absolute(document.path), document.selection
        for client in clients:
            if client.is_claude_code:
                client.notify("selection_changed", selection_fields(path, document, selection))
            else:
                params = {"file_path": path, "range": selection.as_json()}
                client.notify("notifications/selection_changed", params)


def selection_fields(path: str, document: Document, selection: Range) -> dict[str, Any]:
    """Return the fields of a selection as editors report it."""
    return {
        "text": text_in(document.text, selection)[:SELECTED_CHARS],
        "filePath": path,
        "fileUrl": Path(path).as_uri(),
        "selection": selection.as_json() | {"isEmpty": selection.is_empty},
    }

"""The methods that programs and people use: read, watch, delete, export and import tasks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing
from typing import Annotated, Any, Final, Literal

from annotated_types import MaxLen

from activations.tasks.events import TasksChanged
from activations.tasks.feed import BATCH, follow, snapshot
from activations.tasks.methods.base import ALL_PROJECTS, StoreActivation, project_of
from activations.tasks.model import IMPORT_LINES, PAGE_ITEMS, PageSize, Seq, Task
from activations.tasks.render import heading, markdown
from plexus import Content, Context, InvalidParams, PlexusError, method
from plexus.errors import TooBig
from plexus.limits import Limits
from plexus.rpc import wire

__all__ = ("ClientMethods",)

#: Deadline of an export, for many tasks and a slow reader.
EXPORT_S: Final = 3600.0
#: Maximum number of characters in an event.
EVENT_CHARACTERS: Final = 100_000
#: Limits of one imported line.
LINE_LIMITS: Final = Limits()
#: The order of an export in Markdown.
STATUSES: Final = ("in_progress", "pending", "done", "cancelled")


class ClientMethods(StoreActivation):
    """The methods that programs and people use."""

    @method(title="Read a task", read_only=True, open_world=False)
    async def get(self, task_id: str, *, ctx: Context) -> dict[str, Any]:
        """Return everything about a task: its text, links, runs, diffs and notes.

        Args:
            task_id: Id of the task, or its beginning.
        """
        caller = await self.caller(ctx)
        return await (await self.store()).get(caller.principal, task_id)

    @method(title="Read a task's history", read_only=True, open_world=False)
    async def history(
        self,
        task_id: str,
        after: Seq = 0,
        limit: PageSize = 100,
        *,
        ctx: Context,
    ) -> dict[str, Any]:
        """Return the changes of a task with their time, author and former values, oldest first.

        Args:
            task_id: Id of the task, or its beginning.
            after: `next` of the previous page.
            limit: Page size.
        """
        caller = await self.caller(ctx)
        store = await self.store()
        changes = await store.history(caller.principal, task_id, after, limit)
        found: dict[str, Any] = {"changes": changes}
        return found if len(changes) < limit else found | {"next": changes[-1]["seq"]}

    @method(title="Watch tasks", deadline_s=None, read_only=True, open_world=False)
    async def watch(
        self,
        after: Seq | None = None,
        project: str | None = None,
        *,
        ctx: Context,
    ) -> AsyncIterator[TasksChanged]:
        """Stream tasks: a snapshot, then every task that changes, until cancelled.

        Includes changes by other processes. A slow reader gets the latest state of each task.

        Args:
            after: `seq` of the last event you have, to resume without a snapshot.
            project: "*" for all projects. Default: the folder you work in.
        """
        store = await self.store()
        principal = ctx.principal.name
        chosen = None if project == ALL_PROJECTS else project_of(project)
        seq = after
        if seq is None:
            async with aclosing(snapshot(store, principal, chosen)) as parts:
                async for tasks, seq in parts:
                    yield TasksChanged(tasks, seq, snapshot=True)
        assert seq is not None, "a snapshot has a number"
        async with aclosing(follow(store, principal, chosen, seq)) as changes:
            async for tasks, number in changes:
                yield TasksChanged(tasks, number)

    @method(title="List projects with tasks", read_only=True, open_world=False)
    async def projects(self, *, ctx: Context) -> dict[str, Any]:
        """Return the projects that have tasks, with their numbers, and the current project."""
        current = project_of(None)
        if self.is_empty():
            return {"current": current, "projects": []}
        store = await self.store()
        return {"current": current, "projects": await store.projects(ctx.principal.name)}

    @method(title="Delete tasks", destructive=True, open_world=False)
    async def delete(
        self, task_ids: Annotated[list[str], MaxLen(PAGE_ITEMS)], *, ctx: Context
    ) -> dict[str, Any]:
        """Delete tasks permanently, with their notes, links and history.

        Args:
            task_ids: Ids of the tasks.
        """
        caller = await self.caller(ctx)
        return {"deleted": await (await self.store()).delete(caller, task_ids)}

    @method(title="Export tasks", deadline_s=EXPORT_S, read_only=True, open_world=False)
    async def export(
        self,
        format: Literal["markdown", "jsonl"] = "markdown",  # noqa: A002 - the name that callers send
        project: str | None = None,
        *,
        ctx: Context,
    ) -> AsyncIterator[Content]:
        """Stream all tasks as Markdown to read, or as JSON Lines to restore with `import`.

        Args:
            format: "markdown" or "jsonl".
            project: "*" for all projects. Default: the folder you work in.
        """
        principal = ctx.principal.name
        chosen = None if project == ALL_PROJECTS else project_of(project)
        if format == "jsonl":
            async with aclosing(self._all(principal, chosen, None)) as tasks:
                async for task in tasks:
                    for part in _parts(wire.encode(task).decode() + "\n"):
                        yield Content(part)
            return
        yield Content(f"# Tasks{'' if chosen is None else f' of {chosen}'}\n")
        for status in STATUSES:
            start = heading(status)
            async with aclosing(self._all(principal, chosen, status)) as tasks:
                async for task in tasks:
                    for part in _parts(start + markdown(task)):
                        yield Content(part)
                    start = ""

    async def _all(
        self, principal: str, project: str | None, status: str | None
    ) -> AsyncGenerator[Task]:
        if self.is_empty():
            return
        store = await self.store()
        after = 0
        while page := await store.export_page(principal, project, status, after, BATCH):
            for _, task in page:
                yield task
            after = page[-1][0]

    @method(name="import", title="Import tasks", destructive=False, open_world=False)
    async def import_tasks(
        self, text: str, project: str | None = None, *, ctx: Context
    ) -> dict[str, Any]:
        """Import exported JSON Lines: all tasks or none. Existing tasks are not changed.

        Args:
            text: The lines.
            project: Default: the folder you work in.
        """
        lines = list(_read_lines(text))
        if not lines:
            raise InvalidParams("The text has no lines. Export tasks with format jsonl.")
        caller = await self.caller(ctx)
        return await (await self.store()).import_tasks(caller, project_of(project), lines)


def _parts(text: str) -> Iterator[str]:
    """Yield a text in parts that fit into an event."""
    for start in range(0, len(text), EVENT_CHARACTERS):
        yield text[start : start + EVENT_CHARACTERS]


def _read_lines(text: str) -> Iterator[Any]:
    """Yield the values of JSON Lines. Raises InvalidParams, which names the line."""
    lines = [line for line in text.split("\n") if line.strip()]
    if len(lines) > IMPORT_LINES:
        raise TooBig(
            f"The import has {len(lines)} lines, more than {IMPORT_LINES}.",
            data={"limit": IMPORT_LINES},
        )
    for number, line in enumerate(lines, 1):
        try:
            yield wire.decode_value(line.encode(), LINE_LIMITS)
        except (ValueError, PlexusError) as error:
            raise InvalidParams(
                f"Line {number}: not valid JSON: {error} Nothing was imported.",
                code="bad_import",
                data={"line": number},
            ) from error

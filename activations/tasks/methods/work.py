"""The methods that models use: create, list, take, change, close and link tasks."""

from __future__ import annotations

from typing import Any, Literal

from activations.tasks.methods.base import ALL_PROJECTS, StoreActivation, project_of
from activations.tasks.model import (
    NORMAL,
    Filter,
    FilterText,
    Kind,
    Labels,
    Listed,
    PageSize,
    Priority,
)
from activations.tasks.queries.tasks import NewTask, Patch
from plexus import Context, method

__all__ = ("WorkMethods",)


class WorkMethods(StoreActivation):
    """The methods that models use."""

    @method(
        title="Create a task",
        destructive=False,
        open_world=False,
        alias="create_task",
        audience="model",
    )
    async def create_task(
        self,
        description: str,
        type: Kind = "task",  # noqa: A002 - the name that callers send
        priority: Priority = NORMAL,
        labels: Labels | None = None,
        acceptance: list[str] | None = None,
        parent: str | None = None,
        blocked_by: list[str] | None = None,
        key: str | None = None,
        project: str | None = None,
        *,
        ctx: Context,
    ) -> dict[str, Any]:
        """Create a task in the list that agents and people of this project share.

        Args:
            description: Task description
            type: Kind of work.
            priority: 0 (urgent) to 4.
            labels: Words to filter by.
            acceptance: Acceptance criteria.
            parent: Id of the whole.
            blocked_by: Ids to close first.
            key: A repeated key creates nothing.
            project: Default: the folder you work in.
        """
        store = await self.store()
        new = NewTask(
            description,
            type,
            priority,
            labels or (),
            acceptance or (),
            parent,
            blocked_by or (),
            key,
        )
        return await store.create(await self.caller(ctx), project_of(project), new)

    @method(
        title="List tasks",
        read_only=True,
        open_world=False,
        alias="list_tasks",
        audience="model",
    )
    async def list_tasks(
        self,
        status: Listed = "open",
        label: FilterText | None = None,
        text: FilterText | None = None,
        limit: PageSize = 50,
        after: str | None = None,
        project: str | None = None,
        *,
        ctx: Context,
    ) -> dict[str, Any]:
        """List the tasks of this project, the most urgent first.

        Args:
            status: "ready": free and not blocked.
            label: Only with this label.
            text: A part of the description.
            limit: Page size.
            after: `next` of the previous page.
            project: "*" for all projects.
        """
        caller = await self.caller(ctx)
        if self.is_empty():
            return {"tasks": [], "total": 0}
        chosen = Filter(_read_project(project), status, label, text)
        store = await self.store()
        page, cursor, total = await store.list_tasks(caller.principal, chosen, after, limit)
        found: dict[str, Any] = {"tasks": page, "total": total}
        return found if cursor is None else found | {"next": cursor}

    @method(
        title="Claim the next task",
        destructive=False,
        open_world=False,
        alias="next_task",
        audience="model",
    )
    async def next_task(
        self,
        claim: bool = True,
        label: FilterText | None = None,
        project: str | None = None,
        *,
        ctx: Context,
    ) -> dict[str, Any]:
        """Return the most urgent ready task and claim it, so that no other agent takes it.

        The claim ends when you close the task or disconnect.

        Args:
            claim: False only shows it.
            label: Only with this label.
            project: Default: the folder you work in.
        """
        caller = await self.caller(ctx)
        chosen = Filter(project_of(project), "ready", label)
        store = await self.store()
        self.follow_lease(ctx, caller)
        task = await store.next_task(caller, chosen, claim=claim)
        if task is None:
            counts = await store.counts(caller.principal, chosen.project)
            open_tasks = {name: counts[name] for name in ("pending", "in_progress")}
            return {"message": "No task is ready."} | open_tasks
        return task

    @method(
        title="Change a task",
        destructive=False,
        open_world=False,
        alias="update_task",
        audience="client",
    )
    async def update_task(
        self,
        task_id: str,
        status: Literal["pending", "in_progress"] | None = None,
        description: str | None = None,
        type: Kind | None = None,  # noqa: A002 - the name that callers send
        priority: Priority | None = None,
        labels: Labels | None = None,
        acceptance: list[str] | None = None,
        met: list[int] | None = None,
        note: str | None = None,
        force: bool = False,
        *,
        ctx: Context,
    ) -> dict[str, Any]:
        """Change, claim, release or reopen a task, or add a note.

        The history keeps former values.

        Args:
            task_id: As in task_4v8x1k2m.
            status: "in_progress" claims it, "pending" releases or reopens it.
            description: New description.
            type: New kind of work.
            priority: 0 (urgent) to 4.
            labels: All labels.
            acceptance: All acceptance criteria.
            met: Numbers of all criteria that are met, from 1.
            note: Note to add.
            force: Take it from its holder.
        """
        caller = await self.caller(ctx)
        store = await self.store()
        patch = Patch(status, description, type, priority, labels, acceptance, met, note)
        self.follow_lease(ctx, caller)
        return await store.update(caller, task_id, patch, force=force)

    @method(
        title="Close a task",
        destructive=False,
        idempotent=True,
        open_world=False,
        alias="close_task",
        audience="model",
    )
    async def close_task(
        self,
        task_id: str,
        reason: str | None = None,
        outcome: Literal["done", "cancelled"] = "done",
        force: bool = False,
        *,
        ctx: Context,
    ) -> dict[str, Any]:
        """Close a task, and return which tasks are no longer blocked.

        Args:
            task_id: As in task_4v8x1k2m.
            reason: What was done, or why not.
            outcome: Done or cancelled.
            force: Close it although another holds it.
        """
        caller = await self.caller(ctx)
        store = await self.store()
        return await store.close_task(caller, task_id, outcome, reason, force=force)

    @method(
        title="Link a task",
        destructive=False,
        idempotent=True,
        open_world=False,
        alias="link_tasks",
        audience="client",
    )
    async def link_tasks(
        self,
        task_id: str,
        kind: Literal["blocks", "parent", "discovered_from", "related", "run", "diff"],
        target: str,
        remove: bool = False,
        *,
        ctx: Context,
    ) -> dict[str, Any]:
        """Link a task to another task, a run or a diff, as in: task_id blocks target.

        Args:
            task_id: As in task_4v8x1k2m.
            kind: "blocks" delays target; "parent" has it as a part.
            target: Id of a task, or a URI such as run://42.
            remove: Remove the link.
        """
        caller = await self.caller(ctx)
        store = await self.store()
        if remove:
            removed = await store.unlink(caller, task_id, kind, target)
            return {"removed": removed}
        await store.link(caller, task_id, kind, target)
        return {"task_id": task_id, "kind": kind, "target": target}


def _read_project(project: str | None) -> str | None:
    return None if project == ALL_PROJECTS else project_of(project)

"""The events of `tasks`. Results are plain objects, whose unset fields are absent."""

from __future__ import annotations

from typing import Any

from activations.tasks.render import task_line
from plexus import Event

__all__ = ("TasksChanged",)


class TasksChanged(Event):
    """Tasks as they are now: those that have changed, or a part of the first snapshot.

    `seq` is the number of the last change in it: pass it as `after` to resume.
    """

    tasks: list[dict[str, Any]]
    seq: int
    snapshot: bool | None = None

    def as_text(self) -> str:
        return "".join(f"{task_line(each)}\n" for each in self.tasks)

    def as_line(self) -> str:
        if len(self.tasks) == 1:
            return task_line(self.tasks[0])
        return f"{len(self.tasks)} tasks"

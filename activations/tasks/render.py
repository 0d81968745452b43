"""Tasks as text for people: one line each, or a document in Markdown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from activations.tasks.model import Task
from plexus.text import shorten

__all__ = ("heading", "markdown", "state_of", "task_line")

LINE_CHARACTERS = 100
HEADINGS = {
    "in_progress": "In progress",
    "pending": "To do",
    "done": "Done",
    "cancelled": "Dropped",
}
BOXES = {"done": "x", "cancelled": "-"}


def state_of(task: Task) -> str:
    """Return the state of a task as people see it: that it is ready, blocked or stuck."""
    if task["status"] != "pending":
        return str(task["status"]).replace("_", " ")
    if task.get("stuck"):
        return "stuck"
    return "blocked" if task.get("blocked_by") else "ready"


def task_line(task: Task) -> str:
    """Return a task as one line."""
    if task["status"] == "deleted":
        return f"{task['id']} deleted"
    words = [task["id"], state_of(task), f"P{task.get('priority', 2)}"]
    if "type" in task:
        words.append(f"{task['type']}:")
    words.append(shorten(" ".join(task["description"].split()), LINE_CHARACTERS))
    if "holder" in task:
        words.append(f"({task['holder']})")
    return " ".join(words)


def heading(status: str) -> str:
    """Return the heading of the tasks with a status."""
    return f"\n## {HEADINGS[status]}\n\n"


def markdown(task: Task) -> str:
    """Return a task as an item of a list in Markdown."""
    return "".join(f"{line}\n" for line in _lines(task))


def _lines(task: Task) -> Iterator[str]:
    first, *rest = task["description"].splitlines() or [""]
    details = [f"`{task['id']}`", f"P{task.get('priority', 2)}"]
    details += [task[name] for name in ("type", "holder") if name in task]
    details += [f"#{label}" for label in task.get("labels", ())]
    yield f"- [{BOXES.get(task['status'], ' ')}] {first} ({', '.join(details)})"
    for line in rest:
        yield f"  {line}".rstrip()
    for each in task.get("acceptance", ()):
        text = " ".join(each["text"].split())
        yield f"  - [{'x' if each['met'] else ' '}] {text}"
    for each in task.get("links", ()):
        yield f"  - {_link(task, each)}"
    for each in task.get("refs", ()):
        yield f"  - {each['kind']}: {each['uri']}"
    for note in task.get("notes", ()):
        yield f"  - {note['author']}: {' '.join(note['text'].split())}"
    if "reason" in task:
        yield f"  - closed: {' '.join(task['reason'].split())}"


#: What a link says from the side of its source, and from that of its target.
SIDES = {
    "blocks": ("blocks", "blocked by"),
    "parent": ("parent of", "part of"),
    "discovered_from": ("discovered from", "led to"),
    "related": ("related to", "related to"),
}


def _link(task: Task, each: dict[str, Any]) -> str:
    is_source = each["source"] == task["id"]
    words = SIDES[each["kind"]]
    return f"{words[0]} `{each['target']}`" if is_source else f"{words[1]} `{each['source']}`"

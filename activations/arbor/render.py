"""Drawing a tree as text.

A node that is an only child stands right below its parent, so that a conversation reads like one
and does not wander off to the right; where a tree branches, lines lead to each branch:

    Holiday
    Where shall we go?
    ├── To the sea.
    │   When?
    └── To the mountains.

Every node is one line. What is left out is noted where it is missing.

The text of a handle comes from the plugin that it names: its method
`resolve_handle(handle: str) -> str`, if that is marked `read_only`. Nothing else of a plugin is
called: a handle is data, and may name any method at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from activations.arbor.model import PAGE_ITEMS, Branch, Handle, Tree
from activations.arbor.text_width import ELLIPSIS, preview
from activations.arbor.uris import title_of
from plexus import Context, InvalidParams, PlexusError

__all__ = ("Bounds", "Resolve", "draw", "resolver")

#: What turns handles into texts; None where it cannot.
Resolve = Callable[[Sequence[Handle]], Awaitable[list[str | None]]]

#: How many branchings deep a drawing goes: each takes four columns.
MOST_BRANCHINGS = 40
MOST_DEPTH = 1_000_000

#: The method of a plugin that gives the text of its handles.
RESOLVE_METHOD = "resolve_handle"
#: How long all handles of a drawing may take together.
RESOLVE_S = 5.0


class Bounds(NamedTuple):
    """How much is drawn."""

    depth: int
    limit: int
    width: int

    @classmethod
    def checked(cls, depth: int, limit: int, width: int) -> Bounds:
        """These bounds; raises InvalidParams for what cannot be drawn."""
        for name, value, least, most in (
            ("depth", depth, 0, MOST_DEPTH),
            ("limit", limit, 1, PAGE_ITEMS),
            ("width", width, 10, 1000),
        ):
            if not least <= value <= most:
                raise InvalidParams.at(name, f"must be from {least} to {most}")
        return cls(depth, limit, width)


async def draw(
    tree: Tree,
    branches: Sequence[Branch],
    bounds: Bounds,
    resolve: Resolve,
    *,
    ids: bool = False,
) -> str:
    """The drawing; the first branch is the one without a parent, siblings are in their order."""
    handles = [branch.handle for branch in branches if branch.handle is not None]
    resolved = dict(zip(handles, await resolve(handles), strict=True)) if handles else {}
    labels = {
        branch.n: _label(tree, branch, bounds.width, resolved, ids=ids) for branch in branches
    }
    return "\n".join(_lines(branches, labels)) + "\n"


def _lines(branches: Sequence[Branch], labels: dict[int, str]) -> list[str]:
    below: dict[int | None, list[Branch]] = {}
    for branch in branches:
        below.setdefault(branch.parent, []).append(branch)
    [top] = below[None]
    lines: list[str] = []
    # What is still to be drawn, the next one last: what stands before its line, what before the
    # lines below it, and how many times the tree has branched.
    rest: list[tuple[Branch | str, str, str, int]] = [(top, "", "", 0)]
    while rest:
        drawn, before, under, level = rest.pop()
        if isinstance(drawn, str):
            lines.append(before + drawn)
            continue
        lines.append(before + labels[drawn.n])
        children: list[Branch | str] = [*below.get(drawn.n, ())]
        missing = drawn.children - len(children)
        if level >= MOST_BRANCHINGS and len(children) + bool(missing) > 1:
            children, missing = [], drawn.children
        if missing:
            children.append(f"{ELLIPSIS} {missing} more" if children else _left_out(missing))
        if len(children) == 1:
            rest.append((children[0], under, under, level))
        elif children:
            rest.append((children.pop(), f"{under}└── ", f"{under}    ", level + 1))
            lead = f"{under}├── ", f"{under}│   ", level + 1
            rest += [(child, *lead) for child in reversed(children)]
    return lines


def _left_out(count: int) -> str:
    return f"{ELLIPSIS} {count} {'node' if count == 1 else 'nodes'} below"


def _label(
    tree: Tree,
    branch: Branch,
    width: int,
    resolved: dict[Handle, str | None],
    *,
    ids: bool,
) -> str:
    if branch.handle is not None:
        text = resolved.get(branch.handle) or f"[unresolved {branch.handle}]"
    elif not branch.text and branch.id == tree.root:
        text = title_of(tree.metadata) or "(root)"
    else:
        text = branch.text or "(empty)"
    label = preview(text, width)
    if branch.replaced:
        label += "  (replaced)"
    return f"{label}  {branch.id}" if ids else label


# --- handles --------------------------------------------------------------------------------------


def resolver(ctx: Context) -> Resolve:
    """Return what resolves handles on behalf of this call."""

    async def resolve(handles: Sequence[Handle]) -> list[str | None]:
        texts: list[str | None] = []
        try:
            async with asyncio.timeout(RESOLVE_S):
                for handle in handles:
                    texts.append(await _resolve(ctx, handle))  # noqa: PERF401 - kept at a timeout
        except TimeoutError:
            pass
        return texts + [None] * (len(handles) - len(texts))

    return resolve


async def _resolve(ctx: Context, handle: Handle) -> str | None:
    try:
        spec = ctx.plexus.resolve(f"{handle.plugin}.{RESOLVE_METHOD}")
        if not spec.hints.read_only:
            return None
        text = await ctx.call(spec.name, handle=str(handle))
    except PlexusError:
        return None
    return text if isinstance(text, str) else None

"""Drawings of trees as text, and the width of text in columns.

An only child is drawn directly below its parent, so that a conversation is not indented further and
further. Where a tree branches, lines lead to each branch:

    Holiday
    Where shall we go?
    ├── To the sea.
    │   When?
    └── To the mountains.

Every node is one line. Omitted nodes are noted at their position.

The text of a handle is resolved by its plugin, by the method `resolve_handle(handle: str) -> str`
if that is marked `read_only`. No other method of a plugin is called: a handle is data, and may name
any method.

Text is truncated between grapheme clusters, never inside one: an accent stays with its letter, and
an emoji sequence stays together. Python's Unicode database is sufficient for that.
"""

from __future__ import annotations

import asyncio
import unicodedata
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import NamedTuple

from activations.arbor.model import DrawnNode, Handle, Tree, title_of
from plexus import Context, PlexusError
from plexus.text import replace_controls

__all__ = (
    "ELLIPSIS",
    "Bounds",
    "Resolve",
    "draw",
    "graphemes",
    "one_line",
    "preview",
    "resolver",
    "text_width",
    "truncate",
)

#: Resolves handles to texts; None for a handle that cannot be resolved.
Resolve = Callable[[Sequence[Handle]], Awaitable[list[str | None]]]

#: Maximum number of nested branches in a drawing: each is indented by four columns.
MAX_BRANCH_LEVELS = 40
MAX_DEPTH = 1_000_000

#: The method of a plugin that resolves its handles.
RESOLVE_METHOD = "resolve_handle"
#: Timeout for resolving all handles of a drawing.
RESOLVE_S = 5.0

#: The marks for a line break and for truncated text.
NEWLINE = "\u21b5"
ELLIPSIS = "\u2026"

#: How much of a text a preview reads, so that large texts cost nothing extra.
PREVIEW_CHARACTERS = 4096

_JOINER = "\u200d"
_EMOJI_SELECTOR = "\ufe0f"
_MARKS = frozenset(("Mn", "Me", "Mc"))


class Bounds(NamedTuple):
    """The limits of a drawing."""

    depth: int
    limit: int
    width: int


async def draw(
    tree: Tree,
    nodes: Sequence[DrawnNode],
    bounds: Bounds,
    resolve: Resolve,
    *,
    ids: bool = False,
) -> str:
    """Return the drawing. Exactly one node has no parent; siblings are in order."""
    handles = [node.handle for node in nodes if node.handle is not None]
    resolved = dict(zip(handles, await resolve(handles), strict=True)) if handles else {}
    labels = {node.n: _label(tree, node, bounds.width, resolved, ids=ids) for node in nodes}
    return "\n".join(_lines(nodes, labels)) + "\n"


def _lines(nodes: Sequence[DrawnNode], labels: dict[int, str]) -> list[str]:
    below: dict[int | None, list[DrawnNode]] = {}
    for node in nodes:
        below.setdefault(node.parent, []).append(node)
    [top] = below[None]
    lines: list[str] = []
    # The stack of what is still to be drawn: the node or note, the prefix of its line, the prefix
    # of the lines below it, and the number of nested branches.
    rest: list[tuple[DrawnNode | str, str, str, int]] = [(top, "", "", 0)]
    while rest:
        drawn, before, under, level = rest.pop()
        if isinstance(drawn, str):
            lines.append(before + drawn)
            continue
        lines.append(before + labels[drawn.n])
        children: list[DrawnNode | str] = [*below.get(drawn.n, ())]
        missing = drawn.children - len(children)
        if level >= MAX_BRANCH_LEVELS and len(children) + bool(missing) > 1:
            children, missing = [], drawn.children
        if missing:
            children.append(f"{ELLIPSIS} {missing} more" if children else _omitted(missing))
        if len(children) == 1:
            rest.append((children[0], under, under, level))
        elif children:
            rest.append((children.pop(), f"{under}└── ", f"{under}    ", level + 1))
            lead = f"{under}├── ", f"{under}│   ", level + 1
            rest += [(child, *lead) for child in reversed(children)]
    return lines


def _omitted(count: int) -> str:
    return f"{ELLIPSIS} {count} {'node' if count == 1 else 'nodes'} below"


def _label(
    tree: Tree,
    node: DrawnNode,
    width: int,
    resolved: dict[Handle, str | None],
    *,
    ids: bool,
) -> str:
    if node.handle is not None:
        text = resolved.get(node.handle) or f"[unresolved {node.handle}]"
    elif not node.text and node.id == tree.root:
        text = title_of(tree.metadata) or "(root)"
    else:
        text = node.text or "(empty)"
    label = preview(text, width)
    if node.replaced:
        label += "  (replaced)"
    return f"{label}  {node.id}" if ids else label


# --- handles --------------------------------------------------------------------------------------


def resolver(ctx: Context) -> Resolve:
    """Return a function that resolves handles on behalf of this call."""

    async def resolve(handles: Sequence[Handle]) -> list[str | None]:
        texts: list[str | None] = []
        try:
            async with asyncio.timeout(RESOLVE_S):
                for handle in handles:
                    texts.append(await _resolve(ctx, handle))  # noqa: PERF401 - partial results are kept on timeout
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


# --- width of text --------------------------------------------------------------------------------


def preview(text: str, columns: int) -> str:
    """Return the beginning of a text as one line of at most this many columns."""
    line = one_line(text[:PREVIEW_CHARACTERS])
    if len(text) > PREVIEW_CHARACTERS:
        line += " " * columns  # forces truncation, because there is more text
    return truncate(line, columns)


def one_line(text: str) -> str:
    """Return a text on one line, with marks for line breaks and visible control characters."""
    text = text.replace("\r\n", "\n")
    return text if text.isprintable() else "".join(map(_visible, text))


def _visible(character: str) -> str:
    code = ord(character)
    if character in "\n\r\u2028\u2029\x85":
        return NEWLINE
    if character == "\t":
        return " "
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "\u2421"
    # Characters that change the writing direction would garble a drawing.
    return replace_controls(character, "\ufffd")


def text_width(text: str) -> int:
    """Return the width of a one-line text in columns."""
    if text.isascii():
        return len(text)
    return sum(map(_columns, graphemes(text)))


def truncate(text: str, columns: int) -> str:
    """Return the text, truncated with an ellipsis to at most this many columns."""
    # A text with more characters than columns is not measured here, because it may be very long.
    if len(text) <= columns and text_width(text) <= columns:
        return text
    kept: list[str] = []
    taken = [0]
    for character in graphemes(text):
        kept.append(character)
        taken.append(taken[-1] + _columns(character))
        if taken[-1] > columns:
            break
    else:
        return text
    while kept and taken[-1] > columns - 1:
        kept.pop()
        taken.pop()
    return "".join(kept).rstrip() + ELLIPSIS if columns > 0 else ""


def graphemes(text: str) -> Iterator[str]:
    """Yield the grapheme clusters of a text."""
    start = 0
    flags = 0  # number of consecutive flag letters before this character
    for index in range(1, len(text)):
        character, before = text[index], text[index - 1]
        flags = flags + 1 if _is_flag_letter(before) else 0
        if (
            _extends_grapheme(character)
            or before == _JOINER
            or (_is_flag_letter(character) and flags % 2)
            or (_is_vowel_or_final(character) and _is_hangul(before))
        ):
            continue
        yield text[start:index]
        start = index
    if text:
        yield text[start:]


def _extends_grapheme(character: str) -> bool:
    """Return whether a character belongs to the same grapheme cluster as the previous one."""
    if character < "\u0300":
        return False
    return (
        unicodedata.category(character) in _MARKS
        or character in (_JOINER, "\u200c")
        or "\U0001f3fb" <= character <= "\U0001f3ff"  # skin tones
        or "\U000e0020" <= character <= "\U000e007f"  # tag letters in the flag of a region
    )


def _is_flag_letter(character: str) -> bool:
    return "\U0001f1e6" <= character <= "\U0001f1ff"


def _is_hangul(character: str) -> bool:
    return "\u1100" <= character <= "\u11ff" or "\uac00" <= character <= "\ud7fb"


def _is_vowel_or_final(character: str) -> bool:
    return "\u1160" <= character <= "\u11ff" or "\ud7b0" <= character <= "\ud7fb"


def _columns(character: str) -> int:
    """Return the width of a grapheme cluster in columns."""
    first = character[0]
    if unicodedata.east_asian_width(first) in ("W", "F") or _is_flag_letter(first):
        return 2
    if len(character) > 1 and (_EMOJI_SELECTOR in character or _JOINER in character):
        return 2
    category = unicodedata.category(first)
    return 0 if category in ("Mn", "Me", "Cf") and first != "\xad" else 1

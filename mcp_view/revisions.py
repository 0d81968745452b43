"""The revision table: what each revision of the protocol has, one row a revision.

Everything that differs between revisions is a column here. No other module compares revisions;
they ask the row they were given.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

__all__ = ("HANDSHAKES", "LATEST_HANDSHAKE", "REVISIONS", "STATELESS", "SUPPORTED", "Revision")


class Revision(NamedTuple):
    """One row. A column that a revision does not name has the value of the oldest."""

    name: str
    #: The place in the order of time, for the method table's first and last revision.
    order: int
    #: Whether a client begins with `initialize`; if not, every request says who it is from.
    handshake: bool = True
    #: Whether several messages may come as one array.
    batches: bool = False
    #: `message` in progress notifications.
    progress_message: bool = False
    #: `annotations` of tools: read-only, destructive, idempotent, open-world, and a title there.
    tool_hints: bool = False
    #: Audio as content.
    audio: bool = False
    #: The `completions` capability; completion itself is older.
    completions: bool = False
    #: `title` beside `name`.
    titles: bool = False
    #: `outputSchema` of tools and `structuredContent` of results.
    structured: bool = False
    #: `resource_link` as content.
    links: bool = False
    #: `_meta` of tools.
    tool_meta: bool = False
    #: How a person can be asked: by a form, by a page to visit.
    elicitation: frozenset[str] = frozenset()
    #: The `mode` of an elicitation is said.
    elicitation_mode: bool = False
    #: Forms may have defaults, choices with titles, and several choices at once.
    rich_forms: bool = False
    #: A page to visit has an id of its own.
    elicitation_id: bool = False
    #: Tasks: not at all, in the core, or as an extension.
    tasks: Literal["no", "core", "extension"] = "no"
    #: What bad arguments for a tool are: an error of the protocol, or a result that failed.
    bad_arguments: Literal["error", "result"] = "error"
    #: The code for a resource that is not there.
    missing_resource: int = -32002
    #: `description` in what the server says of itself.
    server_description: bool = False
    #: `ttlMs` and `cacheScope` on what may be cached.
    caching: bool = False
    #: A response stream begins with an empty event that has an id, and the server may end it and
    #: have the client come back for the rest.
    priming: bool = False
    #: Sessions, the standing stream and replay over HTTP.
    sessions: bool = True
    #: What losing a response stream means for the run behind it.
    disconnect_cancels: bool = False


_FORM = frozenset({"form"})
_FORM_AND_URL = frozenset({"form", "url"})

_2024_11_05 = Revision("2024-11-05", 0)
_2025_03_26 = _2024_11_05._replace(
    name="2025-03-26",
    order=1,
    batches=True,
    progress_message=True,
    tool_hints=True,
    audio=True,
    completions=True,
)
_2025_06_18 = _2025_03_26._replace(
    name="2025-06-18",
    order=2,
    batches=False,
    titles=True,
    structured=True,
    links=True,
    tool_meta=True,
    elicitation=_FORM,
)
_2025_11_25 = _2025_06_18._replace(
    name="2025-11-25",
    order=3,
    elicitation=_FORM_AND_URL,
    elicitation_mode=True,
    rich_forms=True,
    elicitation_id=True,
    tasks="core",
    bad_arguments="result",
    server_description=True,
    priming=True,
)
_2026_07_28 = _2025_11_25._replace(
    name="2026-07-28",
    order=4,
    handshake=False,
    elicitation_id=False,
    tasks="extension",
    missing_resource=-32602,
    caching=True,
    priming=False,
    sessions=False,
    disconnect_cancels=True,
)

REVISIONS: Final[dict[str, Revision]] = {
    row.name: row for row in (_2024_11_05, _2025_03_26, _2025_06_18, _2025_11_25, _2026_07_28)
}
#: What we tell a client that asks: all of them, the newest first.
SUPPORTED: Final = tuple(reversed(REVISIONS))
#: Those that a client reaches by `initialize`.
HANDSHAKES: Final = tuple(name for name, row in REVISIONS.items() if row.handshake)
#: What a client that asks for an unknown revision is offered.
LATEST_HANDSHAKE: Final = _2025_11_25
STATELESS: Final = _2026_07_28

"""The revision table: one row for each revision of the protocol.

Everything that differs between revisions is a column here. No other module compares revisions;
each reads the columns of the row it receives.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

__all__ = ("HANDSHAKES", "LATEST_HANDSHAKE", "REVISIONS", "STATELESS", "SUPPORTED", "Revision")


class Revision(NamedTuple):
    """One row. The default of each column is its value in the oldest revision."""

    name: str
    #: Position in chronological order, compared by the method table.
    order: int
    #: Whether a client starts with `initialize`. If not, every request identifies its client.
    handshake: bool = True
    #: JSON-RPC batches.
    batches: bool = False
    #: `message` in progress notifications.
    progress_message: bool = False
    #: `annotations` of tools: title, read-only, destructive, idempotent and open-world.
    tool_hints: bool = False
    #: Audio content.
    audio: bool = False
    #: The `completions` capability. Completion itself is older.
    completions: bool = False
    #: `title` in addition to `name`.
    titles: bool = False
    #: `outputSchema` of tools and `structuredContent` of results.
    structured: bool = False
    #: `resource_link` content.
    links: bool = False
    #: `_meta` of tools.
    tool_meta: bool = False
    #: Modes of elicitation: a form, or a URL to open.
    elicitation: frozenset[str] = frozenset()
    #: `mode` in elicitation requests.
    elicitation_mode: bool = False
    #: Forms may have defaults, choices with titles, and multiple choice.
    rich_forms: bool = False
    #: `elicitationId` in URL elicitation.
    elicitation_id: bool = False
    #: Tasks: unsupported, in the core, or as an extension.
    tasks: Literal["no", "core", "extension"] = "no"
    #: How invalid arguments of a tool are reported: by a protocol error or by a failed result.
    bad_arguments: Literal["error", "result"] = "error"
    #: The error number for an unknown resource.
    missing_resource: int = -32002
    #: `description` in the server information.
    server_description: bool = False
    #: `ttlMs` and `cacheScope` in cacheable results.
    caching: bool = False
    #: A response stream starts with an empty event that has an id, so that the server may close it
    #: early and the client reconnects for the rest.
    priming: bool = False
    #: Sessions, the standalone stream and replay over HTTP.
    sessions: bool = True
    #: Whether losing a response stream cancels its run.
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
#: All revisions, newest first, as reported to clients.
SUPPORTED: Final = tuple(reversed(REVISIONS))
#: Revisions that `initialize` can negotiate.
HANDSHAKES: Final = tuple(name for name, row in REVISIONS.items() if row.handshake)
#: Offered to a client that requests an unknown revision.
LATEST_HANDSHAKE: Final = _2025_11_25
STATELESS: Final = _2026_07_28

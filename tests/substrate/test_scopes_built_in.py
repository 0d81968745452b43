"""Scopes of the built-in methods: each has exactly the documented one.

Each set of scopes permits and lists exactly its methods.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hub_calls import call
from mcp_peer import McpPeer, make_server

from mcp_view.server import McpOptions
from mcp_view.tool_sets import ALL_TOOLS
from plexus import Denied, InvalidParams, Plexus, Principal
from plexus.errors import UnknownMethod
from plexus.events import Result
from substrate.build_hub import build_hub
from substrate.settings import Settings

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

#: Every method that needs more than the read scope.
CHANGES = {
    "bash": ["bash.execute"],
    "arbor.write": [
        *("arbor.node_append", "arbor.node_create_external", "arbor.node_create_text"),
        *("arbor.node_delete", "arbor.node_edit", "arbor.node_move", "arbor.tree_claim"),
        *("arbor.tree_create", "arbor.tree_delete", "arbor.tree_import", "arbor.tree_release"),
        "arbor.tree_update_metadata",
    ],
    "chat": [
        *("chat.configure", "chat.create", "chat.delete", "chat.edit", "chat.fork"),
        *("chat.regenerate", "chat.rename", "chat.send", "chat.set_head"),
        *("claudecode.chat", "claudecode.create", "claudecode.delete", "claudecode.fork"),
    ],
    # They change nothing, but read any folder that the server can read.
    "analysis": [
        *("analysis.analyze_code_churn", "analysis.analyze_complexity"),
        *("analysis.analyze_deep_context", "analysis.diagnose"),
    ],
    "approvals": ["approvals.permit", "approvals.respond"],
    "python": [
        *("python.close_session", "python.evaluate", "python.interrupt", "python.reset"),
        "python.restart",
        "ide.execute_code",
    ],
    # They read any file of the project, and what others propose to change there.
    "ide": [
        *("ide.activate_document", "ide.answer_diff", "ide.check", "ide.close_all_diff_tabs"),
        *("ide.close_document", "ide.close_tab", "ide.comment", "ide.diagnostics", "ide.diff"),
        *("ide.diff_comments", "ide.diffs", "ide.document_dirty", "ide.edit_document"),
        *("ide.find_files", "ide.format_document", "ide.get_cursor", "ide.get_latest_selection"),
        *("ide.get_selection", "ide.list_folder", "ide.mention", "ide.open_diff"),
        *("ide.open_document", "ide.open_editors", "ide.open_file", "ide.open_files"),
        *("ide.read_document", "ide.read_file", "ide.reformat_file", "ide.revert_document"),
        *("ide.save_document", "ide.save_file", "ide.select", "ide.set_cursor"),
        *("ide.set_selection", "ide.status", "ide.switch", "ide.uncomment", "ide.watch"),
        "ide.workspace_folders",
    ],
    "tasks": [
        *("tasks.close_task", "tasks.create_task", "tasks.delete", "tasks.import"),
        *("tasks.link_tasks", "tasks.next_task", "tasks.update_task"),
    ],
    "templates": ["templates.scaffold_project"],
}
SCOPE_OF = {name: scope for scope, names in CHANGES.items() for name in names}
#: Methods with the read scope that change something: they affect only the caller's own runs, and
#: the scope of the method that `call` names is checked when it is called.
OWN = {
    "plexus.call",
    "plexus.cancel",
    "plexus.delete",
    "plexus.keep",
    "plexus.pin",
    "plexus.prune",
    "plexus.release",
    "plexus.respond",
    "plexus.unsubscribe",
}

#: No scope, each one, each pair, and all: scopes are independent of each other.
SETS = [
    frozenset(chosen)
    for size in (0, 1, 2, len(CHANGES) + 1)
    for chosen in itertools.combinations([*CHANGES, "read"], size)
]


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[Plexus]:
    hub, broken = build_hub(Settings(database=str(tmp_path / "arbor.db")), tmp_path)
    assert not broken
    yield hub
    await hub.close()


def principal_with(scopes: frozenset[str]) -> Principal:
    return Principal("somebody", scopes)


async def test_every_built_in_method_has_the_documented_scope(hub: Plexus) -> None:
    found = {spec.name: spec.scope for spec in hub.methods()}
    assert found == {name: SCOPE_OF.get(name, "read") for name in found}
    assert SCOPE_OF.keys() <= found.keys()


async def test_methods_with_the_read_scope_change_nothing(hub: Plexus) -> None:
    open_ = {spec for spec in hub.methods() if spec.scope == "read"}
    changing = {s.name for s in open_ if not s.hints.read_only and s.role == "method"}
    assert changing == OWN


@pytest.mark.parametrize("scopes", SETS, ids=lambda scopes: "+".join(sorted(scopes)) or "none")
async def test_each_set_of_scopes_permits_exactly_its_methods(
    hub: Plexus, scopes: frozenset[str]
) -> None:
    principal = principal_with(scopes)
    called = set()
    for spec in hub.methods():
        for name in (spec.name, spec.name.replace(".", "_")):
            # What is allowed gets as far as its parameters, and no further.
            with pytest.raises((Denied, InvalidParams)) as caught:
                hub.call(name, {"no such parameter": None}, principal)
            if caught.value.code == "denied":
                assert caught.value.data == {"scope": spec.scope}
            else:
                called.add(spec.name)
    assert called == {
        spec.name for spec in hub.methods() if SCOPE_OF.get(spec.name, "read") in {*scopes, "read"}
    }
    assert hub.runs.list_for(principal) == []


@pytest.mark.parametrize("scopes", SETS, ids=lambda scopes: "+".join(sorted(scopes)) or "none")
async def test_each_set_of_scopes_sees_exactly_what_it_can_call(
    hub: Plexus, scopes: frozenset[str]
) -> None:
    principal = principal_with(scopes)
    may = {name for name, scope in SCOPE_OF.items() if scope in scopes}
    [result] = await call(hub, "plexus.schema", {}, principal)
    assert isinstance(result, Result)
    described = {
        entry["name"] for node in result.result["activations"] for entry in node["methods"]
    }
    assert described & SCOPE_OF.keys() == may
    assert described == {spec.name for spec in hub.methods(principal)}
    tools = await tools_of(
        McpPeer(
            hub,
            "2025-06-18",
            server=make_server(hub, McpOptions(tools=ALL_TOOLS)),
            principal=principal,
        )
    )
    assert tools & SCOPE_OF.keys() == may
    assert tools == {
        spec.name for spec in hub.methods(principal) if spec.role == "method" and spec.listed
    }


async def tools_of(peer: McpPeer) -> set[str]:
    tools: list[Any] = (await peer.result("tools/list"))["tools"]
    return {tool["name"] for tool in tools}


async def test_one_server_shows_every_caller_its_own_list(hub: Plexus) -> None:
    server = make_server(hub, McpOptions(tools=ALL_TOOLS))
    for scopes in [*SETS, *reversed(SETS)]:
        peer = McpPeer(
            hub, "2025-06-18", server=server, principal=principal_with(scopes), checked=False
        )
        may = {name for name, scope in SCOPE_OF.items() if scope in scopes}
        assert await tools_of(peer) & SCOPE_OF.keys() == may


@pytest.mark.parametrize("name", ["bash.execut", "arbor.tree_creat", "chat.sen"])
async def test_a_misspelled_name_reveals_no_hidden_method(hub: Plexus, name: str) -> None:
    with pytest.raises(UnknownMethod) as caught:
        hub.call(name, {}, principal_with(frozenset()))
    assert not SCOPE_OF.keys() & set(caught.value.data["nearest"])

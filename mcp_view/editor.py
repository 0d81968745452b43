"""The tools of an editor, as MCP: a fixed table with flat names, and nothing else of the hub.

Command line agents connect to an editor over MCP and expect the tools that every editor has, with
exact names, arguments and forms of results. Their calls are runs of the hub's methods. The
questions of these runs are never sent to the client, because the agent that requests a review must
not answer it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from mcp_view.calls.tool import ToolCall
from mcp_view.catalogue import Entries
from mcp_view.errors import ProtocolError
from mcp_view.methods import METHODS, Method
from mcp_view.protocol import McpConnection
from mcp_view.reducer import Reducer
from mcp_view.replies import Answer, Framing, Reply
from mcp_view.revisions import Revision
from mcp_view.server import McpOptions, McpServer
from mcp_view.session import Caller, Peer, Session
from plexus.events import Event, Result, Terminal
from plexus.principal import Principal
from plexus.registry.signature import MethodSpec
from plexus.rpc import wire
from plexus.rpc.effects import Effect, StartCall
from plexus.runtime.hub import Plexus

__all__ = ("EDITOR_METHODS", "EditorConnection", "EditorServer", "EditorTool")

#: Maximum characters of text in a result that is not made of blocks.
RESULT_CHARS: Final = 1_000_000
#: The notification by which a client confirms the connection, and says which process it is.
CONNECTED: Final = "ide_connected"


class EditorTool(NamedTuple):
    """A row of the table."""

    name: str
    #: The method of the hub that does the work.
    method: str
    description: str
    #: JSON Schema of the arguments.
    schema: dict[str, Any]
    #: The parameter of the method for each argument. All other arguments are ignored: clients send
    #: those of other editors.
    parameters: Mapping[str, str]
    #: Returns the text blocks of a result; None for the output of the run as it is.
    blocks: Callable[[Any], Sequence[str]] | None = None
    #: False for a tool that clients call without having listed it.
    listed: bool = True


class EditorServer(McpServer):
    """The MCP server of an editor."""

    def __init__(
        self,
        hub: Plexus,
        tools: Sequence[EditorTool],
        name: str,
        *,
        secret: bytes,
        monotonic: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._name = name
        self._rows = {tool.name: tool for tool in tools}
        options = McpOptions(result_chars=RESULT_CHARS)
        super().__init__(hub, options, secret=secret, monotonic=monotonic, wall=wall)

    def available(self, principal: Principal) -> list[EditorTool]:
        """Return the listed tools whose methods the hub offers to this principal."""
        rows = [self._rows[name] for name in sorted(self._rows)]
        return [row for row in rows if row.listed and self._find(row, principal)]

    def find_row(self, name: str, principal: Principal) -> tuple[EditorTool, MethodSpec] | None:
        """Return a tool and its method; None if it does not exist or is switched off."""
        row = self._rows.get(name)
        spec = None if row is None else self._find(row, principal)
        return None if row is None or spec is None else (row, spec)

    def structured_content(
        self,
        revision: Revision,  # noqa: ARG002 - the same in all
        spec: MethodSpec,  # noqa: ARG002
        terminal: Terminal,  # noqa: ARG002
    ) -> bytes:
        """Return nothing: the tools of an editor declare no output schemas."""
        return b""

    def _find(self, row: EditorTool, principal: Principal) -> MethodSpec | None:
        spec = self.hub.find_method(row.method)
        return spec if spec is not None and principal.may(spec.scope) else None

    def info(self, revision: Revision) -> dict[str, Any]:
        """Return the name of the editor and the version of the server."""
        return super().info(revision) | {"name": self._name}

    def capabilities(self, revision: Revision) -> dict[str, Any]:  # noqa: ARG002 - the same in all
        """Return the capabilities: tools, and lists that are empty."""
        return {
            "logging": {},
            "prompts": {"listChanged": True},
            "resources": {"subscribe": True, "listChanged": True},
            "tools": {"listChanged": True},
        }


class EditorConnection(McpConnection):
    """The connection of one agent."""

    def __init__(
        self,
        server: EditorServer,
        framing: Framing,
        principal: Principal,
        on_change: Callable[[], None],
    ) -> None:
        """Create a connection. `on_change` is called when the client has introduced itself."""
        session = Session()
        session.names_page = False
        super().__init__(
            server,
            session,
            framing,
            principal=principal,
            change_notifications=False,
            methods=EDITOR_METHODS,
        )
        self._on_change = on_change
        #: The process of the client; None before it is known.
        self.pid: int | None = None

    @property
    def client(self) -> str | None:
        """The name and version of the client; None before the handshake."""
        caller = self.peer.session.caller
        return None if caller is None else caller.client

    @property
    def is_ready(self) -> bool:
        """Whether the client has completed the handshake, so that it can be notified."""
        return self.peer.session.initialized

    def notification(self, method: str, params: dict[str, Any]) -> list[Effect]:
        """Return the effects that notify the client."""
        return self._writer.notify([wire.encode_notification(method, params)])

    def receive(self, message: wire.Message | list[wire.Message]) -> list[Effect]:
        """Handle a message or a batch, and note who the client is."""
        effects = super().receive(message)
        if isinstance(message, wire.Notification):
            if message.method == CONNECTED:
                self.pid = _pid(message.params)
                self._on_change()
            elif message.method == "notifications/initialized":
                self._on_change()
        return effects


class _EditorCall(ToolCall):
    """One call of a tool of the editor."""

    _row: EditorTool

    def start(
        self,
        spec: MethodSpec,
        arguments: dict[str, Any],
        params: dict[str, Any],  # noqa: ARG002 - as the base has it
    ) -> list[Reply]:
        """Start a run that may ask any question: people answer it."""
        client = self.caller.client
        return [StartCall(self, spec.name, arguments, spec=spec, client=client)]

    def ask(self, events: list[Event]) -> list[Reply]:  # noqa: ARG002 - as the base has it
        """Send nothing: the questions are answered by people, through other views."""
        return []

    def _result(self, reducer: Reducer, terminal: Terminal) -> bytes:
        if self._row.blocks is None or not isinstance(terminal, Result):
            return super()._result(reducer, terminal)
        return self._encode_result(self._blocks(terminal), terminal)

    def _answer_with_text(self, text: bytes, terminal: Terminal) -> list[Reply]:
        if self._row.blocks is None or not isinstance(terminal, Result):
            return super()._answer_with_text(text, terminal)
        return self.answer(self._encode_result(self._blocks(terminal), terminal))

    def _blocks(self, terminal: Result) -> bytes:
        assert self._row.blocks is not None, "the caller has checked it"
        texts = self._row.blocks(terminal.result)
        content = [{"type": "text", "text": text} for text in texts]
        return b'"content":%b,"isError":false' % wire.encode(content)


def _pid(params: Any) -> int | None:
    pid = params.get("pid") if isinstance(params, dict) else None
    return pid if pid.__class__ is int and 0 < pid < 2**31 else None


# --- methods ----------------------------------------------------------------------------------


def _server(peer: Peer) -> EditorServer:
    assert isinstance(peer.server, EditorServer), "it is the server of these methods"
    return peer.server


def _list_tools(peer: Peer, _: wire.Id, params: dict[str, Any], caller: Caller) -> list[Reply]:
    server = _server(peer)
    rows = server.available(peer.principal)
    encoded = [
        wire.encode(
            {"name": row.name, "description": row.description, "inputSchema": row.schema},
        )
        for row in rows
    ]
    entries = Entries([row.name for row in rows], encoded)
    return [Answer(server.page(caller.revision, params, b'"tools"', entries))]


def _call_tool(
    peer: Peer, request_id: wire.Id, params: dict[str, Any], caller: Caller
) -> list[Reply]:
    name = params.get("name")
    if not isinstance(name, str):
        raise ProtocolError(wire.INVALID_PARAMS, "tools/call requires the name of a tool.")
    found = _server(peer).find_row(name, peer.principal)
    if found is None:
        raise ProtocolError(wire.INVALID_PARAMS, f"Unknown tool: {name[:128]}")
    row, spec = found
    given = params.get("arguments")
    if given is None:
        given = {}
    if not isinstance(given, dict):
        raise ProtocolError(wire.INVALID_PARAMS, "arguments must be an object.")
    # Null means the default: clients send all arguments of an editor.
    arguments = {
        parameter: given[argument]
        for argument, parameter in row.parameters.items()
        if given.get(argument) is not None
    }
    call = _EditorCall(peer, request_id, caller, spec)
    call._row = row  # noqa: SLF001 - a class of this module
    return call.start(spec, arguments, {})


def _empty(name: bytes) -> Callable[[Peer, wire.Id, dict[str, Any], Caller], list[Reply]]:
    def handle(peer: Peer, _: wire.Id, __: dict[str, Any], caller: Caller) -> list[Reply]:
        return [Answer(peer.server.cacheable(caller.revision, b'"%b":[]' % name))]

    return handle


#: The methods that the clients of an editor use.
EDITOR_METHODS: Final[Mapping[str, Method]] = {
    "ping": METHODS["ping"],
    "logging/setLevel": METHODS["logging/setLevel"],
    "tools/list": Method(_list_tools),
    "tools/call": Method(_call_tool),
    "prompts/list": Method(_empty(b"prompts")),
    "resources/list": Method(_empty(b"resources")),
    "resources/templates/list": Method(_empty(b"resourceTemplates")),
}

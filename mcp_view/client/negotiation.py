"""The beginning of a connection, and the streams of changes that begin with it.

A connection begins with a probe, unless the options name an era: a server that answers
`server/discover` needs no handshake, any other answer, or none in time, leads to `initialize`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mcp_view.client.connection import Expected
from mcp_view.client.effects import Abort, End, Opened
from mcp_view.client.errors import BadMessage, NotReady, Refused, UpstreamError
from mcp_view.client.options import Server, client_capabilities
from mcp_view.client.server_requests import ServerRequests
from mcp_view.errors import UNSUPPORTED_REVISION
from mcp_view.meta_keys import (
    CLIENT_CAPABILITIES,
    CLIENT_INFO,
    LOG_LEVEL,
    PROTOCOL_VERSION,
    SERVER_INFO,
)
from mcp_view.revisions import HANDSHAKES, REVISIONS, STATELESS, Revision
from plexus.rpc import wire

__all__ = ("Negotiation",)


class Negotiation(ServerRequests):
    """The choice of a revision, and the end of a connection."""

    def open(self) -> None:
        """Begin the connection."""
        if self.options.era == "legacy":
            self._initialize()
        else:
            self._probe()

    def probe_timed_out(self) -> None:
        """Fall back to `initialize`, because the probe got no answer."""
        if self._phase == "probing":
            self._fall_back(NotReady("The server did not answer server/discover."))

    def lost(self, error: UpstreamError) -> None:
        """End everything, because the connection has ended."""
        if self._phase != "ended":
            self._phase = "ended"
            for call in self.calls:
                self._fail(call, error)
            self._close_server_questions()
            self._expected.clear()

    def listen_again(self) -> None:
        """Open the stream of changes again, if it has ended."""
        server = self.server
        if self._listening is None and server is not None and not server.revision.handshake:
            self._listen()

    def set_subscriptions(self, uris: Iterable[str]) -> None:
        """Listen for changes of these resources and of the lists, instead of those before.

        Only for a revision without a handshake.
        """
        self._uris = set(uris)
        if self.server is not None and not self.server.revision.handshake:
            self._listen()

    # --- the probe and the handshake --------------------------------------------------------------

    def _probe(self) -> None:
        self._phase = "probing"
        self._probes += 1
        self._set_meta(STATELESS)
        self._request("server/discover", {}, Expected("probe"), STATELESS)

    def _set_meta(self, revision: Revision) -> None:
        self._meta = {}
        if not revision.handshake:
            self._meta = {
                PROTOCOL_VERSION: revision.name,
                CLIENT_INFO: self.options.info,
                CLIENT_CAPABILITIES: client_capabilities(self.options, revision),
            }

    def _initialize(self) -> None:
        self._phase = "initializing"
        self._meta = {}
        revision = REVISIONS[self.options.revision]
        params = {
            "protocolVersion": revision.name,
            "capabilities": client_capabilities(self.options, revision),
            "clientInfo": self.options.info,
        }
        self._request("initialize", params, Expected("initialize"), None)

    def _on_probed(self, message: wire.Response) -> None:
        if self._phase != "probing":
            return  # an answer after the timeout: `initialize` is on its way
        if message.error is not None:
            self._on_probe_refused(Refused.of(message.error))
            return
        result = message.result
        versions = result.get("supportedVersions") if isinstance(result, dict) else None
        if not isinstance(versions, list) or STATELESS.name not in versions:
            self._fall_back(BadMessage("server/discover did not name a supported version."))
            return
        self._opened(STATELESS, result)

    def _on_probe_refused(self, error: Refused) -> None:
        if error.number == UNSUPPORTED_REVISION:
            data = error.data.get("data")
            supported = data.get("supported") if isinstance(data, dict) else None
            if isinstance(supported, list):
                if STATELESS.name in supported and self._probes < 2:
                    self._probe()
                    return
                if not any(name in HANDSHAKES for name in supported if isinstance(name, str)):
                    names = ", ".join(str(name)[:40] for name in supported[:10])
                    self._end(BadMessage(f"The server supports no common revision: {names}."))
                    return
        self._fall_back(error)

    def _fall_back(self, error: UpstreamError) -> None:
        """Continue with a handshake, if the options allow it."""
        if self._may_fall_back and isinstance(error, Refused | BadMessage | NotReady):
            self._may_fall_back = False
            self._initialize()
        else:
            self._end(error)

    def _on_initialized(self, message: wire.Response) -> None:
        if message.error is not None:
            error = Refused.of(message.error)
            late = error.number == UNSUPPORTED_REVISION and self.options.era == "auto"
            if late and self._probes < 2:
                # The probe was answered too late, and the server has chosen its era by it.
                self._probe()
            else:
                self._end(error)
            return
        result = message.result
        name = result.get("protocolVersion") if isinstance(result, dict) else None
        revision = REVISIONS.get(name) if isinstance(name, str) else None
        if revision is None or not revision.handshake:
            self._end(BadMessage(f"The server chose an unknown revision: {str(name)[:40]!r}."))
            return
        self._opened(revision, result)

    def _opened(self, revision: Revision, result: dict[str, Any]) -> None:
        capabilities, info = result.get("capabilities"), result.get("serverInfo")
        meta, instructions = result.get("_meta"), result.get("instructions")
        if not isinstance(info, dict) and isinstance(meta, dict):
            info = meta.get(SERVER_INFO)
        self.server = Server(
            revision,
            capabilities if isinstance(capabilities, dict) else {},
            info if isinstance(info, dict) else {},
            instructions if isinstance(instructions, str) else None,
        )
        self._phase = "open"
        self._set_meta(revision)
        level = self.options.log_level
        if revision.handshake:
            self._notify("notifications/initialized", None)
            if level is not None and self.server.has("logging"):
                self._request("logging/setLevel", {"level": level}, Expected("ignored"))
        elif level is not None:
            self._meta[LOG_LEVEL] = level
        self._effects.append(Opened())
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            self._send_call(call)
        if not revision.handshake:
            self._listen()
        else:
            for uri in self._uris:
                self._request("resources/subscribe", {"uri": uri}, Expected("ignored"))

    def _listen(self) -> None:
        """Open the stream of changes that the server can report, instead of the one before."""
        server = self.server
        if server is None:
            return
        wanted: dict[str, Any] = {
            f"{kind}ListChanged": True
            for kind in ("tools", "prompts", "resources")
            if server.has(kind, "listChanged")
        }
        if self._uris:
            wanted["resourceSubscriptions"] = sorted(self._uris)
        before = self._listening
        self._listening = None
        if wanted:
            params = {"notifications": wanted}
            self._listening = self._request("subscriptions/listen", params, Expected("listen"))
        if before is not None and self._expected.pop(before, None) is not None:
            if self.is_http:
                self._effects.append(Abort(before))
            else:
                self._notify("notifications/cancelled", {"requestId": before})

    def _end(self, error: UpstreamError) -> None:
        self.lost(error)
        self._effects.append(End(error))

"""Requests of a server: questions for a person, a model or the program, and their answers.

In revisions with a handshake the server sends a request; without one, the result of a call contains
questions, and the call is repeated with their answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from mcp_view.client.call import ClientCall
from mcp_view.client.connection import Asked, Connection, Expected
from mcp_view.client.effects import Abort, Send
from mcp_view.client.errors import BadMessage, Cancelled
from mcp_view.client.items import Question, QuestionClosed, QuestionKind
from plexus.rpc import wire

__all__ = ("ServerRequests",)

#: Requests of a server that are open together. Past it: the next gets an error.
MAX_QUESTIONS: Final = 64
QUESTIONS: Final[dict[str, QuestionKind]] = {
    "elicitation/create": "form",
    "sampling/createMessage": "sampling",
    "roots/list": "roots",
}


class ServerRequests(Connection):
    """The questions of a server."""

    def cancel(self, call: ClientCall, reason: str | None = None) -> None:
        """Cancel a call. Its response is not waited for."""
        if call.is_done:
            return
        revision = self.revision
        if call in self._waiting:
            self._waiting.remove(call)
        elif revision is not None and self._phase == "open":
            if call.task is not None:
                self._request("tasks/cancel", {"taskId": call.task}, Expected("ignored"))
            elif call.id in self._expected:
                if not (self.is_http and revision.disconnect_cancels):
                    given = {} if reason is None else {"reason": reason}
                    self._notify("notifications/cancelled", {"requestId": call.id} | given)
                if self.is_http:
                    self._effects.append(Abort(call.id))
            self._expected.pop(call.id, None)
        self._fail(call, Cancelled(reason or "The call was cancelled."))

    def answer(self, question: Question, result: dict[str, Any]) -> None:
        """Answer a question with a result of MCP. A closed question is ignored."""
        asked = self._asked.pop(question.id, None)
        if asked is None or self._phase == "ended":
            return
        if asked.key is None:
            self._effects.append(Send(wire.encode_result(asked.request, wire.encode(result))))
        elif asked.call is not None:
            call = asked.call
            del call.questions[asked.key]
            call.responses[asked.key] = result
            if not call.questions:
                self._continue(call)

    def refuse(self, question: Question, reason: str) -> None:
        """Refuse to answer a question: it cannot be asked, or there is no caller to answer."""
        asked = self._asked.get(question.id)
        if asked is None:
            return
        if asked.key is None:
            del self._asked[question.id]
            self._effects.append(
                Send(wire.encode_error(asked.request, wire.INTERNAL_ERROR, reason))
            )
        elif question.kind in ("form", "url"):
            self.answer(question, {"action": "cancel"})
        elif question.kind == "roots":
            self.answer(question, {"roots": []})
        elif asked.call is not None:
            self.cancel(asked.call, reason)

    # --- questions in a result --------------------------------------------------------------------

    def _ask_all(self, call: ClientCall, requests: Mapping[str, Any]) -> bool:
        """Ask what is not asked yet. Returns False if a request was invalid and the call failed."""
        for key, request in requests.items():
            if key in call.questions:
                continue
            method = request.get("method") if isinstance(request, dict) else None
            params: Any = request.get("params", {}) if isinstance(request, dict) else None
            kind = self._kind_of(method, params)
            if kind is None or len(self._asked) >= MAX_QUESTIONS:
                reason = "asked for too much" if kind else f"asked for {method!r:.60}"
                self._fail(call, BadMessage(f"The server {reason}, which was not declared."))
                return False
            question = self._new_question(kind, params)
            call.questions[key] = question
            self._asked[question.id] = Asked(question, call, key=key)
            self._add(call, question)
        return True

    def _continue(self, call: ClientCall) -> None:
        """Send the answers of a round: with the request again, or to the task."""
        if call.task is None:
            self._send_call(call)
            return
        params = {"taskId": call.task, "inputResponses": call.responses}
        call.responses = {}
        self._request("tasks/update", params, Expected("ignored"))

    # --- requests of the server -------------------------------------------------------------------

    def _on_request(self, message: wire.Request, via: int | None) -> None:
        method, params = message.method, message.params
        revision = self.revision
        if message.id is None:
            return
        if method == "ping" and (revision is None or revision.handshake):
            self._effects.append(Send(wire.encode_result(message.id, b"{}")))
            return
        kind = None
        if revision is not None and revision.handshake:
            kind = self._kind_of(method, params or {})
        if kind is None:
            self._reject(message.id, wire.METHOD_NOT_FOUND, f"Method not found: {method[:128]}")
        elif len(self._asked) >= MAX_QUESTIONS:
            reason = f"At most {MAX_QUESTIONS} requests may be open."
            self._reject(message.id, wire.INTERNAL_ERROR, reason)
        else:
            question = self._new_question(kind, params if isinstance(params, dict) else {})
            call = self._call_of(via, guess=True)
            self._asked[question.id] = Asked(question, call, request=message.id)
            self._deliver(question, call)

    def _reject(self, request_id: wire.Id, code: int, text: str) -> None:
        revision = self.revision
        if self.is_http and revision is not None and not revision.handshake:
            self.junk("the server sent a request, which its revision does not allow")
        else:
            self._effects.append(Send(wire.encode_error(request_id, code, text)))

    def _kind_of(self, method: Any, params: Any) -> QuestionKind | None:
        """Return the kind of a request for input; None if this client has not declared it."""
        kind = QUESTIONS.get(method) if isinstance(method, str) else None
        if kind is None or not isinstance(params, dict):
            return None
        if kind == "form" and params.get("mode") == "url":
            kind = "url"
        return kind if kind in self.options.capabilities else None

    def _new_question(self, kind: QuestionKind, params: dict[str, Any]) -> Question:
        self._last_question += 1
        return Question(self._last_question, kind, params)

    def _call_of(self, via: int | None, *, guess: bool) -> ClientCall | None:
        """Return the call that a message belongs to, as far as that can be known.

        HTTP tells it by the stream, if the server uses the right one. On a pipe a message belongs
        to the only call in progress; with `guess`, to the last one.
        """
        if via is not None:
            call = self._calls.get(via)
            if call is not None:
                return call
        calls = self._calls
        if not calls or (not guess and (self.is_http or len(calls) > 1)):
            return None
        call = self._calls[next(reversed(self._calls))]
        return call if call.tracks_progress or guess else None

    def _close_server_questions(self) -> None:
        for asked in list(self._asked.values()):
            if asked.key is None:
                del self._asked[asked.question.id]
                self._deliver(QuestionClosed(asked.question), asked.call)

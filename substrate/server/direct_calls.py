"""Short MCP calls without ASGI: no task, no messages between layers, one write.

The HTTP protocol offers every request here before it starts the app. A request is taken if it is a
whole `POST /mcp` that the guard and admission accept and that the endpoint can start immediately.
Everything else, including every refusal, is left to the app, and nothing has happened then. What is
decided here is decided by the same functions as in the app, so the responses are the same.

A run that has not ended in the next turn of the event loop continues in a task, like in the app. A
short call takes 0.86 of the CPU time that the event loop needs for it in the app.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from starlette.types import ASGIApp, Receive, Scope, Send

from substrate.security.guard import Guard
from substrate.security.rate_limit import Admission
from substrate.server.http_response import Exchange
from substrate.server.mcp.endpoint import McpEndpoint, StartedCall
from substrate.server.mcp.responder import RemainingWork

__all__ = ("DirectCalls", "StartTask")

PATH: Final = "/mcp"

#: Starts an app for a request, in a task.
StartTask = Callable[[Exchange, ASGIApp], None]


class DirectCalls:
    """Starts and answers calls for the HTTP protocol."""

    def __init__(
        self,
        guard: Guard,
        admission: Admission,
        endpoint: McpEndpoint,
        protect: Callable[[ASGIApp], ASGIApp],
    ) -> None:
        """Use the checks and the endpoint of an app. `protect` answers for an app that raises."""
        self._guard = guard
        self._admission = admission
        self._endpoint = endpoint
        self._protect = protect

    def take(self, exchange: Exchange, start_task: StartTask) -> bool:
        """Answer a request. Returns False, and nothing has happened, if the app must answer it."""
        try:
            call = self._start(exchange)
        except Exception as error:  # noqa: BLE001 - every request is answered
            start_task(exchange, self._protect(_raising(error)))
            return True
        if call is None:
            return False
        exchange.body.clear()
        if call.view.idle:
            self._answer(call, exchange, start_task)
        else:  # runs that do not suspend end before this
            asyncio.get_running_loop().call_soon(self._answer, call, exchange, start_task)
        return True

    def _start(self, exchange: Exchange) -> StartedCall | None:
        scope: Any = exchange.scope
        if (
            scope["path"] != PATH
            or scope["method"] != "POST"
            or not exchange.is_answerable
            or not self._guard.admits(scope)
            or not self._admission.admits(scope)
        ):
            return None
        receive: Any = exchange.receive
        send: Any = exchange.send
        return self._endpoint.start(scope, bytes(exchange.body), receive, send)

    def _answer(self, call: StartedCall, exchange: Exchange, start_task: StartTask) -> None:
        """Answer a call that was started, in a task if it has not ended."""
        view, post, connection = call
        responder = self._endpoint.responder
        try:
            messages = connection.collect()
            if not view.idle:
                rest = responder.answer(view, post, connection, messages)
                start_task(exchange, self._protect(_Rest(rest)))
                return
            response = responder.complete(view, post, messages, connection)
            exchange.respond(*response)
        except Exception as error:  # noqa: BLE001 - every request is answered
            start_task(exchange, self._protect(_raising(error)))


class _Rest:
    """An app that sends the rest of an answer, once.

    It does not keep the coroutine, which would stay in memory as long as a stream.
    """

    __slots__ = ("_answer",)

    def __init__(self, answer: Coroutine[Any, Any, RemainingWork]) -> None:
        self._answer: Coroutine[Any, Any, RemainingWork] | None = answer

    def __call__(self, _scope: Scope, _receive: Receive, _send: Send) -> Awaitable[None]:
        answer, self._answer = self._answer, None
        assert answer is not None, "it is called once"
        return _finish(answer)


async def _finish(answer: Coroutine[Any, Any, RemainingWork]) -> None:
    remaining = await answer
    del answer  # the rest may be a stream of hours
    if remaining is not None:
        await remaining


def _raising(error: Exception) -> ASGIApp:
    """Return an app that raises this error."""

    async def app(_scope: Scope, _receive: Receive, _send: Send) -> None:
        raise error

    return app

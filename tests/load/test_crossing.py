"""Fifty clients that use the same ids concurrently: each gets its own answers.

Two principals share the clients, and the keys of their runs are identical too. LOAD_CALLS sets the
number of calls; the long form uses 100000.
"""

from __future__ import annotations

import asyncio
import itertools

import pytest
from load_clients import CALLS, KINDS, TIMEOUT_S, Caller, calling, loaded_server
from network import Server

from substrate.security.tokens import TokenFile

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(TIMEOUT_S)]

CLIENTS = 50
#: Concurrent calls per socket.
AT_ONCE = 5
NAMES = ("crossing-ada", "crossing-bob")


async def converse(client: int, caller: Caller) -> int:
    """Send this client's share of the calls. Returns how many got the answer of another client."""
    principal = NAMES[client % 2]
    crossed = 0
    for first in range(0, CALLS // CLIENTS, AT_ONCE):
        numbers = list(range(first, first + AT_ONCE))
        nonces = [f"{client}.{number}" for number in numbers]
        # A pair of clients, one of each principal, has the same keys.
        params = [
            {"nonce": nonce, "turns": number % 7, "_run": f"{client // 2}.{number}"}
            for nonce, number in zip(nonces, numbers, strict=True)
        ]
        answers = await caller.call(numbers, params)
        crossed += sum(a != f"{principal}/{n}" for a, n in zip(answers, nonces, strict=True))
    return crossed


async def test_no_client_gets_the_answer_of_another() -> None:
    tokens = TokenFile()
    secrets = [tokens.add(name, None) for name in NAMES]
    try:
        with loaded_server(auth="token") as server:
            callers = _callers(server, secrets)
            async with calling(callers):
                crossed = await asyncio.gather(*itertools.starmap(converse, enumerate(callers)))
    finally:
        for name in NAMES:
            tokens.revoke(name)
    assert sum(crossed) == 0


def _callers(server: Server, secrets: list[str]) -> list[Caller]:
    # Clients come in identical pairs, one for each principal.
    return [
        KINDS[(client // 2) % len(KINDS)](server, secrets[client % 2]) for client in range(CLIENTS)
    ]

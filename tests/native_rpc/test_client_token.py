"""The client and tokens: it sends a token, and fails immediately if it is rejected."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers import Server, play, serving

from native_rpc.client import connect
from plexus.errors import Denied
from substrate.security.tokens import TokenFile


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("server"), auth="token") as server:
        yield server


@pytest.fixture(params=["ws", "http"])
def target(request: pytest.FixtureRequest, server: Server) -> str:
    return f"{request.param}://127.0.0.1:{server.port}"


def token_of(server: Server) -> str:
    folder = Path(os.environ["XDG_STATE_HOME"]) / "substrate" / "servers"
    return str(json.loads((folder / f"{server.port}.json").read_text())["authToken"])


def test_a_client_with_the_token_calls(server: Server, target: str) -> None:
    async def scenario() -> str:
        async with connect(target, token=token_of(server)) as plexus:
            return await plexus.hash()

    assert play(scenario)


@pytest.mark.parametrize("token", [None, "wrong"])
def test_a_client_without_the_token_is_denied_with_a_reason(target: str, token: str | None) -> None:
    async def scenario() -> None:
        async with connect(target, token=token) as plexus:
            await plexus.hash()

    began = time.monotonic()
    with pytest.raises(Denied, match="token") as denied:
        play(scenario)
    assert time.monotonic() - began < 20, "it does not try again for half a minute"
    assert "wrong" not in str(denied.value)


def test_entering_is_refused_over_a_websocket(server: Server) -> None:
    async def scenario() -> None:
        async with connect(f"ws://127.0.0.1:{server.port}", token="wrong"):
            raise AssertionError("not reached")

    with pytest.raises(Denied):
        play(scenario)


def test_a_client_whose_token_is_revoked_is_denied_from_then_on(target: str) -> None:
    tokens = TokenFile()
    name = f"client-{target.partition(':')[0]}"
    secret = tokens.add(name, None)

    async def scenario() -> None:
        async with connect(target, token=secret) as plexus:
            assert await plexus.hash()
            tokens.revoke(name)
            await plexus.hash()

    with pytest.raises(Denied):
        play(scenario)

"""The client and tokens: it sends a token, and fails immediately if it is rejected."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers import PATIENT, Server, play, serving

from native_rpc.client import ConnectionLost, connect
from native_rpc.client.local_server import find_local_server
from plexus.errors import Denied
from substrate.security.tokens import TokenFile


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("server"), auth="token") as server:
        yield server


@pytest.fixture(params=["ws", "http"])
def target(request: pytest.FixtureRequest, server: Server) -> str:
    return f"{request.param}://127.0.0.1:{server.port}"


def lock_of(server: Server) -> Path:
    return Path(os.environ["XDG_STATE_HOME"]) / "substrate" / "servers" / f"{server.port}.json"


def token_of(server: Server) -> str:
    return str(json.loads(lock_of(server).read_text())["authToken"])


def test_a_client_with_the_token_calls(server: Server, target: str) -> None:
    async def scenario() -> str:
        async with connect(target, token=token_of(server)) as plexus:
            return await plexus.hash()

    assert play(scenario)


@pytest.mark.parametrize("token", [None, "wrong"])
def test_a_client_without_the_token_is_denied_with_a_reason(target: str, token: str | None) -> None:
    async def scenario() -> None:
        # It does not try again: the scenario would time out.
        async with connect(target, token=token, limits=PATIENT) as plexus:
            await plexus.hash()

    with pytest.raises(Denied, match="token") as denied:
        play(scenario)
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


# --- without a target ----------------------------------------------------------------------------


def test_without_a_target_it_finds_the_server_of_the_folder_or_of_one_above(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = Path(json.loads(lock_of(server).read_text())["projectPath"])
    inner = project / "inner" / "folder"
    inner.mkdir(parents=True, exist_ok=True)
    # A second server, of another folder, so that the choice is not the only one there is.
    elsewhere = project.parent / "other"
    elsewhere.mkdir()
    with serving(elsewhere, auth="token") as other:
        for folder in (project, inner):
            monkeypatch.chdir(folder)
            assert find_local_server().port == server.port
        assert find_local_server(elsewhere).port == other.port
        monkeypatch.chdir(project.parent)
        with pytest.raises(ConnectionLost, match=f"ports .*{server.port}"):
            connect()

    async def scenario() -> str:
        async with connect() as plexus:
            return await plexus.hash()

    assert play(scenario), "the only server that runs is used from any folder"


def test_without_a_server_it_reports_how_to_start_one(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "substrate" / "servers"
    folder.mkdir(parents=True)
    entry = json.loads(lock_of(server).read_text())
    (folder / "1.json").write_text(json.dumps(entry | {"startTime": 1}))  # its pid was reused
    (folder / "2.json").write_text("{}")
    (folder / "3.json").write_text("no JSON")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with pytest.raises(ConnectionLost, match="Start one with `substrate`"):
        connect()

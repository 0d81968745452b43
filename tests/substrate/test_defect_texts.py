"""The text of an unexpected exception reaches the local operator only."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from network import bearer, serving

from substrate.security.tokens import TokenFile

SECRET = "no such fruit: pear"
PLUGIN = f"""
from plexus import Activation

fruit = Activation("fruit")

@fruit.method
async def pick():
    raise KeyError({SECRET!r})
"""
CALL = {"jsonrpc": "2.0", "id": 1, "method": "fruit.pick"}


@pytest.fixture
def plugin(tmp_path: Path) -> str:
    file = tmp_path / "fruit.py"
    file.write_text(PLUGIN)
    return str(file)


def test_the_operator_gets_the_text_and_another_token_the_number(plugin: str) -> None:
    secret = TokenFile().add("stranger", None)
    with serving("--activation", plugin, auth="token") as server:
        with server.request("POST", "/rpc", CALL, bearer(server.token)) as response:
            own = response.read().decode()
        with server.request("POST", "/rpc", CALL, bearer(secret)) as response:
            stranger = response.read().decode()
    assert f"KeyError: '{SECRET}' (fruit.py:8); see " in own
    assert SECRET not in stranger
    assert "failed with KeyError; see " in stranger


def test_in_development_every_token_gets_the_text(plugin: str) -> None:
    secret = TokenFile().add("colleague", None)
    with (
        serving("dev", plugin, auth="token") as server,
        server.request("POST", "/rpc", CALL, bearer(secret)) as response,
    ):
        assert f"KeyError: '{SECRET}' (fruit.py:8); see " in response.read().decode()


def test_without_tokens_no_client_gets_the_text(plugin: str) -> None:
    with serving("--activation", plugin) as server, server.request("POST", "/rpc", CALL) as sent:
        assert SECRET not in sent.read().decode()


def test_a_client_on_stdio_gets_the_text(plugin: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "substrate", "--stdio", "--activation", plugin],
        cwd=tmp_path,
        input=json.dumps(CALL) + "\n",
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert f"KeyError: '{SECRET}' (fruit.py:8)" in done.stdout

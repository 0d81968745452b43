"""The probe of gateways finds what passes, and what a gateway drops."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench import gateway, gateways
from bench.clients import write_all
from bench.mcp import messages, stdio_client
from bench.servers import start

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

#: A gateway that drops every notification, in both directions.
MUTE = """
import json, subprocess, sys, threading

upstream = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

def pass_on(source, target):
    for line in source:
        message = json.loads(line)
        if "id" in message or message.get("method") == "notifications/initialized":
            target.write(line)
            target.flush()
    target.close()

threading.Thread(target=pass_on, args=(upstream.stdout, sys.stdout.buffer)).start()
pass_on(sys.stdin.buffer, upstream.stdin)
upstream.wait(10)
"""


def test_everything_passes_without_a_gateway(tmp_path: Path) -> None:
    served = gateways.Served(gateways.upstream(tmp_path))
    found = asyncio.run(gateways.probe(served, tmp_path))
    assert tuple(found) == gateways.COLUMNS
    assert found["progress"].startswith("5 of 5")
    assert found["cancel"].startswith("the function stops after")
    assert found["question"] == "asked; the answer is True"
    assert "Delete 3 files?" in found["no elicitation"]
    assert found["second client"].startswith("receives no messages")
    assert found["terminal"] == "substrate attach shows 20 of 20 numbers"


def test_a_gateway_that_drops_notifications_is_found_out(tmp_path: Path) -> None:
    served = gateways.Served((sys.executable, "-c", MUTE, *gateways.upstream(tmp_path)))
    found = asyncio.run(gateways.probe(served, tmp_path))
    assert found["progress"] == "0 of 5"
    assert found["cancel"] == "the function still runs after 3 s"
    assert found["terminal"] == "substrate attach shows 20 of 20 numbers"


def test_the_proxy_of_fastmcp_is_measured_as_the_comparison_states() -> None:
    pytest.importorskip("fastmcp")
    done = CliRunner().invoke(gateways.main, ["--only", "fastmcp http"])
    assert done.exit_code == 0, done.output
    found = dict(re.findall(r"^  (\w+(?: \w+)?) {2,}(.*)$", done.output, re.M))
    assert found["progress"].startswith("5 of 5")
    assert found["cancel"].startswith("the function stops after")
    assert found["question"] == "asked; the answer is True"
    assert found["no elicitation"] == "failed: Elicitation not supported"
    assert "one upstream process" in found["second client"]


def test_a_gateway_that_cannot_be_installed_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    done = CliRunner().invoke(gateways.main, ["--only", "supergateway"])
    assert done.exit_code == 0
    assert "not installed    npm is missing" in done.output


def test_the_bare_relay_passes_progress_and_answers_with_the_id_of_the_client() -> None:
    with start((*gateway.RELAY, *gateway.UPSTREAM)) as server:
        stdio_client.handshake(server)
        params = b'"name":"x.bench.count","arguments":{"to":2},"_meta":{"progressToken":"t"}'
        message = messages.request_bytes(7, b"tools/call", params).replace(b'"id":7', b'"id":"a"')
        write_all(server.input_fd, message + b"\n")
        *steps, answer = map(json.loads, stdio_client.read_lines(server, 3).splitlines())
    assert [step["params"] for step in steps] == [
        {"progressToken": "t", "progress": number} for number in (1, 2)
    ]
    assert answer["id"] == "a"
    assert answer["result"]["content"] == [{"type": "text", "text": "counted"}]

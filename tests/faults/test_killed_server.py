"""A server that is killed in the middle of everything leaves no process and a sound store.

KILL_ROUNDS sets how often; 200 is the long form. Each round kills at another moment: while
commands start, while they run, while answers stream and nodes are written.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from arbor_checker import faults_in, ids_in
from hub_calls import WAIT_S, until
from network import Server

from native_rpc.client import Client, ConnectionLost, connect
from plexus import NotFound

ROUNDS = int(os.environ.get("KILL_ROUNDS", "8"))
LONG = ROUNDS >= 200
SEED = int(os.environ.get("KILL_SEED", "1"))
pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60 + 10 * ROUNDS)]

#: How a command is confined, by turns, where it can be.
PROFILES = ("off", "workspace", "off", "strict") if shutil.which("bwrap") else ("off",)
#: The longest time from the first request to the kill.
LATEST_S = 0.8
#: Timeout for the end of processes that were killed with the server.
GONE_S = 5.0
#: How soon a new server over the same store listens, in the long form.
START_S = 1.0
MESSAGE = " ".join(f"word{number}" for number in range(100))

#: Children of every kind that is hard to find again: one with its own session, one without an
#: environment, a daemon that forked twice, and one that ignores what it can. Each has the mark in
#: its environment or as its argument.
SCRIPT = """
echo begun
sleep {mark} &
setsid sleep {mark} &
env -i setsid sleep {mark} &
(setsid bash -c 'exec sleep {mark}' &)
(trap '' TERM HUP INT; setsid env -i bash -c '(setsid sleep {mark} &)')
while :; do sleep 0.01; echo x; done
"""


def marked(mark: str) -> list[int]:
    """Return the processes that have this mark in their environment or arguments."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or folder.name == str(os.getpid()):
            continue
        with contextlib.suppress(OSError):  # it has ended meanwhile
            text = (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
            if mark.encode() in text:
                found.append(int(folder.name))
    return found


async def until_none(mark: str) -> None:
    """Wait until no process has this mark."""
    until = time.monotonic() + GONE_S
    while left := marked(mark):
        assert time.monotonic() < until, f"still there: {left}"
        await asyncio.sleep(0.02)


class Round:
    """The requests to one server, and its responses before it was killed."""

    def __init__(self, number: int, mark: str) -> None:
        self.session = f"session {number}"
        self._mark = mark
        #: The ids of nodes that were acknowledged.
        self.nodes: list[str] = []
        #: Whether the message to the model was acknowledged.
        self.sent = False
        self.commands = 0

    async def work(self, client: Client) -> None:
        """Do everything concurrently, until the server is dead."""
        async with asyncio.TaskGroup() as group:
            for task in (self._command, self._command, self._chat, self._write):
                group.create_task(self._until_gone(task, client))

    async def _until_gone(self, task: Any, client: Client) -> None:
        with contextlib.suppress(ConnectionLost):
            await task(client)

    async def _command(self, client: Client) -> None:
        while True:
            given = {"command": SCRIPT.format(mark=self._mark), "env": {"KILL_MARK": self._mark}}
            async for item in client.call("bash.execute", given):
                self.commands += item.type == "start"

    def has_written(self) -> bool:
        return bool(self.nodes)

    async def _chat(self, client: Client) -> None:
        await client.call("chat.create", {"name": self.session, "model": "echo:slow"})
        async for item in client.call("chat.send", {"session": self.session, "message": MESSAGE}):
            self.sent |= item.type == "start"

    async def _write(self, client: Client) -> None:
        tree = (await client.call("arbor.tree_create", {}))["tree_id"]
        parent = None
        while True:
            given = {"tree_id": tree, "content": "leaf", "parent": parent}
            made = await client.call("arbor.node_create_text", given)
            self.nodes.append(made["node_id"])
            parent = made["node_id"] if len(self.nodes) % 3 else None


def start(profile: str, database: Path, mark: str) -> Server:
    variables = {"SUBSTRATE_DATABASE": str(database), "KILL_MARK": mark}
    return Server("--bash-sandbox", profile, settings=variables)


async def check_store(client: Client, before: Round) -> None:
    """Check that what the killed server acknowledged is stored, and nothing is in progress."""
    try:
        history = (await client.call("chat.history", {"session": before.session}))["messages"]
    except NotFound:  # it was killed before it had started
        assert not before.sent
        return
    if before.sent:
        assert history[0]["text"] == MESSAGE
    for message in history[1:]:
        assert message["status"] in ("interrupted", "streaming"), message


async def test_a_killed_server_leaves_no_process_and_a_sound_store(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    database = tmp_path / "arbor.db"
    before: Round | None = None
    starts: list[float] = []
    acknowledged: set[str] = set()
    commands = processes = 0
    for number in range(ROUNDS):
        mark = str(chance.randrange(10**9, 10**10))
        this = Round(number, mark)
        begun = time.monotonic()
        server = await asyncio.to_thread(start, PROFILES[number % len(PROFILES)], database, mark)
        starts.append(time.monotonic() - begun)
        try:
            async with connect(server.ws, reconnect_s=0) as client:
                if before is not None:
                    async with asyncio.timeout(WAIT_S):
                        await check_store(client, before)
                working = asyncio.create_task(this.work(client))
                if before is None:  # a store that was never opened has no content to check
                    await until(this.has_written)
                await asyncio.sleep(chance.uniform(0, LATEST_S))
                processes += len(marked(mark))
                server.process.kill()
                async with asyncio.timeout(GONE_S):
                    await working
        finally:
            server.stop()
        await until_none(mark)
        assert await asyncio.to_thread(faults_in, database) == []
        acknowledged.update(this.nodes)
        assert acknowledged <= await asyncio.to_thread(ids_in, database)
        commands += this.commands
        before = this
    print(  # noqa: T201 - the figures, for those who ask with -s
        f"{ROUNDS} kills, {commands} commands with {processes} processes running, "
        f"{len(acknowledged)} nodes acknowledged, slowest start {max(starts):.2f} s"
    )
    # Each round has a server at least, and some have commands with all their children.
    assert processes > 2 * ROUNDS
    assert commands
    assert acknowledged
    if LONG:
        assert sorted(starts)[len(starts) // 2] <= START_S

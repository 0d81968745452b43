"""A server that misbehaves in one way, named by its argument. It runs in any interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

BEHAVIOUR = sys.argv[1]
MARK = sys.argv[2] if len(sys.argv) > 2 else ""


def send(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0"} | message) + "\n")
    sys.stdout.flush()


def progress(token: Any, count: int) -> None:
    lines = [
        json.dumps(
            {
                "jsonrpc": "2.0",
                "method": "notifications/progress",
                "params": {"progressToken": token, "progress": number, "message": "x" * 20},
            }
        )
        for number in range(1, count + 1)
    ]
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


def initialize(message: dict[str, Any]) -> None:
    send(
        {
            "id": message["id"],
            "result": {
                "protocolVersion": message["params"]["protocolVersion"],
                "capabilities": {"tools": {"listChanged": True}},
                "serverInfo": {"name": BEHAVIOUR, "version": "1"},
            },
        }
    )


def ok(message: dict[str, Any], text: str = "ok") -> None:
    send({"id": message["id"], "result": {"content": [{"type": "text", "text": text}]}})


def call(message: dict[str, Any]) -> None:
    params = message["params"]
    token = params.get("_meta", {}).get("progressToken")
    name = params["name"]
    if name == "ok":
        ok(message)
    elif BEHAVIOUR == "floods":
        progress(token, 200_000)
        ok(message)
    elif BEHAVIOUR == "dies":
        sys.stderr.write("out of cheese\n")
        sys.stderr.flush()
        os._exit(7)
    elif BEHAVIOUR == "answers after cancel":
        waiting = sys.stdin.readline()
        assert "notifications/cancelled" in waiting
        ok(message, "too late")
        progress(token, 3)
    elif BEHAVIOUR == "answers twice":
        ok(message, "first")
        ok(message, "second")
    elif BEHAVIOUR == "sends 50 MB":
        ok(message, "y" * 50_000_000)
    elif BEHAVIOUR == "sends 50 MB without an end":
        while True:
            sys.stdout.write("z" * 1_000_000)
    elif BEHAVIOUR == "asks 100 times":
        for number in range(100):
            params = {"message": f"question {number}", "requestedSchema": {"type": "object"}}
            send({"id": f"q{number}", "method": "elicitation/create", "params": params})
        refused = 0
        for _ in range(36):
            refused += "error" in json.loads(sys.stdin.readline())
        ok(message, f"{refused} refused")
    elif BEHAVIOUR == "asks for what was not declared":
        send({"id": "s", "method": "sampling/createMessage", "params": {}})
        ok(message, str(json.loads(sys.stdin.readline())["error"]["code"]))
    elif BEHAVIOUR == "prints":
        sys.stdout.write("Listening on nothing\n")
        ok(message)
    elif BEHAVIOUR == "answers nonsense":
        send({"id": message["id"], "result": 42})
    elif BEHAVIOUR == "never answers":
        pass


def main() -> None:
    if BEHAVIOUR == "never initializes":
        time.sleep(600)
    if BEHAVIOUR == "forks":
        # Both outlive their parent unless they are killed: one ignores signals, one is a daemon.
        ignore = "import signal,time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
        subprocess.Popen([sys.executable, "-c", ignore, MARK])
        subprocess.Popen([sys.executable, "-c", ignore, MARK], start_new_session=True)
    if BEHAVIOUR == "prints":
        sys.stdout.write("Welcome!\n")
        sys.stdout.flush()
        sys.stderr.write("e" * 1_000_000)
    for line in sys.stdin:
        message = json.loads(line)
        method = message.get("method")
        if method == "initialize":
            initialize(message)
            if BEHAVIOUR == "closes stdin":
                os.close(0)
                time.sleep(600)
            if BEHAVIOUR == "closes stdout":
                os.close(1)
                time.sleep(600)
        elif method == "server/discover":
            if BEHAVIOUR == "exits at the probe":
                os._exit(1)
            if BEHAVIOUR != "ignores the probe":
                send({"id": message["id"], "error": {"code": -32601, "message": "what?"}})
        elif method == "tools/call":
            call(message)
        elif method == "tools/list" and BEHAVIOUR == "lists without an end":
            cursor = "same" if MARK == "same" else f"{time.monotonic()}"
            send({"id": message["id"], "result": {"tools": [], "nextCursor": cursor}})
        elif method == "tools/list":
            tools = [{"name": f"tool{n}", "inputSchema": {"type": "object"}} for n in range(5000)]
            send({"id": message["id"], "result": {"tools": tools}})


if __name__ == "__main__":
    main()

"""A stand-in for the program `claude`, with scripted answers.

Its messages have the form that the real program (2.1) writes in print mode with `stream-json` in
both directions. Usage in a test:

    claude = StandIn(tmp_path)                      # an executable file `claude` in this folder
    claude.plays(says("Hello."))                    # the next round; without any it answers "Yes."
    claude.plays(uses("Bash", {"command": "ls"}), asks(), answers("a b"), says("Two files."))
    provider = ClaudeCode(claude.command, environment=claude.environment)
    ...
    claude.runs[0].options["--model"]               # its arguments and its input

A round is a list of steps, played in order; a `result` is added unless a step is one, or ends the
program. Sessions are stored in the folder, so that `--resume`, `--resume-session-at`,
`--fork-session` and `--no-session-persistence` work like those of the real program; `sessions`
returns their content. This file is also the program: it is copied with another first line.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any, NamedTuple

Step = dict[str, Any]

#: How the program finds its folder.
FOLDER = "CLAUDE_STAND_IN"


# --- steps of a round -----------------------------------------------------------------------------


def says(*pieces: str, streamed: bool = True, agent: str | None = None) -> Step:
    """Stream a text in these pieces, or write it as an older program does if not `streamed`.

    `agent` is the id of the tool use that started the subagent which writes the text.
    """
    return {"do": "block", "kind": "text", "pieces": pieces, "streamed": streamed, "agent": agent}


def thinks(*pieces: str, streamed: bool = True) -> Step:
    """Stream a thinking block."""
    return {"do": "block", "kind": "thinking", "pieces": pieces, "streamed": streamed}


def uses(tool: str, given: dict[str, Any], use: str = "use_1", agent: str | None = None) -> Step:
    """Call a tool."""
    return {"do": "use", "tool": tool, "input": given, "use": use, "agent": agent}


def asks(use: str = "use_1", *, waits: bool = True) -> Step:
    """Ask for permission to use a tool, and wait for the answer.

    If permission is denied, the tool returns that, and a following `answers` step is skipped.
    """
    return {"do": "ask", "use": use, "waits": waits}


def takes_back(use: str = "use_1") -> Step:
    """Cancel a permission request."""
    return {"do": "take_back", "use": use}


def requests(subtype: str) -> Step:
    """Send another control request, and wait for the response."""
    return {"do": "request", "subtype": subtype}


def answers(output: Any, use: str = "use_1", *, is_error: bool = False) -> Step:
    """Return the output of a tool."""
    return {"do": "answer", "use": use, "output": output, "is_error": is_error}


def retries(status: int, seconds: float) -> Step:
    """Report a retry of the API."""
    return {"do": "retry", "status": status, "seconds": seconds}


def is_limited(resets_at: float) -> Step:
    """Report a rate limit and its reset time."""
    return {"do": "limit", "resets_at": resets_at}


def ends(stop_reason: str | None = "end_turn", **fields: Any) -> Step:
    """Write the result; `fields` add to or replace its fields."""
    return {"do": "result", "fields": {"stop_reason": stop_reason, **fields}}


def reaches_turns(limit: int = 1) -> Step:
    """Write the result of a round that exceeded the maximum number of turns."""
    return ends(
        "tool_use",
        subtype="error_max_turns",
        is_error=True,
        result=None,
        errors=[f"Reached maximum number of turns ({limit})"],
        terminal_reason="max_turns",
    )


def fails(text: str, error: str = "unknown", status: int | None = None) -> Step:
    """Report an API error, as a message and as the result."""
    return {"do": "fail", "text": text, "error": error, "status": status}


def crashes(code: int = 1, stderr: str = "") -> Step:
    """Exit without a result."""
    return {"do": "crash", "code": code, "stderr": stderr}


def is_silent(seconds: float | None = None) -> Step:
    """Write nothing for a time, or indefinitely."""
    return {"do": "sleep", "seconds": seconds}


def writes(line: str) -> Step:
    """Write any line."""
    return {"do": "write", "line": line}


def writes_much(size: int) -> Step:
    """Write `size` bytes of an unfinished line."""
    return {"do": "much", "size": size}


def spawns() -> Step:
    """Start a process in a separate session that does not end. See `children`."""
    return {"do": "spawn"}


def waits_for(gate: Path) -> Step:
    """Wait until this file exists."""
    return {"do": "gate", "path": str(gate)}


class Run(NamedTuple):
    """The arguments, environment and input of one start of the program."""

    arguments: list[str]
    environment: dict[str, str]
    directory: str
    #: The messages written to its input.
    received: list[dict[str, Any]]

    @property
    def options(self) -> dict[str, str]:
        """The arguments, by name."""
        pairs = (argument.partition("=") for argument in self.arguments)
        return {name: value for name, _, value in pairs}

    @property
    def prompt(self) -> list[dict[str, Any]]:
        """The content of the user's message."""
        [message] = [line for line in self.received if line["type"] == "user"]
        content: list[dict[str, Any]] = message["message"]["content"]
        return content

    @property
    def text(self) -> str:
        """The text of the user's message."""
        return "\n".join(block["text"] for block in self.prompt if block["type"] == "text")

    @property
    def responses(self) -> list[dict[str, Any]]:
        """The responses to its requests."""
        return [line["response"] for line in self.received if line["type"] == "control_response"]


class StandIn:
    """The program in a folder, with its scripts and records."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for name in ("rounds", "runs", "sessions", "children"):
            (folder / name).mkdir(parents=True)
        program = folder / "claude"
        program.write_text(f"#!{sys.executable} -IS\n{Path(__file__).read_text()}")
        program.chmod(0o755)
        #: The path of the program.
        self.command = str(program)
        #: The environment that it needs.
        self.environment = {"PATH": os.environ["PATH"], "HOME": str(folder), FOLDER: str(folder)}
        self._rounds = 0

    def plays(self, *steps: Step) -> None:
        """Add a round after those that were already added or played."""
        number = max(self._rounds, len(list((self._folder / "runs").iterdir())))
        (self._folder / "rounds" / f"{number:04}").write_text(json.dumps(steps))
        self._rounds = number + 1

    @property
    def runs(self) -> list[Run]:
        """Each start of the program, in order."""
        found = []
        for path in sorted((self._folder / "runs").iterdir()):
            start, *received = map(json.loads, path.read_text().rstrip("\n").split("\n"))
            found.append(
                Run(start["arguments"], start["environment"], start["directory"], received)
            )
        return found

    @property
    def children(self) -> list[int]:
        """The processes that the program has started."""
        return [int(path.name) for path in (self._folder / "children").iterdir()]

    @property
    def pids(self) -> list[int]:
        """The pids of the program, each after its start was recorded."""
        runs = sorted((self._folder / "runs").iterdir())
        return [int(path.name.partition("-")[2]) for path in runs]

    @property
    def sessions(self) -> dict[str, list[str]]:
        """The text of each message of each stored session."""
        kept = (self._folder / "sessions").iterdir()
        return {path.name: [text for _, text in json.loads(path.read_text())] for path in kept}


# --- the program ----------------------------------------------------------------------------------


class Program:
    """One run of the program."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        runs = folder / "runs"
        number = len(list(runs.iterdir()))
        self._record = (runs / f"{number:04}-{os.getpid()}").open("w", buffering=1)
        start = {
            "arguments": sys.argv[1:],
            "environment": dict(os.environ),
            "directory": str(Path.cwd()),
        }
        self._record.write(json.dumps(start) + "\n")
        self._options = Run(sys.argv[1:], {}, "", []).options
        self._session = str(uuid.uuid4())
        #: The id and the text of each message of the session.
        self._messages: list[tuple[str, str]] = []
        self._tools: dict[str, Step] = {}
        self._requests: dict[str, str] = {}
        self._last_text = ""
        self._message = ""
        round_file = folder / "rounds" / f"{number:04}"
        self._steps: list[Step] = (
            json.loads(round_file.read_text()) if round_file.exists() else [says("Yes.")]
        )

    def run(self) -> None:
        self._resume()
        self._initialize()
        self._write("system", subtype="init", tools=["Bash"], model="stand-in")
        steps = list(self._steps)
        while steps:
            step = steps.pop(0)
            refused = getattr(self, f"_do_{step.pop('do')}")(**step)
            if refused and steps and steps[0]["do"] == "answer":
                steps.pop(0)
        self._do_result({"stop_reason": "end_turn"})  # which does not return

    # --- the session ----------------------------------------------------------------------------

    def _resume(self) -> None:
        session = self._options.get("--resume")
        if session is None:
            return
        path = self._folder / "sessions" / session
        if not path.exists():
            self._refuse(f"No conversation found with session ID: {session}", session)
        self._messages = [tuple(message) for message in json.loads(path.read_text())]
        at = self._options.get("--resume-session-at")
        if at is not None:
            ids = [message_id for message_id, _ in self._messages]
            if at not in ids:
                self._refuse(f"No message found with message.uuid of: {at}", session)
            del self._messages[ids.index(at) + 1 :]
        if "--fork-session" not in self._options:
            self._session = session

    def _refuse(self, text: str, session: str) -> None:
        self._session = session
        fields = {"subtype": "error_during_execution", "is_error": True, "errors": [text]}
        self._write("result", duration_ms=0, num_turns=0, usage={}, total_cost_usd=0, **fields)
        sys.stderr.write(f"{text}\n")
        sys.exit(1)

    def _keep(self) -> None:
        if "--no-session-persistence" not in self._options:
            draft = self._folder / f"{self._session}.new"  # the program may be killed while writing
            draft.write_text(json.dumps(self._messages))
            draft.replace(self._folder / "sessions" / self._session)

    def _initialize(self) -> None:
        while (line := self._read()) is not None:
            if line["type"] == "control_request":
                response = {"subtype": "success", "request_id": line["request_id"], "response": {}}
                self._write("control_response", response=response)
            elif line["type"] == "user":
                blocks = line["message"]["content"]
                text = "\n".join(block.get("text", "") for block in blocks)
                self._messages.append((str(uuid.uuid4()), text))
                self._keep()
                return
        sys.exit(0)  # the input ended without a message

    # --- messages -------------------------------------------------------------------------------

    def _read(self) -> dict[str, Any] | None:
        line = sys.stdin.readline()
        if not line:
            return None
        self._record.write(line)
        message: dict[str, Any] = json.loads(line)
        return message

    def _write(self, kind: str, **fields: Any) -> str:
        message_id = str(uuid.uuid4())
        message = {"type": kind, **fields, "session_id": self._session, "uuid": message_id}
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()
        return message_id

    def _event(self, agent: str | None, **event: Any) -> None:
        self._write("stream_event", event=event, parent_tool_use_id=agent)

    def _assistant(self, block: dict[str, Any], agent: str | None, text: str) -> None:
        message = {"id": self._message, "role": "assistant", "content": [block]}
        written = self._write("assistant", message=message, parent_tool_use_id=agent)
        if agent is None:
            self._messages.append((written, text))
            self._keep()

    def _do_block(
        self, kind: str, pieces: list[str], streamed: bool, agent: str | None = None
    ) -> None:
        text = "".join(pieces)
        self._message = f"msg_{uuid.uuid4().hex}"
        if streamed and "--include-partial-messages" in self._options:
            self._event(agent, type="message_start", message={"id": self._message})
            self._event(agent, type="content_block_start", index=0, content_block={"type": kind})
            for piece in pieces:
                delta = {"type": f"{kind}_delta", kind: piece}
                self._event(agent, type="content_block_delta", index=0, delta=delta)
        block = {"type": kind, kind: text}
        self._assistant(block | ({"signature": "s"} if kind == "thinking" else {}), agent, text)
        if streamed:
            self._event(agent, type="content_block_stop", index=0)
        if kind == "text" and agent is None:
            self._last_text = text

    def _do_use(self, tool: str, input: dict[str, Any], use: str, agent: str | None) -> None:  # noqa: A002
        self._tools[use] = {"tool": tool, "input": input}
        block = {"type": "tool_use", "id": use, "name": tool, "input": input}
        self._assistant(block, agent, f"{tool} {use}")

    def _do_ask(self, use: str, waits: bool) -> bool:
        asked = self._tools[use]
        fields = {"tool_name": asked["tool"], "input": asked["input"], "tool_use_id": use}
        request = self._ask("can_use_tool", **fields)
        self._requests[use] = request
        if not waits:
            return False
        answer = self._await(request)["response"]
        if answer["behavior"] == "deny":
            self._do_answer(use, answer["message"], True)
        return bool(answer["behavior"] == "deny")

    def _do_take_back(self, use: str) -> None:
        self._write("control_cancel_request", request_id=self._requests[use])

    def _do_request(self, subtype: str) -> None:
        self._await(self._ask(subtype))

    def _ask(self, subtype: str, **fields: Any) -> str:
        request = str(uuid.uuid4())
        self._write("control_request", request_id=request, request={"subtype": subtype, **fields})
        return request

    def _await(self, request: str) -> dict[str, Any]:
        while (line := self._read()) is not None:
            response: dict[str, Any] = line.get("response", {})
            if response.get("request_id") == request:
                return response
        sys.exit(0)

    def _do_answer(self, use: str, output: Any, is_error: bool) -> None:
        block = {"type": "tool_result", "tool_use_id": use, "content": output, "is_error": is_error}
        message = {"role": "user", "content": [block]}
        written = self._write("user", message=message, parent_tool_use_id=None)
        self._messages.append((written, str(output)))
        self._keep()

    def _do_retry(self, status: int, seconds: float) -> None:
        fields = {"attempt": 1, "retry_delay_ms": seconds * 1000, "error_status": status}
        self._write("system", subtype="api_retry", error="overloaded", **fields)

    def _do_limit(self, resets_at: float) -> None:
        info = {"status": "rejected", "resetsAt": resets_at}
        self._write("rate_limit_event", rate_limit_info=info)

    # --- ends -----------------------------------------------------------------------------------

    def _do_result(self, fields: dict[str, Any]) -> None:
        usage = {"input_tokens": 11, "output_tokens": 22, "cache_read_input_tokens": 3}
        result = {
            "subtype": "success",
            "is_error": False,
            "num_turns": 1,
            "result": self._last_text,
            "usage": usage | {"cache_creation_input_tokens": 2},
            "total_cost_usd": 0.5,
        }
        self._keep()
        self._write("result", **(result | fields))
        while self._read() is not None:
            pass
        sys.exit(1 if fields.get("is_error") else 0)

    def _do_fail(self, text: str, error: str, status: int | None) -> None:
        content = [{"type": "text", "text": text}]
        message = {"id": str(uuid.uuid4()), "model": "<synthetic>", "content": content}
        self._write("assistant", message=message, parent_tool_use_id=None, error=error)
        self._do_result(
            {"is_error": True, "result": text, "api_error_status": status, "stop_reason": None}
        )

    def _do_crash(self, code: int, stderr: str) -> None:
        sys.stderr.write(stderr)
        sys.stderr.flush()
        os._exit(code)

    # --- other steps ----------------------------------------------------------------------------

    def _do_sleep(self, seconds: float | None) -> None:
        if seconds is None:
            signal.pause()
        else:
            time.sleep(seconds)

    def _do_write(self, line: str) -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    def _do_much(self, size: int) -> None:
        piece = "a" * (1 << 16)
        with contextlib.suppress(BrokenPipeError):
            for _ in range(size >> 16):
                sys.stdout.write(piece)
            sys.stdout.flush()

    def _do_spawn(self) -> None:
        sleeper = [sys.executable, "-IS", "-c", "import signal; signal.pause()"]
        child = subprocess.Popen(sleeper, start_new_session=True)
        (self._folder / "children" / str(child.pid)).touch()

    def _do_gate(self, path: str) -> None:
        while not Path(path).exists():
            time.sleep(0.005)


if __name__ == "__main__":
    Program(Path(os.environ[FOLDER])).run()

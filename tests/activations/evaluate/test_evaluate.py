"""`python.evaluate` and the other methods of sessions, over real processes."""

from __future__ import annotations

import asyncio
import base64
import os
import shutil
import sys
import venv
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from hub_calls import OTHER, call, local, read, settled, until

from activations.evaluate import Evaluate, worker_process
from activations.evaluate import activation as activation_module
from activations.evaluate import session as sessions
from activations.evaluate.events import Cell, Display, Evaluated, SessionClosed, SessionInfo
from activations.evaluate.session_table import MAX_SESSIONS
from activations.processes.sandbox.profiles import Profile
from plexus import Event, Image, Plexus, Principal
from plexus.events import Cancelled, ErrorEvent, Result
from plexus.principal import LOCAL

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

OpenHub = Callable[..., Plexus]
WAIT_S = 40.0
#: Writes to all descriptors that may be the channel to the server.
FORGED = """
import os, time
for fd in range(3, 12):
    try:
        os.write(fd, b"no report\\n")
    except OSError:
        pass
time.sleep(60)
"""
Evaluator = Callable[..., Awaitable[list[Event]]]


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hub_calls.WAIT_S", WAIT_S)


@pytest.fixture
def evaluate(open_hub: OpenHub) -> Evaluator:
    return evaluator(open_hub(Evaluate))


def evaluator(hub: Plexus) -> Evaluator:
    async def events(expression: str, principal: Principal = LOCAL, **options: Any) -> list[Event]:
        given = {"expression": expression} | options
        return await call(hub, "python.evaluate", given, principal)

    return events


def text(events: list[Event]) -> str:
    return "".join(event.as_text() for event in events[:-1])


def end(events: list[Event]) -> Any:
    return events[-1]


# --- evaluation ---------------------------------------------------------------------------------


async def test_the_value_of_the_last_expression_is_the_result(evaluate: Evaluator) -> None:
    events = await evaluate("3 + 4")
    assert text(events) == "7"
    assert isinstance(end(events), Evaluated)
    assert text(await evaluate("x = 5")) == text(await evaluate("x;")) == ""
    assert text(await evaluate("print('said'); x * 2")) == "said\n10"


async def test_variables_stay_between_evaluations_and_apart_between_sessions(
    evaluate: Evaluator,
) -> None:
    await evaluate("x = 1\ndef f(): return x")
    await evaluate("x = 2", session="b")
    assert [text(await evaluate("f()")), text(await evaluate("x", session="b"))] == ["1", "2"]
    assert end(await evaluate("x", OTHER)).code == "exception"


async def test_await_works_at_the_top_level_and_its_loop_stays(evaluate: Evaluator) -> None:
    await evaluate("import asyncio\nlock = asyncio.Lock()\nawait lock.acquire()")
    assert text(await evaluate("await asyncio.sleep(0)\nlock.release()\nlock.locked()")) == "False"
    streamed = await evaluate("async def g():\n    yield 1\nasync for i in g():\n    print(i)")
    assert text(streamed) == "1\n"


async def test_an_exception_has_a_traceback_that_begins_in_the_code(evaluate: Evaluator) -> None:
    await evaluate("def divide():\n    return 1 / 0")
    error = end(await evaluate("print('before')\ndivide()"))
    assert isinstance(error, ErrorEvent)
    assert error.code == "exception"
    assert error.message.startswith("ZeroDivisionError: division by zero\n\nTraceback")
    assert error.data["ename"] == "ZeroDivisionError"
    trace = error.data["traceback"]
    assert "return 1 / 0" in trace  # the source of another evaluation
    assert 'File "<cell 2>", line 2' in trace
    assert "worker" not in trace


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("x ==", "SyntaxError"),
        ("import sys; sys.exit(4)", "SystemExit"),
        ("def r(): return r()\nr()", "RecursionError"),
        ("class E(Exception):\n    def __str__(self): raise ValueError\nraise E", "E"),
        ("class E(Exception):\n    def __repr__(self): 1 / 0\nE()", "ZeroDivisionError"),
        ("'\\0'\n\0", "ValueError|SyntaxError"),
        ("'\\ud800'.encode()", "UnicodeEncodeError"),
    ],
)
async def test_code_that_fails_leaves_the_session_usable(
    evaluate: Evaluator, code: str, name: str
) -> None:
    assert end(await evaluate(code)).data["ename"] in name.split("|")
    assert text(await evaluate("1 + 1")) == "2"


async def test_output_of_programs_and_of_forked_children_is_part_of_it(
    evaluate: Evaluator,
) -> None:
    code = "import os, sys, subprocess\nprint('one')\nos.system('echo two; echo three >&2')\n"
    code += "subprocess.run(['echo', 'four'])\npid = os.fork()\nif pid: os.waitpid(pid, 0)\n"
    code += "else: print('five')\nprint('six')"
    events = await evaluate(code)
    shown = [(event.type, line) for event in events for line in event.as_text().splitlines()]
    lines = [line for kind, line in shown if kind == "stdout"]
    assert lines == ["one", "two", "four", "five", "six", "six"]  # the child continues too
    assert [line for kind, line in shown if kind == "stderr"] == ["three"]
    assert text(await evaluate("'only one process continues'")).startswith("'only")


async def test_many_lines_arrive_whole_and_joined(evaluate: Evaluator) -> None:
    events = await evaluate("for i in range(10_000): print('line', i)")
    assert text(events) == "".join(f"line {i}\n" for i in range(10_000))
    assert len(events) < 200


async def test_output_is_shown_while_the_code_runs(open_hub: OpenHub, tmp_path: Path) -> None:
    hub = open_hub(Evaluate)
    fifo = tmp_path / "continue"
    os.mkfifo(fifo)
    made = hub.call("python.evaluate", [f"print('first'); open({str(fifo)!r}).read()"], LOCAL)
    async with asyncio.timeout(WAIT_S), aclosing(made.run.batches(0, owner=True)) as batches:
        async for batch in batches:
            if "first" in "".join(event.as_text() for event in batch.events):
                assert made.run.terminal is None
                await asyncio.to_thread(fifo.write_text, "")
    assert made.run.terminal is not None


async def test_late_output_of_threads_is_shown_by_the_next_evaluation(
    evaluate: Evaluator,
) -> None:
    code = "import threading\ngo, done = threading.Event(), threading.Event()\n"
    code += "def late():\n    go.wait(); print('late'); done.set()\n"
    await evaluate(code + "threading.Thread(target=late).start()")
    assert text(await evaluate("go.set(); done.wait(20)")).replace("True", "") == "late\n"


async def test_too_much_output_interrupts_the_code(
    evaluate: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activation_module, "MAX_OUTPUT_CHARACTERS", 100_000)
    events = await evaluate("while True: print('x' * 1000)")
    assert end(events).code == "too_big"
    assert 100_000 <= len(text(events)) < 200_000
    assert text(await evaluate("1 + 1")) == "2"


# --- values -------------------------------------------------------------------------------------


async def test_values_show_themselves_in_their_richest_form(evaluate: Evaluator) -> None:
    await evaluate("class H:\n    def _repr_html_(self): return '<b>x</b>'")
    shown = [event for event in await evaluate("H()") if isinstance(event, Display)]
    assert [(each.mime_type, each.data) for each in shown] == [("text/html", "<b>x</b>")]
    events = await evaluate("display('a', H())")
    assert [each.mime_type for each in events if isinstance(each, Display)] == [
        "text/plain",
        "text/html",
    ]
    await evaluate("class J:\n    def _repr_mimebundle_(self): return {'application/json': [1]}")
    assert [each.data for each in await evaluate("J()") if isinstance(each, Display)] == ["[1]"]
    await evaluate("class B:\n    def _repr_png_(self): raise ValueError\n    __repr__ = id")
    assert not [each for each in await evaluate("B") if isinstance(each, Display | Image)]


async def test_pictures_are_images_that_fit(evaluate: Evaluator) -> None:
    events = await evaluate(
        "from PIL import Image\nImage.effect_noise((3000, 2000), 100)", python=sys.executable
    )
    [picture] = [event for event in events if isinstance(event, Image)]
    assert picture.mime_type == "image/png"
    assert 1000 < len(base64.b64decode(picture.data)) <= 700_000


async def test_figures_of_matplotlib_are_shown_in_their_place(evaluate: Evaluator) -> None:
    code = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()\nprint('between')\n"
    events = await evaluate(code + "plt.plot([2, 1]);", python=sys.executable)
    kinds = [event.type for event in events if event.type in ("image", "stdout")]
    assert kinds == ["image", "stdout", "image"]
    assert [event.type for event in await evaluate("plt.gcf()")].count("image") == 1
    assert "image" not in [event.type for event in await evaluate("1")]


# --- interruption and loss ------------------------------------------------------------------------


async def test_a_timeout_keeps_what_was_shown_and_the_variables(evaluate: Evaluator) -> None:
    events = await evaluate("kept = 1\nprint('shown')\nwhile True: pass", timeout_s=0.5)
    assert text(events) == "shown\n"
    assert (end(events).code, "keeps its variables" in end(events).message) == ("deadline", True)
    assert text(await evaluate("kept")) == "1"


async def test_code_that_ignores_its_interruption_is_killed(
    evaluate: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "GRACE_S", 0.3)
    code = "import time\nwhile True:\n    try: time.sleep(1)\n    except KeyboardInterrupt: pass"
    events = await evaluate(code, timeout_s=0.2)
    assert "variables of the session are lost" in end(events).message
    assert text(await evaluate("1 + 1")) == "2"


async def test_a_cancelled_run_interrupts_its_code_and_leaves_the_session(
    open_hub: OpenHub,
) -> None:
    activation = Evaluate()
    hub = open_hub(activation)
    evaluate = evaluator(hub)
    await evaluate("kept = 1")
    made = hub.call("python.evaluate", ["import time\ntime.sleep(100)"], LOCAL)
    [found] = [each for _, each in activation._sessions.list_for(LOCAL)]  # noqa: SLF001
    await until(lambda: found.run == made.run.id, WAIT_S)
    made.run.cancel("enough")
    assert isinstance(await settled(local(made.run)), Cancelled)
    assert text(await evaluate("kept")) == "1"
    [cell] = [each for each in found.history if each.run == made.run.id]
    assert cell.state == "interrupted"


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        ("import os; os._exit(3)", "exited with code 3"),
        ("import os; os.kill(os.getpid(), 9)", "signal 9"),
        ("import ctypes; ctypes.string_at(0)", "Segmentation fault"),
        (FORGED, "signal 9"),
    ],
)
async def test_a_process_that_is_lost_is_reported_and_replaced(
    evaluate: Evaluator, code: str, cause: str
) -> None:
    await evaluate("x = 1")
    error = end(await evaluate(code))
    assert error.code == "session_lost"
    assert cause in error.message
    assert end(await evaluate("x")).data["ename"] == "NameError"


async def test_a_process_that_ends_between_evaluations_is_reported_by_the_next(
    open_hub: OpenHub,
) -> None:
    activation = Evaluate()
    hub = open_hub(activation)
    evaluate = evaluator(hub)
    code = "import os, threading\nthreading.Timer(0.05, os._exit, [0]).start()"
    await evaluate(code)
    [found] = [each for _, each in activation._sessions.list_for(LOCAL)]  # noqa: SLF001
    await until(lambda: found.is_lost, WAIT_S)
    assert text(await evaluate("1 + 1")) == sessions.RESTARTED + "2"


async def test_memory_is_limited(open_hub: OpenHub) -> None:
    evaluate = evaluator(open_hub(Evaluate(memory_bytes=300 * 1024**2)))
    assert end(await evaluate("x = bytearray(10**9)")).data["ename"] == "MemoryError"
    assert text(await evaluate("1 + 1")) == "2"


async def test_no_process_is_left_when_a_session_is_closed(open_hub: OpenHub) -> None:
    hub = open_hub(Evaluate)
    code = (
        "import os, subprocess\np = subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
    )
    pids = text(await evaluator(hub)(code + "print(os.getpid(), p.pid)")).split()
    assert (await call(hub, "python.close_session"))[-1] == Result(True)
    await until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), WAIT_S)
    assert (await call(hub, "python.close_session"))[-1] == Result(False)


async def test_concurrent_evaluations_of_a_session_take_turns(evaluate: Evaluator) -> None:
    await evaluate("log = []")
    code = "import time\nlog.append('in'); time.sleep(0.02); log.append('out')"
    await asyncio.gather(*[evaluate(code) for _ in range(5)])
    assert text(await evaluate("log == ['in', 'out'] * 5")) == "True"


async def test_input_is_asked_of_the_caller(open_hub: OpenHub) -> None:
    hub = open_hub(Evaluate)
    made = hub.call("python.evaluate", ["name = input('Your name?')\nname.upper()"], LOCAL)
    run = local(made.run)
    await until(lambda: bool(run.questions), WAIT_S)
    [(request, asked)] = (run.questions or {}).items()
    assert asked.event.message == "Your name?"
    run.answer(request, "ada")
    assert text(await read(made)).endswith("'ADA'")


# --- sessions -----------------------------------------------------------------------------------


async def test_a_session_runs_in_the_environment_that_is_chosen(
    open_hub: OpenHub, tmp_path: Path
) -> None:
    venv.create(tmp_path / "env", symlinks=True, with_pip=False)
    evaluate = evaluator(open_hub(Evaluate))
    shown = await evaluate("import sys; print(sys.prefix)", python=str(tmp_path / "env"))
    assert text(shown).strip() == str(tmp_path / "env")
    error = end(await evaluate("1", python=sys.executable))
    assert "python.restart" in error.message
    error = end(await evaluate("1", session="b", python="/no/such/python"))
    assert (error.code, "/no/such/python" in error.message) == ("invalid_params", True)
    for name in ("a" * 10_000, "~no_such_user/python", "\0"):
        assert end(await evaluate("1", session="b", python=name)).code == "invalid_params"
    error = end(await evaluate("1", session="c", python=shutil.which("false")))
    assert error.code == "session_lost"


async def test_variables_and_names_are_described_also_while_code_runs(
    open_hub: OpenHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("activations.evaluate.session.GRACE_S", 30)  # a busy machine is slower
    hub = open_hub(Evaluate)
    evaluate = evaluator(hub)
    code = 'import json\nrows = [1] * 3\ndef double(n: int) -> int:\n    """Twice."""\n'
    await evaluate(code + "    return 2 * n")
    made = hub.call("python.evaluate", ["import time\ntime.sleep(100)"], LOCAL)
    listed = (await call(hub, "python.variables"))[-1]
    assert isinstance(listed, Result)
    assert [
        (each["name"], each["type"], each.get("length")) for each in listed.result["variables"]
    ] == [
        ("double", "function", None),
        ("rows", "list", 3),
    ]
    described = (await call(hub, "python.inspect", {"name": "double"}))[-1].result  # type: ignore[attr-defined]
    assert (described["signature"], described["doc"]) == ("(n: int) -> int", "Twice.")
    assert described["source"].startswith("def double")
    completed = (await call(hub, "python.complete", {"code": "rows.app"}))[-1].result  # type: ignore[attr-defined]
    assert completed == {"matches": ["append"], "start": 5, "end": 8}
    missing = (await call(hub, "python.inspect", {"name": "nothing"}))[-1]
    assert "not defined" in missing.message  # type: ignore[attr-defined]
    assert (await call(hub, "python.interrupt"))[-1] == Result(True)
    ended = await settled(local(made.run))
    assert isinstance(ended, ErrorEvent)
    assert ended.data["ename"] == "KeyboardInterrupt"


async def test_reset_forgets_variables_and_restart_the_process(open_hub: OpenHub) -> None:
    hub = open_hub(Evaluate)
    evaluate = evaluator(hub)
    pid = text(await evaluate("x = 1\nimport os\nprint(os.getpid())"))
    await call(hub, "python.reset")
    assert end(await evaluate("x")).data["ename"] == "NameError"
    assert text(await evaluate("import os\nprint(os.getpid())")) == pid
    info = (await call(hub, "python.restart"))[-1]
    assert isinstance(info, Result)
    assert text(await evaluate("import os\nprint(os.getpid())")) != pid
    unknown = (await call(hub, "python.reset", {"session": "unknown"}))[-1]
    assert (unknown.code, "python.sessions" in unknown.message) == ("not_found", True)  # type: ignore[attr-defined]


async def test_a_watcher_sees_evaluations_of_all_clients_and_only_its_own_sessions(
    open_hub: OpenHub,
) -> None:
    hub = open_hub(Evaluate)
    evaluate = evaluator(hub)
    await evaluate("1")
    await evaluate("1", OTHER)
    watch = hub.call("python.watch", {}, LOCAL)
    seen: list[Event] = []
    async with asyncio.timeout(WAIT_S), aclosing(watch.run.batches(0, owner=True)) as batches:
        started = False
        async for batch in batches:
            seen += batch.events
            if not started:
                started = True
                await evaluate("1 / 0")
                await call(hub, "python.close_session")
            if any(isinstance(event, SessionClosed) for event in seen):
                break
    cells = [event for event in seen if isinstance(event, Cell)]
    assert [(cell.execution, cell.state) for cell in cells if cell.state != "running"] == [
        (1, "succeeded"),
        (2, "failed"),
    ]
    assert cells[-1].error == "ZeroDivisionError"
    assert {event.session for event in seen if isinstance(event, SessionInfo)} == {"default"}


async def test_the_number_of_sessions_is_limited(open_hub: OpenHub) -> None:
    activation = Evaluate()
    hub = open_hub(activation)
    for number in range(MAX_SESSIONS):
        await activation._sessions.open(LOCAL, str(number), None)  # noqa: SLF001 - no process
    refused = end(await evaluator(hub)("1", session="one more"))
    assert (refused.code, refused.data) == ("busy", {"limit": MAX_SESSIONS})
    assert "python.close_session" in refused.message


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
@pytest.mark.parametrize("profile", ["workspace", "strict"])
async def test_a_session_is_confined_like_a_command(
    open_hub: OpenHub, profile: Profile, tmp_path: Path
) -> None:
    base = Path("/var/tmp") / f"evaluate-{os.getpid()}-{tmp_path.name}"  # /tmp is private
    (base / "work").mkdir(parents=True)
    try:
        evaluate = evaluator(open_hub(Evaluate(profile, str(base / "work"))))
        python = str(Path("/usr/bin/python3").resolve())  # noqa: ASYNC240 - a local file
        code = "open('inside', 'w').write('x')\nopen('../outside', 'w')"
        events = await evaluate(code, python=python)
        assert end(events).data.get("ename") in ("OSError", "PermissionError"), end(events)
        assert (base / "work" / "inside").exists()
        assert not (base / "outside").exists()
    finally:
        shutil.rmtree(base)


async def test_an_interpreter_that_never_answers_is_reported(
    open_hub: OpenHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(worker_process, "START_S", 0.3)
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nexec sleep 1000\n")
    program.chmod(0o755)
    error = end(await evaluator(open_hub(Evaluate))("1", python=str(program)))
    assert error.code == "deadline"

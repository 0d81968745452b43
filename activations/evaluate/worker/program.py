"""The program in a session's process: executes code, and reports everything it shows.

It reads commands from its standard input and writes reports to its standard output, both as lines
of JSON. Code that it executes sees other streams:


- `sys.stdout` and `sys.stderr` become reports, in their order, joined for up to 20 ms.
- What programs and libraries write to descriptor 1 goes through a pipe and becomes reports too.
- Descriptor 2 stays the standard error of the process, which the server reads, so that the last
  words of a crash are not lost.
- `input()` asks the caller of the evaluation.

The main thread executes code, because signals arrive there. A second thread reads commands, so that
code can be interrupted, and its variables be read, while it runs. A forked child writes to
descriptor 1 instead of sending reports, which would mix with those of its parent.
"""

from __future__ import annotations

import ast
import builtins
import codecs
import faulthandler
import fcntl
import inspect
import io
import json
import linecache
import os
import queue
import select
import signal
import struct
import sys
import termios
import threading
import time
import types
from functools import partial

from .channel import Output, Reports
from .descriptions import (
    complete,
    describe_error,
    describe_module,
    describe_name,
    list_variables,
)
from .forms import FIGURE, PyplotFinder, find_form
from .text import cut, kind_of, represent, short_message

TYPE_CHECKING = False  # `typing` would add to the start
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = ("main",)

#: Seconds after which written text is reported.
FLUSH_S = 0.02
#: Maximum characters of a result, of the text of an exception, and of a preview.
RESULT_CHARACTERS = 100_000
PREVIEW_CHARACTERS = 200
#: Written to descriptor 2 after each evaluation.
STDERR_END = b"\0substrate-end\0"


class Worker:
    """One session: its variables, and the execution of code."""

    def __init__(self) -> None:
        self.reports = Reports(fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, 3))
        read_end, write_end = os.pipe()
        os.dup2(write_end, 1)
        os.close(write_end)
        self._stderr_fd = fcntl.fcntl(2, fcntl.F_DUPFD_CLOEXEC, 3)
        devnull = os.open(os.devnull, os.O_RDONLY)
        # Commands come from here. Programs that the code starts must not read them.
        self._commands = os.fdopen(fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 3), "rb")
        os.dup2(devnull, 0)
        os.close(devnull)
        self._wake = threading.Event()
        self.stdout = Output(self.reports, "stdout", 1, self._wake)
        self.stderr = Output(self.reports, "stderr", 2, self._wake)
        self._pipe = read_end
        self._pipe_lock = threading.Lock()
        self._jobs: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        #: The evaluation in progress.
        self._running: int | None = None
        self._loop: Any = None
        self._is_forked = False
        self.reset()

    def reset(self) -> None:
        """Forget all variables."""
        main = types.ModuleType("__main__")
        main.__dict__["__builtins__"] = builtins
        main.__dict__["display"] = self.display
        sys.modules["__main__"] = main
        self.variables: dict[str, Any] = main.__dict__
        self._own_names = set(self.variables)

    def run(self) -> None:
        """Execute commands until the server closes the input."""
        sys.stdout, sys.stderr = self.stdout, self.stderr
        faulthandler.enable(self._stderr_fd)
        builtins.input = self.input
        signal.signal(signal.SIGINT, self.reports.on_interrupt)
        os.register_at_fork(after_in_child=self._after_fork)
        sys.meta_path.insert(0, PyplotFinder(self.show_figures))
        for target in (self._read_commands, self._read_pipe, self._flush_regularly):
            threading.Thread(target=target, daemon=True).start()
        version = ".".join(map(str, sys.version_info[:3]))
        self.reports.send(
            op="ready", version=version, executable=sys.executable, pid=os.getpid(), cwd=os.getcwd()
        )
        while True:
            command = self._jobs.get()
            if command["op"] == "reset":
                self.reset()
                self.reports.send(op="reply", id=command["id"], value=None)
            else:
                self._execute(command)

    # --- threads ----------------------------------------------------------------------------------

    def _read_commands(self) -> None:
        main = threading.main_thread().ident
        assert main is not None
        for line in self._commands:
            command = json.loads(line)
            kind = command["op"]
            if kind in ("run", "reset"):
                self._jobs.put(command)
            elif kind == "interrupt":
                if self._running == command["id"]:
                    signal.pthread_kill(main, signal.SIGINT)
            elif kind == "answer":
                self._answers.put(command["text"])
            else:
                self._reply(command)
        os._exit(0)  # the server closed the session, or is gone

    def _reply(self, command: dict[str, Any]) -> None:
        """Answer a question about the variables, also while code runs."""
        variables = self.variables
        questions: dict[str, Callable[..., Any]] = {
            "variables": partial(list_variables, variables, self._own_names),
            "inspect": partial(describe_name, variables),
            "complete": partial(complete, variables),
            "module": describe_module,
        }
        try:
            value = questions[command["op"]](**command["arguments"])
        except BaseException as error:
            self.reports.send(op="reply", id=command["id"], error=short_message(error))
        else:
            self.reports.send(op="reply", id=command["id"], value=value)

    def _read_pipe(self) -> None:
        """Report what is written to descriptor 1."""
        decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        while True:
            select.select([self._pipe], [], [])
            with self._pipe_lock:
                if not self._pending_bytes():
                    continue
                text = decoder.decode(os.read(self._pipe, 64 * 1024))
                if text:
                    self.reports.send(op="stdout", text=text)

    def _pending_bytes(self) -> int:
        answer = fcntl.ioctl(self._pipe, termios.FIONREAD, b"\0" * 4)
        size: int = struct.unpack("i", answer)[0]
        return size

    def _flush_regularly(self) -> None:
        while True:
            self._wake.wait()
            time.sleep(FLUSH_S)
            self._wake.clear()
            self.stdout.flush()
            self.stderr.flush()

    def _after_fork(self) -> None:
        self._is_forked = self.stdout.is_forked = self.stderr.is_forked = True
        self.stdout.discard()
        self.stderr.discard()
        sys.stdout, sys.stderr = (
            io.TextIOWrapper(io.FileIO(fd, "w", closefd=False), "utf-8", line_buffering=True)
            for fd in (1, 2)
        )
        os.close(self.reports.fd)
        self.reports.fd = -1

    def _flush(self) -> None:
        """Send everything that was written until now."""
        deadline = time.monotonic() + 1.0
        while self._pending_bytes() and time.monotonic() < deadline:
            time.sleep(0.0005)
        with self._pipe_lock:  # the other thread has sent what it has read
            pass
        self.stdout.flush()
        self.stderr.flush()

    # --- execution --------------------------------------------------------------------------------

    def _execute(self, command: dict[str, Any]) -> None:
        number, code = command["id"], command["code"]
        file = f"<cell {command['count']}>"
        linecache.cache[file] = (len(code), None, code.splitlines(True), file)
        started = time.perf_counter()
        error: BaseException | None = None
        try:
            self._running = number
            self.reports.is_interruptible = True
            self._run_code(code, file)
            self.show_figures()
            self.reports.is_interruptible = False
        except BaseException as raised:
            self.reports.is_interruptible = False
            error = raised
        self._running = None
        if self._is_forked:  # a child that the code left behind
            sys.stdout.flush()
            os._exit(0 if error is None else 1)
        duration_ms = (time.perf_counter() - started) * 1000
        self._flush()
        if error is not None:
            self.reports.send(op="error", id=number, **describe_error(error))
        # The server has all of the standard error when it has read this.
        os.write(self._stderr_fd, STDERR_END)
        self.reports.send(op="done", id=number, duration_ms=round(duration_ms, 3))

    def _run_code(self, code: str, file: str) -> None:
        tree = ast.parse(code, file)
        last = tree.body[-1] if tree.body else None
        is_shown = isinstance(last, ast.Expr) and not code.rstrip().endswith(";")
        if is_shown:
            tree.body.pop()
        if tree.body:
            self._run_compiled(tree, file, "exec")
        if is_shown and isinstance(last, ast.Expr):
            value = self._run_compiled(ast.Expression(last.value), file, "eval")
            if value is not None:
                self.variables["_"] = value
                self._show_result(value)

    def _run_compiled(self, tree: Any, file: str, mode: str) -> Any:
        compiled = compile(tree, file, mode, ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, True)
        value = eval(compiled, self.variables)
        if not compiled.co_flags & inspect.CO_COROUTINE:
            return value
        import asyncio

        if self._loop is None or self._loop.is_closed():
            self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self._loop)
        task = self._loop.create_task(value)
        try:
            return self._loop.run_until_complete(task)
        except KeyboardInterrupt:
            task.cancel()
            self._loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
            raise

    def input(self, prompt: Any = "") -> str:
        """Ask the caller of the evaluation. Raises EOFError if there is no answer."""
        if self._running is None or threading.current_thread() is not threading.main_thread():
            raise EOFError("input() works in the main thread of an evaluation only")
        self._flush()
        self.reports.send(
            op="input", id=self._running, prompt=str(prompt)[: PREVIEW_CHARACTERS * 5]
        )
        answer = None
        while True:  # a wait without a limit would not be interrupted by a signal on old versions
            try:
                answer = self._answers.get(timeout=0.5)
                break
            except queue.Empty:
                continue
        if answer is None:
            raise EOFError("no answer")
        return answer

    # --- values -----------------------------------------------------------------------------------

    def _show_result(self, value: Any) -> None:
        text = represent(value)
        self._show(value, find_form(value), text)
        self.reports.send(op="result", text=cut(text, RESULT_CHARACTERS), kind=kind_of(value))

    def display(self, *values: Any) -> None:
        """Show values now, in their richest form."""
        for value in values:
            text = represent(value)
            form = find_form(value) or ("text/plain", cut(text, RESULT_CHARACTERS))
            self._show(value, form, text)

    def _show(self, value: Any, form: tuple[str, str] | None, text: str) -> None:
        self._flush()
        if form is not None:
            media, data = form
            preview = text[:PREVIEW_CHARACTERS]
            self.reports.send(op="display", media=media, data=data, text=preview)
        pyplot = sys.modules.get("matplotlib.pyplot")
        if pyplot is not None and kind_of(value) == FIGURE:
            pyplot.close(value)  # so that it is not shown again at the end

    def show_figures(self) -> None:
        """Show and close all open figures of matplotlib."""
        pyplot = sys.modules.get("matplotlib.pyplot")
        if pyplot is None or not hasattr(pyplot, "get_fignums"):
            return
        try:
            for number in pyplot.get_fignums():
                self.display(pyplot.figure(number))
        finally:
            pyplot.close("all")


def main() -> None:
    """Serve one session."""
    Worker().run()

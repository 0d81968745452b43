"""The fork server: starts commands and is responsible for every process that they start.

This file is a separate program that runs with the bare interpreter and the standard library. It is
single-threaded, so forking is safe, and small, so forking is fast. It owns the process trees; it
does not know events, output or sandboxes.

    server ---link---> supervisor --fork--> guard --fork--> the command
       `-------------control---------------'

- The link (our standard input) carries one byte per request. `+` starts a call and has four
  descriptors attached: the call's control socket and the command's stdin, stdout and stderr. `?`
  has one, to which a byte is written when no orphan is left. When the link closes, the supervisor
  exits as soon as its guards have; guards that miss the deadline are killed with their trees.
- Each call gets a guard. It sends `guard PID` on the control socket, with its own pidfd attached,
  so that the server can signal it without the risk of hitting another process. A call whose control
  socket ends without this line was never started and can be retried. Then the guard reads the
  request, starts the command and reports `started PID` or `failed ERRNO STEP`, then `exited CODE
  MICROSECONDS` or `signalled NUMBER MICROSECONDS`, and `gone` when no process of the call is left,
  or `stuck` when some cannot be killed. It measures the time of the command, because the server may
  read the reports of a short command together. It kills the whole tree when the command exits, and
  immediately when the server closes its side of the control socket, which the kernel does for a
  server that was killed.
- A guard is a subreaper: a process below it that loses its parent becomes its child, also after
  setsid, a double fork or with an empty environment. It only signals its own children and their
  process groups. No other process can reap these children, so their pids cannot have been reused,
  and a session that started in the tree has no members outside it. Killing a group is atomic with
  respect to fork. The next generation is then orphaned, becomes our child, and is killed in turn.
- The supervisor is a subreaper too: if a guard is killed, its orphans are killed here. The server
  is the next subreaper (`descendants.py`): it kills processes that lost their guard and their
  supervisor.

A command runs as the same user and can signal the supervisor and its guard. Countermeasures:

- Both are continued (SIGCONT) by the kernel when their parent dies, so that a stopped one still
  ends its processes after the server was killed. The signal is harmless to a running process, so it
  does not matter that the kernel sends it when the parent's *thread* ends.
- Neither can be traced or read by other processes of the user (not dumpable), except by root.
- The supervisor lowers its hard limit of RLIMIT_RTTIME, which has no effect on programs without
  real-time scheduling. All processes that it starts inherit the limit, and a process without
  privileges cannot raise it again: by this mark the server distinguishes its orphans from other
  children.

Remaining gaps: after the server was killed, a process that stops the supervisor and its guard in a
tight loop prevents them from ending it. Root can raise the limit and, having killed the supervisor
and the guard, escape. A command can have another service start a process (cron, `systemd-run`, a
container engine), which is never part of its tree. Without a subreaper (not Linux), only the
command's process group is killed: a child that created its own session escapes, and so does every
child of a guard that was killed. A sandbox closes all of these: its processes see neither the
helpers nor other services.

The request is a four-byte length and then fields separated by NUL bytes: the directory, the number
of limits, each limit as `NAME VALUE`, the number of arguments, the arguments, and the environment
as `NAME=VALUE`. The first argument is the path of the program.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterable

from activations.processes.children import (
    Children,
    continue_on_parent_death,
    harden,
    kill_group,
)

#: We exit with the server, not when its process group is interrupted or terminated.
IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)

#: Signals to reset for a command: an ignored signal stays ignored over exec. Besides those above,
#: Python ignores SIGPIPE, and the server's parent may have ignored others. Computed once, as
#: checking all of them for every command would take a quarter of a millisecond.
RESTORED = {*IGNORED} | {
    number for number in signal.valid_signals() if signal.getsignal(number) is signal.SIG_IGN
}

#: Grace period for processes that a command leaves behind. A `>(tee log)` is not waited for by bash
#: and needs a moment to write its last input.
LINGER_S = 0.1

#: Interval for checking for a killed child; its exit usually wakes us sooner.
RETRY_S = 0.01

#: Time after which a guard reports that killing has no effect. The server waits twice as long, and
#: then treats a guard that has not reported as stopped.
STUCK_S = 1.0

#: Timeout for guards to end their trees after the server died. A guard that exceeds it was probably
#: stopped; the supervisor then does its work.
GUARDS_S = 1.0


def _wait(fds: Iterable[int], seconds: float | None = None) -> set[int]:
    """Return the descriptors that are readable or were closed at the other end."""
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return {fd for fd, _ in poll.poll(None if seconds is None else seconds * 1000)}


class Request:
    """The command that the server requests."""

    def __init__(self, body: bytes) -> None:
        fields = iter(body.split(b"\0"))
        self.directory = next(fields)
        self.limits = [next(fields).decode() for _ in range(int(next(fields)))]
        self.arguments = [next(fields) for _ in range(int(next(fields)))]
        self.environment = dict(field.split(b"=", 1) for field in fields)


def _receive_request(control: socket.socket) -> Request | None:
    """Read the request; None if the server closed the socket before all of it was sent."""
    received = b""
    expected = 4
    while len(received) < expected:
        part = control.recv(65536)
        if not part:
            return None
        received += part
        if len(received) >= 4:
            expected = 4 + int.from_bytes(received[:4], "big")
    return Request(received[4:])


def _exec_command(request: Request, stdio: list[int], report: int) -> None:
    """Turn this process into the command. On failure, report the step and exit."""
    step = "session"
    try:
        os.setsid()
        for number, fd in enumerate(stdio):
            os.dup2(fd, number)
        step = "cwd"
        os.chdir(request.directory)
        step = "limits"
        _set_limits(request.limits)
        for number in RESTORED:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        step = "exec"
        os.execve(request.arguments[0], request.arguments, request.environment)
    except OSError as error:
        os.write(report, f"{error.errno} {step}".encode())
    finally:
        os._exit(127)


def _set_limits(limits: list[str]) -> None:
    if not limits:
        return
    import resource

    for limit in limits:
        name, _, requested = limit.partition(" ")
        kind = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(kind)[1]
        value = int(requested) if hard == resource.RLIM_INFINITY else min(int(requested), hard)
        resource.setrlimit(kind, (value, value))


class Guard:
    """Guard process of one command: runs it and ends every process that it started."""

    def __init__(self, control: socket.socket, stdio: list[int]) -> None:
        self.control = control
        self.stdio = stdio
        self.command = 0  # its pid while it runs
        self.started_at = 0.0

    def run(self) -> None:
        os.setsid()
        continue_on_parent_death()
        children = Children()
        self._send_identity()
        request = _receive_request(self.control)
        if request is None:
            return
        group = self._start(request, children)
        while not children.empty and not self._server_closed(children.wakeup_fd):
            self._record_exits(children.reap())
            if not self.command:
                self._linger(children)
                break
        if sys.platform != "linux":
            kill_group(group)
        self._kill(children)
        self._report("gone")

    def _kill(self, children: Children) -> None:
        stuck_at = time.monotonic() + STUCK_S
        while not children.empty:
            children.kill()
            _wait([children.wakeup_fd], RETRY_S)
            self._record_exits(children.reap())
            if time.monotonic() > stuck_at:
                self._report("stuck")
                stuck_at = float("inf")

    def _send_identity(self) -> None:
        """Send the server a pidfd, before the request is read."""
        message = f"guard {os.getpid()}\n".encode()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the server is dead
            if sys.platform == "linux":
                pidfd = os.pidfd_open(os.getpid())
                socket.send_fds(self.control, [message], [pidfd])
                os.close(pidfd)
            else:
                self.control.sendall(message)

    def _start(self, request: Request, children: Children) -> int:
        """Start the command and return the process group that it leads."""
        reports, report = os.pipe()
        self.started_at = time.monotonic()
        group = self.command = os.fork()
        if self.command == 0:
            _exec_command(request, self.stdio, report)
        children.empty = False
        for fd in (*self.stdio, report):
            os.close(fd)
        # A directory on a dead network disk can block the command here, so wait for both.
        if reports in _wait([reports, self.control.fileno()]):
            failure = os.read(reports, 100).decode()
            self._report(f"failed {failure}" if failure else f"started {self.command}")
        os.close(reports)
        return group

    def _server_closed(self, wakeup_fd: int, seconds: float | None = None) -> bool:
        """Wait for the exit of a child or for the server; True if the server closed its side."""
        return self.control.fileno() in _wait([wakeup_fd, self.control.fileno()], seconds)

    def _linger(self, children: Children) -> None:
        for _ in range(round(LINGER_S / RETRY_S)):
            if children.empty or self._server_closed(children.wakeup_fd, RETRY_S):
                break
            self._record_exits(children.reap())

    def _record_exits(self, dead: dict[int, int]) -> None:
        if self.command not in dead:
            return
        code = os.waitstatus_to_exitcode(dead[self.command])
        self.command = 0
        took_us = round((time.monotonic() - self.started_at) * 1_000_000)
        self._report(f"{'exited' if code >= 0 else 'signalled'} {abs(code)} {took_us}")

    def _report(self, message: str) -> None:
        # If the server is dead, the remaining work does not need it.
        with contextlib.suppress(OSError):
            self.control.sendall(message.encode() + b"\n")


class Supervisor:
    """Parent of the guards: starts one for each call and kills what a guard leaves behind."""

    def __init__(self, link: socket.socket) -> None:
        self.link = link
        self.children = Children()
        self.guards: set[int] = set()
        self.has_orphans = False
        #: Descriptors to reply on when no orphan is left.
        self.sweeps: list[int] = []

    def run(self) -> None:
        is_open = True
        while is_open:
            sources = [self.children.wakeup_fd, self.link.fileno()]
            ready = _wait(sources, RETRY_S if self.has_orphans else None)
            self._end_orphans()
            if self.link.fileno() in ready:
                is_open = self._receive()
        self._end_guards()

    def _receive(self) -> bool:
        """Receive one request from the server; False if it closed the link."""
        message, fds, _, _ = socket.recv_fds(self.link, 1, 4)
        for fd in fds:
            os.set_inheritable(fd, False)
        if message == b"+":
            self._start_guard(fds)
        elif message == b"?":
            self.sweeps += fds
            self._end_orphans()
        return bool(message)

    def _start_guard(self, fds: list[int]) -> None:
        try:
            if len(fds) == 4:  # fewer arrive if we have no free descriptors; the server sees EOF
                guard = os.fork()
                if guard == 0:
                    _run_guard(self.link, fds)
                self.guards.add(guard)
        except OSError as error:
            os.write(fds[0], f"failed {error.errno} fork\n".encode())
        finally:
            self.children.empty = False
            for fd in fds:
                os.close(fd)

    def _end_orphans(self) -> None:
        self.guards.difference_update(self.children.reap())
        self.has_orphans = self.children.kill(spare=self.guards)
        if not self.has_orphans:
            while self.sweeps:
                fd = self.sweeps.pop()
                with contextlib.suppress(OSError):  # the server may have closed it
                    os.write(fd, b".")
                os.close(fd)

    def _end_guards(self) -> None:
        """Let the guards end their trees, and kill what is left of both after a timeout."""
        for guard in self.guards:
            os.kill(guard, signal.SIGCONT)
        deadline = time.monotonic() + GUARDS_S
        self._end_orphans()
        while not self.children.empty:
            _wait([self.children.wakeup_fd], RETRY_S)
            if time.monotonic() > deadline:
                self.guards.clear()
            self._end_orphans()


def _run_guard(link: socket.socket, fds: list[int]) -> None:
    try:
        link.close()
        Guard(socket.socket(fileno=fds[0]), fds[1:]).run()
    except BaseException:  # noqa: BLE001 - a guard must never return into the supervisor's loop
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(0)


def main() -> None:
    # Descriptors 0 to 2 must all be in use, or a pipe could land there and be overwritten when the
    # command gets its own.
    while (null := os.open(os.devnull, os.O_RDWR)) < 3:
        pass
    link = socket.socket(fileno=os.dup(0))
    os.dup2(null, 0)  # so that a guard closes the link by closing one descriptor
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    os.chdir("/")
    continue_on_parent_death()
    harden()
    Supervisor(link).run()

"""The fork server: starts commands and answers for every process that comes of them.

This file is a program of its own, run with the bare interpreter and the standard library. It is
single-threaded, so forking is safe, and small, so forking is quick. It owns the process trees;
it knows nothing of events, output or sandboxes.

    server ---link---> supervisor --fork--> guard --fork--> the command
       `-------------control---------------'

- The link (our standard input) carries one byte per call, with four descriptors attached: the
  call's control socket and the command's stdin, stdout and stderr. When the link closes, the
  supervisor ends as soon as its guards have.
- Each call gets a guard. It reads the request from the control socket, starts the command and
  reports `started PID` or `failed ERRNO STEP`, then `exited CODE` or `signalled NUMBER`, and
  `gone` when no process of the call is left. It ends the whole tree when the command ends, and
  at once when the server closes its side of the control socket, which the kernel does for a
  server that was killed.
- A guard is a subreaper: whatever loses its parent below it becomes its child, also after setsid,
  a double fork or with an empty environment. It only ever signals its own children and their
  process groups. Nobody else can reap these children, so their pids cannot have passed to
  strangers, and a session that began in the tree has no members outside it. Killing a group is
  atomic towards fork. The next generation is then orphaned, becomes ours, and is killed in turn.
- The supervisor is a subreaper too: if somebody kills a guard, its orphans end here.

Where there is no subreaper (not Linux), only the command's process group is killed: a child that
made a session of its own gets away.

The request is a four byte length and then fields parted by NUL bytes: the directory, the number
of limits, each limit as `NAME VALUE`, the number of arguments, the arguments, and the environment
as `NAME=VALUE`. The first argument is the path of the program.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import sys
from collections.abc import Collection, Iterable

LIBC = ctypes.CDLL(None)
PR_SET_CHILD_SUBREAPER = 36

#: We end when the server does, not when somebody interrupts or stops its group.
IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)

#: What a command gets back: an ignored signal stays ignored over exec, and besides those above
#: Python ignores SIGPIPE, and whoever started the server may have ignored others. Found once, as
#: going through them all for every command would take a quarter of a millisecond.
RESTORED = {*IGNORED} | {
    number for number in signal.valid_signals() if signal.getsignal(number) is signal.SIG_IGN
}

#: How long what a command leaves behind may take to end by itself. A `>(tee log)` is not waited
#: for by bash and needs a moment to write what it was given last.
LINGER_S = 0.1

#: How long to wait for a killed child before looking again; its death is usually heard sooner.
RETRY_S = 0.01


class Family:
    """Our children, adopted ones included, and a descriptor that turns readable when one ends."""

    def __init__(self) -> None:
        _become_subreaper()
        self.bell, ringer = os.pipe()
        os.set_blocking(self.bell, False)
        os.set_blocking(ringer, False)
        signal.set_wakeup_fd(ringer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.empty = True

    def reap(self) -> dict[int, int]:
        """Bury the dead: pid to wait status. Says in `empty` whether anybody is left."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self.bell, 4096):
                pass
        dead = {}
        try:
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                dead[found[0]] = found[1]
            self.empty = False
        except ChildProcessError:
            self.empty = True
        return dead

    def kill(self, spare: Collection[int] = ()) -> None:
        """Kill each child that is not spared, with all of its process group."""
        own_group = os.getpgrp()
        for pid in _own_children():
            if pid in spare:
                continue
            group = os.getpgid(pid)  # it is our child and not reaped, so it is there
            if group != own_group:
                _kill_group(group)
            else:  # it was forked a moment ago and has no session yet
                os.kill(pid, signal.SIGKILL)


def _kill_group(group: int) -> None:
    # A program that changed its user may be out of our reach; it is tried again.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _become_subreaper() -> None:
    if sys.platform == "linux":
        LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _own_children() -> list[int]:
    me = os.getpid()
    try:
        return [int(pid) for pid in _contents(f"/proc/{me}/task/{me}/children").split()]
    except FileNotFoundError:
        return _children_by_search(me)


def _children_by_search(parent: int) -> list[int]:
    """The same from each process's own record, for kernels built without that list."""
    found = []
    for entry in os.scandir("/proc") if sys.platform == "linux" else ():
        if not entry.name.isdigit():
            continue
        try:
            record = _contents(f"/proc/{entry.name}/stat")
        except OSError:  # it has ended meanwhile
            continue
        # The name of the program, in parentheses, may hold anything; the parent's pid is the
        # second word after it.
        if int(record.rpartition(b")")[2].split()[1]) == parent:
            found.append(int(entry.name))
    return found


def _contents(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY)
    try:
        parts = []
        while part := os.read(fd, 65536):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(fd)


def _wait(fds: Iterable[int], seconds: float | None = None) -> set[int]:
    """Those of the descriptors that can be read or were closed at the other end."""
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return {fd for fd, _ in poll.poll(None if seconds is None else seconds * 1000)}


class Request:
    """What the server wants to have run."""

    def __init__(self, body: bytes) -> None:
        fields = iter(body.split(b"\0"))
        self.directory = next(fields)
        self.limits = [next(fields).decode() for _ in range(int(next(fields)))]
        self.arguments = [next(fields) for _ in range(int(next(fields)))]
        self.environment = dict(field.split(b"=", 1) for field in fields)


def _receive_request(control: socket.socket) -> Request | None:
    """Read the request; None if the server lost interest before all of it was sent."""
    received = b""
    wanted = 4
    while len(received) < wanted:
        part = control.recv(65536)
        if not part:
            return None
        received += part
        if len(received) >= 4:
            wanted = 4 + int.from_bytes(received[:4], "big")
    return Request(received[4:])


def _become(request: Request, stdio: list[int], report: int) -> None:
    """Turn this process into the command; on failure say at which step, and end."""
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
        name, _, wanted = limit.partition(" ")
        kind = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(kind)[1]
        value = int(wanted) if hard == resource.RLIM_INFINITY else min(int(wanted), hard)
        resource.setrlimit(kind, (value, value))


class Guard:
    """Runs one command and sees to the end of everything that comes of it."""

    def __init__(self, control: socket.socket, stdio: list[int]) -> None:
        self.control = control
        self.stdio = stdio
        self.command = 0  # until it has started, and again when it has ended

    def run(self) -> None:
        os.setsid()
        family = Family()
        request = _receive_request(self.control)
        if request is None:
            return
        group = self._start(request, family)
        while not family.empty and not self._hears(family.bell):
            self._note_dead(family.reap())
            if not self.command:
                self._linger(family)
                break
        if sys.platform != "linux":
            _kill_group(group)
        while not family.empty:
            family.kill()
            _wait([family.bell], RETRY_S)
            self._note_dead(family.reap())
        self._tell("gone")

    def _start(self, request: Request, family: Family) -> int:
        """Start the command; returns the process group that it leads."""
        reports, report = os.pipe()
        group = self.command = os.fork()
        if self.command == 0:
            _become(request, self.stdio, report)
        family.empty = False
        for fd in (*self.stdio, report):
            os.close(fd)
        # A directory on a dead network disk can hold the command here, so listen to both.
        if reports in _wait([reports, self.control.fileno()]):
            failure = os.read(reports, 100).decode()
            self._tell(f"failed {failure}" if failure else f"started {self.command}")
        os.close(reports)
        return group

    def _hears(self, bell: int, seconds: float | None = None) -> bool:
        """Wait for a death; True if the server closed its side, which is all it ever does."""
        return self.control.fileno() in _wait([bell, self.control.fileno()], seconds)

    def _linger(self, family: Family) -> None:
        for _ in range(round(LINGER_S / RETRY_S)):
            if family.empty or self._hears(family.bell, RETRY_S):
                break
            self._note_dead(family.reap())

    def _note_dead(self, dead: dict[int, int]) -> None:
        if self.command not in dead:
            return
        code = os.waitstatus_to_exitcode(dead[self.command])
        self.command = 0
        self._tell(f"exited {code}" if code >= 0 else f"signalled {-code}")

    def _tell(self, message: str) -> None:
        # If the server is gone, what is left to do does not need it.
        with contextlib.suppress(OSError):
            self.control.sendall(message.encode() + b"\n")


def _serve(link: socket.socket) -> None:
    family = Family()
    guards: set[int] = set()
    is_open = True
    while is_open or not family.empty:
        ready = _wait([family.bell, link.fileno()] if is_open else [family.bell])
        guards.difference_update(family.reap())
        family.kill(spare=guards)
        if is_open and link.fileno() in ready:
            message, fds, _, _ = socket.recv_fds(link, 1, 4)
            if message:
                _start_guard(link, fds, guards)
                family.empty = False
            else:
                is_open = False


def _start_guard(link: socket.socket, fds: list[int], guards: set[int]) -> None:
    for fd in fds:
        os.set_inheritable(fd, False)
    try:
        if len(fds) == 4:  # fewer have come when we are out of descriptors; the server sees an end
            guard = os.fork()
            if guard == 0:
                _be_guard(link, fds)
            guards.add(guard)
    except OSError as error:
        os.write(fds[0], f"failed {error.errno} fork\n".encode())
    finally:
        for fd in fds:
            os.close(fd)


def _be_guard(link: socket.socket, fds: list[int]) -> None:
    try:
        link.close()
        Guard(socket.socket(fileno=fds[0]), fds[1:]).run()
    except BaseException:  # noqa: BLE001 - a guard must never return into the supervisor's loop
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(0)


def main() -> None:
    # Descriptors 0 to 2 must all be taken, or a pipe could land there and be overwritten when the
    # command gets its own.
    while (null := os.open(os.devnull, os.O_RDWR)) < 3:
        pass
    link = socket.socket(fileno=os.dup(0))
    os.dup2(null, 0)  # a guard must be able to let go of the link by closing it once
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    os.chdir("/")
    _serve(link)


if __name__ == "__main__":
    main()

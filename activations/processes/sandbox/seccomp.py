"""System call filter of the profile `strict`, as a seccomp program.

Mounts decide which files a command can open, but not which sockets it can connect to: a socket in
the file system can be connected to through a read-only mount, and some address families (AF_VSOCK)
do not belong to any network namespace. So `strict` permits three address families. The other rules
prevent a command from bypassing this one (io_uring, foreign system call tables), from reading the
keys of the session, and from using the parts of the kernel that need a user namespace.

`socketpair` is allowed: such sockets are connected only to each other.
"""

from __future__ import annotations

import errno
import platform
import struct

__all__ = ("strict_filter",)

#: AF_INET, AF_INET6 and AF_NETLINK: needed to use the loopback interface of the sandbox.
FAMILIES = (2, 10, 16)
CLONE_NEWUSER = 0x10000000

#: System call numbers: x86-64 has a separate table, newer machines share one.
_X86_64 = {
    "socket": 41,
    "clone": 56,
    "unshare": 272,
    "setns": 308,
    "add_key": 248,
    "request_key": 249,
    "keyctl": 250,
}
_GENERIC = {
    "socket": 198,
    "clone": 220,
    "unshare": 97,
    "setns": 268,
    "add_key": 217,
    "request_key": 218,
    "keyctl": 219,
}
#: Numbers that are the same on every machine.
_EVERYWHERE = {
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "clone3": 435,
}

#: AUDIT_ARCH_* of the supported machines, and their tables.
_MACHINES = {
    "x86_64": (0xC000003E, _X86_64),
    "aarch64": (0xC00000B7, _GENERIC),
    "riscv64": (0xC00000F3, _GENERIC),
    "loongarch64": (0xC0000102, _GENERIC),
}
#: Numbers from here on belong to x86-64's second table (x32), which would pass the comparisons
#: below.
_X32 = 0x40000000

# Instructions of the filter, and the offsets in `struct seccomp_data` that it can load.
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16

_ALLOW, _KILL, _FAIL = 0x7FFF0000, 0x80000000, 0x00050000


def strict_filter(machine: str | None = None) -> bytes:
    """Return the filter for this machine. Raises LookupError if its system calls are not known."""
    name = machine or platform.machine()
    if name not in _MACHINES:
        known = ", ".join(_MACHINES)
        raise LookupError(f"its system call filter supports {known}, not {name}")
    architecture, table = _MACHINES[name]
    numbers = table | _EVERYWHERE
    program = [
        _statement(_LOAD, _ARCHITECTURE),
        *_unless(_EQUAL, architecture, _KILL),
        _statement(_LOAD, _NUMBER),
    ]
    if name == "x86_64":
        program += _if(_AT_LEAST, _X32, _KILL)
    for call in ("unshare", "setns", "add_key", "request_key", "keyctl"):
        program += _if(_EQUAL, numbers[call], _FAIL | errno.EPERM)
    # As on a kernel without them: programs then fall back to the older calls.
    for call in ("clone3", "io_uring_setup", "io_uring_enter", "io_uring_register"):
        program += _if(_EQUAL, numbers[call], _FAIL | errno.ENOSYS)
    # The flags of clone3 are in memory, which a filter cannot read; those of clone are not.
    program += [
        _jump(_EQUAL, numbers["clone"], 0, 4),
        _statement(_LOAD, _FIRST_ARGUMENT),
        *_if(_ANY_BIT, CLONE_NEWUSER, _FAIL | errno.EPERM),
        _statement(_RETURN, _ALLOW),
    ]
    program += [
        _jump(_EQUAL, numbers["socket"], 0, 2 + len(FAMILIES)),
        _statement(_LOAD, _FIRST_ARGUMENT),
        *(_jump(_EQUAL, family, len(FAMILIES) - place, 0) for place, family in enumerate(FAMILIES)),
        _statement(_RETURN, _FAIL | errno.EAFNOSUPPORT),
    ]
    program += [_statement(_RETURN, _ALLOW)]
    return b"".join(program)


def _statement(code: int, value: int) -> bytes:
    return _jump(code, value, 0, 0)


def _jump(code: int, value: int, when_true: int, when_false: int) -> bytes:
    return struct.pack("=HBBI", code, when_true, when_false, value)


def _if(code: int, value: int, result: int) -> list[bytes]:
    return [_jump(code, value, 0, 1), _statement(_RETURN, result)]


def _unless(code: int, value: int, result: int) -> list[bytes]:
    return [_jump(code, value, 1, 0), _statement(_RETURN, result)]

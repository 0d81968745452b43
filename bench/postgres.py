"""A PostgreSQL server in a temporary folder, if PostgreSQL is installed.

It writes to the disk as a server in production does. It refuses to run as root, so root starts it
as the account of its package.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from bench.servers import ServerExited

if TYPE_CHECKING:
    import psycopg

__all__ = ("Database", "is_installed", "open_database")

ACCOUNT = "postgres"
ROLE = "substrate"
NAME = "bench"
WAIT_S = 60.0
SETTINGS = "unix_socket_directories = '{folder}'\nlisten_addresses = ''\nmax_connections = 100\n"


class Database(NamedTuple):
    """An empty database on its own server."""

    url: str
    #: The first process of the server.
    pid: int
    connection: psycopg.Connection[tuple[Any, ...]]

    def query(self, sql: str) -> Any:
        """Return the first value of the first row of a query."""
        row = self.connection.execute(sql.encode()).fetchone()
        return None if row is None else row[0]

    def cpu_s(self) -> float:
        """Return the CPU seconds of all processes of the server, also of those that have ended."""
        ticks = 0
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has ended
            if stat.parent.name == str(self.pid):
                ticks += sum(map(int, fields[11:15]))  # its own, and those of ended children
            elif fields[1] == str(self.pid):
                ticks += sum(map(int, fields[11:13]))
        return ticks / os.sysconf("SC_CLK_TCK")


def is_installed() -> bool:
    """Return whether PostgreSQL and its driver are installed."""
    try:
        import psycopg  # noqa: F401
    except ImportError:
        return False
    return _programs() is not None


@contextmanager
def open_database() -> Iterator[Database]:
    """Start a server with an empty database, and delete it on exit. Raises ServerExited."""
    import psycopg

    programs = _programs()
    if programs is None:
        raise ServerExited("PostgreSQL is not installed")
    account = pwd.getpwnam(ACCOUNT) if os.geteuid() == 0 else None
    # Not in the repository, which the account of the server may not be allowed to enter.
    with tempfile.TemporaryDirectory(prefix="bench-postgres-") as name:
        folder = Path(name)
        owner: dict[str, Any] = {}
        if account is not None:
            os.chown(folder, account.pw_uid, account.pw_gid)
            owner = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        data = folder / "data"
        options = ("-U", ROLE, "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync")
        done = subprocess.run(
            (programs / "initdb", "-D", data, *options),
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
            **owner,
        )
        if done.returncode:
            raise ServerExited(f"initdb: {done.stderr.strip()}")
        with (data / "postgresql.conf").open("a") as file:
            file.write(SETTINGS.format(folder=folder))
        command = [str(programs / "postgres"), "-D", str(data)]
        setpriv = shutil.which("setpriv")
        if setpriv:  # so that the server does not outlive a killed benchmark
            command = [setpriv, "--pdeathsig", "QUIT", *command]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **owner
            )
        try:
            host = quote(str(folder), safe="")
            until = time.monotonic() + WAIT_S
            while True:
                try:
                    with psycopg.connect(
                        f"postgresql://{ROLE}@{host}/postgres", autocommit=True
                    ) as connection:
                        connection.execute(f"CREATE DATABASE {NAME}".encode())
                    break
                except psycopg.OperationalError as error:
                    if process.poll() is not None or time.monotonic() > until:
                        raise ServerExited((folder / "log").read_text()) from error
                    time.sleep(0.05)
            url = f"postgresql://{ROLE}@{host}/{NAME}"
            with psycopg.connect(url, autocommit=True) as connection:
                yield Database(url, process.pid, connection)
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(WAIT_S)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGQUIT)
                process.wait()


def _programs() -> Path | None:
    """Return the folder with `initdb` and `postgres`, which Debian does not put on the path."""
    found = shutil.which("initdb")
    if found:
        return Path(found).resolve().parent
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return folders[-1].parent if folders else None

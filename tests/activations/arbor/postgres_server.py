"""A real PostgreSQL server in a temporary folder, started and stopped by the tests.

The server refuses to run as root, so root starts it as the account of its package. It listens on a
Unix socket without authentication, and on a loopback port where the role `guest` needs a password.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from urllib.parse import quote

import psycopg

__all__ = ("GUEST_PASSWORD", "MISSING", "PostgresServer", "programs")

MISSING = "PostgreSQL is not installed"
ACCOUNT = "postgres"
ROLE = "substrate"
GUEST_PASSWORD = "right"
WAIT_S = 30.0
#: Without fsync: the tests kill the server, not the machine, so the page cache survives.
SETTINGS = """
unix_socket_directories = '{folder}'
listen_addresses = '127.0.0.1'
port = {port}
max_connections = 160
logging_collector = off
autovacuum = off
fsync = off
full_page_writes = off
"""
RULES = """
local all all trust
host all guest 127.0.0.1/32 scram-sha-256
host all all 127.0.0.1/32 trust
"""


def programs() -> Path | None:
    """Return the folder with `initdb` and `postgres`, which Debian does not put on the path."""
    found = shutil.which("initdb")
    if found:
        return Path(found).resolve().parent
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return folders[-1].parent if folders else None


class PostgresServer:
    """A cluster that can be stopped in every way, and restarted with its data."""

    def __init__(self) -> None:
        found = programs()
        assert found is not None, MISSING
        self._programs = found
        # Not below pytest's folder, which the server's account must not enter.
        self.folder = Path(tempfile.mkdtemp(prefix="arbor-postgres-"))
        account = pwd.getpwnam(ACCOUNT) if os.geteuid() == 0 else None
        self._user = None if account is None else account.pw_uid
        self._group = None if account is None else account.pw_gid
        self._groups: list[int] | None = None if account is None else []
        self.change_owner(self.folder)
        self.port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._databases = 0
        data = self.folder / "data"
        self._run("initdb", "-D", str(data), "-U", ROLE, "-A", "trust", "-E", "UTF8", "--no-locale")
        with (data / "postgresql.conf").open("a") as file:
            file.write(SETTINGS.format(folder=self.folder, port=self.port))
        (data / "pg_hba.conf").write_text(RULES)

    def change_owner(self, folder: Path) -> None:
        """Change the owner of a folder to the server's account."""
        if self._user is not None and self._group is not None:
            os.chown(folder, self._user, self._group)

    def start(self) -> None:
        """Start, and wait until it answers."""
        assert self._process is None
        command = [str(self._programs / "postgres"), "-D", str(self.folder / "data")]
        setpriv = shutil.which("setpriv")
        if setpriv:  # so that the server does not outlive killed tests
            command = [setpriv, "--pdeathsig", "QUIT", *command]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                user=self._user,
                group=self._group,
                extra_groups=self._groups,
            )
        until = time.monotonic() + WAIT_S
        while True:
            try:
                psycopg.connect(self.url("postgres"), connect_timeout=2).close()
            except psycopg.OperationalError:
                assert self._process.poll() is None, (self.folder / "log").read_text()
                assert time.monotonic() < until, (self.folder / "log").read_text()
                time.sleep(0.02)
            else:
                return

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop the server; SIGINT disconnects clients first, SIGQUIT acts like a crash."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(WAIT_S)
            self._process = None

    def close(self) -> None:
        """Stop the server and delete its folder."""
        try:
            self.stop(signal.SIGQUIT)
        finally:
            shutil.rmtree(self.folder)

    def url(self, database: str) -> str:
        """Return a URL for the Unix socket."""
        host = quote(str(self.folder), safe="")
        return f"postgresql://{ROLE}@{host}:{self.port}/{database}"

    def tcp_url(self, database: str, role: str = ROLE, password: str = "") -> str:
        """Return a URL for the loopback port."""
        secret = f":{password}" if password else ""
        return f"postgresql://{role}{secret}@127.0.0.1:{self.port}/{database}"

    def new_database(self, options: str = "") -> str:
        """Create an empty database, and return its name."""
        self._databases += 1
        name = f"arbor_{self._databases}"
        self.execute("postgres", f"CREATE DATABASE {name} {options}")
        return name

    def execute(self, database: str, sql: str) -> list[tuple[object, ...]]:
        """Execute a statement on a separate connection."""
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []

    def backends(self, database: str) -> list[int]:
        """Return the backend processes of the connections to this database."""
        rows = self.execute(
            "postgres", f"SELECT pid FROM pg_stat_activity WHERE datname = '{database}'"
        )
        return [int(str(pid)) for (pid,) in rows]

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(self._programs / program), *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            user=self._user,
            group=self._group,
            extra_groups=self._groups,
        )
        assert done.returncode == 0, done.stderr


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port

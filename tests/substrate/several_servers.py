"""Two servers on one PostgreSQL database, behind one address that deals requests out in turn."""

from __future__ import annotations

import http.client
import itertools
import re
import select
import shutil
import signal
import socket
import socketserver
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from arbor_databases import server as postgres
from child_processes import clean_environment
from network import ANSWER_S, REPOSITORY, Server, bearer

__all__ = ("Address", "Replicas", "create_token", "nginx_proxy", "replicas", "round_robin")

#: The folder of daemons is not on the path of every user.
NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
DEPLOYMENT = REPOSITORY / "docs" / "deployment.md"


class Address(Server):
    """An address that clients use: of one server, or of the proxy in front of all."""

    def __init__(self, port: int, token: str) -> None:
        self.port = port
        self.secret = token

    def request(
        self, verb: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> http.client.HTTPResponse:
        """Send a request with the token."""
        return super().request(verb, path, body, bearer(self.secret) | (headers or {}))


class Replicas:
    """The servers, and the address of the proxy."""

    def __init__(self, servers: list[Server], port: int, token: str, database: str) -> None:
        self.servers = servers
        self.token = token
        self.database = database
        #: Every request goes to the next server.
        self.all = Address(port, token)
        #: The same servers, without the proxy.
        self.first, self.second = (Address(each.port, token) for each in servers)

    def rows(self, sql: str) -> list[tuple[object, ...]]:
        """Execute a statement on the database."""
        return postgres().execute(self.database, sql)


def create_token(name: str, *flags: str) -> str:
    """Create a token with the command, and return its secret."""
    done = subprocess.run(
        [sys.executable, "-m", "substrate", "token", "create", name, *flags],
        cwd=REPOSITORY,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    return done.stdout.strip()


@contextmanager
def replicas(proxy: str = "round_robin", token: str = "") -> Iterator[Replicas]:
    """Run two servers and a proxy for the duration of the block."""
    database = postgres().new_database()
    with ExitStack() as stack:
        servers = []
        for _ in range(2):
            server = Server("--database", postgres().url(database), auth="token")
            stack.callback(server.stop)
            servers.append(server)
        open_proxy = nginx_proxy if proxy == "nginx" else round_robin
        port = stack.enter_context(open_proxy([server.port for server in servers]))
        yield Replicas(servers, port, token, database)


# --- a small proxy -------------------------------------------------------------------------------


class _Handler(socketserver.BaseRequestHandler):
    """Sends one connection to the next server; each connection carries one request."""

    server: _Proxy

    def handle(self) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            data = self.request.recv(65536)
            if not data:
                return
            head += data
        if b"\r\nupgrade:" not in head.lower():
            head = re.sub(rb"(?i)\r\nconnection: [^\r]*", b"", head)
            head = head.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
        port = next(self.server.ports)
        with socket.create_connection(("127.0.0.1", port), ANSWER_S) as backend:
            backend.sendall(head)
            self._copy(self.request, backend)

    def _copy(self, client: socket.socket, backend: socket.socket) -> None:
        """Copy both directions until either side closes."""
        others = {client: backend, backend: client}
        while True:
            readable, _, _ = select.select(list(others), [], [], 60.0)
            for each in readable:
                try:
                    data = each.recv(65536)
                    if not data:
                        return
                    others[each].sendall(data)
                except OSError:
                    return


class _Proxy(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, ports: list[int]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.ports = itertools.cycle(ports)

    def handle_error(self, *_: object) -> None:
        """Ignore a server that is stopping: its client sees the closed connection."""


@contextmanager
def round_robin(ports: list[int]) -> Iterator[int]:
    """Run a proxy that sends each request to the next server, and yield its port."""
    with _Proxy(ports) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield proxy.server_address[1]
        finally:
            proxy.shutdown()
            thread.join(ANSWER_S)


# --- nginx ---------------------------------------------------------------------------------------


def documented_configuration() -> str:
    """Return the configuration of nginx in the document."""
    found = re.search(r"```nginx\n(.*?)```", DEPLOYMENT.read_text(), re.DOTALL)
    assert found is not None
    return found[1]


def _configuration(ports: list[int], port: int, folder: Path) -> str:
    """Return the documented configuration with these ports, and without TLS."""
    text = documented_configuration()
    for line, own in zip(re.findall(r"server 10\.0\.0\.\d+:4444;", text), ports, strict=True):
        text = text.replace(line, f"server 127.0.0.1:{own};")
    text = text.replace("listen 443 ssl;", f"listen 127.0.0.1:{port};")
    text = re.sub(r".*(ssl_certificate|http2).*\n", "", text)
    temporary = "".join(
        f"{name}_temp_path {folder}/{name};\n"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    return (
        f"pid {folder}/pid;\nerror_log {folder}/error.log;\ndaemon off;\nevents {{}}\n"
        f"http {{\naccess_log off;\n{temporary}{text}\n}}\n"
    )


@contextmanager
def nginx_proxy(ports: list[int]) -> Iterator[int]:
    """Run nginx with the documented configuration, and yield its port."""
    if NGINX is None:
        pytest.skip("nginx is not installed")
    with ExitStack() as stack:
        # Not below pytest's folder: the worker of nginx has another account and must enter it.
        folder = Path(tempfile.mkdtemp(prefix="substrate-nginx-"))
        folder.chmod(0o755)
        stack.callback(shutil.rmtree, folder)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        file = folder / "nginx.conf"
        file.write_text(_configuration(ports, port, folder))
        process = subprocess.Popen(
            [NGINX, "-p", str(folder), "-c", str(file), "-e", str(folder / "error.log")],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        stack.callback(process.wait, ANSWER_S)
        stack.callback(process.send_signal, signal.SIGTERM)
        until = time.monotonic() + ANSWER_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1.0).close()
            except OSError:
                assert process.poll() is None, (folder / "error.log").read_text()
                assert time.monotonic() < until
                time.sleep(0.02)
            else:
                break
        yield port

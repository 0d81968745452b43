"""The target of a call: a running server, a selected server, or a local hub."""

from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from command_line import COUNT, add_plugin, lines, run, server

from substrate.cli.target import server as server_target
from substrate.cli.target.server import find_server, server_url
from substrate.server import app


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """Return a project other than that of the server."""
    project = tmp_path / "here"
    project.mkdir()
    return project


@pytest.fixture
def port(tmp_path: Path) -> Iterator[str]:
    """Yield the port of a server that has `count`."""
    add_plugin(tmp_path, "count", COUNT)
    with server(tmp_path) as number:
        yield number


def test_a_running_server_is_used(port: str, here: Path) -> None:
    called = run("--port", port, "call", "--json", "count.up", "1", cwd=here)
    assert lines(called.stdout)[0] == {"type": "content", "text": "1 "}


def test_the_port_may_come_from_the_settings(port: str, here: Path) -> None:
    assert run("call", "--json", "count.up", "1", cwd=here, SUBSTRATE_PORT=port).returncode == 0


@pytest.mark.parametrize("address", ["ws://127.0.0.1:{}", "http://127.0.0.1:{}", "127.0.0.1:{}"])
@pytest.mark.parametrize("late", [True, False])
def test_a_server_can_be_selected_by_url(address: str, late: bool, port: str, here: Path) -> None:
    flag, method = ["--url", address.format(port)], ["count.up", "1"]
    called = run("call", "--json", *(method + flag if late else flag + method), cwd=here)
    assert called.returncode == 0, called.stderr
    assert lines(called.stdout)[-1] == {"type": "complete"}


def test_local_never_uses_the_server(port: str, here: Path) -> None:
    for arguments in (["--local", "count.up", "1"], ["count.up", "1", "--local"]):
        called = run("--port", port, "call", "--json", *arguments, cwd=here)
        assert called.returncode == 2
        assert "Unknown method 'count.up'" in called.stderr


def test_a_method_only_in_the_project_is_distinguished_from_an_unknown_method(
    port: str, here: Path
) -> None:
    add_plugin(here, "more", COUNT.replace('"count"', '"more"'))
    ours = run("--port", port, "call", "--json", "more.up", "1", cwd=here)
    unknown = run("--port", port, "call", "--json", "count.pu", "1", cwd=here)

    assert (ours.returncode, unknown.returncode) == (2, 2)
    expected = f"The server on port {port} does not have more.up, but this project has."
    assert expected in ours.stderr
    assert "Did you mean count.up?" in unknown.stderr
    assert (
        run("--port", port, "call", "--json", "more.up", "1", "--local", cwd=here).returncode == 0
    )


def test_flags_that_configure_a_hub_run_the_call_in_this_process(port: str, here: Path) -> None:
    (here / "counting.py").write_text(COUNT.replace('"count"', '"mine"'))
    flags = ["--port", port, "--activation", "counting:Count"]
    assert run(*flags, "call", "--json", "mine.up", "1", cwd=here).returncode == 0
    both = run(
        *flags, "call", "--json", "--url", f"ws://127.0.0.1:{port}", "mine.up", "1", cwd=here
    )
    assert both.returncode == 2
    assert "--activation runs in this process and --url selects a server" in both.stderr


def test_methods_switched_off_by_a_flag_are_off_while_a_server_runs(port: str, here: Path) -> None:
    for flags in (["--without", "bash"], ["--only", "health"]):
        listed = run("--port", port, *flags, "list", "--all", "--json", cwd=here)
        assert "health.check" in listed.stdout
        assert "bash.execute" not in listed.stdout
        called = run("--port", port, *flags, "call", "bash.execute", "echo hi", cwd=here)
        assert called.returncode != 0
        assert "switched off" in called.stderr


def test_errors_of_the_server_are_shown_like_local_errors(port: str, here: Path) -> None:
    called = run(
        "--port", port, "call", "--json", "count.up", "--params", '{"to": "x", "a": 1}', cwd=here
    )
    assert called.returncode == 2
    assert "  to: Input should be a valid integer" in called.stderr
    assert "  a: is not known here" in called.stderr


def test_an_unreachable_server_is_a_failure_with_advice(here: Path) -> None:
    with socket.socket() as bound:  # bound but not listening, so no other process gets the port
        bound.bind(("127.0.0.1", 0))
        address = f"ws://127.0.0.1:{bound.getsockname()[1]}"
        called = run("call", "--json", "--url", address, "plexus.hash", cwd=here)
    assert called.returncode == 1
    assert "--local works without a server" in called.stderr
    assert "Traceback" not in called.stderr


def test_an_invalid_server_url_is_a_usage_error(here: Path) -> None:
    called = run("call", "--json", "--url", "ftp://somewhere", "plexus.hash", cwd=here)
    assert called.returncode == 2
    assert "'ftp://somewhere' is not a server URL, as in ws://127.0.0.1:4444" in called.stderr


@contextmanager
def foreign_server(body: bytes) -> Iterator[int]:
    """Start a server of another program. Yields its port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as foreign:
        thread = threading.Thread(target=foreign.serve_forever)
        thread.start()
        try:
            yield foreign.server_port
        finally:
            foreign.shutdown()
            thread.join()


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"name": "something else"}', b""])
def test_another_program_on_the_port_is_ignored(body: bytes, here: Path) -> None:
    with foreign_server(body) as number:
        assert not find_server(number)
        assert run("--port", str(number), "call", "--json", "plexus.hash", cwd=here).returncode == 0


def test_a_silent_port_does_not_delay_a_command(here: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        number = silent.getsockname()[1]
        assert run("--port", str(number), "call", "--json", "plexus.hash", cwd=here).returncode == 0


def test_the_probe_expects_the_name_that_the_server_reports() -> None:
    assert server_target.IDENTITY == app.IDENTITY


def test_addresses_without_a_scheme_are_websockets() -> None:
    assert server_url("localhost:1") == "ws://localhost:1"

"""A server that other machines can reach requires host names and authentication."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest
from child_processes import clean_environment
from network import bearer, serving

from substrate.security.exposure import check_exposure, connect_address, is_loopback
from substrate.settings import Settings, SettingsError


@pytest.mark.parametrize(
    ("settings", "missing"),
    [
        (Settings(bind="0.0.0.0"), "--allow-host"),
        (Settings(bind="::"), "--allow-host"),
        (Settings(bind="192.0.2.7"), "--allow-host"),
        (Settings(bind="0.0.0.0", hosts=("example.org",), auth="off"), "auth"),
        (Settings(bind="0.0.0.0", auth="off"), "auth"),
        (Settings(hosts=("example.org",), auth="off"), "auth"),
        (Settings(bind="example.org"), "not an IP address"),
        (Settings(bind=""), "not an IP address"),
        (Settings(hosts=("*",)), "not a host name"),
        (Settings(hosts=("https://example.org",)), "not a host name"),
        (Settings(hosts=("example.org/x",)), "not a host name"),
        (Settings(hosts=("",)), "not a host name"),
        (Settings(origins=("*",)), "not an origin"),
        (Settings(origins=("null",)), "not an origin"),
        (Settings(origins=("example.org",)), "not an origin"),
        (Settings(origins=("https://example.org/",)), "not an origin"),
    ],
)
def test_settings_that_would_admit_strangers_are_refused(settings: Settings, missing: str) -> None:
    with pytest.raises(SettingsError, match=missing):
        check_exposure(settings)


@pytest.mark.parametrize(
    "settings",
    [
        Settings(),
        Settings(auth="off"),
        Settings(bind="::1"),
        Settings(bind="127.0.0.9", auth="off"),
        Settings(hosts=("example.org",), origins=("https://app.example:8443",)),
        Settings(bind="0.0.0.0", hosts=("Example.org", "example.org:8443", "[2001:db8::1]:80")),
    ],
)
def test_settings_that_keep_strangers_out_are_accepted(settings: Settings) -> None:
    check_exposure(settings)


def test_a_loopback_address_is_distinguished_from_others() -> None:
    assert is_loopback("127.0.0.1")
    assert is_loopback("::1")
    assert not is_loopback("0.0.0.0")
    assert connect_address("0.0.0.0") == "127.0.0.1"
    assert connect_address("192.0.2.7") == "192.0.2.7"


@pytest.mark.parametrize(
    "flags", [["--bind", "0.0.0.0"], ["--bind", "0.0.0.0", "--allow-host", "x", "--auth", "off"]]
)
def test_a_server_with_unsafe_settings_does_not_listen(flags: list[str], tmp_path: Path) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    done = subprocess.run(
        [sys.executable, "-m", "substrate", "--port", str(port), *flags],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert done.returncode == 2
    assert "can be reached from other machines" in done.stderr


def test_an_exposed_server_requires_its_host_names_and_a_token() -> None:
    with serving("--bind", "0.0.0.0", "--allow-host", "tools.example", auth="token") as server:
        named = {"Host": "tools.example"}
        for headers, status in (
            (named, 401),
            (named | bearer("wrong"), 401),
            (named | bearer(server.token), 200),
            (bearer(server.token), 200),
            ({"Host": f"0.0.0.0:{server.port}"} | bearer(server.token), 421),
            (named | bearer(server.token) | {"Origin": "https://tools.example"}, 200),
            (named | bearer(server.token) | {"Origin": "https://app.example"}, 403),
        ):
            with server.call("health.check", **headers) as response:
                assert response.status == status, headers

"""`--only`, `--without` and `--mcp-tools`: what a server offers is the operator's choice."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from child_processes import clean_environment
from network import serving

from substrate.build_hub import built_in_hub
from substrate.settings import Settings, SettingsError, read_settings

pytestmark = pytest.mark.timeout(60)

PLUGIN = """from plexus import Activation

raise SystemExit("imported")
secret = Activation("secret")
"""


def run(*words: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "substrate", *words],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=clean_environment(**variables),
        timeout=30,
        check=False,
    )


def namespaces(settings: Settings) -> set[str]:
    hub = built_in_hub(settings, Path("/tmp/project"))
    return {spec.name.partition(".")[0] for spec in hub.methods()}


def test_everything_is_offered_by_default() -> None:
    assert namespaces(Settings()) == {
        "analysis",
        "approvals",
        "arbor",
        "bash",
        "chat",
        "claudecode",
        "health",
        "ide",
        "plexus",
        "python",
        "tasks",
        "templates",
    }


def test_only_and_without_choose_namespaces_and_parts_of_them() -> None:
    assert namespaces(Settings(only=("bash",))) == {"bash", "plexus"}
    assert {"bash", "python"}.isdisjoint(namespaces(Settings(without=("bash",))))
    assert {"bash", "python"}.isdisjoint(namespaces(Settings(without=("ba*.exec*",))))
    assert "python" in namespaces(Settings(only=("python", "bash"), without=("bash",)))
    assert "bash" in namespaces(Settings(without=("python",)))
    hub = built_in_hub(Settings(only=("arbor.tree_*",)), Path("/tmp/project"))
    names = {spec.name for spec in hub.methods() if not spec.name.startswith("plexus.")}
    assert names
    assert all(name.startswith("arbor.tree_") for name in names)


@pytest.mark.parametrize(
    ("flags", "variables", "file", "expected"),
    [
        ({"only": ("bash,count",)}, {}, None, ("bash", "count")),
        ({"only": ("bash", "count")}, {}, None, ("bash", "count")),
        ({}, {"SUBSTRATE_ONLY": "bash, count"}, None, ("bash", "count")),
        ({}, {}, b'only = ["bash", "count"]', ("bash", "count")),
        ({}, {}, b'only = "bash,count"', ("bash", "count")),
    ],
)
def test_patterns_are_read_from_everywhere(
    flags: Any,
    variables: dict[str, str],
    file: bytes | None,
    expected: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert read_settings(flags, file).settings.only == expected


@pytest.mark.parametrize("value", ["Bash", "a b", "bash;rm -rf"])
def test_a_wrong_pattern_is_refused_with_its_origin(value: str) -> None:
    with pytest.raises(SettingsError, match="is not a pattern"):
        read_settings({"without": (value,)})
    with pytest.raises(SettingsError, match="mcp_tools: "):
        read_settings({}, f'mcp_tools = "{value}"'.encode())
    with pytest.raises(SettingsError, match="mcp_tools cannot be 5"):
        read_settings({}, b"mcp_tools = 5")


def test_a_call_of_a_method_that_is_switched_off_is_refused_with_the_reason(tmp_path: Path) -> None:
    off = run("--without", "bash", "call", "bash.execute", "ls", cwd=tmp_path)
    assert off.returncode != 0
    assert "switched off by the operator" in off.stderr + off.stdout
    assert "bash" not in run("--without", "bash", "list", cwd=tmp_path).stdout


def test_a_plugin_that_is_switched_off_is_not_imported(tmp_path: Path) -> None:
    (tmp_path / "secret.py").write_text(PLUGIN)
    offered = run("--activation", "secret.py", "list", cwd=tmp_path)
    assert "imported" in offered.stderr
    off = run("--activation", "secret.py", "--without", "secret", "list", cwd=tmp_path)
    assert off.returncode == 0
    assert "imported" not in off.stderr


def test_health_stays_healthy_when_the_operator_switches_something_off(tmp_path: Path) -> None:
    report = run("--without", "chat", "call", "--local", "health.check", cwd=tmp_path)
    assert '"status":"healthy"' in report.stdout.replace(" ", "")
    assert "switched off by the operator" in report.stdout


def test_http_clients_choose_their_tools_by_query_and_header() -> None:
    with serving() as server:

        def listed(path: str, **headers: str) -> list[str] | int:
            session, tools = initialize(path, **headers)
            if session is None:
                return tools
            body = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
            with server.request("POST", path, body, ACCEPT | {"Mcp-Session-Id": session}) as answer:
                return [tool["name"] for tool in json.load(answer)["result"]["tools"]]

        def initialize(path: str, **headers: str) -> tuple[str | None, int]:
            params = {
                "protocolVersion": "2025-06-18",
                "capabilities": {},
                "clientInfo": {"name": "test", "version": "1"},
            }
            body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
            with server.request("POST", path, body, ACCEPT | headers) as answer:
                return answer.headers["Mcp-Session-Id"], answer.status

        standard = listed("/mcp")
        assert isinstance(standard, list)
        assert "bash.execute" in standard
        assert "arbor.tree_delete" not in standard
        assert listed("/mcp?tools=health.check") == ["health.check"]
        assert listed("/mcp", **{"X-Substrate-Tools": "health.*"}) == [
            "health.check",
            "health.history",
            "health.watch",
        ]
        everything = listed("/mcp?tools=all")
        assert isinstance(everything, list)
        assert "arbor.tree_delete" in everything
        assert listed("/mcp?tools=No%20Pattern") == 400


ACCEPT = {"Accept": "application/json"}


def test_the_standard_set_of_what_is_built_in_is_small() -> None:
    from mcp_view.tool_sets import ALL_TOOLS, STANDARD_TOOLS
    from plexus.registry.lean_schema import lean_schema
    from plexus.registry.schema import parameters_schema

    hub = built_in_hub(Settings(), Path("/tmp/project"))
    tools = [spec for spec in hub.methods() if spec.role == "method"]

    def tokens(spec: Any) -> float:
        schema = json.dumps(lean_schema(parameters_schema(spec)), separators=(",", ":"))
        return (len(spec.name) + len(spec.description) + len(schema)) / 4

    standard = [spec for spec in tools if STANDARD_TOOLS.includes(spec)]
    everything = [spec for spec in tools if ALL_TOOLS.includes(spec)]
    assert len(standard) <= 21
    assert sum(map(tokens, standard)) <= 3400
    assert sum(map(tokens, everything)) / len(everything) <= 115

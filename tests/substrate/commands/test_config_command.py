"""`substrate config`: every setting, its value, its origin and its meaning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from command_line import lines, run, terminal, without_colours

from substrate.cli.commands.config import field_comments
from substrate.server.limits import ServerLimits
from substrate.settings import Settings, setting_names


def settings(project: Path, *flags: str, **variables: str) -> dict[str, dict[str, Any]]:
    listed = run(*flags, "config", "--json", cwd=project, **variables)
    assert listed.returncode == 0, listed.stderr
    return {row["setting"]: row for row in lines(listed.stdout)}


def test_every_setting_has_a_value_and_a_meaning(tmp_path: Path) -> None:
    rows = settings(tmp_path)
    assert list(rows) == setting_names()
    assert all(row["meaning"] and row["allowed"] for row in rows.values())
    assert rows["limits.run_s"]["value"] == ServerLimits().run_s
    assert rows["log_level"]["origin"] == "default"


def test_each_value_has_an_origin(tmp_path: Path) -> None:
    (tmp_path / "substrate.toml").write_text(
        "log_level = 'info'\nbash_sandbox = 'strict'\n[limits]\nrun_s = 5\ncancel_s = 1\n"
    )
    rows = settings(
        tmp_path,
        "--trust",
        "--bash-sandbox",
        "off",
        SUBSTRATE_PORT="7777",
        SUBSTRATE_LIMITS__RUN_S="9.5",
        SUBSTRATE_ACTIVATION="a:A,b:B",
    )
    found = {name: (row["value"], row["origin"]) for name, row in rows.items()}
    assert found["bash_sandbox"] == ("off", "--bash-sandbox")
    assert found["port"] == (7777, "SUBSTRATE_PORT")
    assert found["activation"] == (["a:A", "b:B"], "SUBSTRATE_ACTIVATION")
    assert found["limits.run_s"] == (9.5, "SUBSTRATE_LIMITS__RUN_S")
    assert found["limits.cancel_s"] == (1.0, "substrate.toml")
    assert found["log_level"] == ("info", "substrate.toml")
    assert found["eof_grace_s"] == (2.0, "default")


def test_piped_it_is_aligned_text(tmp_path: Path) -> None:
    text = run("config", cwd=tmp_path).stdout
    columns = {line.index("default") for line in text.splitlines() if "  default  " in line}
    assert len(columns) == 1
    assert "bash_sandbox" in text


def test_on_a_terminal_it_is_a_table(tmp_path: Path) -> None:
    with terminal("config", cwd=tmp_path) as screen:
        code, text = screen.end()
    assert code == 0
    assert "Setting" in without_colours(text)
    assert "one of off, workspace, strict" in " ".join(without_colours(text).split())


@pytest.mark.parametrize("cls", [Settings, ServerLimits])
def test_meanings_are_the_comments_in_the_source(cls: type[msgspec.Struct]) -> None:
    found = field_comments(cls)
    assert all(found.values())
    assert set(found) == set(cls.__struct_fields__)


def test_without_source_code_meanings_are_empty() -> None:
    made = type("Made", (), {})
    assert field_comments(made) == {}


def test_every_limit_has_a_value_a_reason_and_a_consequence(tmp_path: Path) -> None:
    listed = run("config", "limits", "--json", cwd=tmp_path, SUBSTRATE_LIMITS__RUN_S="7.5")
    assert listed.returncode == 0, listed.stderr
    rows = {row["limit"]: row for row in lines(listed.stdout)}
    assert list(rows) == [name[7:] for name in setting_names() if name.startswith("limits.")]
    assert rows["run_s"] == {
        "limit": "run_s",
        "value": 7.5,
        "unit": "s",
        "reason": "Timeout of a run, unless its method declares one.",
        "past": "the run ends with `deadline`.",
    }


def test_limits_are_aligned_text_when_piped_and_a_table_on_a_terminal(tmp_path: Path) -> None:
    text = run("config", "limits", cwd=tmp_path).stdout
    starts = {line.index(line.split()[1]) for line in text.splitlines()}
    assert len(starts) == 1, "the values are below each other"
    assert "100.0 a second  Sustained requests per second" in text
    with terminal("config", "limits", cwd=tmp_path) as screen:
        code, shown = screen.end()
    assert code == 0
    assert "When exceeded" in without_colours(shown)

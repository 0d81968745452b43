"""Entries of MCP hosts: location of the files, and edits of their text."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from substrate.cli.mcp_hosts import json_text, toml_text
from substrate.cli.mcp_hosts.hosts import (
    HOSTS,
    NotEditable,
    add_entry,
    config_folder,
    find_entry,
    own_command,
)

GEMINI, CODEX, VSCODE = HOSTS["gemini"], HOSTS["codex"], HOSTS["vscode"]
ENTRY = {"command": "/opt/bin/substrate", "args": ["--stdio", "--mcp"]}


def added(text: str, entry: dict[str, Any] | None = None) -> str:
    return add_entry(GEMINI, text, "substrate", entry or ENTRY)


def added_to_toml(text: str) -> str:
    return add_entry(CODEX, text, "substrate", ENTRY)


# --- the table -------------------------------------------------------------------------------


def test_only_hosts_that_reject_dots_get_another_separator() -> None:
    underscored = {
        name for name, host in HOSTS.items() if "underscore" in host.entry(["s"], [])["args"]
    }
    assert underscored == {"claude-desktop"}


def test_flags_of_the_user_come_last() -> None:
    desktop = HOSTS["claude-desktop"].entry(["substrate"], ["--mcp-tool-names", "dash"])
    assert desktop["args"][-2:] == ["--mcp-tool-names", "dash"]
    entry = CODEX.entry(["python", "-m", "substrate"], ["--activation", "a:A"])
    assert entry["command"] == "python"
    assert entry["args"] == [
        *("-m", "substrate", "--stdio", "--mcp"),
        *("--activation", "a:A"),
    ]


def test_an_entry_of_vs_code_has_a_type() -> None:
    assert VSCODE.entry(["substrate"], [])["type"] == "stdio"


def test_desktop_applications_use_the_configuration_folder_of_the_platform(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert config_folder("linux", {}) == Path("/home/me/.config")
    assert config_folder("linux", {"XDG_CONFIG_HOME": "/cfg"}) == Path("/cfg")
    assert config_folder("darwin", {}) == Path("/home/me/Library/Application Support")
    assert config_folder("win32", {"APPDATA": "/roaming"}) == Path("/roaming")
    assert config_folder("win32", {}) == Path("/home/me/AppData/Roaming")


def test_files_are_where_the_hosts_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    for variable in ("CLAUDE_CONFIG_DIR", "CODEX_HOME"):
        monkeypatch.setenv(variable, "")
    found = {
        (name, scope): str(path())
        for name, host in HOSTS.items()
        for scope, path in host.files.items()
    }
    config = str(HOSTS["claude-desktop"].files["user"]().parent.parent)
    assert found == {
        ("claude-code", "user"): "/home/me/.claude.json",
        ("claude-code", "project"): ".mcp.json",
        ("claude-desktop", "user"): f"{config}/Claude/claude_desktop_config.json",
        ("codex", "user"): "/home/me/.codex/config.toml",
        ("vscode", "project"): ".vscode/mcp.json",
        ("vscode", "user"): f"{config}/Code/User/mcp.json",
        ("gemini", "user"): "/home/me/.gemini/settings.json",
        ("gemini", "project"): ".gemini/settings.json",
    }
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", "/elsewhere")
    monkeypatch.setenv("CODEX_HOME", "/codex")
    assert HOSTS["claude-code"].files["user"]() == Path("/elsewhere/.claude.json")
    assert CODEX.files["user"]() == Path("/codex/config.toml")


def test_without_an_executable_python_starts_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["/somewhere/substrate/__main__.py"])
    monkeypatch.setattr("sys.executable", str(tmp_path / "python3"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert own_command(shared=True) == [str(tmp_path / "python3"), "-P", "-m", "substrate"]

    (tmp_path / "substrate").touch(mode=0o755)
    assert own_command(shared=False) == [str(tmp_path / "substrate")]
    assert own_command(shared=True) == ["substrate"]


def test_a_link_to_the_executable_is_named_and_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "1.0").mkdir()
    (tmp_path / "1.0" / "substrate").touch(mode=0o755)
    (tmp_path / "substrate").symlink_to("1.0/substrate")
    monkeypatch.setattr("sys.argv", [str(tmp_path / "substrate")])
    assert own_command(shared=False) == [str(tmp_path / "substrate")]

    monkeypatch.setenv("PATH", str(tmp_path / "1.0"))
    assert own_command(shared=True) == ["substrate"], "the same file under another name"


# --- JSON ------------------------------------------------------------------------------------


def test_an_empty_file_becomes_a_whole_one() -> None:
    for empty in ("", " \n"):
        assert json.loads(added(empty)) == {"mcpServers": {"substrate": ENTRY}}
        assert added(empty).endswith("}\n")


@pytest.mark.parametrize("unit", ["  ", "    ", "\t", " "])
def test_an_entry_is_indented_like_the_file(unit: str) -> None:
    document = {"theme": "dark", "mcpServers": {"other": {"command": "x", "args": ["1"]}}, "n": [1]}
    wanted = json.loads(json.dumps(document))
    wanted["mcpServers"]["substrate"] = ENTRY
    text = json.dumps(document, indent=unit)
    assert added(text) == json.dumps(wanted, indent=unit)
    assert added(text + "\n") == json.dumps(wanted, indent=unit) + "\n"
    assert added(json.dumps({"n": [1]}, indent=unit)) == json.dumps(
        {"n": [1], "mcpServers": {"substrate": ENTRY}}, indent=unit
    )


def test_an_empty_object_is_filled_over_several_lines() -> None:
    whole = json.dumps({"mcpServers": {"substrate": ENTRY}}, indent=2)
    assert added("{}") == added("{ \n }") == whole
    text = '{\n    "mcpServers": {}\n}\n'
    wanted = json.dumps({"mcpServers": {"substrate": ENTRY}}, indent=4) + "\n"
    assert added(text) == wanted


def test_a_file_on_one_line_stays_on_one_line() -> None:
    entry = '{"command": "/opt/bin/substrate", "args": ["--stdio", "--mcp"]}'
    assert added('{"a":1,"mcpServers":{}}') == '{"a":1,"mcpServers":{"substrate": ' + entry + "}}"
    assert added('{"a": 1, "b": 2}') == (
        '{"a": 1, "b": 2, "mcpServers": {"substrate": ' + entry + "}}"
    )


def test_handwritten_content_stays_byte_for_byte() -> None:
    text = (
        '{ "mcpServers" :\n'
        "   {\n"
        '      "a": {"command":"x","args":["1","2"]}  ,\n'
        "\n"
        '      "b\\u0020\\"": { "url" : "http:\\/\\/h" }\n'
        "   },\n"
        '  "big": 123456789012345678901234567890, "small": 1E+2, "text": "\\u00e9 é {[\\\\" }'
    )
    before, after = text.split('"http:\\/\\/h" }')
    changed = added(text)
    assert changed.startswith(before + '"http:\\/\\/h" },\n      "substrate": {')
    assert changed.endswith(after)


def test_lines_end_as_they_did() -> None:
    text = '{\r\n  "mcpServers": {\r\n    "a": {}\r\n  }\r\n}\r\n'
    changed = added(text)
    assert changed.count("\r\n") == changed.count("\n") > text.count("\n")


def test_another_command_replaces_only_what_differs() -> None:
    former = {
        "command": "/old/substrate",
        "env": {"KEY": "secret"},
        "args": ["--stdio"],
        "trust": True,
    }
    text = json.dumps({"mcpServers": {"substrate": former, "z": {}}}, indent=2)
    wanted = {"mcpServers": {"substrate": {**former, **ENTRY}, "z": {}}}
    assert added(text) == json.dumps(wanted, indent=2)


def test_a_list_on_one_line_is_replaced_by_one() -> None:
    text = '{\n  "mcpServers": {\n    "substrate": {"command": "x", "args": []}\n  }\n}'
    assert '    "substrate": {"command": "/opt/bin/substrate", "args": ["--stdio", "--mcp"]}\n' in (
        added(text)
    )


def test_an_entry_for_a_remote_server_is_replaced_as_a_whole() -> None:
    text = json.dumps({"mcpServers": {"substrate": {"type": "http", "url": "http://h"}}}, indent=2)
    assert added(text) == json.dumps({"mcpServers": {"substrate": ENTRY}}, indent=2)


def test_an_existing_identical_entry_changes_nothing() -> None:
    text = json.dumps({"mcpServers": {"substrate": {"type": "stdio", **ENTRY, "env": {}}}})
    assert added(text) == text
    assert find_entry(GEMINI, text, "substrate")["env"] == {}
    assert find_entry(GEMINI, "", "substrate") is None


def test_the_last_of_duplicate_keys_is_changed() -> None:
    text = '{"mcpServers": {"a": {}}, "mcpServers": {"b": {}}}'
    assert json.loads(added(text)) == {"mcpServers": {"b": {}, "substrate": ENTRY}}


@pytest.mark.parametrize(
    "text",
    [
        '{\n  // mine\n  "mcpServers": {}\n}',
        '{"mcpServers": {},}',
        '\ufeff{"mcpServers": {}}',
        '{"mcpServers": ',
        '{"a": NaN}',
        "[]",
        '{"mcpServers": []}',
        '{"mcpServers": null}',
        '{"mcpServers": "x"}',
    ],
)
def test_an_unsafe_edit_is_rejected(text: str) -> None:
    with pytest.raises(NotEditable):
        added(text)


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=12,
)
indents = st.sampled_from([None, 0, 1, 2, 4, "\t"])
servers = st.dictionaries(st.sampled_from(["a", "substrate", 'q"{']), values, max_size=3)


@given(
    st.dictionaries(st.text(max_size=4), values, max_size=3),
    servers | st.none(),
    indents,
    st.booleans(),
)
def test_all_other_content_of_a_file_stays(
    document: dict[str, Any],
    entries: dict[str, Any] | None,
    indent: int | str | None,
    escaped: bool,
) -> None:
    document.pop("mcpServers", None)
    if entries is not None:
        document["mcpServers"] = entries
    text = json.dumps(document, indent=indent, ensure_ascii=escaped)
    changed = added(text)
    read = json.loads(changed)
    assert {**read["mcpServers"]["substrate"], **ENTRY} == read["mcpServers"]["substrate"]
    for each in (read, document):
        each.get("mcpServers", {}).pop("substrate", None)
    assert read == {"mcpServers": {}, **document}
    assert list(read)[: len(document)] == list(document)
    assert added(changed) == changed


@given(st.dictionaries(st.sampled_from("abc"), values, min_size=1), indents)
def test_adding_an_entry_removes_no_byte(entries: dict[str, Any], indent: int | str | None) -> None:
    text = json.dumps({"before": 1, "mcpServers": entries, "after": [{}]}, indent=indent)
    changed = added(text)
    kept = next(i for i, (old, new) in enumerate(zip(text, changed, strict=False)) if old != new)
    assert changed.endswith(text[kept:])


def test_a_path_through_a_value_that_is_not_an_object_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"a\.b is not an object"):
        json_text.put('{"a": {"b": 1}}', ("a", "b", "c"), 2)


# --- TOML ------------------------------------------------------------------------------------

MINE = '''# mine
model = "gpt"   # the good one

[mcp_servers.other]  # another
command = "npx"
args = [
  "-y",  # yes
  "[mcp_servers.substrate]",
]
note = """
[mcp_servers.substrate]
command = "no"
"""

[[profiles]]
name = 'one'
'''


def test_a_table_is_appended_and_nothing_else_touched() -> None:
    changed = added_to_toml(MINE)
    assert changed == MINE + (
        '\n[mcp_servers.substrate]\ncommand = "/opt/bin/substrate"\nargs = ["--stdio", "--mcp"]\n'
    )
    assert added_to_toml(changed) == changed


def test_a_missing_final_newline_stays_missing() -> None:
    assert not added_to_toml("a = 1").endswith("\n")
    assert added_to_toml("a = 1").startswith("a = 1\n\n[mcp_servers.substrate]\n")
    assert added_to_toml("a = 1\r\nb = 2").startswith("a = 1\r\nb = 2\r\n\r\n[mcp_servers.")
    assert added_to_toml("").startswith("[mcp_servers.substrate]\n")


def test_an_existing_table_is_changed_in_place() -> None:
    table = (
        "[ mcp_servers . 'substrate' ] # ours\n"
        "  # how it starts\n"
        '  command = "old#" # where it is\n'
        "  startup_timeout_sec = 20\n"
        "  args = [\n    'a', # one\n    'b',\n  ]\n"
        "\n"
        "[mcp_servers.substrate.env]\n"
        'KEY = "secret"\n'
    )
    changed = added_to_toml(MINE + table + "\n[tail]\nx = 1\n")
    assert changed == MINE + (
        "[ mcp_servers . 'substrate' ] # ours\n"
        "  # how it starts\n"
        '  command = "/opt/bin/substrate" # where it is\n'
        "  startup_timeout_sec = 20\n"
        '  args = ["--stdio", "--mcp"]\n'
        "\n"
        "[mcp_servers.substrate.env]\n"
        'KEY = "secret"\n'
        "\n[tail]\nx = 1\n"
    )


def test_a_missing_key_is_added_after_the_others() -> None:
    text = '[mcp_servers.substrate]\r\ncommand = "/opt/bin/substrate"'
    assert added_to_toml(text) == text + '\r\nargs = ["--stdio", "--mcp"]'


def test_a_table_for_a_remote_server_gets_other_keys() -> None:
    text = '[mcp_servers.substrate]\nurl = "http://h"\n# that was it\n\n[tail]\n'
    assert added_to_toml(text) == (
        '[mcp_servers.substrate]\ncommand = "/opt/bin/substrate"\nargs = ["--stdio", "--mcp"]\n'
        "# that was it\n\n[tail]\n"
    )


@pytest.mark.parametrize(
    "text",
    [
        'mcp_servers = { other = { command = "x" } }',
        'mcp_servers.substrate.command = "x"',
        '[mcp_servers]\nsubstrate = { command = "x" }',
        '[mcp_servers]\nsubstrate.command = "x"',
        '[mcp_servers.substrate]\nurl = "u"\n[mcp_servers.substrate.http_headers]\nA = "b"',
        "mcp_servers = 1",
        "[[mcp_servers]]",
        "a = ",
        "\ufeffa = 1",
    ],
)
def test_a_form_that_cannot_be_edited_is_rejected(text: str) -> None:
    with pytest.raises(NotEditable):
        added_to_toml(text)


@given(st.text(max_size=12), st.lists(st.text(max_size=12), max_size=3))
def test_any_text_is_written_so_that_toml_reads_it_back(program: str, args: list[str]) -> None:
    entry = {"command": program, "args": args}
    try:
        changed = add_entry(CODEX, MINE, "substrate", entry)
    except NotEditable:
        assert "\x7f" in program + "".join(args)
    else:
        assert tomllib.loads(changed)["mcp_servers"]["substrate"] == entry


def test_a_snippet_is_a_complete_file() -> None:
    assert toml_text.read(CODEX.snippet("substrate", ENTRY)) == {
        "mcp_servers": {"substrate": ENTRY}
    }
    assert json_text.read(VSCODE.snippet("x", ENTRY)) == {"servers": {"x": ENTRY}}

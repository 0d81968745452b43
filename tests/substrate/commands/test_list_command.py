"""`substrate list`: the methods of this project or of a server."""

from __future__ import annotations

from pathlib import Path

from command_line import COUNT, add_plugin, lines, run, server, terminal, without_colours


def test_a_plugin_file_in_the_project_is_listed(tmp_path: Path) -> None:
    add_plugin(tmp_path, "count", COUNT)

    listed = run("list", cwd=tmp_path)

    assert listed.returncode == 0
    assert "count 1.0.0: Counts, out loud." in listed.stdout
    described = [line.split(maxsplit=1) for line in listed.stdout.splitlines()]
    assert ["count.up", "Count from 1 up to TO."] in described
    assert "bash.execute" not in listed.stdout
    assert listed.stderr == ""


def test_a_broken_plugin_is_skipped_once_and_with_its_reason(tmp_path: Path) -> None:
    broken = add_plugin(tmp_path, "broken", "def (")
    add_plugin(tmp_path, "count", COUNT)

    listed = run("list", cwd=tmp_path)

    assert listed.returncode == 0
    assert "count.up" in listed.stdout
    assert listed.stderr.count(f"Plugin skipped: {broken}: SyntaxError") == 1
    assert len(listed.stderr.splitlines()) == 1


def test_output_printed_by_a_plugin_is_not_in_the_list(tmp_path: Path) -> None:
    add_plugin(tmp_path, "count", COUNT + "\nprint('hello from the plugin')\n")

    listed = run("list", "--json", cwd=tmp_path)

    assert "count.up" in [entry["name"] for entry in lines(listed.stdout)]
    assert "hello from the plugin" in listed.stderr


def test_an_activation_named_before_the_command_is_listed(tmp_path: Path) -> None:
    (tmp_path / "counting.py").write_text(COUNT)

    listed = run("--activation", "counting:Count", "list", cwd=tmp_path)

    assert "count.up" in listed.stdout


def test_the_json_form_is_one_method_a_line(tmp_path: Path) -> None:
    add_plugin(tmp_path, "count", COUNT)

    entries = {entry["name"]: entry for entry in lines(run("list", "--json", cwd=tmp_path).stdout)}

    assert entries["count.up"] == {
        "name": "count.up",
        "namespace": "count",
        "version": "1.0.0",
        "streaming": True,
        "scope": "count",
        "summary": "Count from 1 up to TO.",
    }
    assert entries["plexus.hash"]["streaming"] is False


def test_own_methods_come_first_and_built_in_namespaces_are_folded(tmp_path: Path) -> None:
    add_plugin(tmp_path, "zebra", COUNT.replace('"count"', '"zebra"'))
    folded = run("list", cwd=tmp_path).stdout
    assert folded.startswith("zebra 1.0.0: Counts, out loud.\n  zebra.up  Count from 1 up to TO.\n")
    assert "bash         1 method   Run shell commands" in folded
    assert "bash.execute" not in folded
    bash = run("list", "bash", cwd=tmp_path).stdout
    assert [line.split()[0] for line in bash.splitlines()] == ["bash", "bash.execute"]
    whole = run("list", "--all", cwd=tmp_path).stdout
    assert whole.index("zebra.up") < whole.index("approvals.pending") < whole.index("plexus.hash")
    names = [entry["name"] for entry in lines(run("list", "--json", cwd=tmp_path).stdout)]
    assert names[0] == "zebra.up"
    assert len(names) > 50
    wrong = run("list", "bsh", cwd=tmp_path)
    assert wrong.returncode == 2
    assert "Unknown namespace 'bsh'. Did you mean bash?" in wrong.stderr


def test_methods_inside_namespaces_inside_namespaces_are_listed(tmp_path: Path) -> None:
    source = '''
        from plexus import Activation, method

        class Luna(Activation):
            """The moon."""
            namespace = "luna"
            version = "1.0.0"

            @method
            async def phase(self) -> str:
                """Say how full it is."""
                return "full"

        class Earth(Activation):
            """The planet."""
            namespace = "earth"
            version = "2.0.0"
            children = (Luna,)
        '''
    add_plugin(tmp_path, "earth", source)
    entries = lines(run("list", "--json", cwd=tmp_path).stdout)
    assert ("earth.luna", "earth.luna.phase") in [(e["namespace"], e["name"]) for e in entries]
    assert run("call", "earth.luna.phase", cwd=tmp_path).stdout == "full\n"


def test_on_a_terminal_the_list_has_colours_and_whole_summaries(tmp_path: Path) -> None:
    add_plugin(tmp_path, "count", COUNT)
    with terminal("list", cwd=tmp_path) as screen:
        code, text = screen.end()
    assert code == 0
    assert "\x1b[" in text
    assert "count 1.0.0: Counts, out loud." in without_colours(text)


def test_methods_missing_on_the_server_are_reported(tmp_path: Path) -> None:
    with server(tmp_path) as port:
        add_plugin(tmp_path, "count", COUNT)
        listed = run("--port", port, "list", cwd=tmp_path)
        local = run("--port", port, "list", "--local", cwd=tmp_path)

    assert "count.up" in listed.stdout
    assert f"The server on port {port} does not have count.up" in listed.stderr
    assert "--local" in listed.stderr
    assert "count.up" in local.stdout
    assert local.stderr == ""

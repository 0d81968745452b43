"""`substrate respond`: answer the questions of runs from another terminal."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from command_line import lines, terminal, without_colours
from terminal_server import Running, running


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("project")) as found:
        yield found


@pytest.mark.parametrize(
    ("method", "flags", "result"),
    [
        ("asks.confirm", ["--yes"], True),
        ("asks.confirm", ["--no"], False),
        ("asks.confirm", ["--answer", "false"], False),
        ("asks.colour", ["--answer", '"blue"'], "blue"),
    ],
)
def test_a_question_is_answered_by_its_id(
    method: str, flags: list[str], result: object, server: Running
) -> None:
    with server.called(method, state="asking") as (process, number):
        listed = lines(server.run("respond", "--json").stdout)
        assert [entry["approval_id"] for entry in listed] == [f"{number}.1"]
        answered = server.run("respond", f"{number}.1", *flags)
        assert answered.returncode == 0, answered.stderr
        assert process.end() == 0
        assert lines(process.out.rest())[-1]["result"] == result


def test_a_rejection_may_have_a_reason(server: Running) -> None:
    with server.called("asks.colour", state="asking") as (process, number):
        flags = ["--no", "--message", "no colours today", "--json"]
        answered = lines(server.run("respond", f"{number}.1", *flags).stdout)
        assert answered[0]["approved"] is False
        assert process.end() == 1
        assert "no colours today" in lines(process.out.rest())[-1]["message"]


def test_an_invalid_answer_leaves_the_question_pending(server: Running) -> None:
    with server.called("asks.colour", state="asking") as (process, number):
        wrong = server.run("respond", f"{number}.1", "--answer", '"green"')
        assert wrong.returncode == 1
        assert "must be one of red, blue" in wrong.stderr
        assert "respond --json` shows the schema" in wrong.stderr
        assert server.run("respond", f"{number}.1", "--answer", '"red"').returncode == 0
        assert process.end() == 0


def test_all_pending_questions_are_prompted_in_order(server: Running) -> None:
    with (
        server.called("asks.confirm", state="asking") as (first, _),
        server.called("asks.colour", state="asking") as (second, _),
        terminal(*server.flags, "respond", cwd=server.project) as screen,
    ):
        screen.screen.wait_for(r"1 of 2: run \d+, asks.confirm")
        screen.screen.wait_for(r"Really\? \[y/n\] $")
        screen.type("y\n")
        screen.screen.wait_for(r"2 of 2: run \d+, asks.colour")
        screen.screen.wait_for(r"Choose: $")
        screen.type("2\n")
        assert screen.end()[0] == 0
        assert lines(first.out.wait_for(r"(\{.*complete.*\})\n")[1])[0]["result"] is True
        assert lines(second.out.wait_for(r"(\{.*complete.*\})\n")[1])[0]["result"] == "blue"


def test_a_diff_is_shown_in_colours_and_single_changes_can_be_accepted(server: Running) -> None:
    old = "".join(f"line {number}\n" for number in range(20))
    (server.project / "a.txt").write_text(old)
    new = old.replace("line 1\n", "one\n").replace("line 18\n", "\x1b[31mlast\n")
    asked = ["ide.open_diff", "--old-file-path", "a.txt", "--new-file-contents", new]
    with (
        server.called(*asked, state="asking") as (process, _),
        terminal(*server.flags, "respond", cwd=server.project) as screen,
    ):
        shown = screen.screen.wait_for(r"(?s)(.*)Change a.txt \(\+2 -2\)\? \[y/n/1-2\] $")[1]
        plain = without_colours(shown)
        assert "  1 -line 1\n    +one\n" in plain
        assert "  2 -line 18\n    +\\u001b[31mlast\n" in plain
        assert "\x1b[31m-line 1\x1b[0m" in shown
        assert "\x1b[32m+one\x1b[0m" in shown
        screen.type("3\n")
        screen.screen.wait_for("To accept single changes, type their numbers.")
        screen.type("1\n")
        assert screen.end()[0] == 0
        assert process.end() == 0
        review = lines(process.out.rest())[-1]["result"]
        assert review["outcome"] == "edited"
        assert review["text"] == old.replace("line 1\n", "one\n")


def test_a_diff_is_rejected_with_a_reason(server: Running) -> None:
    asked = ["ide.open_diff", "--old-file-path", "new.txt", "--new-file-contents", "1\n"]
    with (
        server.called(*asked, state="asking") as (process, _),
        terminal(*server.flags, "respond", cwd=server.project) as screen,
    ):
        screen.screen.wait_for(r"Create new.txt \(\+1 -0\)\? \[y/n\] $")
        screen.type("n\n")
        screen.screen.wait_for(r"Reason \(optional\): $")
        screen.type("not here\n")
        assert screen.end()[0] == 0
        assert process.end() == 0
        review = lines(process.out.rest())[-1]["result"]
        assert (review["outcome"], review["reason"]) == ("rejected", "not here")
        assert review["by"].startswith("substrate respond")


def test_ctrl_c_leaves_questions_pending(server: Running) -> None:
    with server.called("asks.confirm", state="asking") as (_, number):
        with terminal(*server.flags, "respond", cwd=server.project) as screen:
            screen.screen.wait_for(r"\[y/n\] $")
            screen.type("\x03")
            assert screen.end()[0] == 130
        assert lines(server.run("respond", "--json").stdout)[0]["run"] == number
        listed = server.run("respond")
        assert f"Answer with: substrate {' '.join(server.flags)} respond {number}.1 --yes" in (
            listed.stderr
        )


def test_without_pending_questions_a_message_is_printed(server: Running) -> None:
    assert server.run("respond", "--json").stdout == ""
    with terminal(*server.flags, "respond", cwd=server.project) as screen:
        assert "No pending questions." in screen.end()[1]
    gone = server.run("respond", "1.1", "--yes")
    assert gone.returncode == 1
    assert "It may have been answered already." in gone.stderr


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--yes"], "Pass the id of the question"),
        (["1.1", "--no", "--answer", "1"], "--no and --answer cannot be used together"),
        (["1.1", "--message", "x"], "--message requires --no"),
        (["1.1", "--answer", "blue"], "A string needs quotes"),
    ],
)
def test_wrong_flags_are_a_usage_error(flags: list[str], expected: str, server: Running) -> None:
    refused = server.run("respond", *flags)
    assert refused.returncode == 2
    assert expected in refused.stderr

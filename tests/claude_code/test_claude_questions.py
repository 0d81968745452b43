"""What a person sees and presses when a tool asks a question in the real Claude Code CLI."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from claude_screen import open_screen
from conformance.node import NotInstalled, claude_code
from model_api import model_api

#: npm may have to fetch the CLI first.
pytestmark = pytest.mark.timeout(400)

ACTIVATION = Path(__file__).with_name("confirming_activation.py")
#: How long the server may take to be connected, and the pause before the model is asked again.
CONNECT_S, PAUSE_S = 90.0, 0.5
#: What the CLI puts before the choice that Enter takes.
CURSOR = "\N{HEAVY RIGHT-POINTING ANGLE QUOTATION MARK ORNAMENT}"
ENTER, ESCAPE, RIGHT = "\r", "\x1b", "\x1b[C"


@pytest.fixture(scope="module", autouse=True)
def _cli() -> None:
    try:
        claude_code()
    except NotInstalled as error:
        pytest.skip(str(error))


def answered(
    folder: Path, method: str, question: str, keys: list[tuple[str, str]], last_key: str
) -> Any:
    """Return the result of a tool whose question is answered by these keys.

    Each key comes with what the form shows after it; the last key ends the form.
    """
    tool = f"mcp__substrate__confirming_{method}"
    with (
        model_api(tool, {}) as model,
        open_screen(folder, model.url, tool, "--activation", str(ACTIVATION)) as screen,
    ):
        screen.wait_until(lambda: screen.shows("for shortcuts"), "prompt")
        deadline = time.monotonic() + CONNECT_S
        while not screen.shows(question):
            assert time.monotonic() < deadline, "the server was not connected in time"
            idle, prompts = model.idle_turns, screen.count("go")
            screen.press("go")
            screen.wait_until(lambda: screen.count("go") > prompts, "typed text")  # noqa: B023 - called now
            screen.press(ENTER)
            # The tool is offered once its server is connected; before that the model is done.
            screen.wait_until(
                lambda: screen.shows(question) or model.idle_turns > idle,  # noqa: B023 - called now
                "question or end of the turn",
            )
            time.sleep(PAUSE_S)
        for key, shown in keys:
            screen.press_until(key, lambda: screen.shows(shown), shown)  # noqa: B023 - called now
        screen.press_until(last_key, lambda: bool(model.results), "result of the tool")
        [content] = model.results
        return content


@pytest.mark.parametrize(
    ("keys", "last_key", "result"),
    [
        ([], ENTER, [{"type": "text", "text": "confirmed True"}]),
        ([(RIGHT, f"{CURSOR} Decline")], ENTER, [{"type": "text", "text": "confirmed False"}]),
        ([], ESCAPE, "declined: Delete 3 files?"),
    ],
    ids=["accept", "decline", "cancel"],
)
def test_one_key_confirms_and_declining_is_an_answer(
    tmp_path: Path, keys: list[tuple[str, str]], last_key: str, result: Any
) -> None:
    form = f"requests your input Delete 3 files? {CURSOR} Accept"
    assert answered(tmp_path, "delete", form, keys, last_key) == result

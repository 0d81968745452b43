"""A chat session at the terminal: requests about it, and turns that are displayed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import click

from plexus.errors import PlexusError
from substrate.cli.target.catalogue import nearest
from substrate.cli.target.protocol import Target, result_of, text_of
from substrate.cli.terminal.display import Display, JsonLines, Streams
from substrate.cli.terminal.prompter import Prompter
from substrate.cli.terminal.run_follower import FAILED, RunFollower
from substrate.cli.terminal.turn_display import TurnDisplay

__all__ = ("ChatClient", "open_session")

Session = dict[str, Any]

#: What the first session is called if nobody says.
FIRST = "chat"
PAGE = 1000
#: What to do about some errors, besides what they say themselves.
NEXT_STEPS = {
    "turn_under_way": "Wait for it, or stop it: `substrate runs`, `substrate cancel RUN`.",
    "missing_key": "`substrate doctor` shows which models can be asked.",
    "not_installed": "`substrate doctor` shows which models can be asked.",
    "unknown_model": "`/model` shows where models come from.",
}


class ChatClient:
    """The client of one session at a time on one target."""

    def __init__(
        self, target: Target, streams: Streams, session: Session, *, as_json: bool
    ) -> None:
        self.target = target
        self.streams = streams
        self.session = session
        self._as_json = as_json

    @property
    def name(self) -> str:
        """The session's name."""
        return str(self.session["name"])

    def ask(self, method: str, **params: Any) -> Any:
        """What a method says of this session; raises PlexusError."""
        return self.target.run(result_of(self.target, method, {"session": self.name, **params}))

    def ask_plain(self, method: str, **params: Any) -> Any:
        """What a method says that is about no session; raises PlexusError."""
        return self.target.run(result_of(self.target, method, params))

    def text_of(self, method: str, **params: Any) -> str:
        """All the text that a method gives for this session; raises PlexusError."""
        return self.target.run(text_of(self.target, method, {"session": self.name, **params}))

    def play(self, method: str, **params: Any) -> int:
        """Show a turn; the exit code. What is refused is told and is no exception."""
        display: Display = JsonLines(self.streams) if self._as_json else TurnDisplay(self.streams)
        follower = RunFollower(self.target, display, Prompter.at_terminal(self.streams.err))
        try:
            params = {"session": self.name, **params}
            return self.target.run(follower.play(method, params, follows=False))
        except PlexusError as error:
            self.complain(error)
            return FAILED
        finally:
            if isinstance(display, TurnDisplay):
                display.end()

    def complain(self, error: PlexusError) -> None:
        """Say what went wrong, and what to do next."""
        next_step = NEXT_STEPS.get(error.code, "")
        said = f"{error.message.rstrip('.')}. {next_step}" if next_step else error.message
        self.streams.remark(f"Error ({error.code}): {said}", "red")


def open_session(
    target: Target, name: str | None, model: str | None, *, new: bool, somebody: bool
) -> Session:
    """The session that is meant, which may be made for it; raises ClickException.

    Without a name it is the one that was used last. `somebody` can be asked whether one that is
    not there shall be begun.
    """
    try:
        if new:
            return _create(target, name or time.strftime("%Y%m%d-%H%M%S"), model)
        found = _latest(target) if name is None else _find(target, name)
        if found is None and (name is None or (somebody and _agreed(name))):
            return _create(target, name or FIRST, model)
        if found is None:
            raise click.ClickException(_missing(target, str(name)))
        if model is not None and model != found["model"]:
            params = {"session": found["name"], "model": model}
            found = target.run(result_of(target, "chat.configure", params))
    except PlexusError as error:
        raise click.ClickException(f"{error.message} ({error.code})") from error
    return found


def _create(target: Target, name: str, model: str | None) -> Session:
    params = {"name": name} | ({} if model is None else {"model": model})
    session: Session = target.run(result_of(target, "chat.create", params))
    return session


def _agreed(name: str) -> bool:
    return click.confirm(f"There is no session {name!r}. Begin it?", True)


def _latest(target: Target) -> Session | None:
    return max(_sessions(target), key=lambda each: int(each["updated_ms"]), default=None)


def _find(target: Target, name: str) -> Session | None:
    try:
        session: Session = target.run(result_of(target, "chat.get", {"session": name}))
    except PlexusError as error:
        if error.code != "not_found":
            raise
        return None
    return session


def _sessions(target: Target) -> Iterator[Session]:
    after: dict[str, Any] = {}
    while True:
        params = {"limit": PAGE, **after}
        page = target.run(result_of(target, "chat.list", params))
        yield from page["sessions"]
        if page.get("next") is None:
            return
        after = {"after": page["next"]}


def _missing(target: Target, name: str) -> str:
    advice = nearest(name, [each["name"] for each in _sessions(target)])
    return f"there is no session {name!r}. {advice} `--new` begins it.".replace("  ", " ")

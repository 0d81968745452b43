"""Prompts at the terminal for the questions of a run.

The event loop reads lines, not a thread, so that a prompt can be cancelled at any time: at its
deadline, when another client answers, or at Ctrl-C.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import IO, Any, NamedTuple

from plexus.errors import PlexusError
from substrate.cli.schema_options import Shape, format_value, shape_of
from substrate.cli.terminal.diff_text import diff_lines
from substrate.cli.terminal.display import stdin_is_terminal

__all__ = ("Prompter", "Rejected")

Request = Mapping[str, Any]
Ask = Callable[[Request], Awaitable[Any]]
YES, NO = ("y", "yes"), ("n", "no")


class Rejected(NamedTuple):
    """An answer to a form that is invalid, and the fields with errors."""

    answer: Mapping[str, Any]
    fields: set[str]

    @classmethod
    def of(cls, answer: Any, error: PlexusError) -> Rejected | None:
        """Return the rejected answer; None if it is not that of a form."""
        errors = error.data.get("errors") if isinstance(error.data, dict) else None
        if not isinstance(answer, dict) or not isinstance(errors, list):
            return None
        return cls(answer, {str(each.get("at", "")).partition(".")[0] for each in errors})


class Declined(Exception):
    """The user closed the input instead of answering."""


class Prompter:
    """Prompts the user at the terminal for the answers to a run's questions."""

    def __init__(self, err: IO[str], input_fd: int) -> None:
        self._err = err
        self._fd = input_fd
        self._typed = b""
        #: Only one prompt is shown at a time.
        self._lock = asyncio.Lock()

    @classmethod
    def at_terminal(cls, err: IO[str]) -> Prompter | None:
        """Return a prompter if stdin and stderr are a terminal, else None."""
        there = stdin_is_terminal() and err.isatty()
        return cls(err, sys.stdin.fileno()) if there else None

    async def answer(self, request: Request, rejected: Rejected | None = None) -> Any:
        """Prompt for an answer that matches the request's schema.

        Of a rejected form, only the fields with errors are prompted for. Returns None if the user
        declines with Ctrl-D.
        """
        prompts: dict[str, Ask] = {
            "confirm": self._confirm,
            "select": self._select,
            "select_many": self._select_many,
            "form": partial(self._form, rejected=rejected),
            "visit": self._visit,
            "diff": self._diff,
        }
        async with self._lock:
            return await self._answer(prompts.get(request["kind"], self._prompt), request)

    async def _answer(self, ask: Ask, request: Request) -> Any:
        try:
            return await ask(request)
        except Declined:
            self._say("(declined)")
            return None

    # --- kinds of questions ---------------------------------------------------------------------

    async def _confirm(self, request: Request) -> bool:
        default = request.get("default")
        hint = "y/n" if default is None else "Y/n" if default else "y/N"
        while True:
            text = (await self._line(f"{request['message']} [{hint}] ")).strip().lower()
            if not text and isinstance(default, bool):
                return default
            if text in YES + NO:
                return text in YES
            self._say("Type y or n. Ctrl-D declines.")

    async def _visit(self, request: Request) -> bool:
        """Show a URL and ask whether the user opened it."""
        self._say(str((request.get("details") or {}).get("url", "")))
        return await self._confirm(request)

    async def _diff(self, request: Request) -> dict[str, Any]:
        """Show a proposed change, and ask whether to accept all of it, parts or nothing."""
        details = request.get("details") or {}
        for line in diff_lines(details):
            self._say(line)
        count = int(details.get("hunks") or 0)
        choice = f"y/n/1-{count}" if count > 1 else "y/n"
        while True:
            text = (await self._line(f"{request['message']} [{choice}] ")).strip().lower()
            if text in YES:
                return {"decision": "accept"}
            if text in NO:
                reason = (await self._line("Reason (optional): ")).strip()
                return {"decision": "reject"} | ({"reason": reason} if reason else {})
            chosen = [_number(each, count) for each in text.replace(",", " ").split()]
            if count > 1 and chosen and None not in chosen:
                return {"decision": "accept", "hunks": chosen}
            parts = " To accept single changes, type their numbers." if count > 1 else ""
            self._say(f"Type y or n.{parts} Ctrl-D rejects.")

    async def _prompt(self, request: Request) -> Any:
        shape = shape_of(request.get("schema", {}), {})
        return await self._value(request["message"], shape, request.get("default"))

    async def _select(self, request: Request) -> str:
        values = self._list_options(request)
        while True:
            text = await self._choice(request)
            chosen = _pick(text.strip(), values)
            if chosen is not None:
                return chosen
            self._say(f"Type a number from 1 to {len(values)}. Ctrl-D declines.")

    async def _select_many(self, request: Request) -> list[str]:
        values = self._list_options(request)
        while True:
            text = await self._choice(request)
            chosen = [_pick(part, values) for part in text.replace(",", " ").split()]
            if None not in chosen:
                return [value for value in chosen if value is not None]
            self._say("Type numbers separated by spaces. Ctrl-D declines.")

    async def _form(self, request: Request, rejected: Rejected | None) -> dict[str, Any]:
        schema = request["schema"]
        fields = schema.get("properties", {})
        required = schema.get("required", ())
        answers: dict[str, Any] = {}
        if rejected is None:
            self._say(request["message"])
        elif wrong := rejected.fields & fields.keys():
            answers = {name: each for name, each in rejected.answer.items() if name not in wrong}
        for name, entry in fields.items():
            if name in answers:
                continue
            shape = shape_of(entry, schema.get("$defs", {}))
            label = f"  {entry.get('description') or entry.get('title') or name}"
            optional = name not in required
            value = await self._value(label, shape, entry.get("default"), optional=optional)
            if value is not None:
                answers[name] = value
        return answers

    # --- lines ----------------------------------------------------------------------------------

    async def _value(
        self, label: str, shape: Shape, default: Any, *, optional: bool = False
    ) -> Any:
        """Prompt until the value can be parsed. An empty line selects the default."""
        choices = f" ({', '.join(shape.choices)})" if shape.choices else ""
        shown = "" if default is None else f" [{format_value(default)}]"
        while True:
            text = await self._line(f"{label}{choices}{shown}: ")
            if not text and (default is not None or optional):
                return default
            try:
                if shape.is_list:
                    return [shape.read(part.strip()) for part in text.split(",")]
                return shape.read(text)
            except ValueError as error:
                self._say(str(error))

    def _list_options(self, request: Request) -> list[str]:
        self._say(request["message"])
        options = request.get("options") or []
        for number, option in enumerate(options, 1):
            self._say(f"  {number}. {option['label']}")
        return [option["value"] for option in options]

    async def _choice(self, request: Request) -> str:
        default = request.get("default")
        parts: list[str] = default if isinstance(default, list) else [str(default)]
        shown = "" if default is None else f" [{', '.join(parts)}]"
        text = await self._line(f"Choose{shown}: ")
        return text if text or default is None else " ".join(parts)

    def _say(self, text: str) -> None:
        self._err.write(text + "\n")
        self._err.flush()

    async def _line(self, prompt: str) -> str:
        """Read a line without its newline. Raises Declined at the end of input."""
        self._err.write(prompt)
        self._err.flush()
        loop = asyncio.get_running_loop()
        while b"\n" not in self._typed:
            readable = loop.create_future()
            loop.add_reader(self._fd, _set_done, readable)
            try:
                await readable
            except asyncio.CancelledError:
                self._say("")  # what follows begins a line
                raise
            finally:
                loop.remove_reader(self._fd)
            typed = os.read(self._fd, 4096)
            if not typed:
                self._say("")
                raise Declined
            self._typed += typed
        line, _, self._typed = self._typed.partition(b"\n")
        return line.decode(errors="replace").removesuffix("\r")


def _set_done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _number(text: str, count: int) -> int | None:
    """Return the index of a change by its number from 1, or None."""
    return int(text) - 1 if text.isdecimal() and 0 < int(text) <= count else None


def _pick(text: str, values: list[str]) -> str | None:
    """Return the option with this number or value, or None."""
    if text.isdigit() and 0 < int(text) <= len(values):
        return values[int(text) - 1]
    return text if text in values else None

"""Methods that ask their caller questions, for tests of the MCP view."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from plexus import (
    Activation,
    AskText,
    Confirm,
    Content,
    Context,
    Declined,
    Detached,
    Failed,
    Form,
    Image,
    Message,
    OpenUrl,
    Option,
    Roots,
    Sample,
    Select,
    SelectMany,
    method,
    prompt,
    resource,
)
from plexus.errors import DeadlineExceeded
from plexus.questions import Question

__all__ = ("KINDS", "Asking", "Person")

PIXEL = "aW1hZ2U="


class Person(BaseModel):
    """A person."""

    name: Annotated[str, Field(title="Name", min_length=1, description="In full.")]
    age: int | None = None
    mail: Annotated[str | None, Field(json_schema_extra={"format": "email"})] = None
    sure: bool = True
    colour: Literal["red", "blue"] = "red"


class Picks(BaseModel):
    """Some colours."""

    colours: list[Literal["red", "blue"]]


class Nested(BaseModel):
    """A model that no form can show."""

    inner: Person


class Counted(BaseModel):
    """The result of a count."""

    total: int


JSON_FORM: dict[str, Any] = {
    "type": "object",
    "properties": {
        "size": {"type": "number", "minimum": 1, "default": 2.5},
        "kind": {
            "type": "string",
            "oneOf": [{"const": "a", "title": "Kind A"}, {"const": "b", "title": "Kind B"}],
        },
        "path": {"type": "string", "format": "path"},
    },
    "required": ["size"],
}
LABELLED = [Option("r", "Red"), Option("b", "Blue")]

#: Every kind of question, by name.
KINDS: dict[str, Question[Any]] = {
    "confirm": Confirm("Sure?", default=False),
    "prompt": AskText("Your name?", default="Ada"),
    "select": Select("Which?", ["here", "there"], default="there"),
    "select_labelled": Select("Which?", LABELLED),
    "select_many": SelectMany("Which ones?", ["x", "y", "z"], default=["y"]),
    "select_many_labelled": SelectMany("Which ones?", LABELLED),
    "form": Form("Who?", Person),
    "json_form": Form("How?", JSON_FORM),
    "nested": Form("What?", Nested),
    "sample": Sample(
        [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?"}],
        max_tokens=50,
        system_prompt="Be brief.",
    ),
    "roots": Roots(),
    "visit": OpenUrl("Log in there.", "https://example.org/login"),
}


class Asking(Activation):
    """Methods that ask before they continue."""

    namespace = "asking"
    version = "1.0.0"

    def __init__(self) -> None:
        #: How often each part of the work was reached.
        self.started = 0
        self.answered = 0
        self.ended = asyncio.Event()

    @method(destructive=False)
    async def ask(
        self, kind: str, timeout_s: float = 60, key: str | None = None, *, ctx: Context
    ) -> AsyncIterator[Content]:
        """Ask a question and report the answer."""
        self.started += 1
        try:
            yield Content("before ")
            try:
                answer = await ctx.ask(KINDS[kind], timeout_s=timeout_s, key=key)
            except Declined as error:
                yield Content(f"refused: {error.message}")
                return
            self.answered += 1
            shown = answer.model_dump() if isinstance(answer, BaseModel) else answer
            yield Content(f"answered {shown!r}")
        finally:
            self.ended.set()

    @method
    async def both(self, *, ctx: Context) -> AsyncIterator[Content]:
        """Ask two questions together."""
        questions = {"sure": KINDS["confirm"], "name": KINDS["prompt"]}
        answers = await ctx.ask_all(questions, timeout_s=60)
        yield Content(f"{answers['sure']} {answers['name']}")

    @method
    async def later(self, second: str = "prompt", *, ctx: Context) -> AsyncIterator[Content]:
        """Ask a question, and a second one before the first is answered."""
        first = asyncio.create_task(ctx.ask(KINDS["confirm"], timeout_s=60))
        await asyncio.sleep(0.02)
        answer = await ctx.ask(KINDS[second], timeout_s=60)
        yield Content(f"{await first} {answer}")

    @method
    async def picks(self, *, ctx: Context) -> AsyncIterator[Content]:
        """Ask for a selection as one field of a form."""
        answer = await ctx.ask(Form("Which?", Picks), timeout_s=60)
        yield Content(",".join(answer.colours))

    @method
    async def unwilling(self) -> str:
        """Fail with a code that the protocol uses too."""
        raise Failed("not here", code="unsupported", data={"kind": "weather"})

    @method
    async def rounds(self, *, ctx: Context) -> AsyncIterator[Content]:
        """Ask questions one after the other."""
        self.started += 1
        yield Content("one ")
        first = await ctx.ask(KINDS["confirm"], timeout_s=60)
        yield Content(f"{first} two ")
        second = await ctx.ask(KINDS["prompt"], timeout_s=60)
        yield Content(f"{second} three")

    @method
    async def again(self, *, ctx: Context) -> AsyncIterator[Content]:
        """Ask the same question under the same key until the answer is "yes"."""
        tries = 1
        while await ctx.ask(KINDS["prompt"], timeout_s=60, key="word") != "yes":
            tries += 1
        yield Content(f"after {tries}")

    @method
    async def loud(self, size: int, *, ctx: Context) -> AsyncIterator[Content | Image]:
        """Yield much text and an image, before and after a question."""
        yield Image(PIXEL, "image/png")
        for _ in range(size):
            yield Content("b" * 1000)
        await ctx.ask(KINDS["confirm"], timeout_s=60)
        for _ in range(size):
            yield Content("a" * 1000)
        yield Content("end")

    @method
    async def model(self, *, ctx: Context) -> Counted:
        """Ask, and return an object."""
        sure = await ctx.ask(KINDS["confirm"], timeout_s=60)
        return Counted(total=int(sure))

    @method
    async def patient(self, *, ctx: Context) -> AsyncIterator[Content]:
        """Continue after a question that times out."""
        try:
            await ctx.ask(KINDS["confirm"], timeout_s=0.05)
        except DeadlineExceeded:
            yield Content("no answer; ")
        await asyncio.sleep(0.05)
        yield Content("continued")

    @method
    async def stuck(self, *, ctx: Context) -> str:
        """Ask, then wait until cancelled."""
        await ctx.ask(KINDS["confirm"], timeout_s=60)
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.set()
        return "never"

    @method
    async def able(self, kind: str, *, ctx: Context) -> bool:
        """Return whether the caller supports a kind of question."""
        return ctx.can_ask(kind)

    @method
    async def behind(self, *, ctx: Context) -> AsyncIterator[Content | Detached]:
        """Continue in the background, and ask from there."""
        yield Content("in front ")
        yield Detached()
        sure = await ctx.ask(KINDS["confirm"], timeout_s=60, key="sure")
        yield Content(f"behind {sure}")

    @prompt
    async def letter(self, *, ctx: Context) -> list[Message]:
        """Write a letter to a person that the caller names."""
        name = await ctx.ask(KINDS["prompt"], timeout_s=60)
        return [Message("user", Content(f"Dear {name}"))]

    @prompt
    async def needy(self, *, ctx: Context) -> str:
        """Return a prompt written by the caller's model."""
        return (await ctx.ask(Sample("Hi"), timeout_s=60)).text

    @resource("secret://{name}")
    async def secret(self, name: str, *, ctx: Context) -> str:
        """Return a text after a confirmation."""
        sure = await ctx.ask(KINDS["confirm"], timeout_s=60)
        return f"{name}: {sure}"

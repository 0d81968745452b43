"""An activation with every kind of event, parameter and question that the page displays."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import datetime
import struct
import zlib
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

from pydantic import Field

from plexus import (
    Activation,
    AskText,
    Complete,
    Confirm,
    Content,
    Context,
    Event,
    Form,
    Image,
    Progress,
    Secret,
    Select,
    SelectMany,
    method,
)
from plexus.events import Log

__all__ = ("Showcase",)


class Stdout(Event):
    """Standard output, like that of `bash.execute`."""

    data: str


class Stderr(Event):
    """Standard error, like that of `bash.execute`."""

    data: str


class Reading(Event):
    """An event type that no view knows."""

    celsius: float
    place: dict[str, Any]


class Counted(Complete):
    """A terminal with a count."""

    total: int


@dataclasses.dataclass
class Part:
    """A part of something."""

    name: str
    weight: float = 1.0
    fragile: bool = False


@dataclasses.dataclass
class Trip:
    """The fields of a form."""

    city: str
    nights: int = 1
    by_train: bool = True


def _png() -> str:
    """Return a red square of 8 by 8 pixels as base64."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    rows = b"".join(b"\0" + b"\xc0\x20\x20" * 8 for _ in range(8))
    header = struct.pack(">IIBBBBB", 8, 8, 8, 2, 0, 0, 0)
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + parts).decode()


MARKDOWN = """# A heading

Some *words*, **bold** ones, `code`, and [a link](https://example.org/).

- one
- two
    - inside

> quoted

```python
print("<b>no markup</b>")
```

| a | b |
|---|---|
| 1 | 2 |

<img src=x onerror="document.title = 'broken into'">
[a script](javascript:alert(1))
"""


class Showcase(Activation):
    """Every kind of event, parameter and question."""

    namespace = "showcase"
    version = "1.0.0"

    @method
    async def mixed(self) -> AsyncIterator[Content | Progress | Image | Log | Reading | Counted]:
        """Yield one event of every kind."""
        for start in range(0, len(MARKDOWN), 40):
            yield Content(text=MARKDOWN[start : start + 40])
        for done in range(0, 101, 25):
            yield Progress(done=done, total=100, message="copying")
        yield Image(data=_png(), mime_type="image/png")
        yield Log(level="warning", message="it is getting late")
        yield Reading(celsius=21.5, place={"room": "kitchen", "walls": [1, 2, 3]})
        yield Counted(total=6)

    @method(deadline_s=None)
    async def many(
        self, count: int = 10_000, kind: Literal["stdout", "content", "data"] = "stdout"
    ) -> AsyncIterator[Stdout | Content | Reading | Counted]:
        """Yield many events, as fast as they are read.

        Args:
            count: The number of events.
            kind: The kind of the events.
        """
        for number in range(1, count + 1):
            if kind == "stdout":
                yield Stdout(data=f"\x1b[3{number % 7 + 1}mline\x1b[0m {number}\n")
            elif kind == "content":
                yield Content(text=f"word {number} " + ("\n\n" if number % 20 == 0 else ""))
            else:
                yield Reading(celsius=float(number), place={"number": number})
        yield Counted(total=count)

    @method(deadline_s=None)
    async def steady(
        self, count: int = 100, pause_s: float = 0.05
    ) -> AsyncIterator[Stdout | Stderr | Counted]:
        """Yield numbers at intervals.

        Args:
            count: The last number.
            pause_s: Seconds to wait before each number.
        """
        for number in range(1, count + 1):
            await asyncio.sleep(pause_s)
            yield Stdout(data=f"<{number}>\n")
        yield Counted(total=count)

    @method
    async def steps(self, *, ctx: Context) -> AsyncIterator[Progress | Counted]:
        """Make progress, call another method, and wait."""
        await ctx.call("demo.echo", text="a step")
        yield Progress(done=30, total=100, message="packing")
        await asyncio.sleep(60)
        yield Counted(total=1)

    @method
    async def confirm(self, message: str, *, ctx: Context) -> bool:
        """Ask for a yes or no.

        Args:
            message: The question.
        """
        return await ctx.ask(Confirm(message))

    @method
    async def ask(self, *, ctx: Context) -> AsyncIterator[Content | Counted]:
        """Ask one question of every kind."""
        sure = await ctx.ask(Confirm("Shall we go?"))
        yield Content(text=f"confirm={sure}\n\n")
        name = await ctx.ask(AskText("What is your name?"))
        yield Content(text=f"prompt={name}\n\n")
        where = await ctx.ask(Select("Where to?", options=["sea", "hills"]))
        yield Content(text=f"select={where}\n\n")
        what = await ctx.ask(SelectMany("What do you take?", options=["tent", "boat", "map"]))
        yield Content(text=f"many={','.join(what)}\n\n")
        trip = await ctx.ask(Form("Which trip?", Trip))
        yield Content(text=f"form={trip.city}/{trip.nights}/{trip.by_train}\n\n")
        yield Counted(total=5)

    @method
    async def shape(
        self,
        label: str,
        size: Literal["small", "large"] = "small",
        amount: Annotated[int, Field(ge=1, le=10)] = 3,
        wet: bool = False,
        part: Part | None = None,
        parts: list[Part] | None = None,
        words: list[str] | None = None,
        either: int | str | None = None,
        extra: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Return the arguments.

        Args:
            label: The name of the shape.
            size: The size of the shape.
            amount: The number of shapes.
            wet: Whether it is wet.
            part: One part.
            parts: More parts.
            words: Some words.
            either: A number or a text.
            extra: Anything else.
        """
        return {
            "label": label,
            "size": size,
            "amount": amount,
            "wet": wet,
            "part": None if part is None else dataclasses.asdict(part),
            "parts": [dataclasses.asdict(each) for each in parts or []],
            "words": words,
            "either": either,
            "extra": extra,
        }

    @method(title="Change settings", destructive=True, idempotent=True)
    async def settings(
        self,
        user: str,
        password: Annotated[str, Secret()],
        level: Literal["debug", "info", "warning", "error", "critical"] = "info",
        env: dict[str, str] | None = None,
        timeout_s: float | None = 90.0,
        day: datetime.date | None = None,
        note: Annotated[str, Field(max_length=2000)] = "",
    ) -> dict[str, Any]:
        """Return the settings, and the length of the password.

        Args:
            user: The name of the user.
            password: A secret.
            level: The least level that is logged.
            env: Environment variables.
            timeout_s: Seconds until it ends. Null: no timeout.
            day: The first day.
            note: A longer text.
        """
        return {
            "user": user,
            "password": len(password),
            "level": level,
            "env": env,
            "timeout_s": timeout_s,
            "day": None if day is None else day.isoformat(),
            "note": note,
        }

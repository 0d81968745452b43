"""Idioms of other MCP frameworks: they work, or the error says what to write instead.

Supported idioms are called over both views, with the same result.
"""

# No `from __future__ import annotations`: functions here use classes of the function around them.

import dataclasses
import enum
import logging
import sys
import typing
from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Optional, Union
from uuid import UUID

import pytest
from conftest import OpenHub
from hub_calls import end_of
from mcp_peer import McpPeer, text_of
from pydantic import BaseModel, Field, HttpUrl
from typing_extensions import TypedDict

from plexus import Activation, Context, Plexus, method
from plexus.errors import RegistrationError
from plexus.events import ErrorEvent, Result
from plexus.rpc import wire

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Item(BaseModel):
    """A thing with a price."""

    name: str
    price: float = Field(ge=0)
    tags: list[str] = []


class Shape(TypedDict):
    """A shape."""

    sides: int


@dataclasses.dataclass
class Point:
    """A point."""

    x: int
    y: int = 0


class Pair(NamedTuple):
    """Two numbers."""

    left: int
    right: int


class Try(Activation):
    """Methods in the style of other frameworks."""

    namespace = "try"
    version = "1.0.0"

    # --- arguments ----------------------------------------------------------------------------

    @method
    async def described(self, n: Annotated[int, Field(description="how many", ge=1, le=9)]) -> int:
        """Take a described number."""
        return n

    @method
    async def annotated_default(self, n: Annotated[int, Field(ge=1)] = 3) -> int:
        """Take a number with a default."""
        return n

    @method
    async def field_default(self, n: int = Field(3, ge=1, description="how many")) -> int:
        """Take a number with a default."""
        return n

    @method
    async def keyword_default(self, n: int = Field(default=3, gt=0)) -> int:
        """Take a number with a default."""
        return n

    @method
    async def made_default(self, tags: list[str] = Field(default_factory=list)) -> list[str]:  # noqa: B008
        """Take texts."""
        return tags

    @method
    async def pattern(self, code: Annotated[str, Field(pattern="^[a-z]+$", max_length=5)]) -> str:
        """Take a code."""
        return code

    @method
    async def plain_words(self, n: Annotated[int, "how many"]) -> int:
        """Take a number with a remark."""
        return n

    @method
    async def list_default(self, tags: list[str] = []) -> list[str]:  # noqa: B006
        """Take texts."""
        tags.append("!")
        return tags

    @method
    async def literal(self, mode: Literal["fast", "slow"] = "fast") -> str:
        """Take one of two."""
        return mode

    @method
    async def colour(self, colour: Colour = Colour.RED) -> str:
        """Take a colour."""
        return colour.name

    @method
    async def level(self, level: Level) -> str:
        """Take a level."""
        return level.name

    @method
    async def optional(self, name: Optional[str] = None) -> str:  # noqa: UP045
        """Take a name, or none."""
        return name or "nobody"

    @method
    async def either(self, value: Union[int, str]) -> str:  # noqa: UP007
        """Take a number or a text."""
        return type(value).__name__

    @method
    async def items(self, items: list[Item]) -> float:
        """Add prices up."""
        return sum(item.price for item in items)

    @method
    async def shape(self, shape: Shape) -> int:
        """Take a shape."""
        return shape["sides"]

    @method
    async def point(self, point: Point) -> int:
        """Take a point."""
        return point.x + point.y

    @method
    async def when(self, at: datetime, on: date | None = None) -> str:
        """Take a moment."""
        return f"{at:%Y} {on}"

    @method
    async def wait(self, for_: timedelta) -> float:
        """Take a span of time."""
        return for_.total_seconds()

    @method
    async def path(self, file: Path = Path("a/b")) -> str:
        """Take a path."""
        return file.name

    @method
    async def money(self, amount: Decimal = Decimal("1.50")) -> str:
        """Take an amount."""
        return str(amount)

    @method
    async def uuid(self, key: UUID) -> str:
        """Take a key."""
        return key.hex

    @method
    async def url(self, at: HttpUrl) -> str:
        """Take an address."""
        return str(at.host)

    @method
    async def numbers(self, by: dict[int, float]) -> float:
        """Take numbers by numbers."""
        return sum(key * value for key, value in by.items())

    @method
    async def pair(self, pair: tuple[int, str]) -> str:
        """Take a number and a text."""
        return f"{pair[0]} {pair[1]}"

    @method
    async def anything(self, value: Any = None) -> Any:
        """Take anything."""
        return value

    @method
    async def context(self, word: str, ctx: Context) -> str:
        """Take the context by its type."""
        await ctx.log("info", word)
        return word

    @method
    async def context_by_name(self, word: str, ctx) -> str:  # type: ignore[no-untyped-def]
        """Take the context by its name."""
        return f"{word} {ctx.run_id > 0}"

    @method
    async def context_or_none(self, word: str, ctx: Context | None = None) -> str:
        """Take the context if there is one."""
        return f"{word} {ctx is not None}"

    # --- results ------------------------------------------------------------------------------

    @method
    async def returns_dict(self) -> dict[str, Any]:
        """Return a dict."""
        return {"a": 1, "b": None}

    @method
    async def returns_bare_dict(self) -> dict:  # type: ignore[type-arg]
        """Return a dict."""
        return {"a": 1}

    @method
    async def returns_list(self) -> list[int]:
        """Return a list."""
        return [1, 2]

    @method
    async def returns_model(self) -> Item:
        """Return a model."""
        return Item(name="tea", price=1.5)

    @method
    async def returns_models(self) -> list[Item]:
        """Return models."""
        return [Item(name="tea", price=1.5)]

    @method
    async def returns_point(self) -> Point:
        """Return a dataclass."""
        return Point(1, 2)

    @method
    async def returns_shape(self) -> Shape:
        """Return a TypedDict."""
        return {"sides": 3}

    @method
    async def returns_nothing(self) -> None:
        """Return nothing."""

    @method
    async def returns_int(self) -> int:
        """Return a number."""
        return 5

    @method
    async def returns_bool(self) -> bool:
        """Return a truth."""
        return True

    @method
    async def returns_float(self) -> float:
        """Return a fraction."""
        return 0.5

    @method
    async def returns_money(self) -> Decimal:
        """Return an amount."""
        return Decimal("1.50")

    @method
    async def returns_moment(self) -> datetime:
        """Return a moment."""
        return datetime(2026, 1, 2, 3, 4, 5)

    @method
    async def returns_path(self) -> Path:
        """Return a path."""
        return Path("a/b")

    @method
    async def returns_colour(self) -> Colour:
        """Return a colour."""
        return Colour.BLUE

    @method
    async def returns_tuple(self) -> tuple[int, str]:
        """Return two."""
        return 1, "a"

    @method
    async def returns_pair(self) -> Pair:
        """Return two numbers."""
        return Pair(1, 2)

    @method
    async def returns_set(self) -> set[str]:
        """Return a set."""
        return {"b", "a"}

    @method
    async def returns_numbered(self) -> dict[int, str]:
        """Return texts by numbers."""
        return {1: "a"}

    # --- errors -------------------------------------------------------------------------------

    @method
    async def raises(self) -> str:
        """Raise what the method did not expect."""
        raise ValueError("the password is tea")


#: A method, its arguments, and its result as JSON.
WORKS: list[tuple[str, dict[str, Any], Any]] = [
    ("described", {"n": 5}, 5),
    ("annotated_default", {}, 3),
    ("field_default", {}, 3),
    ("field_default", {"n": 4}, 4),
    ("keyword_default", {}, 3),
    ("made_default", {}, []),
    ("pattern", {"code": "abc"}, "abc"),
    ("plain_words", {"n": 1}, 1),
    ("list_default", {}, ["!"]),
    ("list_default", {"tags": ["a"]}, ["a", "!"]),
    ("literal", {}, "fast"),
    ("literal", {"mode": "slow"}, "slow"),
    ("colour", {}, "RED"),
    ("colour", {"colour": "blue"}, "BLUE"),
    ("level", {"level": 2}, "HIGH"),
    ("optional", {}, "nobody"),
    ("optional", {"name": None}, "nobody"),
    ("optional", {"name": "Ann"}, "Ann"),
    ("either", {"value": 5}, "int"),
    ("either", {"value": "5"}, "str"),
    ("items", {"items": [{"name": "tea", "price": 1.5}, {"name": "milk", "price": 1}]}, 2.5),
    ("shape", {"shape": {"sides": 4}}, 4),
    ("point", {"point": {"x": 1}}, 1),
    ("when", {"at": "2026-01-02T03:04:05Z"}, "2026 None"),
    ("when", {"at": "2026-01-02T03:04:05", "on": "2026-01-02"}, "2026 2026-01-02"),
    ("wait", {"for_": "PT5M"}, 300.0),
    ("path", {}, "b"),
    ("path", {"file": "/tmp/c"}, "c"),
    ("money", {}, "1.50"),
    ("money", {"amount": "2.75"}, "2.75"),
    ("uuid", {"key": "12345678-1234-5678-1234-567812345678"}, "12345678123456781234567812345678"),
    ("url", {"at": "https://example.com/x"}, "example.com"),
    ("numbers", {"by": {"2": 1.5}}, 3.0),
    ("pair", {"pair": [1, "a"]}, "1 a"),
    ("anything", {"value": {"a": [1, None]}}, {"a": [1, None]}),
    ("context", {"word": "hi"}, "hi"),
    ("context_by_name", {"word": "hi"}, "hi True"),
    ("context_or_none", {"word": "hi"}, "hi True"),
    ("returns_dict", {}, {"a": 1, "b": None}),
    ("returns_bare_dict", {}, {"a": 1}),
    ("returns_list", {}, [1, 2]),
    ("returns_model", {}, {"name": "tea", "price": 1.5, "tags": []}),
    ("returns_models", {}, [{"name": "tea", "price": 1.5, "tags": []}]),
    ("returns_point", {}, {"x": 1, "y": 2}),
    ("returns_shape", {}, {"sides": 3}),
    ("returns_nothing", {}, None),
    ("returns_int", {}, 5),
    ("returns_bool", {}, True),
    ("returns_float", {}, 0.5),
    ("returns_money", {}, "1.50"),
    ("returns_moment", {}, "2026-01-02T03:04:05"),
    ("returns_path", {}, "a/b"),
    ("returns_colour", {}, "blue"),
    ("returns_tuple", {}, [1, "a"]),
    ("returns_pair", {}, [1, 2]),
    ("returns_set", {}, ["a", "b"]),
    ("returns_numbered", {}, {"1": "a"}),
]
#: A method, invalid arguments, and part of the error.
WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("described", {"n": 10}, "less than or equal to 9"),
    ("described", {}, "is required"),
    ("field_default", {"n": 0}, "greater than or equal to 1"),
    ("field_default", {"n": "3"}, "valid integer"),
    ("keyword_default", {"n": 0}, "greater than 0"),
    ("made_default", {"tags": [1]}, "valid string"),
    ("pattern", {"code": "ABC"}, "match pattern"),
    ("list_default", {"tags": "a"}, "valid list"),
    ("literal", {"mode": "other"}, "'fast' or 'slow'"),
    ("colour", {"colour": "green"}, "'red' or 'blue'"),
    ("items", {"items": [{"name": "tea", "price": -1}]}, "items.0.price"),
    ("shape", {"shape": {"sides": 4, "more": 1}}, "shape.more"),
    ("when", {"at": "yesterday"}, "datetime"),
    ("money", {"amount": "much"}, "decimal"),
    ("context", {"word": "hi", "ctx": {}}, "ctx"),
]


@pytest.mark.parametrize(("name", "arguments", "expected"), WORKS)
async def test_both_views_return_the_same_value(
    name: str, arguments: dict[str, Any], expected: Any, open_hub: OpenHub
) -> None:
    hub = open_hub(Try)
    end = await end_of(hub, f"try.{name}", arguments)
    assert isinstance(end, Result), end
    assert wire.decode_plain(end.result) == expected
    peer = McpPeer(hub, "2025-11-25")
    result = await peer.tool(f"try.{name}", arguments)
    assert result["isError"] is False
    if "structuredContent" in result:
        assert result["structuredContent"] == expected
    elif isinstance(expected, str):
        assert text_of(result) == expected
    elif expected is None:
        assert text_of(result) != ""
    else:
        assert wire.decode_value(text_of(result).encode(), hub.limits) == expected


@pytest.mark.parametrize(("name", "arguments", "reason"), WRONG)
async def test_both_views_reject_invalid_arguments(
    name: str, arguments: dict[str, Any], reason: str, open_hub: OpenHub
) -> None:
    hub = open_hub(Try)
    with pytest.raises(Exception, match=r"^try") as refused:
        hub.call(f"try.{name}", arguments)
    assert reason in str(refused.value)
    answer = await McpPeer(hub, "2025-11-25").call(
        "tools/call", {"name": f"try.{name}", "arguments": arguments}
    )
    assert reason in str(answer)


async def test_all_methods_are_listed_with_their_defaults(open_hub: OpenHub) -> None:
    peer = McpPeer(open_hub(Try), "2025-11-25")
    tools = {tool["name"]: tool for tool in (await peer.result("tools/list"))["tools"]}
    assert len([name for name in tools if name.startswith("try.")]) == len(
        {name for name, *_ in WORKS} | {"raises"}
    )
    shown = {
        name: tools[f"try.{name}"]["inputSchema"]["properties"]
        for name in ("field_default", "list_default", "colour", "path", "money", "made_default")
    }
    assert shown["field_default"]["n"] == {
        "type": "integer",
        "minimum": 1,
        "default": 3,
        "description": "how many",
    }
    assert "default" not in shown["list_default"]["tags"]  # an empty one goes without saying
    assert "default" not in shown["made_default"]["tags"]
    assert shown["colour"]["colour"]["default"] == "red"
    assert shown["path"]["file"]["default"] == "a/b"
    assert shown["money"]["amount"]["default"] == "1.50"


async def test_an_unexpected_error_is_in_the_log_and_its_text_is_not_sent(
    open_hub: OpenHub, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    hub = open_hub(Try)
    end = await end_of(hub, "try.raises")
    assert isinstance(end, ErrorEvent)
    assert "ValueError" in end.message
    assert "password" not in end.message
    result = await McpPeer(hub, "2025-11-25").tool("try.raises")
    assert result["isError"] is True
    assert "password" not in text_of(result)
    assert "the password is tea" in caplog.text


# --- refused --------------------------------------------------------------------------------------


async def many(self: Any, *n: int) -> int:  # noqa: ARG001
    """Add up."""
    return sum(n)


async def named(self: Any, **n: int) -> int:  # noqa: ARG001
    """Add up."""
    return sum(n.values())


async def aliased(self: Any, n: int = Field(1, alias="count")) -> int:  # noqa: ARG001
    """Add up."""
    return n


@pytest.mark.parametrize(
    ("function", "cure"),
    [
        (many, "take one of type list[Any] or dict[str, Any]"),
        (named, "take one of type list[Any] or dict[str, Any]"),
        (aliased, "rename the argument and remove the alias"),
    ],
)
def test_a_registration_error_says_what_to_write_instead(
    function: Callable[..., Any], cure: str
) -> None:
    members = {"__doc__": "A sample.", "namespace": "sample", "version": "1.0.0"}
    sample = type("Sample", (Activation,), members | {"act": method(function)})
    with pytest.raises(RegistrationError) as refused:
        Plexus().register(sample)
    assert refused.value.message.startswith("Sample.act: ")
    assert cure in refused.value.message


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="it works since Python 3.12")
def test_a_typed_dict_of_an_old_python_is_refused_with_the_module_to_import_it_from() -> None:
    old: Any = typing.TypedDict("old", {"n": int})

    async def act(self: Any, n: old) -> int:  # noqa: ARG001
        """Take it."""
        return 0

    members = {"__doc__": "A sample.", "namespace": "sample", "version": "1.0.0"}
    sample = type("Sample", (Activation,), members | {"act": method(act)})
    with pytest.raises(
        RegistrationError, match=r"'n' has no schema: .*typing_extensions.TypedDict"
    ):
        Plexus().register(sample)

"""Numbers that JSON does not have end a run with an error that names their place."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest
from conftest import OpenHub
from hub_calls import call, end_of
from pydantic import BaseModel

from plexus import Activation, Complete, Content, Context, Event, Failed, Form, Progress, method
from plexus.errors import InvalidEvent
from plexus.events import ErrorEvent, Result
from plexus.rpc import wire
from plexus.rpc.json_values import find_fault

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]

NAN = float("nan")
INF = float("inf")
LARGE = 2**64


class Reading(Event):
    """Values of a sensor."""

    values: list[float]
    note: str | None = None


class Loose(Event):
    """Anything."""

    anything: Any


class Share(Event):
    """A share."""

    of_all: float


class Own(Event):
    """Has fields that are called like parts of the encoder, some with defaults."""

    dumps: float
    raw: str = "r"
    event: int = 1


class Terse(Event):
    """Has fields that are called like parts of the encoder."""

    raw: str
    plain: int


class Total(Complete):
    """The end."""

    mean: Any


@dataclasses.dataclass
class Row:
    """A row."""

    cells: list[Any]
    name: str | None = None


@dataclasses.dataclass
class Hidden:
    """A row with a cell that is not written."""

    shown: int | None
    _hidden: float


class Model(BaseModel):
    """A model."""

    cells: dict[str, float]
    other: str | None = None


class Pair(NamedTuple):
    """Two."""

    left: Any
    right: Any


class Limit(enum.Enum):
    """A limit."""

    NONE = INF


class Odd(Activation):
    """Yields and returns the given values."""

    namespace = "odd"
    version = "1.0.0"

    given: Any = None

    @method
    async def gives(self) -> Any:
        """Return it."""
        return self.given

    @method
    async def yields(self) -> AsyncIterator[Event]:
        """Yield it after a word."""
        yield Content("before")
        yield self.given()

    @method
    async def fails(self) -> str:
        """Fail with it."""
        raise Failed("it broke", code="broke", data=self.given)

    @method
    async def asks(self, *, ctx: Context) -> str:
        """Ask with it as the default."""
        fields: dict[str, Any] = {"type": "object", "properties": {"n": {"type": "number"}}}
        answer: dict[str, Any] = await ctx.ask(Form("How many?", fields, default={"n": self.given}))
        return str(answer)


def odd(given: Any) -> Odd:
    activation = Odd()
    activation.given = given
    return activation


NUMBERS = "JSON cannot represent it"

PLACES: list[tuple[Any, str]] = [
    (NAN, "result is nan"),
    (-INF, "result is -inf"),
    ([1.0, None, NAN], "result[2] is nan"),
    ({"a": [{"b c": INF}]}, "result.a[0]['b c'] is inf"),
    ((1, NAN), "result[1] is nan"),
    (Row([1, INF]), "result.cells[1] is inf"),
    ([Row([{"x": NAN}])], "result[0].cells[0].x is nan"),
    (Model(cells={"a": NAN}), "result.cells.a is nan"),
    ([Model(cells={"a": INF})], "result[0].cells.a is inf"),
    (Pair(1, NAN), "result[1] is nan"),
    ({NAN}, "result[0] is nan"),
    (Limit.NONE, "result is inf"),
    ({1: NAN}, "result[1] is nan"),
    (Loose([NAN]), "result.anything[0] is nan"),
]


@pytest.mark.parametrize(("given", "fault"), PLACES)
async def test_a_result_that_is_no_number_is_an_error_that_names_the_place(
    given: Any, fault: str, open_hub: OpenHub
) -> None:
    end = await end_of(open_hub(odd(given)), "odd.gives")
    assert end == ErrorEvent("invalid_result", f"{fault}; {NUMBERS}")


@pytest.mark.parametrize(
    ("make", "fault"),
    [
        (lambda: Reading([0.0, 1.0, 2.0, NAN]), "Reading.values[3] is nan"),
        (lambda: Reading([INF], "x"), "Reading.values[0] is inf"),
        (lambda: Loose(NAN), "Loose.anything is nan"),
        (lambda: Loose({"a": Row([NAN])}), "Loose.anything.a.cells[0] is nan"),
        (lambda: Loose(Model(cells={"a": NAN})), "Loose.anything.cells.a is nan"),
        (lambda: Content(NAN), "Content.text is nan"),  # type: ignore[arg-type]
        (lambda: Own(NAN), "Own.dumps is nan"),
        (lambda: Terse("x", NAN), "Terse.plain is nan"),  # type: ignore[arg-type]
        (lambda: Share(NAN), "Share.of_all is nan"),
        (lambda: Progress(1, INF), "Progress.total is inf"),
        (lambda: Total(NAN), "Total.mean is nan"),
    ],
)
async def test_an_event_with_no_number_ends_the_run_after_those_before_it(
    make: Any, fault: str, open_hub: OpenHub
) -> None:
    before, end = await call(open_hub(odd(make)), "odd.yields")
    assert before == Content("before")
    assert end == ErrorEvent("invalid_event", f"{fault}; {NUMBERS}")


def short(given: Any) -> str:
    """Return the name of a case; one has more digits than Python prints."""
    return type(given).__name__


@pytest.mark.parametrize(
    "given", [LARGE, -(2**63) - 1, [1, {"a": LARGE}], [1, {"a": 10**5000}]], ids=short
)
async def test_an_integer_of_more_than_64_bits_is_an_error_that_names_the_place(
    given: Any, open_hub: OpenHub
) -> None:
    hub = open_hub(odd(given))
    end = await end_of(hub, "odd.gives")
    assert isinstance(end, ErrorEvent)
    assert end.code == "invalid_result"
    assert end.message.startswith("result[1].a is" if isinstance(given, list) else "result is")
    assert "convert it with str()" in end.message
    hub.register(odd(lambda: Loose(given)))
    end = await end_of(hub, "odd.yields")
    assert isinstance(end, ErrorEvent)
    assert end.code == "invalid_event"


@pytest.mark.parametrize("given", [2**64 - 1, -(2**63), 1.7976931348623157e308, None, [None, 0.5]])
async def test_the_largest_numbers_and_null_pass(given: Any, open_hub: OpenHub) -> None:
    assert await end_of(open_hub(odd(given)), "odd.gives") == Result(given)


async def test_a_field_that_is_not_encoded_is_not_checked(open_hub: OpenHub) -> None:
    row = Hidden(None, NAN)
    assert await end_of(open_hub(odd(row)), "odd.gives") == Result(row)


async def test_text_that_contains_null_is_valid(open_hub: OpenHub) -> None:
    events = await call(open_hub(odd(lambda: Content('{"a": null}'))), "odd.yields")
    assert events[1:] == [Content('{"a": null}'), Complete()]


@pytest.mark.parametrize("given", [NAN, {"x": [LARGE]}, object()])
async def test_an_error_with_such_data_keeps_its_code_and_message(
    given: Any, open_hub: OpenHub
) -> None:
    end = await end_of(open_hub(odd(given)), "odd.fails")
    assert isinstance(end, ErrorEvent)
    assert (end.code, end.message) == ("broke", "it broke")
    assert end.data["left_out"] == ["data"]
    assert end.data["reason"].startswith("ErrorEvent.data")


async def test_a_question_with_such_a_default_is_not_asked(open_hub: OpenHub) -> None:
    hub = open_hub(odd(NAN))
    events = await call(hub, "odd.asks")
    assert events == [ErrorEvent("invalid_event", f"QuestionAsked.default.n is nan; {NUMBERS}")]


def test_a_constructor_refuses_what_is_no_number_as_a_value_error() -> None:
    with pytest.raises(ValueError, match=r"Share\.of_all is nan") as raised:
        Share(NAN)
    assert isinstance(raised.value, InvalidEvent)
    with pytest.raises(InvalidEvent, match=r"Share.of_all is an integer of \d+ bits"):
        Share(10**5000)


def test_fields_may_be_called_like_parts_of_the_encoder() -> None:
    assert wire.encode_event(Terse("x", 1)) == b'{"type":"terse","raw":"x","plain":1}'
    assert wire.encode_event(Own(0.5)) == b'{"type":"own","dumps":0.5,"raw":"r","event":1}'


def test_a_value_that_contains_itself_is_refused_in_finite_time() -> None:
    ring: list[Any] = []
    ring += [ring, ring]
    with pytest.raises(InvalidEvent, match="nested more than 254 levels deep"):
        wire.encode_event(Result(ring))


def test_long_names_are_cut_in_the_message() -> None:
    fault = find_fault({"x" * 10_000: NAN}, "result")
    assert fault is not None
    assert len(fault) < 300

"""Schemas: valid 2020-12 documents that match the validators, the same at every start."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
import pytest
from conftest import OpenHub
from hub_calls import call, settled
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError
from typing_extensions import TypedDict

from activations.bash import Bash
from activations.health import Health
from plexus import (
    Activation,
    Complete,
    Content,
    Event,
    Image,
    InvalidParams,
    Message,
    Plexus,
    Progress,
    Resource,
    method,
    prompt,
    resource,
)
from plexus.events import Gap, Result
from plexus.registry.schema import parameters_schema
from plexus.rpc import wire
from plexus.runtime.builtin import PlexusActivation

pytestmark = pytest.mark.timeout(60)

ROOT = Path(__file__).parents[2]


class Colour(enum.Enum):
    """A colour."""

    RED = "red"
    BLUE = "blue"


class Address(pydantic.BaseModel):
    """An address."""

    street: str
    number: int = 1


class Person(pydantic.BaseModel):
    """A person."""

    name: str = pydantic.Field(description="What they are called")
    addresses: list[Address] = []


@dataclasses.dataclass
class Point:
    """A place on the map."""

    x: int
    y: int = 0


class Options(TypedDict):
    """A plain object."""

    deep: bool


class Found(Event):
    """A person was found."""

    person: Person
    where: Point | None = None


class Done(Complete):
    """All were looked at."""

    total: int
    colour: Colour = Colour.RED


class Shapes(Activation):
    """Takes arguments of every shape."""

    namespace = "shapes"
    version = "1.2.3"

    @method(title="Take everything")
    async def everything(
        self,
        text: str,
        number: int,
        ratio: Annotated[float, pydantic.Field(ge=0, le=1)],
        flag: bool,
        colour: Colour,
        mode: Literal["fast", "slow"] = "fast",
        names: list[str] | None = None,
        scores: dict[str, float] | None = None,
        person: Person | None = None,
        point: Point | None = None,
        options: Options | None = None,
        anything: Any = None,
        path: Path = Path("here"),
    ) -> str:
        """Take everything.

        The second paragraph says more.

        Args:
            text: Some text,
                on two lines.
            number (int): A number.
            ratio: From nothing to all.
        """
        del text, number, ratio, flag, colour, mode, names, scores, person, point
        del options, anything, path
        return ""

    @method
    async def simple(
        self,
        text: str,
        number: int = 1,
        ratio: float | None = None,
        flag: bool = False,
        mode: Literal["fast", "slow", 3] = "fast",
        names: list[str] | None = None,
        table: dict[str, list[int]] | None = None,
        either: int | str | None = None,
    ) -> int:
        """Take plain JSON values."""
        del text, number, ratio, flag, mode, names, table, either
        return 1

    @method
    async def find(self) -> AsyncIterator[Found | Content | Progress | Gap | Done]:
        """Stream events of every shape."""
        yield Content(text="looking")
        yield Progress(done=0.5)
        yield Gap(1, 2)
        yield Found(person=Person(name="Ada", addresses=[Address(street="a")]), where=Point(1))
        yield Found(person=Person(name="Bob"))
        yield Done(total=2, colour=Colour.BLUE)

    @method
    async def people(self) -> list[Person]:
        """Return people."""
        return [Person(name="Ada", addresses=[Address(street="a")])]

    @method
    async def nothing(self) -> None:
        """Return nothing."""


def hub_with(*activations: Activation | type[Activation]) -> Plexus:
    hub = Plexus()
    hub.register(PlexusActivation(hub))
    for activation in activations:
        hub.register(activation)
    return hub


def described(name: str, hub: Plexus | None = None) -> dict[str, Any]:
    """Return the schema of one method."""
    for each in methods_of((hub or hub_with(Shapes)).schema()["activations"]):
        if each["name"] == name:
            return each
    raise AssertionError(name)


def methods_of(activations: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for activation in activations:
        yield from activation["methods"]
        yield from methods_of(activation.get("children", []))


def documents(one: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Return the schemas of one method: its arguments, and its events or its result."""
    return (one[part] for part in ("params", "events", "result") if part in one)


def objects(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield every object schema with named properties, at any depth."""
    if isinstance(schema, dict):
        if isinstance(schema.get("properties"), dict):
            yield schema
        for value in schema.values():
            yield from objects(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from objects(value)


def references(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        if isinstance(schema.get("$ref"), str):
            yield schema["$ref"]
        for value in schema.values():
            yield from references(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from references(value)


def resolves(document: dict[str, Any], reference: str) -> bool:
    place: Any = document
    for step in reference.removeprefix("#/").split("/"):
        if not isinstance(place, dict) or step not in place:
            return False
        place = place[step]
    return reference.startswith("#/")


EVERYTHING = hub_with(Shapes, Health(), Bash())
ALL = list(methods_of(EVERYTHING.schema()["activations"]))
NAMES = [one["name"] for one in ALL]


# --- all of them ---------------------------------------------------------------------------------


@pytest.mark.parametrize("one", ALL, ids=NAMES)
def test_every_schema_is_a_valid_document(one: dict[str, Any]) -> None:
    for document in documents(one):
        Draft202012Validator.check_schema(document)


@pytest.mark.parametrize("one", ALL, ids=NAMES)
def test_every_reference_leads_somewhere_in_its_own_document(one: dict[str, Any]) -> None:
    for document in documents(one):
        for reference in references(document):
            assert resolves(document, reference), reference


@pytest.mark.parametrize("one", ALL, ids=NAMES)
def test_every_object_is_closed(one: dict[str, Any]) -> None:
    for document in documents(one):
        for schema in objects(document):
            assert schema["additionalProperties"] is False


@pytest.mark.parametrize("one", ALL, ids=NAMES)
def test_every_argument_has_a_description(one: dict[str, Any]) -> None:
    assert one["params"]["type"] == "object"
    for name, schema in one["params"]["properties"].items():
        assert schema["description"].strip(), name
    assert one["description"].strip()


# --- arguments -----------------------------------------------------------------------------------


def test_the_arguments_are_described_as_the_author_wrote_them() -> None:
    one = described("shapes.everything")
    properties = one["params"]["properties"]
    assert list(properties)[:3] == ["text", "number", "ratio"]
    assert one["params"]["required"] == ["text", "number", "ratio", "flag", "colour"]
    assert properties["text"] == {"type": "string", "description": "Some text, on two lines."}
    assert properties["number"] == {"type": "integer", "description": "A number."}
    assert properties["ratio"]["minimum"] == 0
    assert properties["ratio"]["maximum"] == 1
    assert properties["flag"]["description"] == "flag"
    assert properties["mode"]["enum"] == ["fast", "slow"]
    assert one["title"] == "Take everything"
    assert one["streaming"] is False
    assert one["description"] == "Take everything.\n\nThe second paragraph says more."


def test_defaults_are_in_the_schema_as_json() -> None:
    properties = described("shapes.everything")["params"]["properties"]
    assert properties["mode"]["default"] == "fast"
    assert properties["names"]["default"] is None
    assert properties["path"]["default"] == "here"
    assert "default" not in properties["text"]


def test_enums_are_enums_and_models_have_their_own_descriptions() -> None:
    params = described("shapes.everything")["params"]
    assert params["$defs"]["Colour"]["enum"] == ["red", "blue"]
    assert params["$defs"]["Person"]["description"] == "A person."
    name = params["$defs"]["Person"]["properties"]["name"]
    assert name["description"] == "What they are called"


GOOD = {"text": "a", "number": 1, "ratio": 0.5, "flag": True, "colour": "red"}


@pytest.mark.parametrize(
    ("change", "fits"),
    [
        ({}, True),
        ({"person": {"name": "Ada", "addresses": [{"street": "a", "number": 2}]}}, True),
        ({"point": {"x": 1}}, True),
        ({"options": {"deep": True}}, True),
        ({"names": []}, True),
        ({"scores": {"a": 1.5}}, True),
        ({"anything": {"what": ["ever"]}}, True),
        ({"mode": "slow"}, True),
        ({"person": None}, True),
        ({"text": 1}, False),
        ({"number": "1"}, False),
        ({"number": 1.5}, False),
        ({"ratio": 2}, False),
        ({"flag": 1}, False),
        ({"colour": "green"}, False),
        ({"mode": "medium"}, False),
        ({"names": ["a", 1]}, False),
        ({"scores": {"a": "x"}}, False),
        ({"person": {}}, False),
        ({"person": {"name": "Ada", "extra": 1}}, False),
        ({"person": {"name": "Ada", "addresses": [{"street": "a", "extra": 1}]}}, False),
        ({"point": {"x": 1, "z": 1}}, False),
        ({"options": {"deep": True, "extra": 1}}, False),
        ({"options": {}}, False),
        ({"extra": 1}, False),
    ],
)
def test_what_the_schema_forbids_is_refused_and_what_it_allows_is_accepted(
    change: dict[str, Any], fits: bool
) -> None:
    arguments = GOOD | change
    validator = Draft202012Validator(described("shapes.everything")["params"])
    assert validator.is_valid(arguments) is fits
    assert accepted("shapes.everything", arguments) is fits


def accepted(name: str, arguments: dict[str, Any]) -> bool:
    async def attempt() -> bool:
        hub = hub_with(Shapes)
        try:
            await settled(hub.call(name, arguments).run)
        except InvalidParams:
            return False
        return True

    return asyncio.run(attempt())


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.sampled_from([0.5, -1.25])
    | st.sampled_from(["", "fast", "slow", "a", "3", "true"]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2)
    ),
    max_leaves=4,
)
SIMPLE = ("text", "number", "ratio", "flag", "mode", "names", "table", "either")
SIMPLE_SCHEMA = Draft202012Validator(described("shapes.simple")["params"])


@given(st.dictionaries(st.sampled_from([*SIMPLE, "extra"]), values, max_size=4), st.booleans())
def test_the_schema_and_the_validator_agree_on_any_arguments(
    arguments: dict[str, Any], with_text: bool
) -> None:
    if with_text:
        arguments["text"] = "a"
    assert accepted("shapes.simple", arguments) is SIMPLE_SCHEMA.is_valid(arguments)


# --- events and results --------------------------------------------------------------------------


def test_events_are_a_union_discriminated_by_their_tags() -> None:
    events = described("shapes.find")["events"]["oneOf"]
    tags = [event["properties"]["type"]["const"] for event in events]
    assert tags == ["found", "content", "progress", "gap", "complete"]
    for event in events:
        assert "type" in event["required"]
        assert event["description"]
    by_tag = dict(zip(tags, events, strict=True))
    assert by_tag["progress"]["required"] == ["type", "done"]
    assert set(by_tag["gap"]["properties"]) == {"type", "from", "to"}
    text = by_tag["content"]["properties"]["text"]
    assert text == {"type": "string", "description": "text"}


@pytest.mark.parametrize("name", ["shapes.find", "shapes.everything", "shapes.people"])
def test_each_property_has_a_description_at_every_level(name: str) -> None:
    def walk(schema: Any) -> None:
        if isinstance(schema, dict):
            for prop, inner in schema.get("properties", {}).items():
                assert inner.get("description"), prop
            for inner in schema.values():
                walk(inner)
        elif isinstance(schema, list):
            for inner in schema:
                walk(inner)

    walk({part: described(name).get(part) for part in ("params", "events", "result")})


@pytest.mark.anyio
async def test_the_events_of_a_method_match_their_schema(open_hub: OpenHub) -> None:
    hub = open_hub(Shapes)
    validator = Draft202012Validator(described("shapes.find", hub)["events"])
    for event in await call(hub, "shapes.find"):
        validator.validate(wire.decode_plain(event))


@pytest.mark.anyio
async def test_the_events_of_built_in_methods_match_their_schemas(open_hub: OpenHub) -> None:
    bash = Bash()
    hub = open_hub(Health(), bash)
    validator = Draft202012Validator(described("bash.execute", hub)["events"])
    for event in await call(hub, "bash.execute", ["echo a; echo b >&2; exit 3"]):
        validator.validate(wire.decode_plain(event))
    watch = hub.call("health.watch").run
    validator = Draft202012Validator(described("health.watch", hub)["events"])
    async for batch in watch.batches():
        for event in batch.events:
            validator.validate(wire.decode_plain(event))
        break
    watch.cancel("enough")
    await settled(watch)


@pytest.mark.anyio
@pytest.mark.parametrize(
    "name", ["shapes.people", "shapes.nothing", "health.check", "plexus.runs", "plexus.schema"]
)
async def test_the_result_of_a_method_matches_its_schema(name: str, open_hub: OpenHub) -> None:
    hub = open_hub(Shapes, Health())
    [end] = await call(hub, name)
    assert isinstance(end, Result)
    result = wire.decode_plain(end.result)
    Draft202012Validator(described(name, hub)["result"]).validate(result)


def test_a_wrong_event_does_not_fit() -> None:
    validator = Draft202012Validator(described("shapes.find")["events"])
    with pytest.raises(ValidationError):
        validator.validate({"type": "content"})
    with pytest.raises(ValidationError):
        validator.validate({"type": "content", "text": "a", "more": 1})


class Roles(Activation):
    """Methods of every role."""

    namespace = "roles"
    version = "1.0.0"

    @prompt(title="Talk")
    async def talk(self, about: str) -> list[Message]:
        """Talk about something."""
        return [Message("user", Content(about)), Message("user", Resource("a://b", blob="AA=="))]

    @prompt
    async def stream(self) -> AsyncIterator[Message]:
        """Talk bit by bit."""
        yield Message("assistant", Image("AA==", "image/png"))

    @resource("note://{number}{?style}", mime_type=None)
    async def note(self, number: int, style: str = "plain") -> Resource:
        """A note."""
        return Resource(f"note://{number}", content=style)

    @method(
        read_only=False,
        idempotent=True,
        background="never",
        schema={"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {}}},
    )
    async def given(self, a: int) -> int:
        """Take arguments with a given schema."""
        return a


def test_the_role_and_hints_of_a_method_are_described() -> None:
    hub = hub_with(Roles)
    talk = described("roles.talk", hub)
    assert (talk["role"], talk["title"]) == ("prompt", "Talk")
    assert "hints" not in talk
    note = described("roles.note", hub)
    assert note["role"] == "resource"
    assert note["resource"] == {"uri": "note://{number}{?style}", "name": "note"}
    assert note["hints"] == {"read_only": True}
    given = described("roles.given", hub)
    assert given["hints"] == {"read_only": False, "idempotent": True}
    assert given["background"] == "never"
    assert "role" not in given
    assert not {"role", "hints", "background", "resource"} & described("shapes.find").keys()


def test_a_given_schema_is_shown_unchanged() -> None:
    hub = hub_with(Roles)
    spec = hub.resolve("roles.given")
    assert parameters_schema(spec) is spec.given_schema
    assert described("roles.given", hub)["params"] == spec.given_schema


@pytest.mark.anyio
async def test_the_hints_of_a_method_whose_schema_is_given_still_validate(
    open_hub: OpenHub,
) -> None:
    hub = open_hub(Roles)
    assert await call(hub, "roles.given", {"a": 1}) == [Result(1)]
    with pytest.raises(InvalidParams):
        hub.call("roles.given", {"a": "1"})


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("name", "params", "part"),
    [
        ("roles.talk", ["x"], "result"),
        ("roles.stream", [], "events"),
        ("roles.note", [1], "result"),
    ],
)
async def test_events_within_events_and_results_have_a_schema_that_they_fit(
    name: str, params: list[Any], part: str, open_hub: OpenHub
) -> None:
    hub = open_hub(Roles)
    document = described(name, hub)[part]
    Draft202012Validator.check_schema(document)
    assert all(resolves(document, reference) for reference in references(document))
    assert all(schema["additionalProperties"] is False for schema in objects(document))
    first, *_ = await call(hub, name, params)
    value = first.result if isinstance(first, Result) else first
    Draft202012Validator(document).validate(wire.decode_plain(value))


def test_the_schema_tells_whether_a_method_streams() -> None:
    streaming = {one["name"]: one["streaming"] for one in ALL}
    assert streaming["shapes.find"]
    assert streaming["plexus.attach"]
    assert not streaming["shapes.people"]


# --- the whole -----------------------------------------------------------------------------------

PRINT_HASH = """
import sys
sys.path.insert(0, "tests/plexus"); sys.path.insert(0, "tests")
import test_schema
print(test_schema.EVERYTHING.hash)
"""


def test_the_hash_is_the_same_in_every_process() -> None:
    hashes = set()
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", PRINT_HASH],
            cwd=ROOT,
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
        hashes.add(done.stdout.strip())
    assert hashes == {EVERYTHING.hash}


def test_the_hash_does_not_depend_on_the_order_of_registration() -> None:
    assert hub_with(Shapes, Health()).hash == hub_with(Health(), Shapes).hash


def test_the_hash_is_a_sha_256_of_the_whole_and_of_each_part() -> None:
    whole = EVERYTHING.schema()
    for part in (whole, *whole["activations"]):
        assert len(part["hash"]) == 64
        int(part["hash"], 16)
    parts = {part["namespace"]: part["hash"] for part in whole["activations"]}
    alone = {p["namespace"]: p["hash"] for p in hub_with(Shapes).schema()["activations"]}
    assert parts["shapes"] == alone["shapes"]


def test_the_schema_contains_name_version_and_namespaces() -> None:
    whole = EVERYTHING.schema()
    assert whole["name"] == "substrate"
    assert whole["version"]
    shapes = next(a for a in whole["activations"] if a["namespace"] == "shapes")
    assert shapes["version"] == "1.2.3"
    assert shapes["description"] == "Takes arguments of every shape."

"""Prompts of a hub: found by name, and listed, both fixed and dynamic."""

from __future__ import annotations

import logging
from typing import Any, Literal

import pytest
from activations_for_tests import Demo
from conftest import OpenHub
from hub_calls import OTHER, call, end_of

from plexus import Activation, Change, NotFound, Plexus, Principal, PromptInfo, method, prompt
from plexus.errors import RegistrationError
from plexus.events import Result
from plexus.principal import LOCAL
from plexus.registry.uri_templates import NameTemplate

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]


class Talks(Activation):
    """Conversations to go on with."""

    namespace = "talks"
    version = "1.0.0"

    def __init__(self, *names: str) -> None:
        self.names = names
        self.asked: list[tuple[str, str | None, int]] = []

    @prompt(title="Begin")
    async def begin(self, about: str = "anything") -> str:
        """Begin a conversation."""
        return about

    @prompt(title="Go on", template="talks.with.{name}")
    async def go_on(self, name: str, tone: str | None = None) -> str:
        """Go on with a conversation."""
        return f"{name} {tone}"

    async def prompts(
        self, principal: Principal, after: str | None, limit: int
    ) -> list[PromptInfo]:
        """Return the conversations."""
        self.asked.append((principal.name, after, limit))
        listed = [PromptInfo(f"talks.with.{name}", name) for name in sorted(self.names)]
        return [each for each in listed if after is None or each.name > after][:limit]


# --- finding -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "found", "arguments"),
    [
        ("talks.begin", "begin", {}),
        ("talks.with.Ada", "go_on", {"name": "Ada"}),
        ("talks.with.a.b c", "go_on", {"name": "a.b c"}),
        ("talks.with.%41/{x}", "go_on", {"name": "%41/{x}"}),
        ("talks.with.talks.with.", "go_on", {"name": "talks.with."}),
        ("talks.with. ", "go_on", {"name": " "}),
    ],
)
async def test_a_prompt_is_found_by_its_name(
    name: str, found: str, arguments: dict[str, Any], open_hub: OpenHub
) -> None:
    hub = open_hub(Talks)
    spec, given = hub.find_prompt(name)
    assert (spec.name, given) == (f"talks.{found}", arguments)
    assert isinstance(await end_of(hub, spec.name, given), Result)


@pytest.mark.parametrize(
    "name",
    [
        *("", "talks", "talks.with.", "talks.with", "talks.go_on", "Talks.with.Ada"),
        *("plexus.hash", "x" * 5000),
    ],
)
async def test_an_unknown_prompt_is_not_found(name: str, open_hub: OpenHub) -> None:
    with pytest.raises(NotFound) as caught:
        open_hub(Talks).find_prompt(name)
    assert caught.value.data == {"name": name}
    assert len(caught.value.message) < 300


class Nested(Activation):
    """Several that fit."""

    namespace = "nested"
    version = "1.0.0"

    @prompt(template="nested.{name}")
    async def any_name(self, name: str) -> str:
        """Any."""
        return name

    @prompt(template="nested.note.{name}")
    async def note(self, name: str) -> str:
        """A note."""
        return name

    @prompt(template="nested.kind.{kind}")
    async def kind(self, kind: Literal["a", "b"]) -> str:
        """One of two."""
        return kind

    @prompt
    async def fixed(self) -> str:
        """Always there."""
        return ""


async def test_of_several_matches_the_most_specific_wins(open_hub: OpenHub) -> None:
    hub = open_hub(Nested)
    assert hub.find_prompt("nested.fixed")[0].name == "nested.fixed"
    assert hub.find_prompt("nested.note.x")[0].name == "nested.note"
    assert hub.find_prompt("nested.other") == (
        hub.resolve("nested.any_name"),
        {"name": "other"},
    )
    assert hub.find_prompt("nested.note.")[1] == {"name": "note."}


async def test_a_value_that_the_type_does_not_list_is_another_name(open_hub: OpenHub) -> None:
    hub = open_hub(Nested)
    assert hub.find_prompt("nested.kind.a")[0].name == "nested.kind"
    assert hub.find_prompt("nested.kind.c")[0].name == "nested.any_name"


# --- registration --------------------------------------------------------------------------------


def refusal(template: str, namespace: str = "talks") -> str:
    async def broken(self: Any, name: str) -> str:  # noqa: ARG001
        """Make a prompt."""
        return name

    body = {
        "__doc__": "Broken.",
        "namespace": namespace,
        "version": "1",
        "broken": prompt(template=template)(broken),
    }
    with pytest.raises(RegistrationError) as caught:
        Plexus().register(type("Sample", (Activation,), body))
    return caught.value.message


@pytest.mark.parametrize(
    "template",
    [
        *("", "talks.with", "talks.{name", "talks.name}", "talks.}{name}", "talks.{}"),
        *("talks.{name}.more", "talks.{name}{other}", "talks.{a b}", "talks.{{name}}"),
    ],
)
def test_a_template_has_one_variable_and_ends_with_it(template: str) -> None:
    message = refusal(template)
    assert "Sample.broken" in message
    assert repr(template) in message


def test_the_variable_of_a_template_is_an_argument() -> None:
    message = refusal("talks.with.{other}")
    assert "Sample.broken" in message
    assert "'other'" in message


@pytest.mark.parametrize("template", ["{name}", "other.{name}", "talks{name}", "talksy.{name}"])
def test_the_names_of_an_activations_prompts_begin_with_its_own(template: str) -> None:
    message = refusal(template)
    assert "Sample.broken" in message
    assert "'talks.'" in message


def test_two_methods_cannot_render_the_same_prompts() -> None:
    class Twice(Talks):
        """Says it twice."""

        @prompt(template="talks.with.{tone}")
        async def again(self, tone: str) -> str:
            """The same names."""
            return tone

    with pytest.raises(RegistrationError) as caught:
        Plexus().register(Twice)
    assert "Twice" in caught.value.message
    assert "talks.go_on" in caught.value.message
    assert "talks.again" in caught.value.message


def test_a_template_returns_the_rest_of_the_name() -> None:
    template = NameTemplate("a.{b}")
    assert (template.prefix, template.variable) == ("a.", "b")
    assert [template.match(name) for name in ("a.x", "a.", "a", "b.x")] == ["x", None, None, None]


async def test_a_method_that_renders_many_prompts_is_described_with_its_template(
    open_hub: OpenHub,
) -> None:
    [described] = [
        each for each in open_hub(Talks).schema()["activations"] if each["namespace"] == "talks"
    ]
    methods = {each["name"]: each for each in described["methods"]}
    assert methods["talks.go_on"]["template"] == "talks.with.{name}"
    assert "template" not in methods["talks.begin"]


# --- listing -------------------------------------------------------------------------------------


class Loose(Activation):
    """Prompts in no order, and more than is asked for."""

    namespace = "loose"
    version = "1.0.0"

    def __init__(self, *names: str) -> None:
        self.names = names

    @prompt
    async def fixed(self) -> str:
        """Always there."""
        return ""

    @prompt(template="loose.{name}")
    async def any_name(self, name: str) -> str:
        """Whatever it is called."""
        return name

    async def prompts(self, *_: Any) -> list[PromptInfo]:
        """Return all entries and ignore `after`."""
        return [PromptInfo(f"loose.{name}", description="Comes.") for name in self.names]


async def names(
    hub: Plexus, after: str | None = None, limit: int = 100, principal: Principal = LOCAL
) -> list[str]:
    [end] = await call(hub, "plexus.prompts", {"after": after, "limit": limit}, principal)
    assert isinstance(end, Result)
    return [entry["name"] for entry in end.result]


async def test_all_prompts_are_listed_in_the_order_of_their_names(open_hub: OpenHub) -> None:
    hub = open_hub(Talks("b", "a", "Z"), Loose("z", "a"))
    assert await names(hub) == [
        *("loose.a", "loose.fixed", "loose.z"),
        *("talks.begin", "talks.with.Z", "talks.with.a", "talks.with.b"),
    ]


async def test_a_fixed_prompt_is_listed_once(open_hub: OpenHub) -> None:
    hub = open_hub(Loose("fixed", "a", "a"))
    assert await names(hub) == ["loose.a", "loose.fixed"]
    listed = {each.name: each for each in await hub.list_prompts()}
    assert listed["loose.fixed"].description == "Always there."


@pytest.mark.parametrize("size", [1, 2, 3, 100])
async def test_a_page_begins_where_the_one_before_it_ended(size: int, open_hub: OpenHub) -> None:
    hub = open_hub(Loose("z", "a", "m"), Talks("b", "a"))
    seen: list[str] = []
    while page := await names(hub, seen[-1] if seen else None, size):
        assert len(page) <= size
        seen += page
    assert seen == await names(hub)
    assert len(seen) == 7


@pytest.mark.parametrize("limit", [0, -1])
async def test_a_page_of_nothing_is_empty(limit: int, open_hub: OpenHub) -> None:
    assert await names(open_hub(Talks("a")), limit=limit) == []


async def test_an_entry_omits_unknown_fields(open_hub: OpenHub) -> None:
    end = await end_of(open_hub(Talks("a"), Loose("b")), "plexus.prompts")
    assert end == Result(
        [
            {"name": "loose.b", "description": "Comes."},
            {"name": "loose.fixed", "description": "Always there."},
            {
                "name": "talks.begin",
                "title": "Begin",
                "description": "Begin a conversation.",
            },
            {"name": "talks.with.a", "title": "a"},
        ]
    )


async def test_the_list_hook_receives_the_principal_and_the_position(open_hub: OpenHub) -> None:
    talks = Talks("a", "b")
    assert await names(open_hub(talks), "talks.with.a", 5, OTHER) == ["talks.with.b"]
    assert talks.asked == [(OTHER.name, "talks.with.a", 5)]


async def test_a_list_that_fails_is_reported_and_the_others_are_shown(
    open_hub: OpenHub, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(Activation):
        """Has a list hook that fails."""

        namespace = "failing"
        version = "1.0.0"

        @method
        async def nothing(self) -> None:
            """Do nothing."""

        async def prompts(self, *_: Any) -> list[PromptInfo]:
            """Fail."""
            raise RuntimeError("no database")

    hub = open_hub(Failing, Talks("a"))
    with caplog.at_level(logging.ERROR):
        assert await names(hub) == ["talks.begin", "talks.with.a"]
    assert "the prompts of failing" in caplog.text


async def test_an_activation_lists_no_prompts_by_default(open_hub: OpenHub) -> None:
    assert await Demo().prompts(LOCAL, None, 10) == []
    assert not open_hub(Demo).has_dynamic_prompts()
    assert open_hub(Demo, Talks).has_dynamic_prompts()


async def test_an_activation_that_lists_prompts_changes_that_list(open_hub: OpenHub) -> None:
    class Lists(Demo):
        """Has dynamic prompts."""

        async def prompts(self, *_: Any) -> list[PromptInfo]:
            """Nothing yet."""
            return []

    hub = open_hub()
    received: list[Change] = []
    hub.on_change(received.append)
    hub.register(Lists)
    assert received == [Change("methods"), Change("prompts")]


async def test_a_method_that_renders_many_prompts_can_be_called_by_name(
    open_hub: OpenHub,
) -> None:
    end = await end_of(open_hub(Talks), "talks.go_on", {"name": "Ada", "tone": "kind"})
    assert end == Result("Ada kind")

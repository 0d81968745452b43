"""Defaults and Fields of arguments, in every spelling that users of pydantic know."""

# No `from __future__ import annotations`: some classes here are defined inside functions.

import inspect
import subprocess
import sys
from collections.abc import Callable
from typing import Annotated, Any

import pytest
from conftest import OpenHub
from hub_calls import end_of
from pydantic import BaseModel, Field

from plexus import Activation, Context, Plexus, Principal, method
from plexus.errors import RegistrationError
from plexus.events import Result
from plexus.registry.schema import parameters_schema

pytestmark = pytest.mark.anyio

SMALL = Annotated[int, Field(3, ge=1, description="how many")]


class Options(BaseModel):
    """Some options."""

    words: list[str] = []


def fail() -> str:
    raise ValueError("no default today")


class Fields(Activation):
    """Arguments in every spelling."""

    namespace = "fields"
    version = "1.0.0"

    @method
    async def assigned(self, n: int = Field(3, ge=1, description="how many")) -> int:
        """Give it back."""
        return n

    @method
    async def annotated(self, n: SMALL) -> int:
        """Give it back."""
        return n

    @method
    async def both(self, n: Annotated[int, Field(ge=1)] = Field(3, description="how many")) -> int:
        """Give it back."""
        return n

    @method
    async def own(self, n: Annotated[int, Field(9, ge=1, description="how many")] = 3) -> int:
        """Give it back."""
        return n

    @method
    async def required(self, n: int = Field(..., ge=1, description="how many")) -> int:
        """Give it back."""
        return n

    @method
    async def made(self, tags: list[str] = Field(default_factory=list, max_length=2)) -> list[str]:  # noqa: B008
        """Give it back, and change it."""
        tags.append("more")
        return tags

    @method
    async def made_inside(
        self, tags: Annotated[list[str], Field(default_factory=lambda: ["a"])]
    ) -> list[str]:
        """Give it back."""
        return tags

    @method
    async def plain_list(self, tags: list[str] = []) -> list[str]:  # noqa: B006
        """Give it back, and change it."""
        tags.append("more")
        return tags

    @method
    async def plain_dict(self, tags: dict[str, list[int]] = {"a": []}) -> dict[str, list[int]]:  # noqa: B006
        """Give it back, and change it."""
        tags["a"].append(1)
        return tags

    @method
    async def plain_set(self, tags: set[str] = {"b", "a"}) -> list[str]:  # noqa: B006
        """Give it back, and change it."""
        tags.add("more")
        return sorted(tags)

    @method
    async def model(self, options: Options = Options()) -> list[str]:  # noqa: B008
        """Give it back, and change it."""
        options.words.append("more")
        return options.words

    @method
    async def failing(self, word: str = Field(default_factory=fail)) -> str:
        """Give it back."""
        return word

    @method
    async def none(self, word: str | None = Field(None, max_length=3)) -> str:
        """Return its name."""
        return repr(word)


def properties(hub: Plexus, name: str) -> dict[str, Any]:
    schema = parameters_schema(hub.resolve(f"fields.{name}"))
    return dict(schema["properties"], required=schema.get("required", []))


@pytest.mark.parametrize("name", ["assigned", "annotated", "both", "own"])
async def test_a_default_and_its_constraints_count_however_they_are_written(
    name: str, open_hub: OpenHub
) -> None:
    hub = open_hub(Fields)
    assert properties(hub, name) == {
        "n": {"type": "integer", "minimum": 1, "default": 3, "description": "how many"},
        "required": [],
    }
    assert await end_of(hub, f"fields.{name}") == Result(3)
    assert await end_of(hub, f"fields.{name}", {"n": 5}) == Result(5)
    with pytest.raises(Exception, match="greater than or equal to 1"):
        await end_of(hub, f"fields.{name}", {"n": 0})
    with pytest.raises(Exception, match="valid integer"):
        await end_of(hub, f"fields.{name}", {"n": "5"})


async def test_a_field_without_a_default_is_required(open_hub: OpenHub) -> None:
    hub = open_hub(Fields)
    assert properties(hub, "required") == {
        "n": {"type": "integer", "minimum": 1, "description": "how many"},
        "required": ["n"],
    }
    with pytest.raises(Exception, match="is required"):
        await end_of(hub, "fields.required")
    assert await end_of(hub, "fields.required", [4]) == Result(4)


@pytest.mark.parametrize(
    ("name", "shown", "given"),
    [
        ("made", [], ["more"]),
        ("plain_list", [], ["more"]),
        ("plain_dict", {"a": []}, {"a": [1]}),
        ("plain_set", ["a", "b"], ["a", "b", "more"]),
    ],
)
async def test_every_call_gets_a_separate_default(
    name: str, shown: Any, given: Any, open_hub: OpenHub
) -> None:
    hub = open_hub(Fields)
    assert properties(hub, name)["tags"]["default"] == shown
    for _ in range(3):
        assert await end_of(hub, f"fields.{name}") == Result(given)
    assert properties(hub, name)["tags"]["default"] == shown


async def test_a_model_as_a_default_is_shown_and_copied(open_hub: OpenHub) -> None:
    hub = open_hub(Fields)
    assert properties(hub, "model")["options"]["default"] == {"words": []}
    for _ in range(2):
        assert await end_of(hub, "fields.model") == Result(["more"])


async def test_a_default_from_a_factory_is_not_shown(open_hub: OpenHub) -> None:
    hub = open_hub(Fields)
    assert "default" not in properties(hub, "made_inside")["tags"]
    assert properties(hub, "made_inside")["required"] == []
    assert await end_of(hub, "fields.made_inside") == Result(["a"])


async def test_constraints_next_to_a_default_factory_are_enforced(open_hub: OpenHub) -> None:
    with pytest.raises(Exception, match="at most 2"):
        await end_of(open_hub(Fields), "fields.made", {"tags": ["a", "b", "c"]})


async def test_a_default_of_none_in_a_field_is_passed_to_the_function(open_hub: OpenHub) -> None:
    hub = open_hub(Fields)
    assert await end_of(hub, "fields.none") == Result("None")
    assert await end_of(hub, "fields.none", {"word": "abc"}) == Result("'abc'")


async def test_a_failing_default_factory_is_a_defect(
    open_hub: OpenHub,
) -> None:
    with pytest.raises(Exception, match="creating the default of 'word' failed") as raised:
        await end_of(open_hub(Fields), "fields.failing")
    assert getattr(raised.value, "code", None) == "internal"


class Marked(Activation):
    """Arguments with all options of a Field other than constraints."""

    namespace = "marked"
    version = "1.0.0"

    @method
    async def act(
        self,
        old: str = Field("x", deprecated=True, examples=["y"], json_schema_extra={"unit": "s"}),
        inner: Annotated[str | None, Field(deprecated=True)] = None,
    ) -> str:
        """Take it."""
        return f"{old} {inner}"


@pytest.mark.filterwarnings("error")
async def test_other_options_of_a_field_are_shown_without_warnings(
    open_hub: OpenHub,
) -> None:
    hub = open_hub(Marked)
    shown = parameters_schema(hub.resolve("marked.act"))["properties"]["old"]
    assert shown == {
        "type": "string",
        "default": "x",
        "deprecated": True,
        "examples": ["y"],
        "unit": "s",
        "description": "old",
    }
    assert await end_of(hub, "marked.act") == Result("x None")


# --- refused --------------------------------------------------------------------------------------


class Locked(dict[str, int]):
    """A value that cannot be copied."""

    def __deepcopy__(self, memo: Any) -> Any:
        raise RuntimeError("not me")


def alias(n: int = Field(3, alias="count")) -> Any: ...
def validation_alias(n: Annotated[int, Field(validation_alias="count")]) -> Any: ...
def dependent(n: int = Field(default_factory=lambda data: data["m"])) -> Any: ...
def locked(n: dict[str, int] = Locked()) -> Any: ...  # noqa: B008
def two(ctx: Context, n: Context) -> Any: ...


@pytest.mark.parametrize(
    ("written", "cure"),
    [
        (alias, "rename the argument and remove the alias"),
        (validation_alias, "rename the argument and remove the alias"),
        (dependent, "use None as the default"),
        (locked, "cannot be copied for each call: not me; use None"),
        (two, "is a second Context in addition to 'ctx'; remove one"),
    ],
)
def test_an_unsupported_argument_is_refused_with_the_remedy(
    written: Callable[..., Any], cure: str
) -> None:
    async def act(self: Any, **given: Any) -> str:  # noqa: ARG001
        """Do it."""
        return ""

    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    given = inspect.signature(written)
    act.__signature__ = given.replace(parameters=[own, *given.parameters.values()])  # type: ignore[attr-defined]
    act.__annotations__ = dict(written.__annotations__, **{"return": str})
    members = {"__doc__": "A sample.", "namespace": "sample", "version": "1.0.0"}
    sample = type("Sample", (Activation,), members | {"act": method(act)})
    with pytest.raises(RegistrationError) as refused:
        Plexus().register(sample)
    assert refused.value.message.startswith("Sample.act: argument 'n'")
    assert cure in refused.value.message


# --- what the server fills in ---------------------------------------------------------------------


class Filled(Activation):
    """Arguments that the server fills in."""

    namespace = "filled"
    version = "1.0.0"

    @method
    async def by_type(self, given: Context) -> bool:
        """Say whether it is there."""
        return isinstance(given, Context)

    @method
    async def by_name(self, ctx) -> bool:  # type: ignore[no-untyped-def]
        """Say whether it is there."""
        return isinstance(ctx, Context)

    @method
    async def optional(self, ctx: Context | None = None) -> bool:
        """Say whether it is there."""
        return isinstance(ctx, Context)

    @method
    async def annotated(self, ctx: Annotated[Context, "the call"]) -> bool:
        """Say whether it is there."""
        return isinstance(ctx, Context)

    @method
    async def principal(self, who: Principal | None = None) -> bool:
        """Say whether it is there."""
        return isinstance(who, Principal)


@pytest.mark.parametrize("name", ["by_type", "by_name", "optional", "annotated", "principal"])
async def test_the_context_is_recognised_however_it_is_written(
    name: str, open_hub: OpenHub
) -> None:
    hub = open_hub(Filled)
    assert hub.resolve(f"filled.{name}").parameters == ()
    assert await end_of(hub, f"filled.{name}") == Result(True)


def test_a_plugin_without_fields_does_not_import_pydantic(tmp_path: Any) -> None:
    (tmp_path / "plain.py").write_text(
        "from collections.abc import AsyncIterator\n"
        "from typing import Any, Literal\n"
        "from plexus import Activation, Content, Event, Progress, method\n"
        "class Row(Event):\n"
        '    """A row."""\n'
        "    cells: list[str | None]\n"
        "    kind: Literal['a', 'b'] = 'a'\n"
        "class Plain(Activation):\n"
        '    """Plain types."""\n'
        '    namespace = "plain"\n'
        '    version = "1.0.0"\n'
        "    @method\n"
        "    async def rows(self, n: int = 3, tags: list[str] = []) -> "
        "AsyncIterator[Row | Content | Progress]:\n"
        '        """Yield rows."""\n'
        "        yield Row([])\n"
        "    @method\n"
        "    async def value(self, given: dict[str, Any] | None = None) -> dict[str, float]:\n"
        '        """Give it back."""\n'
        "        return {}\n"
    )
    script = (
        "import sys\nfrom pathlib import Path\nfrom plexus import Plexus\n"
        "from plexus.registry.plugins import load_plugins\n"
        "hub = Plexus()\n"
        "assert not load_plugins(hub, ['plain.py'], None)\n"
        "assert len(hub.methods()) == 2\n"
        "print([name for name in sys.modules if name.startswith('pydantic')])\n"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout == "[]\n"

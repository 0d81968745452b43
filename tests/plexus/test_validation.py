"""Errors of any arguments are described within bounds."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import OpenHub
from pydantic import BaseModel

from plexus import Activation, InvalidParams, method
from plexus.limits import DEFAULT_LIMITS
from plexus.registry.uri_templates import Template
from plexus.registry.validation import nearest

pytestmark = pytest.mark.anyio


class Inner(BaseModel):
    """Part of a model."""

    type: str = ""
    default: list[int] = []


class Model(BaseModel):
    """An author's type."""

    inner: list[Inner] = []
    by_name: dict[str, int] = {}


class Taking(Activation):
    """Takes arguments."""

    namespace = "taking"
    version = "1.0.0"

    @method
    async def plain(self, command: str, counts: list[int] | None = None) -> str:
        """Take plain types.

        Args:
            command: A text.
            counts: Numbers.
        """
        return f"{command} {counts}"

    @method
    async def model(self, model: Model) -> str:
        """Take a model.

        Args:
            model: A model.
        """
        return model.model_dump_json()


async def refusal(open_hub: OpenHub, name: str, **arguments: Any) -> InvalidParams:
    with pytest.raises(InvalidParams) as caught:
        open_hub(Taking).call(f"taking.{name}", arguments)
    return caught.value


async def test_an_unknown_parameter_comes_first_with_the_nearest_known_one(
    open_hub: OpenHub,
) -> None:
    error = await refusal(open_hub, "plain", counts="x", comand="ls")
    assert "unknown parameter 'comand'; did you mean 'command'?" in error.message
    assert error.data["errors"][0]["at"] == "comand"
    assert {entry["at"] for entry in error.data["errors"]} >= {"command", "counts"}


async def test_an_unknown_parameter_is_quoted_up_to_a_bound(open_hub: OpenHub) -> None:
    error = await refusal(open_hub, "plain", command="x", **{"x" * 100_000: 1})
    assert len(error.message) < 2000
    assert len(error.data["errors"][0]["at"]) < 300


async def test_all_errors_of_small_arguments_are_listed(open_hub: OpenHub) -> None:
    error = await refusal(open_hub, "plain", command="x", counts=["a", 1, "b"])
    assert [entry["at"] for entry in error.data["errors"]] == ["counts.0", "counts.2"]
    inner = [{"default": ["a", "b"]}, {"type": 1}]
    error = await refusal(open_hub, "model", model={"inner": inner, "by_name": {"a": "", "b": ""}})
    assert len(error.data["errors"]) == 5


async def test_validation_of_a_large_list_stops_at_its_first_error(open_hub: OpenHub) -> None:
    error = await refusal(open_hub, "plain", command="x", counts=[1, *["a"] * 90_000])
    assert [entry["at"] for entry in error.data["errors"]] == ["counts.1"]
    inner = [{"default": ["a"] * 90_000}, {"default": ["a"]}]
    error = await refusal(open_hub, "model", model={"inner": inner})
    assert [entry["at"] for entry in error.data["errors"]] == ["model.inner.0.default.0"]
    error = await refusal(open_hub, "model", model={"inner": [{str(n): n for n in range(20_000)}]})
    assert error.data == {"errors": [], "more": 20_000}
    assert "20000 values are invalid" in error.message


async def test_a_long_list_of_errors_is_cut_and_the_rest_is_counted(open_hub: OpenHub) -> None:
    error = await refusal(open_hub, "plain", command="x", counts=["a"] * 100)
    assert len(error.data["errors"]) == DEFAULT_LIMITS.errors_listed
    assert error.data["more"] == 100 - DEFAULT_LIMITS.errors_listed
    unknown = {f"k{number}": 1 for number in range(25_000)}
    error = await refusal(open_hub, "plain", command="x", **unknown)
    assert [entry["at"] for entry in error.data["errors"]] == list(unknown)[:20]
    assert error.data["more"] == 25_000 - 20


def test_near_names_are_found_and_long_ones_are_not_compared() -> None:
    assert nearest("Comand", ["cwd", "command"])[0] == "command"
    assert nearest("", ["a"]) == []
    assert nearest("a" * 1000, ["a" * 1000]) == []


@pytest.mark.parametrize(
    ("uri", "found"),
    [
        ("a://1-2-3", {"x": "1", "y": "2", "z": "3"}),
        ("a://1-2-3-4", {"x": "1-2", "y": "3", "z": "4"}),
        ("a://--1-2", {"x": "-", "y": "1", "z": "2"}),
        ("a://1-2", None),
        ("a://1-2-3/", None),
        ("a://" + "-" * 1_000_000 + "/", None),
    ],
)
def test_variables_of_one_segment_are_found_in_linear_time(
    uri: str, found: dict[str, str] | None
) -> None:
    assert Template("a://{x}-{y}-{z}").match(uri) == found

"""The methods that list, check, find and generate templates, and their resources."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from template_folders import METADATA, URI, offering, write_template

from activations.templates import library
from activations.templates.library import BUILT_IN
from plexus.errors import Failed, InvalidParams, NotFound
from plexus.testing import Local

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

MAKEFILE = "template://makefile/rust/cli"
NAMED = {"project_name": "my-project"}
TOOLCHAINS = ["deno", "go", "node", "python-uv", "rust"]
CATEGORIES = [
    *("ci", "dockerfile", "gitignore", "makefile", "manifest", "readme", "source", "test"),
]


@pytest.fixture
async def plexus() -> AsyncIterator[Local]:
    async with offering() as found:
        yield found


async def test_a_makefile_is_generated_with_its_parameters(plexus: Local) -> None:
    text = await plexus.call(
        "templates.generate_template",
        resource_uri=MAKEFILE,
        parameters=NAMED | {"has_tests": True},
    )
    assert text.startswith("# The commands of my-project.\n")
    assert "test:\n\tcargo test\n" in text
    without = await plexus.call(
        "generate_template", resource_uri=MAKEFILE, parameters=NAMED | {"has_tests": False}
    )
    assert "test" not in without.replace("latest", "")
    assert "\n\n\n" not in text + without


async def test_every_toolchain_has_every_category(plexus: Local) -> None:
    listed = await plexus.call("list_templates")
    uris = [f"template://{c}/{t}/cli" for c in CATEGORIES for t in TOOLCHAINS]
    assert [each.uri for each in listed] == uris
    rust = await plexus.call("list_templates", toolchain="rust", category="makefile")
    assert [(each.uri, each.name, each.mime_type) for each in rust] == [
        (MAKEFILE, "Rust CLI Makefile", "text/x-makefile")
    ]
    assert (rust[0].required, rust[0].optional) == (["project_name"], ["has_tests"])


async def test_every_built_in_file_belongs_to_a_template(plexus: Local) -> None:
    listed = await plexus.call("list_templates")
    files = [path for path in BUILT_IN.rglob("*") if path.is_file()]
    assert len(files) == 2 * len(listed) + 1
    [health] = [
        await node.activation.check_health()
        for node in plexus.hub.nodes()
        if node.path == "templates"
    ]
    assert health == "40 templates"


@pytest.mark.parametrize(
    ("argument", "value", "near"),
    [
        ("toolchain", "pythn-uv", "python-uv"),
        ("toolchain", "python", "python-uv"),
        ("toolchain", "golang", "go"),
        ("toolchain", "TypeScript", "deno"),
        ("category", "makefil", "makefile"),
    ],
)
async def test_an_unknown_toolchain_or_category_is_answered_with_the_nearest(
    plexus: Local, argument: str, value: str, near: str
) -> None:
    with pytest.raises(InvalidParams, match=f"unknown {argument} '{value}'; did you") as caught:
        await plexus.call("list_templates", **{argument: value})
    assert caught.value.data["nearest"] == [near]
    assert caught.value.data["seed_code"] == -32002
    assert near in caught.value.message


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "makefile/rust/cli",
        "file:///etc/passwd",
        "template://makefile/rust",
        "template://makefile/rust/cli/more",
        "template://../../etc",
        "template://makefile/../cli",
        "template://makefile/rust/..",
        "template://makefile/rust/a..b",
        "template://makefile/rust/%2e%2e",
        "template://makefile/rust/cli\n",
        "template://makefile/rust/cli\0",
        "template://Makefile/rust/cli",
        "template://makefile/rust/" + "a" * 300,
        "template:///rust/cli",
    ],
)
@pytest.mark.parametrize("method", ["generate_template", "validate_template"])
async def test_a_malformed_uri_is_refused_and_reads_nothing(
    plexus: Local, method: str, uri: str
) -> None:
    with pytest.raises(InvalidParams, match="is not the URI of a template") as caught:
        await plexus.call(method, resource_uri=uri, parameters={})
    assert caught.value.data["seed_code"] == -32001
    assert len(caught.value.message) < 500


async def test_an_unknown_template_is_not_found_with_the_nearest(plexus: Local) -> None:
    with pytest.raises(NotFound, match="Did you mean template://makefile/rust/cli") as caught:
        await plexus.call(
            "generate_template", resource_uri="template://makefle/rust/cli", parameters=NAMED
        )
    assert caught.value.data["seed_code"] == -32000
    assert caught.value.data["nearest"][0] == MAKEFILE


async def test_all_errors_of_parameters_are_reported_at_once(plexus: Local) -> None:
    wrong: dict[str, Any] = {
        "project_name": "My Project",
        "python_version": 3.12,
        "has_tests": "yes",
        "license": "mit",
        "author": "a\nb",
        "descripton": "x",
    }
    uri = "template://manifest/python-uv/cli"
    found = await plexus.call("validate_template", resource_uri=uri, parameters=wrong)
    assert found.valid is False
    faults = {each.parameter: each.fault for each in found.errors}
    assert set(faults) == set(wrong)
    assert "lower case" in faults["project_name"]
    assert faults["python_version"] == "must be text, not 3.12"
    assert faults["has_tests"] == "must be true or false, not 'yes'"
    assert "did you mean 'MIT'" in faults["license"]
    assert "control characters" in faults["author"]
    assert "did you mean 'description'" in faults["descripton"]
    with pytest.raises(InvalidParams) as caught:
        await plexus.call("generate_template", resource_uri=uri, parameters=wrong)
    assert caught.value.data["seed_code"] == -32002
    assert {each["at"] for each in caught.value.data["errors"]} == {
        f"parameters.{name}" for name in wrong
    }
    assert all(name in caught.value.message for name in wrong)
    missing = await plexus.call("validate_template", resource_uri=uri, parameters={})
    assert [(each.parameter, each.fault) for each in missing.errors] == [
        ("project_name", "is required")
    ]
    valid = await plexus.call("validate_template", resource_uri=uri, parameters=NAMED)
    assert (valid.valid, valid.errors) == (True, [])


@pytest.mark.parametrize("name", ["json", "class", "test", "pytest"])
async def test_a_python_package_cannot_hide_a_module(plexus: Local, name: str) -> None:
    uri = "template://source/python-uv/cli"
    found = await plexus.call(
        "validate_template", resource_uri=uri, parameters={"project_name": name}
    )
    assert not found.valid
    go = await plexus.call(
        "validate_template",
        resource_uri="template://source/go/cli",
        parameters={"project_name": "json"},
    )
    assert go.valid


async def test_values_of_every_type_are_checked(tmp_path: Path) -> None:
    metadata = (
        METADATA
        + """
[parameters.count]
type = "integer"
description = "A number."
default = 3
[parameters.share]
type = "number"
description = "A share."
[parameters.names]
type = "array"
item_type = "string"
description = "Names."
[parameters.notes]
type = "string"
format = "text"
description = "Notes."
"""
    )
    write_template(tmp_path, "{{ count }} {{ share }} {{ names }} {{ notes }}", metadata)
    async with offering(tmp_path) as plexus:

        async def faults(**parameters: Any) -> list[str]:
            found = await plexus.call("validate_template", resource_uri=URI, parameters=parameters)
            return [f"{each.parameter} {each.fault}" for each in found.errors]

        assert await faults(count=4, share=0.5, names=["a"], notes="a\n\tb") == []
        assert await faults(count=True) == ["count must be a whole number, not true"]
        assert await faults(count=1.0) == ["count must be a whole number, not 1.0"]
        assert await faults(count=2**60) == [f"count is out of range; the maximum is {2**53}"]
        assert await faults(share="x") == ["share must be a number, not 'x'"]
        assert await faults(names="a") == ["names must be a list, not 'a'"]
        assert await faults(names=["a", 1, {}, "\0"]) == [
            "names entry 1: must be text, not 1",
            "names entry 2: must be text, not an object",
            "names entry 3: contains control characters, which are not allowed",
        ]
        assert await faults(names=["a"] * 101) == ["names has 101 entries; the maximum is 100"]
        assert await faults(notes="a" * 10_001) == [
            "notes has 10001 characters; the maximum is 10000"
        ]
        # Each unknown name is compared with the known ones, so only some are.
        assert len(await faults(**{f"x{number}": 1 for number in range(20_000)})) == 50
        text = await plexus.call("generate_template", resource_uri=URI, parameters={"share": 1})
        assert text == "3 1 None None"


async def test_a_search_ranks_by_relevance_that_can_be_recomputed(plexus: Local) -> None:
    found = await plexus.call("search_templates", query="Rust CI")
    assert found[0].uri == "template://ci/rust/cli"
    assert found[0].relevance == 1.0
    assert found[0].matched == ["rust", "ci"]
    assert [each.relevance for each in found] == sorted(
        (each.relevance for each in found), reverse=True
    )
    # One of two words, both with the full weight of their field.
    half = next(each for each in found if each.uri == "template://readme/rust/cli")
    assert (half.relevance, half.matched) == (0.5, ["rust"])
    typo = await plexus.call("search_templates", query="makefle", toolchain="go")
    assert typo[0].uri == "template://makefile/go/cli"
    assert typo[0].relevance == 0.675  # it begins with the tag `make`: 0.75 times 0.9
    assert await plexus.call("search_templates", query="xylophone") == []
    assert await plexus.call("search_templates", query="???") == []
    names = {"pyproject.toml": "manifest/python-uv", "javascript test": "test/node"}
    for query, uri in names.items():
        first = (await plexus.call("search_templates", query=query))[0]
        assert first.uri == f"template://{uri}/cli"
    assert len(await plexus.call("search_templates", query="cli")) == 20
    with pytest.raises(InvalidParams, match="did you mean 'rust'"):
        await plexus.call("search_templates", query="ci", toolchain="rusty")


async def test_a_template_describes_its_parameters_as_json_schema(plexus: Local) -> None:
    found = await plexus.call("templates.describe_template", resource_uri=MAKEFILE)
    assert found.source == "built-in"
    assert found.text == (BUILT_IN / "makefile/rust/cli.j2").read_text()
    assert found.parameters["required"] == ["project_name"]
    assert found.parameters["additionalProperties"] is False
    assert found.parameters["properties"]["has_tests"] == {
        "type": "boolean",
        "description": "Whether the project has tests.",
        "default": True,
    }
    assert found.hash.startswith("sha256:")


async def test_templates_are_resources_that_are_listed_read_and_completed(plexus: Local) -> None:
    listed = await plexus.hub.list_resources()
    assert len(listed) == 40
    assert MAKEFILE in [each.uri for each in listed]
    first = await plexus.hub.list_resources(limit=7)
    rest = await plexus.hub.list_resources(after=first[-1].uri)
    assert [each.uri for each in [*first, *rest]] == [each.uri for each in listed]
    spec, arguments = plexus.hub.find_resource(MAKEFILE)
    read = await plexus.call(spec.name, **arguments)
    assert read.mime_type == "text/x-makefile"
    assert read.content == (BUILT_IN / "makefile/rust/cli.j2").read_text()
    for uri, error in (
        ("template://makefile/..%2F../cli", InvalidParams),
        ("template://makefile/../cli", InvalidParams),
        ("template://makefile/rust/none", NotFound),
    ):
        spec, arguments = plexus.hub.find_resource(uri)
        with pytest.raises(error):
            await plexus.call(spec.name, **arguments)

    async def complete(argument: str, value: str, method: str, **given: str) -> list[str]:
        found = await plexus.call(
            "plexus.complete",
            method=f"templates.{method}",
            argument=argument,
            value=value,
            given=given,
        )
        values: list[str] = found["values"] if isinstance(found, dict) else found.values
        return values

    assert await complete("category", "ma", "read_template") == ["makefile", "manifest"]
    assert await complete("toolchain", "", "read_template", category="ci") == TOOLCHAINS
    assert await complete("variant", "", "read_template", category="ci") == ["cli"]
    assert await complete("toolchain", "", "read_template", category="nope") == []
    found = await complete("resource_uri", "template://ci/r", "generate_template")
    assert found == ["template://ci/rust/cli"]


async def test_a_changed_folder_is_read_again_and_clients_are_notified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "REFRESH_S", 0.0)
    write_template(tmp_path, "one")
    async with offering(tmp_path) as plexus:
        changes: list[Any] = []
        plexus.hub.on_change(changes.append)
        assert await plexus.call("generate_template", resource_uri=URI, parameters={}) == "one"
        write_template(tmp_path, "two, which is longer")
        text = await plexus.call("generate_template", resource_uri=URI, parameters={})
        assert text == "two, which is longer"
        assert [each.kind for each in changes] == ["resources"]


async def test_a_folder_that_is_missing_is_reported_and_the_others_work(tmp_path: Path) -> None:
    async with offering(tmp_path / "missing") as plexus:
        assert len(await plexus.call("list_templates")) == 40
        [templates] = [node.activation for node in plexus.hub.nodes() if node.path == "templates"]
        with pytest.raises(Failed, match="missing are missing: it cannot be read: No such file"):
            await templates.check_health()

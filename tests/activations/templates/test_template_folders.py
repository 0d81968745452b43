"""Folders of templates, above all those that are made to do harm."""

from __future__ import annotations

import os
import sys
import types
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from template_folders import METADATA, NAME, URI, offering, write_template

from activations.templates import library
from activations.templates.folder import FILE_BYTES, MAX_TEMPLATES, Folder, read_folder
from plexus.errors import NotFound

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

SECRET = "the secret of another folder"


def read(root: Path) -> Folder:
    """Read a folder whose problems must be texts that can be printed."""
    found = read_folder(root, "test")
    assert all(each.isprintable() for each in found.problems.values())
    return found


async def test_a_template_of_a_later_folder_replaces_one_with_its_uri(tmp_path: Path) -> None:
    metadata = METADATA.replace('"A"', '"Ours"')
    first, second = tmp_path / "1", tmp_path / "2"
    write_template(first, "first", name="makefile/rust/cli")
    write_template(second, "second", metadata, name="makefile/rust/cli")
    uri = "template://makefile/rust/cli"
    async with offering(first, second) as plexus:
        listed = await plexus.call("list_templates", toolchain="rust", category="makefile")
        assert [each.name for each in listed] == ["Ours"]
        text = await plexus.call("generate_template", resource_uri=uri, parameters={})
        assert text == "second"
        found = await plexus.call("templates.describe_template", resource_uri=uri)
        assert found.source == f"folder {second}"


async def test_templates_share_parameters_and_partials_of_their_folder(tmp_path: Path) -> None:
    (tmp_path / "partials").mkdir()
    (tmp_path / "partials" / "head.j2").write_text("# {{ name }}\n")
    (tmp_path / "parameters.toml").write_text(
        '[parameters.name]\ntype = "string"\nrequired = true\ndescription = "Name."\n'
        '[toolchains.any.name]\nreserved = ["taken"]\n'
    )
    text = '{% include "partials/head.j2" %}\nbody'
    write_template(tmp_path, text, METADATA + 'uses = ["name"]\n')
    write_template(tmp_path, text, METADATA + 'uses = ["name"]\n', name="text/other/plain")
    async with offering(tmp_path) as plexus:
        made = await plexus.call("generate_template", resource_uri=URI, parameters={"name": "it"})
        assert made == "# it\nbody"
        for toolchain, valid in (("any", False), ("other", True)):
            found = await plexus.call(
                "validate_template",
                resource_uri=f"template://text/{toolchain}/plain",
                parameters={"name": "taken"},
            )
            assert found.valid is valid


def test_a_partial_changes_the_hash_of_the_templates_that_may_include_it(tmp_path: Path) -> None:
    write_template(tmp_path, "text")
    before = read(tmp_path).templates[0].hash
    assert read(tmp_path).templates[0].hash == before
    (tmp_path / "partials").mkdir()
    (tmp_path / "partials" / "head.j2").write_text("x")
    assert read(tmp_path).templates[0].hash != before


async def test_nothing_outside_of_a_folder_is_included(tmp_path: Path) -> None:
    secret = tmp_path / "secret.j2"
    secret.write_text(SECRET)
    root = tmp_path / "templates"
    others = tmp_path / "others"
    write_template(others, SECRET, name="text/other/plain")
    names = [
        "../secret.j2",
        "partials/../../secret.j2",
        str(secret),
        "text/other/plain.j2",
        "makefile/rust/cli.j2",
        "partials/link.j2",
        "text/any/link.j2",
    ]
    for number, name in enumerate(names):
        write_template(root, f'{{% include "{name}" %}}', name=f"text/any/t{number}")
        write_template(root, f'{{% import "{name}" as x %}}{{{{ x }}}}', name=f"text/any/i{number}")
    (root / "partials").mkdir()
    (root / "partials" / "link.j2").symlink_to(secret)
    (root / "text/any/link.j2").symlink_to(secret)
    async with offering(root, others) as plexus:
        for number in range(len(names)):
            for kind in "ti":
                stream = await plexus.events(
                    "generate_template",
                    resource_uri=f"template://text/any/{kind}{number}",
                    parameters={},
                )
                assert stream[-1].type == "error"
                assert "which its folder does not have" in stream[-1].as_text()
                assert SECRET not in repr(stream)


def test_symbolic_links_are_reported_and_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    write_template(outside, SECRET)
    root = tmp_path / "templates"
    write_template(root, "fine", name="text/any/fine")
    (root / "text/any/link.j2").symlink_to(outside / f"{NAME}.j2")
    (root / "text/any/link.toml").write_text(METADATA)
    (root / "text/any/both.j2").symlink_to(outside / f"{NAME}.j2")
    (root / "text/any/both.toml").symlink_to(outside / f"{NAME}.toml")
    (root / "linked").symlink_to(outside / "text")
    (root / "parameters.toml").symlink_to("/etc/passwd")
    (root / "text" / "loop").symlink_to(root)
    found = read(root)
    assert [each.uri for each in found.templates] == ["template://text/any/fine"]
    link = "it is a symbolic link, which is not followed"
    assert found.problems.pop("text/any/link.toml") == f"the text: {link}"
    assert set(found.problems) == {
        *("text/any/link.j2", "text/any/both.j2", "text/any/both.toml"),
        *("linked", "parameters.toml", "text/loop"),
    }
    assert set(found.problems.values()) == {link}
    assert SECRET not in repr(found)


def test_files_that_would_block_or_fill_the_memory_are_not_read(tmp_path: Path) -> None:
    write_template(tmp_path, "x" * (FILE_BYTES + 1), name="text/any/huge")
    sparse = write_template(tmp_path, "", name="text/any/sparse")
    os.truncate(sparse, 10 * 1024**3)
    write_template(tmp_path, "fine")
    os.mkfifo(tmp_path / "text/any/pipe.j2")
    (tmp_path / "text/any/pipe.toml").write_text(METADATA)
    (tmp_path / "text/any/folder.j2").mkdir()
    found = read(tmp_path)
    assert [each.uri for each in found.templates] == [URI]
    assert "larger than" in found.problems["text/any/huge.j2"]
    assert "larger than" in found.problems["text/any/sparse.j2"]
    assert "not a regular file" in found.problems["text/any/pipe.j2"]
    assert "not a regular file" in found.problems["text/any/folder.j2"]


def test_the_number_of_templates_and_of_entries_is_bounded(tmp_path: Path) -> None:
    for number in range(MAX_TEMPLATES + 5):
        write_template(tmp_path, "x", name=f"text/any/t{number}")
    found = read(tmp_path)
    assert len(found.templates) == MAX_TEMPLATES
    assert any("more than 500 templates" in each for each in found.problems.values())
    crowded = tmp_path / "crowded"
    (crowded / "text" / "any").mkdir(parents=True)
    for number in range(5_100):
        (crowded / "text" / "any" / f"{number}.j2").touch()
    problems = read(crowded).problems
    assert len(problems) == 100
    assert "the folder has more than 5,000 entries" in problems.values()


@pytest.mark.parametrize(
    ("metadata", "problem"),
    [
        ("name = ", "it is not valid TOML"),
        ('{"name": "A", "path": "a"}', "it is not valid TOML"),
        ("", "name and description and path must be set"),
        ("name = 1", "name must be a str"),
        (METADATA + "titel = 1", "unknown key 'titel'"),
        (METADATA + "tags = [1]", "tags must be a list of at most 50 texts"),
        (METADATA + 'uses = ["nothing"]', "parameters.toml has no parameter 'nothing'"),
        (METADATA + "parameters = 3", "parameters must be a dict"),
        (METADATA + "[parameters]\nx = 3", "parameters must contain only tables"),
        (METADATA + '[parameters.x]\ndescription = "X"', "'x' needs a type"),
        (METADATA + '[parameters.x]\ntype = "text"\ndescription = "X"', "'x' needs a type"),
        (METADATA + '[parameters.x]\ntype = "string"', "'x' needs a description"),
        (METADATA + '[parameters."a b"]\ntype = "string"', "must be a name of letters"),
        (METADATA + "[parameters.__class__]", "must be a name of letters"),
        (
            METADATA + '[parameters.x]\ntype = "string"\npattern = "(a+)+$"',
            "unknown key 'pattern'",
        ),
        (
            METADATA + '[parameters.x]\ntype = "string"\ndescription = "X"\ndefault = 3',
            "its default must be text, not 3",
        ),
        (METADATA + f"name2 = {'[' * 5000}", "it is not valid TOML"),
        (METADATA.replace("A template.", "x" * 501), "description has more than 500 characters"),
    ],
)
def test_metadata_that_is_wrong_is_a_problem_and_no_exception(
    tmp_path: Path, metadata: str, problem: str
) -> None:
    write_template(tmp_path, "text", metadata)
    found = read(tmp_path)
    assert found.templates == []
    assert problem in found.problems[f"{NAME}.toml"]


def test_files_that_are_not_text_or_not_complete_are_problems(tmp_path: Path) -> None:
    write_template(tmp_path, "x", name="text/any/binary").write_bytes(b"\xff\xfe\x00")
    write_template(tmp_path, "x", name="text/any/alone").with_suffix(".toml").unlink()
    write_template(tmp_path, "x", name="text/any/empty").unlink()
    write_template(tmp_path, "x", name="text/any/Upper")
    write_template(tmp_path, "x", name="text/any/a..b")
    write_template(tmp_path, "x", name="deep/er/and/deeper")
    write_template(tmp_path, "x", name=".hidden/any/plain")
    found = read(tmp_path)
    assert found.templates == []
    assert found.problems == {
        "text/any/alone.j2": "text/any/alone.toml is missing",
        "text/any/binary.j2": "it is not UTF-8",
        "text/any/binary.toml": "the text: it is not UTF-8",
        "text/any/empty.toml": "empty.j2 is missing",
    }


async def test_the_error_of_a_broken_template_says_why_it_cannot_be_used(tmp_path: Path) -> None:
    write_template(tmp_path, "text", "name = ")
    async with offering(tmp_path) as plexus:
        with pytest.raises(NotFound, match=r"cannot be used: it is not valid TOML") as caught:
            await plexus.call("generate_template", resource_uri=URI, parameters={})
        assert caught.value.data["seed_code"] == -32000


async def test_installed_packages_offer_templates_by_an_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "packaged_templates"
    write_template(package, "of a package")
    (package / "__init__.py").write_text("FOLDER = __path__[0]\nNUMBER = 3\n")
    (tmp_path / "failing_templates.py").write_text("raise SystemExit('no')\n")
    monkeypatch.syspath_prepend(tmp_path)
    points = [
        EntryPoint("a", "packaged_templates", library.GROUP),
        EntryPoint("b", "packaged_templates:FOLDER", library.GROUP),
        EntryPoint("c", "packaged_templates:NUMBER", library.GROUP),
        EntryPoint("d", "failing_templates", library.GROUP),
        EntryPoint("e", "not_installed_templates", library.GROUP),
    ]
    monkeypatch.setattr(library, "entry_points_of", lambda _: points)
    async with offering() as plexus:
        found = await plexus.call("templates.describe_template", resource_uri=URI)
        assert (found.text, found.source) == ("of a package", "package b")
        assert len(await plexus.call("list_templates")) == 41
        catalogue, _ = await library.Library().catalogue()
        assert set(catalogue.failures) == {"package c", "package d", "package e"}
    assert isinstance(sys.modules.pop("packaged_templates"), types.ModuleType)


async def test_the_group_of_entry_points_is_the_documented_one(monkeypatch: Any) -> None:
    asked: list[str] = []

    def find(group: str) -> list[EntryPoint]:
        asked.append(group)
        return []

    monkeypatch.setattr(library, "entry_points_of", find)
    async with offering() as plexus:
        await plexus.call("list_templates")
    assert asked == ["plexus.templates"]

"""The template and the limits of docs/templates.md are as the program has them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from documents import ROOT

from activations.templates import (
    Templates,
    activation,
    folder,
    model,
    parameters,
    renderer,
    scaffold,
)
from activations.templates import project_folder as project_folders
from plexus.testing import local

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

DOCUMENT = (ROOT / "docs" / "templates.md").read_text()
KIB = 1024
MIB = 1024 * KIB
LIMITS = {
    "time to generate a file": (
        f"{renderer.RENDER_S:g} s; past it its process is killed: `deadline`"
    ),
    "memory of a process": f"{renderer.MEMORY_BYTES // MIB} MiB; past it `too_big` or `render`",
    "size of a generated file": f"{model.CONTENT_BYTES // KIB} KiB; past it `too_big`",
    "processes": (
        f"{renderer.MAX_PROCESSES}; the one that was unused the longest ends first, and each ends "
        "after a minute without use"
    ),
    "size of a file of a folder, and of a folder": (
        f"{folder.FILE_BYTES // KIB} KiB and {folder.FOLDER_BYTES // MIB} MiB; what exceeds it is "
        "not used"
    ),
    "templates of a folder": f"{folder.MAX_TEMPLATES}",
    "parameters of a template": f"{parameters.MAX_PARAMETERS}",
    "files that are compared": (
        f"{project_folders.EXISTING_BYTES // MIB} MiB and {scaffold.DIFF_LINES:,} lines; larger "
        "ones are kept"
    ),
    "templates of a project": f"{activation.MAX_FILES}",
}


def test_the_table_of_limits_is_that_of_the_program() -> None:
    assert renderer.IDLE_S == 60
    table = DOCUMENT.partition("## Limits")[2]
    assert dict(re.findall(r"^\| (.+?) \| (.+?) \|$", table, re.MULTILINE)) == LIMITS


async def test_the_template_of_the_document_generates_a_file(tmp_path: Path) -> None:
    section = DOCUMENT.partition("## Write a template")[2]
    blocks = re.findall(r"```(?:toml|jinja)\n(?:# |\{# )(\S+)(?: #\})?\n(.*?)```", section, re.S)
    files = {
        name: text for name, text in blocks if name not in ("substrate.toml", "pyproject.toml")
    }
    assert set(files) == {"license/any/mit.toml", "parameters.toml", "license/any/mit.j2"}
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    async with local(Templates([tmp_path]), within_s=40) as plexus:
        text = await plexus.call(
            "generate_template",
            resource_uri="template://license/any/mit",
            parameters={"project_name": "tool", "holders": ["Ada", "Grace"]},
        )
    assert text == 'Licence of "tool"\nCopyright (c) 2026 Ada, Grace\n'


def test_the_settings_of_the_document_are_settings() -> None:
    from substrate.settings import read_settings

    [block] = re.findall(r"```toml\n(# substrate.toml\n.*?)```", DOCUMENT, re.S)
    assert read_settings({}, block.encode()).settings.templates_path == ("my-templates",)
    [points] = re.findall(r"```toml\n(# pyproject.toml\n.*?)```", DOCUMENT, re.S)
    assert "plexus.templates" in tomllib.loads(points)["project"]["entry-points"]

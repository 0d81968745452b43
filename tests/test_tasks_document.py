"""The examples and the limits of docs/tasks.md are as the program has them."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from child_processes import clean_environment
from documents import ROOT

from activations.tasks import model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

DOCUMENT = (ROOT / "docs" / "tasks.md").read_text()
ID = re.compile(r"task_[0-9a-z]{8}")
KIB = 1024
LIMITS = {
    "description": f"{model.DESCRIPTION_BYTES // KIB} KiB",
    "note": f"{model.NOTE_BYTES // KIB} KiB",
    "reason for closing": f"{model.REASON_BYTES // KIB} KiB",
    "labels of a task": f"{model.LABELS} of {model.LABEL_CHARACTERS} characters",
    "acceptance criteria": f"{model.ACCEPTANCE_ITEMS} of {model.ACCEPTANCE_BYTES // KIB} KiB",
    "notes of a task": f"{model.NOTES:,}",
    "links of a task": f"{model.LINKS:,}",
    "runs and diffs of a task": f"{model.REFS}",
    "history of a task": f"{model.CHANGES_KEPT:,} changes; older ones are removed",
    "tasks of a principal": f"{model.TASKS:,}",
    "lines of an import": f"{model.IMPORT_LINES:,}",
    "tasks on one page": f"{model.PAGE_ITEMS}",
}


def test_the_commands_print_what_the_document_shows(tmp_path: Path) -> None:
    [block] = re.findall(r"```console\n(.*?)```", DOCUMENT, re.DOTALL)
    #: The ids of the document, and those of this run.
    ids: dict[str, str] = {}
    for example in block.split("$ ")[1:]:
        line, _, expected = example.partition("\n")
        for shown, real in ids.items():
            line = line.replace(shown, real)
        _, *words = shlex.split(line)
        done = subprocess.run(
            [sys.executable, "-m", "substrate", "--database", "tasks.db", *words],
            cwd=tmp_path,
            env=clean_environment(SUBSTRATE_PORT="0"),
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        for shown, real in zip(ID.findall(expected), ID.findall(done.stdout), strict=True):
            ids.setdefault(shown, real)
        printed = done.stdout.replace(str(tmp_path), "PROJECT")
        for shown, real in ids.items():
            printed = printed.replace(real, shown)
        assert printed == expected


def test_the_table_of_limits_is_that_of_the_program() -> None:
    table = DOCUMENT.partition("## Limits")[2]
    assert dict(re.findall(r"^\| (.+?) \| (.+?) \|$", table, re.MULTILINE)) == LIMITS

"""The reference is made from the code, and the drawing of the layers is that of the imports."""

from __future__ import annotations

import re
from pathlib import Path

from reference import REFERENCE, described, reference
from test_layering import ARROWS

ARCHITECTURE = (REFERENCE.parent / "architecture.md").read_text()


def test_the_reference_is_what_the_code_says(tmp_path: Path) -> None:
    wanted = reference(described(tmp_path))
    assert REFERENCE.read_text() == wanted, "run `PYTHONPATH=. python tests/reference.py`"


def test_the_drawing_of_the_layers_is_that_of_the_imports() -> None:
    drawing = re.search(r"```\n(.*?)```", ARCHITECTURE, re.DOTALL)
    assert drawing is not None
    drawn = {line.split()[0]: line for line in drawing[1].splitlines() if line.strip()}
    for package, arrows in ARROWS.items():
        told = re.split(r"\bimports? ", drawn[package])[-1]
        named = {word for word in re.split(r"[ ,]+", told) if word in ARROWS}
        named |= set(ARROWS) - {package} if told == "all" else set()
        assert named == arrows, drawn[package]

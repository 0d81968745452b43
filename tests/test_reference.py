"""The reference is generated from the code, and the architecture draws the real imports."""

from __future__ import annotations

import re
from pathlib import Path

from reference import EVENTS, REFERENCE, described, event_reference, reference
from test_layering import ARROWS, BETWEEN_ACTIVATIONS, ROOT

ARCHITECTURE = (REFERENCE.parent / "architecture.md").read_text()


def test_the_reference_is_up_to_date(tmp_path: Path) -> None:
    wanted = reference(described(tmp_path))
    assert REFERENCE.read_text() == wanted, "run `PYTHONPATH=. python tests/reference.py`"


def test_the_fields_of_every_event_are_described() -> None:
    wanted = event_reference()
    assert EVENTS.read_text() == wanted, "run `PYTHONPATH=. python tests/reference.py`"
    for name in ("Progress", "Log", "Image", "Audio", "Resource", "Detached", "Restarted"):
        assert f"### {name}\n" in wanted


def test_the_drawing_of_the_layers_is_that_of_the_imports() -> None:
    drawing = re.search(r"```text\n(.*?)```", ARCHITECTURE, re.DOTALL)
    assert drawing is not None
    drawn = {line.split()[0]: line for line in drawing[1].splitlines() if line.strip()}
    for package, arrows in ARROWS.items():
        imports = re.split(r"\bimports? ", drawn[package])[-1]
        named = {word for word in re.split(r"[ ,]+", imports) if word in ARROWS}
        named |= set(ARROWS) - {package} if imports == "all" else set()
        assert named == arrows, drawn[package]


def drawn_tree() -> dict[str, str]:
    """Return the folders of the drawn tree, with the description of each."""
    drawing = re.search(r"## The tree\n\n```text\n(.*?)```", ARCHITECTURE, re.DOTALL)
    assert drawing is not None
    found: dict[str, str] = {}
    above: list[str] = []
    for line in drawing[1].splitlines():
        name, _, words = line.strip().partition(" ")
        depth = (len(line) - len(line.lstrip())) // 2
        above = [*above[:depth], name.rstrip("/")]
        assert name.endswith("/"), line
        found["/".join(above)] = words.strip()
    return found


def test_the_tree_is_drawn_as_the_folders_are() -> None:
    folders = {
        file.parent.relative_to(ROOT).as_posix()
        for package in ARROWS
        for file in (ROOT / package).rglob("*.py")
    }
    drawn = drawn_tree()
    assert sorted(drawn) == sorted(folders), "draw the tree in docs/architecture.md as it is"
    assert [path for path, words in drawn.items() if not words] == []


def test_the_tree_shows_which_activations_import_others() -> None:
    drawn = {}
    for path, words in drawn_tree().items():
        _, imports, others = words.partition(" imports ")
        if imports:
            drawn[path] = set(others.split(", "))
    assert drawn == {f"activations/{name}": to for name, to in BETWEEN_ACTIVATIONS.items()}


def test_every_module_that_the_architecture_names_is_there() -> None:
    named = set(re.findall(r"`([\w/]+\.py)`", ARCHITECTURE))
    files = [
        file.relative_to(ROOT).as_posix()
        for folder in (*ARROWS, "packaging", "tests")
        for file in (ROOT / folder).rglob("*.py")
    ]
    missing = [name for name in named if not any(f"/{file}".endswith(f"/{name}") for file in files)]
    assert missing == []


def test_the_layout_in_the_contributing_guide_names_existing_folders() -> None:
    layout = re.search(
        r"## Layout\n\n```\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL
    )
    assert layout is not None
    parent = ROOT
    for line in layout[1].splitlines():
        parent = parent if line.startswith(" ") else ROOT
        folder = parent / line.split()[0]
        assert folder.is_dir(), line
        parent = parent if line.startswith(" ") else folder

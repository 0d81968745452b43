"""References inside JSON Schemas are followed."""

from __future__ import annotations

from plexus.registry.schema import resolve_reference

DEFINITIONS = {
    "Colour": {"type": "string", "title": "Colour"},
    "Paint": {"$ref": "#/$defs/Colour", "title": "Paint"},
    "Loop": {"$ref": "#/$defs/Loop"},
}


def test_a_reference_resolves_to_its_definition_and_members_next_to_it_win() -> None:
    assert resolve_reference({"type": "integer"}, DEFINITIONS) == {"type": "integer"}
    assert resolve_reference({"$ref": "#/$defs/Paint", "description": "d"}, DEFINITIONS) == {
        "type": "string",
        "title": "Paint",
        "description": "d",
    }


def test_an_unknown_or_cyclic_reference_accepts_any_value() -> None:
    assert resolve_reference({"$ref": "#/$defs/Missing"}, DEFINITIONS) == {}
    assert resolve_reference({"$ref": "#/$defs/Loop"}, DEFINITIONS) == {}

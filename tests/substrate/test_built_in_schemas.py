"""Checks of the built-in activations, which are registered without a check at every start."""

from __future__ import annotations

from pathlib import Path

import pytest

from plexus import Plexus
from plexus.rpc import wire
from substrate.build_hub import built_in_hub
from substrate.settings import Settings

pytestmark = pytest.mark.anyio


async def test_all_built_in_activations_pass_the_check_and_can_be_encoded(tmp_path: Path) -> None:
    hub = built_in_hub(Settings(database=str(tmp_path / "arbor.db")), tmp_path)
    try:
        wire.encode_exact(hub.schema(), "the schema")
        checked = Plexus()
        for path, activation in hub.activations():
            if "." not in path:
                checked.register(activation)
        assert [spec.name for spec in checked.methods()] == [spec.name for spec in hub.methods()]
        assert checked.schema()["activations"] == hub.schema()["activations"]
    finally:
        await hub.close()

"""The packaged manifest describes every built-in activation exactly as its class does."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mcp_view.revisions import REVISIONS
from mcp_view.server import McpServer
from mcp_view.tool_sets import ALL_TOOLS
from plexus import Plexus
from plexus.principal import LOCAL
from plexus.registry.lazy import LATE_FIELDS, LazyMethod, Manifest
from plexus.rpc import wire
from substrate.build_hub import built_in_hub, packaged_manifest
from substrate.settings import Settings

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]


def hubs(tmp_path: Path) -> tuple[Plexus, Plexus]:
    """Return a hub from the manifest, and a hub from the classes."""
    settings = Settings(database=str(tmp_path / "arbor.db"))
    lazy = built_in_hub(settings, tmp_path, manifest=packaged_manifest())
    return lazy, built_in_hub(settings, tmp_path, manifest=Manifest({}))


def test_the_manifest_matches_the_code() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "substrate.devtools.manifest", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


async def test_the_manifest_describes_activations_as_their_classes_do(tmp_path: Path) -> None:
    lazy, eager = hubs(tmp_path)
    try:
        assert [spec.name for spec in lazy.methods()] == [spec.name for spec in eager.methods()]
        for one, other in zip(lazy.methods(), eager.methods(), strict=True):
            assert isinstance(one, LazyMethod)
            assert not isinstance(other, LazyMethod)
            assert plain(one) == plain(other), one.name
        for node, real in zip(lazy.nodes(), eager.nodes(), strict=True):
            for name in ("path", "class_name", "version", "description", "hooks"):
                assert getattr(node, name) == getattr(real, name), node.path
            assert [spec.name for spec in node.methods] == [spec.name for spec in real.methods]
        assert not any(node.is_loaded for node in lazy.nodes())
    finally:
        await lazy.close()
        await eager.close()


def plain(spec: Any) -> dict[str, Any]:
    """Return what is known of a method without its class."""
    names = [field.name for field in dataclasses.fields(spec)]
    known = {
        name: getattr(spec, name) for name in names if name not in (*LATE_FIELDS, "schema_entry")
    }
    known |= {"template": spec.template and vars(spec.template)}
    known |= {"name_template": spec.name_template and vars(spec.name_template)}
    properties = ("names", "returns_media", "is_standing", "purpose")
    return known | {name: getattr(spec, name) for name in properties}


async def test_schema_hash_and_lists_are_the_same_bytes(tmp_path: Path) -> None:
    lazy, eager = hubs(tmp_path)
    try:
        assert wire.encode(lazy.schema()) == wire.encode(eager.schema())
        assert lazy.hash == eager.hash
        one, other = (
            McpServer(hub, secret=b"", monotonic=lambda: 0.0, wall=lambda: 0.0)
            for hub in (lazy, eager)
        )
        for revision in REVISIONS.values():
            for kind in ("tools", "prompts", "templates"):
                chosen = (ALL_TOOLS,) if kind == "tools" else ()
                listed = getattr(one.catalogue, kind)(revision, LOCAL, *chosen)
                same = getattr(other.catalogue, kind)(revision, LOCAL, *chosen)
                assert (listed.keys, listed.encoded) == (same.keys, same.encoded)
            assert one.capabilities(revision) == other.capabilities(revision)
        assert not any(node.is_loaded for node in lazy.nodes())
    finally:
        await lazy.close()
        await eager.close()


async def test_every_class_can_be_loaded_and_completes_its_description(tmp_path: Path) -> None:
    lazy, eager = hubs(tmp_path)
    try:
        real = {spec.name: spec for spec in eager.methods()}
        for spec in lazy.methods():
            assert spec.parameters == real[spec.name].parameters
            assert spec.events == real[spec.name].events
            assert spec.returns == real[spec.name].returns
            assert spec.given_schema == real[spec.name].given_schema
            assert spec.completers.keys() == real[spec.name].completers.keys()
            assert type(spec.owner) is type(real[spec.name].owner)
            assert spec.owner.plexus is lazy
        assert all(node.is_loaded for node in lazy.nodes())
    finally:
        await lazy.close()
        await eager.close()

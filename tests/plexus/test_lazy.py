"""Activations that are registered from a manifest, also a stale one."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hub_calls import end_of

from plexus import Plexus, PlexusError
from plexus.errors import UnknownMethod
from plexus.events import Result
from plexus.registry.activation_tree import Node, read_activation
from plexus.registry.lazy import Manifest, dump_manifest, resolve

pytestmark = pytest.mark.anyio

SOURCE = '''
from plexus import Activation, method

class Tea(Activation):
    """Makes tea."""

    namespace = "tea"
    version = "1.0.0"
    closed = 0

    @method(title="Brew", read_only=True)
    async def brew(self, cups: int = 1) -> str:
        """Brew some tea.

        Args:
            cups: How many cups.
        """
        return f"{cups} of {self.plexus.name}"

    async def close(self) -> None:
        Tea.closed += 1
'''
REFERENCE = "lazy_tea:Tea"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the class and its manifest; the class is not imported."""
    (tmp_path / "lazy_tea.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    # Bytecode is compared by the length and the second of its source, which a test may keep.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    nodes = {REFERENCE: read_activation(resolve(REFERENCE))}
    text = dump_manifest(nodes, [tmp_path / "lazy_tea.py"], tmp_path)
    (tmp_path / "manifest.json").write_text(text)
    del sys.modules["lazy_tea"]
    yield tmp_path
    sys.modules.pop("lazy_tea", None)


def node_of(folder: Path, make: Any = lambda tea: tea()) -> Node:
    return Manifest.read(folder / "manifest.json", folder).node(REFERENCE, make)


def is_imported() -> bool:
    return "lazy_tea" in sys.modules


async def test_a_class_is_imported_at_the_first_call(folder: Path) -> None:
    hub = Plexus(name="leaves")
    hub.register(node_of(folder), checked=True)
    assert hub.schema()["activations"][0]["methods"][0]["title"] == "Brew"
    assert [spec.summary for spec in hub.methods()] == ["Brew some tea."]
    with pytest.raises(UnknownMethod):
        hub.call("tea.drink")
    assert not is_imported()
    end = await end_of(hub, "tea.brew", {"cups": 2})
    assert isinstance(end, Result)
    assert end.result == "2 of leaves"
    assert is_imported()
    await hub.close()
    assert sys.modules["lazy_tea"].Tea.closed == 1


async def test_an_unused_activation_is_not_imported_to_be_closed(folder: Path) -> None:
    hub = Plexus()
    hub.register(node_of(folder), checked=True)
    await hub.close()
    assert not is_imported()


async def test_wrong_arguments_are_reported_as_for_any_method(folder: Path) -> None:
    lazy, eager = Plexus(), Plexus()
    lazy.register(node_of(folder), checked=True)
    eager.register(resolve(REFERENCE))
    messages = []
    for hub in (lazy, eager):
        with pytest.raises(PlexusError) as caught:
            hub.call("tea.brew", {"cup": "x"})
        messages.append((caught.value.message, caught.value.data))
        await hub.close()
    assert messages[0] == messages[1]


async def test_a_class_that_cannot_be_loaded_fails_the_call_and_not_the_hub(folder: Path) -> None:
    def explode(_: Any) -> Any:
        raise ValueError("no leaves")

    hub = Plexus()
    hub.register(node_of(folder, explode), checked=True)
    for _ in range(2):
        with pytest.raises(PlexusError, match="loading tea failed with ValueError"):
            hub.call("tea.brew")
    assert hub.methods()
    await hub.close()


EDITED = SOURCE.replace("Brew some tea", "Boil some tea")  # of the same length


@pytest.mark.parametrize("source", [EDITED, SOURCE + "\n"])
@pytest.mark.parametrize("later_s", [0, 10])
def test_a_manifest_is_ignored_when_a_source_was_edited(
    folder: Path, source: str, later_s: int
) -> None:
    file = folder / "lazy_tea.py"
    file.write_text(source)
    now_ns = (folder / "manifest.json").stat().st_mtime_ns + later_s * 1_000_000_000
    os.utime(file, ns=(now_ns, now_ns))
    node = node_of(folder)
    assert node.is_loaded
    assert node.methods[0].summary == ("Boil" if source is EDITED else "Brew") + " some tea."


def test_a_manifest_is_used_when_sources_are_newer_but_the_same(folder: Path) -> None:
    os.utime(folder / "manifest.json", (0, 0))  # as after a clone
    assert not node_of(folder).is_loaded


@pytest.mark.parametrize("damage", ["missing", "no JSON", "source gone"])
def test_a_manifest_that_cannot_be_read_is_ignored(folder: Path, damage: str) -> None:
    manifest = folder / "manifest.json"
    if damage == "missing":
        manifest.unlink()
    elif damage == "no JSON":
        manifest.write_text(manifest.read_text()[:-20])
    else:
        text = manifest.read_text().replace('"lazy_tea.py"', '"other.py"')
        manifest.write_text(text)
    assert node_of(folder).is_loaded

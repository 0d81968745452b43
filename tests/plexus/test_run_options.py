"""The options `restart`, `record` and `on_disconnect`: declared, checked, listed and lazy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pytest

from plexus import Activation, Secret, method
from plexus.errors import RegistrationError
from plexus.registry import schema
from plexus.registry.activation_tree import read_activation
from plexus.registry.lazy import Manifest, dump_manifest
from plexus.registry.signature import MethodSpec, read_methods
from plexus.rpc import wire


def specs(owner: Activation, path: str = "job") -> dict[str, MethodSpec]:
    return {spec.name.rpartition(".")[2]: spec for spec in read_methods(owner, path)}


class Job(Activation):
    """Jobs."""

    namespace = "job"
    version = "1.0.0"

    @method
    async def plain(self) -> int:
        """Return a number."""
        return 1

    @method(restart="from_start", record="metadata", on_disconnect="keep")
    async def copy(self, text: str) -> str:
        """Copy a text."""
        return text

    @method(on_disconnect="cancel")
    async def unlock(self, password: Annotated[str, Secret()]) -> bool:
        """Unlock with a password."""
        return bool(password)


def test_by_default_a_method_is_not_restarted_and_the_operator_decides_the_rest() -> None:
    spec = specs(Job())["plain"]
    assert (spec.restart, spec.record, spec.on_disconnect) == ("never", None, None)
    assert {"restart", "record"}.isdisjoint(schema.describe_method(spec))


def test_declared_options_are_those_of_the_method_and_clients_see_two_of_them() -> None:
    spec = specs(Job())["copy"]
    assert (spec.restart, spec.record, spec.on_disconnect) == ("from_start", "metadata", "keep")
    described = schema.describe_method(spec)
    assert (described["restart"], described["record"]) == ("from_start", "metadata")
    assert "on_disconnect" not in described


def test_functions_have_the_same_options() -> None:
    jobs = Activation("jobs", description="Jobs.")

    @jobs.method(restart="from_checkpoint", record="all", on_disconnect="cancel")
    async def copy() -> int:
        return 1

    spec = specs(jobs)["copy"]
    assert (spec.restart, spec.record, spec.on_disconnect) == ("from_checkpoint", "all", "cancel")


def test_a_manifest_keeps_the_options_and_the_secrets_without_an_import(tmp_path: Path) -> None:
    source = tmp_path / "source.py"
    source.write_text("")
    text = dump_manifest({"nowhere:Job": read_activation(Job())}, [source], tmp_path)
    manifest = Manifest(wire.decode_trusted(text.encode())["activations"])
    node = manifest.node("nowhere:Job", lambda cls: cls())
    plain, copy, unlock = node.methods
    assert (plain.restart, plain.record, plain.on_disconnect) == ("never", None, None)
    assert (copy.restart, copy.record, copy.on_disconnect) == ("from_start", "metadata", "keep")
    assert unlock.on_disconnect == "cancel"
    assert unlock.secret_names == {"password"}
    assert plain.secret_names == frozenset()
    assert not node.is_loaded


def declared(options: dict[str, Any], function: Callable[..., Any] | None = None) -> Activation:
    async def work(self: Any) -> int:
        """Work."""
        return int(bool(self))

    marked = method(**options)(function or work)
    worker: Activation = type("Worker", (Activation,), {"namespace": "job", "work": marked})()
    return worker


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"restart": "always"},
            ["restart is 'always'", "'never', 'from_start', 'from_checkpoint'"],
        ),
        ({"restart": None}, ["restart is None"]),
        ({"restart": []}, ["restart is []"]),
        ({"record": "some"}, ["record is 'some'", "'all', 'metadata', 'off', None"]),
        ({"on_disconnect": True}, ["on_disconnect is True", "'keep', 'cancel', None"]),
        ({"restart": "from_start", "control": True}, ["a control method is short"]),
        ({"restart": "from_start", "follows": True}, ["follows=True starts no run"]),
        ({"restart": "from_start", "record": "off"}, ['remove record="off"']),
    ],
)
def test_a_wrong_option_is_refused_with_the_method_and_the_cure(
    options: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(RegistrationError) as raised:
        read_methods(declared(options), "job")
    for each in ["Worker.work", *words]:
        assert each in raised.value.message


def test_a_method_with_a_secret_is_not_restarted_because_secrets_are_not_stored() -> None:
    async def login(self: Any, password: Annotated[str, Secret()]) -> bool:
        """Log in."""
        return bool(self and password)

    with pytest.raises(RegistrationError, match="'password' is not stored"):
        read_methods(declared({"restart": "from_start"}, login), "job")


@pytest.mark.parametrize("mark", ["prompt", "resource"])
def test_prompts_and_resources_have_no_restart(mark: str) -> None:
    jobs = Activation("jobs", description="Jobs.")
    arguments = ["job://one"] if mark == "resource" else []
    with pytest.raises(TypeError, match="restart"):
        getattr(jobs, mark)(*arguments, restart="from_start")

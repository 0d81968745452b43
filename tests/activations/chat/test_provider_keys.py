"""API keys: where they are read from, and that they are never shown."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from types import ModuleType

import pytest

from activations.chat.providers.endpoints import Endpoint, built_in_endpoint, parse_endpoint
from activations.chat.providers.keys import SERVICE, Keys
from plexus import Failed

pytestmark = pytest.mark.anyio

ANTHROPIC = built_in_endpoint("anthropic", {})
GOOGLE = built_in_endpoint("google", {})
LOCAL = parse_endpoint("my-llama=http://127.0.0.1:1/v1")
REMOTE = parse_endpoint("elsewhere=https://models.example/v1")
#: A timeout that only a keyring which hangs exceeds.
SHORT_S = 0.2

Lookup = Callable[[str, str], object]


def keyring(monkeypatch: pytest.MonkeyPatch, lookup: Lookup) -> None:
    """Replace the installed keyring by a scripted one."""
    module = ModuleType("keyring")
    module.__spec__ = sys.modules["sys"].__spec__  # found like an installed package
    module.get_password = lookup  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "keyring", module)


def no_keyring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keyring", None)


@pytest.mark.parametrize(
    ("server", "environment"),
    [
        (ANTHROPIC, {"ANTHROPIC_API_KEY": "sk-1"}),
        (built_in_endpoint("openai", {}), {"OPENAI_API_KEY": "sk-1"}),
        (GOOGLE, {"GOOGLE_API_KEY": "sk-1"}),
        (GOOGLE, {"GEMINI_API_KEY": "sk-1"}),
        (GOOGLE, {"GEMINI_API_KEY": "sk-2", "GOOGLE_API_KEY": "sk-1"}),
        (LOCAL, {"MY_LLAMA_API_KEY": "sk-1"}),
        (ANTHROPIC, {"ANTHROPIC_API_KEY": " sk-1\n"}),
    ],
)
async def test_a_key_is_in_its_variable(
    monkeypatch: pytest.MonkeyPatch, server: Endpoint, environment: dict[str, str]
) -> None:
    keyring(monkeypatch, lambda *_: pytest.fail("the keyring was asked"))
    keys = Keys(environment)
    assert keys.in_environment(server)
    assert await keys.find(server) == "sk-1"


async def test_the_environment_defaults_to_that_of_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-process")
    assert await Keys().find(ANTHROPIC) == "sk-process"


async def test_a_key_is_read_from_the_keyring_if_no_variable_is_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = {(SERVICE, "ANTHROPIC_API_KEY"): "sk-kept"}
    keyring(monkeypatch, lambda service, user: kept.get((service, user)))
    keys = Keys({"ANTHROPIC_API_KEY": "  "})
    assert not keys.in_environment(ANTHROPIC)
    assert await keys.find(ANTHROPIC) == "sk-kept"


async def test_the_keyring_is_read_for_each_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    keyring(monkeypatch, lambda _, user: "sk-2" if user == "GEMINI_API_KEY" else None)
    assert await Keys({}).find(GOOGLE) == "sk-2"


async def test_a_missing_key_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    no_keyring(monkeypatch)
    keys = Keys({})
    error = await missed(keys)
    assert error.code == "missing_key"
    assert error.data == {"variable": "ANTHROPIC_API_KEY"}
    assert "set ANTHROPIC_API_KEY" in error.message
    assert "keyring set substrate ANTHROPIC_API_KEY" in error.message


def raises(error: BaseException) -> Lookup:
    def lookup(*_: str) -> object:
        raise error

    return lookup


@pytest.mark.parametrize(
    "lookup",
    [
        lambda *_: None,
        lambda *_: "",
        lambda *_: 5,
        raises(RuntimeError("no backend")),
        raises(OSError("no bus")),
        raises(KeyError("odd")),
    ],
)
async def test_any_keyring_failure_means_no_key(
    monkeypatch: pytest.MonkeyPatch, lookup: Lookup
) -> None:
    keyring(monkeypatch, lookup)
    keys = Keys({})
    assert (await missed(keys)).code == "missing_key"


async def test_a_key_added_to_the_keyring_later_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept: list[str | None] = [None, "sk-later", "sk-later"]
    keyring(monkeypatch, lambda *_: kept.pop(0))
    keys = Keys({})
    await missed(keys)
    assert await keys.find(ANTHROPIC) == "sk-later"


async def test_a_keyring_that_hangs_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = threading.Event()
    asked: list[str] = []

    def lookup(_: str, user: str) -> str:
        asked.append(user)
        ends.wait(30)
        return "sk-late"

    keyring(monkeypatch, lookup)
    keys = Keys({}, keyring_timeout_s=SHORT_S)
    try:
        assert (await missed(keys)).code == "missing_key"
        # A second read returns immediately and starts no second thread that hangs.
        assert (await missed(keys)).code == "missing_key"
        assert asked == ["ANTHROPIC_API_KEY"]
    finally:
        ends.set()


async def test_a_server_that_needs_no_key_may_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    no_keyring(monkeypatch)
    keys = Keys({})
    for server in (LOCAL, REMOTE):
        assert await keys.find(server) is None


async def test_an_optional_key_is_read_from_the_keyring_only_for_remote_servers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keyring(monkeypatch, lambda *_: "sk-kept")
    assert await Keys({}).find(LOCAL) is None
    assert await Keys({}).find(REMOTE) == "sk-kept"


@pytest.mark.parametrize("value", ["sk 1", "sk-\u201c1\u201d", "sk-1\nx", "sk\x00"])
async def test_an_invalid_key_is_refused_without_being_shown(value: str) -> None:
    keys = Keys({"ANTHROPIC_API_KEY": value})
    error = await missed(keys)
    assert error.code == "bad_key"
    assert "ANTHROPIC_API_KEY" in error.message
    assert value not in str(error)
    assert "sk" not in error.message.replace("ask", "")


async def test_a_key_is_in_no_repr() -> None:
    keys = Keys({"ANTHROPIC_API_KEY": "sk-secret"})
    await keys.find(ANTHROPIC)
    assert "sk-secret" not in repr(keys) + str(vars(keys).keys())


async def missed(keys: Keys) -> Failed:
    with pytest.raises(Failed) as caught:
        async with asyncio.timeout(10):
            await keys.find(ANTHROPIC)
    return caught.value

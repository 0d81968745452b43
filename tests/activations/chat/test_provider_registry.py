"""The provider registry: finding a provider by a model name, and listing providers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from provider_asking import found

from activations.chat.events import ModelData
from activations.chat.providers import endpoints, registry
from activations.chat.providers.echo import EchoProvider
from activations.chat.providers.pydantic_ai.provider import PydanticAiProvider
from activations.chat.providers.registry import Providers
from plexus import Failed, InvalidParams

ROOT = Path(__file__).parents[3]
BUILT_IN = ["echo", "anthropic", "openai", "google", "claude-code"]


def by_name(providers: Providers) -> dict[str, ModelData]:
    return {each.provider: each for each in providers.list_providers()}


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("echo:echo", "echo"),
        ("anthropic:claude-sonnet-5-5", "claude-sonnet-5-5"),
        ("openai:ft:gpt-4o:mine", "ft:gpt-4o:mine"),
        ("google:gemini-3.8-flash", "gemini-3.8-flash"),
        ("ollama:llama3:8b", "llama3:8b"),
    ],
)
def test_a_model_is_found_by_its_name(name: str, model: str) -> None:
    providers = Providers(["ollama=http://127.0.0.1:11434/v1"], environment={})
    provider, rest = providers.find(name)
    assert rest == model
    assert isinstance(provider, EchoProvider if name.startswith("echo") else PydanticAiProvider)


def test_there_is_one_of_each_provider() -> None:
    providers = Providers(environment={})
    assert found(providers, "openai:a") is found(providers, "openai:b")
    assert found(providers, "openai:a") is not found(providers, "google:a")


@pytest.mark.parametrize("name", ["", "echo", "echo:", ":echo", "unknown:model", "Echo:echo"])
def test_an_unknown_provider_is_refused_with_a_list_of_providers(name: str) -> None:
    providers = Providers(["local=http://127.0.0.1:1/v1"], environment={})
    with pytest.raises(Failed) as caught:
        providers.find(name)
    assert caught.value.code == "unknown_model"
    assert "echo:echo" in caught.value.message
    known = ["echo", "anthropic", "openai", "google", "local", "claude-code"]
    assert caught.value.data["providers"] == known
    for each in known:
        assert each in caught.value.message


def test_claude_code_gets_its_command_and_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[object, ...]] = []

    def make(*arguments: object) -> object:
        made.append(arguments)
        return EchoProvider()

    monkeypatch.setattr(registry, "ClaudeCodeProvider", make)
    environment = {"PATH": "/nowhere"}
    Providers(claude_command="cc", silent_s=7, environment=environment).find("claude-code:sonnet")
    assert made == [("cc", 7, environment)]


@pytest.mark.parametrize(
    "given",
    [
        "local",
        "=http://127.0.0.1/v1",
        "two words=http://127.0.0.1/v1",
        "a:b=http://127.0.0.1/v1",
        "local=",
        "local=127.0.0.1:11434",
        "local=ftp://127.0.0.1",
        "local=http://",
        "local=http://127.0.0.1:notaport",
        "local=file:///etc/passwd",
    ],
)
def test_an_invalid_endpoint_is_refused(given: str) -> None:
    with pytest.raises(InvalidParams) as caught:
        Providers([given])
    assert caught.value.code == "bad_endpoint"


@pytest.mark.parametrize("name", BUILT_IN)
def test_an_endpoint_does_not_take_the_name_of_a_built_in_one(name: str) -> None:
    with pytest.raises(InvalidParams, match="another name"):
        Providers([f"{name}=http://127.0.0.1:1/v1"])


def test_two_endpoints_do_not_have_the_same_name() -> None:
    with pytest.raises(InvalidParams, match="another name"):
        Providers(["local=http://127.0.0.1:1/v1", "local=http://127.0.0.1:2/v1"])


@pytest.mark.parametrize("url", ["https://me:s3cret@host/v1", "https://host/v1?key=s3cret"])
def test_a_url_with_a_secret_is_refused(url: str) -> None:
    with pytest.raises(InvalidParams) as caught:
        Providers([f"local={url}"])
    assert "s3cret" not in str(caught.value)
    with pytest.raises(InvalidParams) as caught:
        Providers(environment={"OPENAI_BASE_URL": url}).find("openai:gpt-6-sol")
    assert "s3cret" not in str(caught.value)


def test_claude_code_is_not_ready_if_it_is_refused() -> None:
    refused = by_name(Providers(refuse_claude=True))["claude-code"]
    assert not refused.ready
    assert "chat_claude_unconfined" in str(refused.advice)


def test_providers_report_readiness_and_advice() -> None:
    environment = {"OPENAI_API_KEY": "sk-1", "PATH": "/nowhere"}
    all_of_them = by_name(Providers(["local=http://127.0.0.1:1/v1"], environment=environment))
    assert list(all_of_them) == ["echo", "anthropic", "openai", "google", "local", "claude-code"]
    assert all_of_them["echo"] == ModelData("echo", "echo:echo", True)
    assert all_of_them["openai"] == ModelData("openai", "openai:gpt-6-sol", True)
    assert all_of_them["local"] == ModelData("local", "local:llama3", True)
    assert not all_of_them["anthropic"].ready
    assert "ANTHROPIC_API_KEY" in str(all_of_them["anthropic"].advice)
    assert "GOOGLE_API_KEY" in str(all_of_them["google"].advice)
    assert not all_of_them["claude-code"].ready
    assert "claude" in str(all_of_them["claude-code"].advice)


def test_claude_code_is_ready_if_its_program_is_found(tmp_path: Path) -> None:
    program = tmp_path / "claude"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    providers = Providers(environment={"PATH": str(tmp_path)})
    assert by_name(providers)["claude-code"].ready


@pytest.mark.anyio
@pytest.mark.parametrize("package", ["pydantic_ai", "anthropic"])
async def test_a_missing_package_is_reported_with_install_instructions(
    monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    providers = Providers(environment={"ANTHROPIC_API_KEY": "sk-1"})
    one = by_name(providers)["anthropic"]
    assert not one.ready
    assert "pip install 'plexus-substrate[chat]'" in str(one.advice)
    with pytest.raises(Failed) as caught:
        await found(providers, "anthropic:x").check("x")
    assert caught.value.code == "not_installed"
    assert caught.value.data == {"package": package}
    assert "pip install 'plexus-substrate[chat]'" in caught.value.message


def test_a_subpackage_of_a_missing_package_is_missing() -> None:
    assert not endpoints.is_installed("no_such_package.inside")


def test_an_invalid_url_affects_only_its_provider() -> None:
    all_of_them = by_name(Providers(environment={"OPENAI_BASE_URL": "nowhere"}))
    assert "OPENAI_BASE_URL" in str(all_of_them["openai"].advice)
    assert all_of_them["echo"].ready


@pytest.mark.anyio
@pytest.mark.parametrize("model", ["", "../secrets", "a b", "a?b", "a#b", "x" * 300, "a\nb"])
async def test_an_invalid_model_name_is_not_requested(model: str) -> None:
    provider = found(Providers(environment={"GOOGLE_API_KEY": "k"}), "google:x")
    with pytest.raises(Failed) as caught:
        await provider.check(model)
    assert caught.value.code == "unknown_model"


@pytest.mark.parametrize(
    ("url", "is_local"),
    [
        ("http://127.0.0.1:1/v1", True),
        ("http://127.8.8.8/v1", True),
        ("http://[::1]:1/v1", True),
        ("http://localhost:1/v1", True),
        ("http://10.0.0.1/v1", False),
        ("https://localhost.example.com/v1", False),
    ],
)
def test_a_local_server_is_recognised(url: str, is_local: bool) -> None:
    assert endpoints.parse_endpoint(f"x={url}").is_local is is_local


@pytest.mark.anyio
async def test_closing_closes_each_provider_that_was_used() -> None:
    providers = Providers(environment={})
    closed = []

    class Closing(EchoProvider):
        async def close(self) -> None:
            closed.append(self)

    providers.find("echo:echo")
    providers._opened["echo"] = Closing()  # noqa: SLF001 - one that says when it is closed
    await providers.close()
    await providers.close()
    assert len(closed) == 1


def test_listing_providers_imports_no_large_packages() -> None:
    program = (
        "import asyncio, sys\n"
        "from activations.chat.providers.registry import Providers\n"
        "p = Providers(['local=http://127.0.0.1:1/v1'], environment={'OPENAI_API_KEY': 'k'})\n"
        "p.list_providers()\n"
        "p.find('echo:echo')\n"
        "for name in ('openai:gpt-6-sol', 'local:llama3'):\n"
        "    provider, model = p.find(name)\n"
        "    asyncio.run(provider.check(model))\n"
        "    provider.context_tokens(model)\n"
        "print(*sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    heavy = {"pydantic_ai", "anthropic", "openai", "google.genai", "httpx2", "httpx", "keyring"}
    assert heavy & set(done.stdout.split()) == set()
    assert "genai_prices" not in done.stdout.split()

"""The client that the official suite starts: `python -m tests.conformance.client_program URL`.

It uses the sessions of the gateway, and plays the person: it opens the address of a sign-in, and
answers every question.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import httpx2

from activations.gateway.transports.oauth import OAuth, OAuthClient, SignIn
from activations.gateway.transports.session import UpstreamSession
from activations.gateway.transports.streamable_http import HttpTransport
from activations.gateway.transports.token_store import TokenStore
from activations.gateway.transports.transport import SessionLimits
from mcp_view.client.answers import with_defaults
from mcp_view.client.errors import UpstreamError
from mcp_view.client.items import Question
from mcp_view.client.options import ClientOptions, Era

__all__ = ("main",)

CAPABILITIES: Final = frozenset({"form", "url", "sampling", "roots"})
#: The client metadata document that the suite knows.
METADATA_URL: Final = "https://conformance-test.local/client-metadata.json"
CALL_S: Final = 60.0
#: The suite starts all clients together, so they are slow.
LIMITS: Final = SessionLimits(init_s=90, probe_s=60)
#: The token type of an identity assertion of an enterprise.
ID_JAG: Final = "urn:ietf:params:oauth:token-type:id-jag"

Context = dict[str, Any]
Scenario = Callable[[UpstreamSession, Context], Awaitable[None]]


async def call(session: UpstreamSession, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Call a tool, and accept every form with its defaults."""
    params = {"name": name, "arguments": arguments}
    async with session.start("tools/call", params, timeout_s=CALL_S) as running:
        async for items in running:
            for item in items:
                if isinstance(item, Question):
                    running.answer(item, answer(item))
    return running.result


def answer(question: Question) -> dict[str, Any]:
    """Answer as a person who accepts everything."""
    if question.kind == "roots":
        return {"roots": []}
    if question.kind == "sampling":
        content = {"type": "text", "text": "4"}
        return {"role": "assistant", "content": content, "model": "none"}
    return with_defaults(question, {"action": "accept", "content": {}})


async def call_all(session: UpstreamSession, context: Context) -> None:
    """Call the tools that the context names, or every tool with nothing."""
    tools = await session.list_all("tools")
    for wanted in context.get("toolCalls", []):
        await call(session, wanted["name"], wanted["arguments"])
    if "toolCalls" not in context:
        for tool in tools:
            await call(session, tool["name"], {})


async def add(session: UpstreamSession, _: Context) -> None:
    """Call the tool that adds numbers."""
    await session.list_all("tools")
    await call(session, "add_numbers", {"a": 5, "b": 3})


async def valid_only(session: UpstreamSession, _: Context) -> None:
    """Call every tool that may be called."""
    for tool in await session.list_all("tools"):
        await call(session, tool["name"], {"region": "us-east1"})


async def everything(session: UpstreamSession, _: Context) -> None:
    """Use each method whose headers differ."""
    for tool in await session.list_all("tools"):
        await call(session, tool["name"], {})
    for resource in await session.list_all("resources"):
        await session.request("resources/read", {"uri": resource["uri"]})
    for prompt in await session.list_all("prompts"):
        await session.request("prompts/get", {"name": prompt["name"]})


async def echo_schema(session: UpstreamSession, _: Context) -> None:
    """Return the schema of the first tool to the second."""
    tools = await session.list_all("tools")
    by_name = {tool["name"]: tool for tool in tools}
    echo = by_name.pop("json_schema_echo")
    (focal,) = by_name.values()
    await call(session, echo["name"], {"schema": focal["inputSchema"]})


async def list_only(session: UpstreamSession, _: Context) -> None:
    """List the tools."""
    await session.list_all("tools")


SCENARIOS: Final[dict[str, Scenario]] = {
    "tools_call": add,
    "http-invalid-tool-headers": valid_only,
    "http-standard-headers": everything,
    "json-schema-ref-no-deref": list_only,
    "json-schema-2020-12-preservation": echo_schema,
    "initialize": list_only,
    "request-metadata": list_only,
}


async def sign_in(pending: SignIn) -> None:
    """Open the address as a browser does, and follow its redirect."""
    async with httpx2.AsyncClient(follow_redirects=False, timeout=60, trust_env=False) as browser:
        response = await browser.get(pending.url)
    pending.complete(response.headers["location"])


async def identity_assertion(context: Context, audience: str, resource: str) -> str:
    """Exchange the identity token of an enterprise for an assertion."""
    form = {
        "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
        "requested_token_type": ID_JAG,
        "audience": audience,
        "resource": resource,
        "subject_token": context["idp_id_token"],
        "subject_token_type": "urn:ietf:params:oauth:token-type:id_token",
        "client_id": context["idp_client_id"],
    }
    async with httpx2.AsyncClient(timeout=60, trust_env=False) as http:
        response = await http.post(context["idp_token_endpoint"], data=form)
    return str(response.json()["access_token"])


async def issuer_of(url: str) -> str:
    """Return the authorization server of a resource, which an enterprise configures."""
    async with httpx2.AsyncClient(timeout=60, trust_env=False) as http:
        base = str(httpx2.URL(url).copy_with(path="/"))
        for path in (
            ".well-known/oauth-protected-resource/mcp",
            ".well-known/oauth-protected-resource",
        ):
            response = await http.get(base + path)
            if response.is_success:
                return str(response.json()["authorization_servers"][0])
    raise UpstreamError(f"{url} names no authorization server.")


async def oauth_client(scenario: str, url: str, context: Context) -> OAuthClient:
    """Return the client that a scenario has registered, or one that registers itself."""
    if scenario == "auth/enterprise-managed-authorization":
        return OAuthClient(
            id=context["client_id"],
            secret=context["client_secret"],
            issuer=await issuer_of(url),
            grant="jwt_bearer",
            assertion=lambda audience, resource: identity_assertion(context, audience, resource),
        )
    if scenario.startswith("auth/client-credentials"):
        return OAuthClient(
            id=context["client_id"],
            secret=context.get("client_secret"),
            private_key=context.get("private_key_pem"),
            algorithm=context.get("signing_algorithm", "RS256"),
            issuer=await issuer_of(url),
            grant="client_credentials",
        )
    if "client_id" in context:
        return OAuthClient(
            id=context["client_id"],
            secret=context.get("client_secret"),
            issuer=context.get("issuer"),
        )
    return OAuthClient(metadata_url=METADATA_URL)


async def run(url: str) -> None:
    """Run the scenario that the environment names."""
    scenario = os.environ["MCP_CONFORMANCE_SCENARIO"]
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))
    era: Era = "auto"
    if os.environ.get("MCP_CONFORMANCE_PROTOCOL_VERSION", "") < "2026-07-28":
        era = "legacy"
    with tempfile.TemporaryDirectory() as folder:
        auth = None
        if scenario.startswith("auth/"):
            auth = OAuth(
                url,
                TokenStore(Path(folder, "tokens.json"), keyring=False),
                on_sign_in=sign_in,
                client=await oauth_client(scenario, url, context),
                sign_in_s=60,
            )
        options = ClientOptions(capabilities=CAPABILITIES, era=era)
        session = UpstreamSession(HttpTransport(url, auth=auth), options, limits=LIMITS)
        try:
            await session.open()
            await SCENARIOS.get(scenario, call_all)(session, context)
        finally:
            await session.close()


def main() -> None:
    """Run, and report an error as the suite expects it."""
    try:
        asyncio.run(run(sys.argv[1]))
    except UpstreamError as error:
        sys.exit(f"{error.code}: {error.message}")


if __name__ == "__main__":
    main()

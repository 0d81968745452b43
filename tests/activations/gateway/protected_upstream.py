"""An MCP server over HTTP that requires a sign-in, with its own authorization server."""

from __future__ import annotations

import base64
import hashlib
from typing import Any
from urllib.parse import urlencode

from http_upstream import Answer, HttpRequest, HttpUpstream, initialized, json_answer

__all__ = ("Protected", "ProtectedTools")

TOOL = {"name": "read", "inputSchema": {"type": "object"}}


class Protected:
    """A server with its own authorization server, at one address."""

    def __init__(self) -> None:
        self.upstream: HttpUpstream | None = None
        self.valid: set[str] = set()
        self.lifetime = 3600
        self.scope = "read"
        self.grants: list[str] = []
        self.challenge = ""
        self.metadata: dict[str, Any] = {}

    @property
    def url(self) -> str:
        assert self.upstream is not None
        return self.upstream.url

    async def handle(self, request: HttpRequest) -> Answer:
        path = request.path
        if path.startswith("/.well-known/oauth-protected-resource"):
            return json_answer(
                {"resource": f"{self.url}/mcp", "authorization_servers": [self.url]} | self.metadata
            )
        if path.startswith("/.well-known/oauth-authorization-server"):
            return json_answer(
                {
                    "issuer": self.url,
                    "authorization_endpoint": f"{self.url}/authorize",
                    "token_endpoint": f"{self.url}/oauth/token",
                    "registration_endpoint": f"{self.url}/register",
                    "code_challenge_methods_supported": ["S256"],
                    "response_types_supported": ["code"],
                }
            )
        if path == "/register":
            given = request.message
            reply = given | {"client_id": "registered", "token_endpoint_auth_method": "none"}
            return json_answer(reply, 201)
        if path == "/authorize":
            self.challenge = request.query["code_challenge"]
            self.scope = request.query.get("scope", self.scope)
            back = {"code": "the-code", "state": request.query["state"]}
            return Answer(302, {"Location": f"{request.query['redirect_uri']}?{urlencode(back)}"})
        if path == "/oauth/token":
            return self.token(request.form)
        if request.headers.get("authorization", "").removeprefix("Bearer ") not in self.valid:
            where = f"{self.url}/.well-known/oauth-protected-resource/mcp"
            return Answer(401, {"WWW-Authenticate": f'Bearer resource_metadata="{where}"'})
        answer = initialized(request)
        writes = answer is None and request.message["params"]["name"] == "write"
        if writes and "write" not in self.scope:
            need = 'Bearer error="insufficient_scope", scope="write"'
            return Answer(403, {"WWW-Authenticate": need})
        reply = {"content": [{"type": "text", "text": "ok"}]}
        found = {"jsonrpc": "2.0", "id": request.message.get("id"), "result": reply}
        return answer or json_answer(found)

    def token(self, form: dict[str, str]) -> Answer:
        self.grants.append(form["grant_type"])
        assert form["resource"] == f"{self.url}/mcp"
        if form["grant_type"] == "authorization_code":
            digest = hashlib.sha256(form["code_verifier"].encode()).digest()
            assert base64.urlsafe_b64encode(digest).decode().rstrip("=") == self.challenge
        elif form["refresh_token"] != f"refresh{len(self.grants) - 1}":
            return json_answer({"error": "invalid_grant"}, 400)
        number = len(self.grants)
        self.valid = {f"access{number}"}
        reply = {
            "access_token": f"access{number}",
            "token_type": "Bearer",
            "expires_in": self.lifetime,
            "refresh_token": f"refresh{number}",
            "scope": self.scope,
        }
        return json_answer(reply)

    def revoke(self) -> None:
        """Accept none of the tokens that were given out."""
        self.valid.clear()
        self.grants.append("revoked")


class ProtectedTools(Protected):
    """A server that lists one tool to those that have signed in."""

    async def handle(self, request: HttpRequest) -> Answer:
        if request.path == "/mcp" and request.message["method"] == "tools/list":
            token = request.headers.get("authorization", "").removeprefix("Bearer ")
            if token in self.valid:
                reply = {"jsonrpc": "2.0", "id": request.message["id"], "result": {"tools": [TOOL]}}
                return json_answer(reply)
        return await super().handle(request)

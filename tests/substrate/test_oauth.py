"""OAuth: exactly the tokens that the issuer has issued for this server are accepted."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from loopback_issuer import (
    KEYS,
    METADATA,
    OPENID,
    Issuer,
    certified,
    forged,
    issuing,
    part,
    private_key,
    public_jwk,
    public_pem,
    send,
    signed,
)

from plexus.principal import Principal
from substrate.security import jwks
from substrate.security.errors import Unauthenticated, Unavailable
from substrate.security.jwks import ALGORITHMS, IssuerKeys
from substrate.security.oauth import OAuth
from substrate.settings import Settings, SettingsError

pytestmark = pytest.mark.anyio

RESOURCE = "https://tools.example/mcp"
METADATA_AT = "https://tools.example/.well-known/oauth-protected-resource/mcp"
SCOPES = ("read", "bash", "arbor.write")


class Clock:
    """A clock that is advanced manually."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with issuing() as running:
        running.publish()
        yield running


@pytest.fixture
def clock() -> Clock:
    return Clock()


def oauth_of(issuer: Issuer, clock: Clock | None = None, **more: Any) -> OAuth:
    keys = IssuerKeys(issuer.url) if clock is None else IssuerKeys(issuer.url, clock)
    return OAuth(issuer.url, RESOURCE, lambda: SCOPES, keys=keys, **more)


async def refusal(oauth: OAuth, token: str) -> str:
    """Return why a token is refused, and check that the challenge says the same."""
    with pytest.raises(Unauthenticated) as refused:
        await oauth.verify(token)
    challenge = refused.value.challenge
    assert challenge is not None
    assert b'error="invalid_token"' in challenge
    assert b'error_description="%b"' % refused.value.reason.encode() in challenge
    assert b'resource_metadata="%b"' % METADATA_AT.encode() in challenge
    assert token not in f"{refused.value}{challenge!r}"
    return refused.value.reason


# --- good tokens ----------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_a_token_of_every_allowed_algorithm_is_accepted(
    issuer: Issuer, algorithm: str
) -> None:
    issuer.keys = []
    issuer.publish(algorithm)
    token = issuer.sign(issuer.claims(RESOURCE, "bash read"), algorithm)
    principal, _ = await oauth_of(issuer).verify(token)
    assert principal == Principal(f"alice@{issuer.url}")
    assert principal.scopes == frozenset({"bash", "read"})


def test_no_allowed_algorithm_is_symmetric() -> None:
    assert not any(name.startswith("HS") or name == "none" for name in ALGORITHMS)


@pytest.mark.parametrize(
    ("given_claims", "scopes"),
    [
        ({"scope": "bash  arbor.write"}, {"bash", "arbor.write"}),
        ({"scope": ["bash", "read"]}, {"bash", "read"}),
        ({"scope": None, "scp": "bash read"}, {"bash", "read"}),
        ({"scope": None, "scp": ["bash"]}, {"bash"}),
        ({"scope": "bash", "scp": ["arbor.write"]}, {"bash"}),
        ({"scope": "openid Bash api://x/bash bash*"}, {"openid"}),
        ({"scope": None}, set()),
        ({"scope": 7}, set()),
        ({"scope": {"bash": True}}, set()),
        ({"scope": ["bash", 7, None, ["read"]]}, {"bash"}),
    ],
)
async def test_scopes_are_read_from_scope_and_from_scp(
    issuer: Issuer, given_claims: dict[str, Any], scopes: set[str]
) -> None:
    principal, _ = await oauth_of(issuer).verify(
        issuer.sign(issuer.claims(RESOURCE, **given_claims))
    )
    assert principal.scopes == frozenset(scopes)
    assert principal.may("read")
    assert principal.may("bash") == ("bash" in scopes)


async def test_of_several_audiences_one_must_be_this_server(issuer: Issuer) -> None:
    oauth = oauth_of(issuer)
    good = issuer.claims(["https://other.example", RESOURCE])
    principal, _ = await oauth.verify(issuer.sign(good))
    assert principal.name.startswith("alice@")
    bad = issuer.claims(["https://other.example", "https://third.example"])
    assert await refusal(oauth, issuer.sign(bad)) == "the token is not for this server"


async def test_an_issuer_may_use_another_identifier_for_the_server(issuer: Issuer) -> None:
    oauth = oauth_of(issuer, audience="api://tools")
    assert await oauth.verify(issuer.sign(issuer.claims("api://tools")))
    await refusal(oauth, issuer.sign(issuer.claims(RESOURCE)))
    assert oauth.metadata()["resource"] == RESOURCE


async def test_an_audience_that_is_a_url_is_the_url_of_the_server(
    issuer: Issuer,
) -> None:
    public = "https://public.example/tools/mcp"
    oauth = oauth_of(issuer, audience=public)
    assert oauth.metadata()["resource"] == public
    assert await oauth.verify(issuer.sign(issuer.claims(public)))
    assert b"https://public.example/.well-known/oauth-protected-resource/tools/mcp" in (
        oauth.challenge()
    )


@pytest.mark.parametrize("header", [{}, {"typ": "JWT"}, {"typ": "at+jwt"}, {"typ": "AT+JWT"}])
async def test_the_usual_token_types_are_accepted(issuer: Issuer, header: dict[str, str]) -> None:
    assert await oauth_of(issuer).verify(signed(header, issuer.claims(RESOURCE)))


async def test_clocks_may_differ_a_little(issuer: Issuer) -> None:
    now = int(time.time())
    claims = issuer.claims(RESOURCE, exp=now - 5, nbf=now + 20, iat=now + 20)
    assert await oauth_of(issuer).verify(issuer.sign(claims))


# --- bad tokens -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"iss": "https://other.example"}, "the token is from another issuer"),
        ({"iss": None}, "the token has no iss"),
        ({"aud": "https://tools.example/mcp/"}, "the token is not for this server"),
        ({"aud": "https://tools.example"}, "the token is not for this server"),
        ({"aud": None}, "the token has no aud"),
        ({"aud": [7]}, "the token is not for this server"),
        ({"exp": 1}, "the token has expired"),
        ({"exp": None}, "the token has no exp"),
        ({"exp": "soon"}, "the token cannot be decoded"),
        ({"nbf": 2**40}, "the token is not valid yet"),
        ({"iat": 2**40}, "the token is not valid yet"),
        ({"sub": None}, "the token has no sub"),
        ({"sub": ""}, "the token has no valid sub"),
        ({"sub": "a" * 256}, "the token has no valid sub"),
        ({"sub": "a\nb"}, "the token has no valid sub"),
        ({"sub": 7}, "the token cannot be decoded"),
        ({"cnf": {"jkt": "x"}}, "the token requires proof of possession, which is not supported"),
    ],
)
async def test_a_token_with_a_wrong_claim_is_refused(
    issuer: Issuer, claims: dict[str, Any], reason: str
) -> None:
    whole = issuer.claims(RESOURCE) | claims
    given_claims = {name: value for name, value in whole.items() if value is not None}
    assert await refusal(oauth_of(issuer), signed({}, given_claims)) == reason


@pytest.mark.parametrize(
    "algorithm", ["none", "None", "NONE", "", "HS256", "HS512", "RS1", 7, None]
)
async def test_a_token_that_is_not_signed_by_the_issuers_key_is_refused(
    issuer: Issuer, algorithm: Any
) -> None:
    """Among them the oldest trick: HMAC, with the public key as the secret."""
    claims = issuer.claims(RESOURCE, "bash")
    header = {"alg": algorithm, "kid": "first", "typ": "JWT"}
    if algorithm is None:
        del header["alg"]
    oauth = oauth_of(issuer)
    for secret in (None, public_pem(private_key("RS256")), json.dumps(issuer.keys[0]).encode()):
        reason = await refusal(oauth, forged(header, claims, secret))
        assert reason == "the signature algorithm of the token is not supported"
    assert issuer.requests == []


async def test_a_symmetric_key_of_the_issuer_is_not_used(issuer: Issuer) -> None:
    secret = b"x" * 32
    issuer.keys = [{"kty": "oct", "kid": "first", "k": part(secret), "alg": "HS256"}]
    claims = issuer.claims(RESOURCE)
    await refusal(oauth_of(issuer), forged({"alg": "HS256", "kid": "first"}, claims, secret))
    await refusal(oauth_of(issuer), forged({"alg": "RS256", "kid": "first"}, claims, secret))


async def test_a_key_within_the_token_is_not_used(issuer: Issuer) -> None:
    mine = private_key("RS256", "mallory")
    jwk = public_jwk(mine, "mallory")
    token = issuer.sign(issuer.claims(RESOURCE), key=mine, kid="mallory", jwk=jwk, jku="http://x/")
    reason = await refusal(oauth_of(issuer), token)
    assert reason == "the token is signed with an unknown key"


async def test_a_changed_token_is_refused(issuer: Issuer) -> None:
    oauth = oauth_of(issuer)
    reason = "the signature of the token is invalid"
    head, _, signature = issuer.sign(issuer.claims(RESOURCE, "read")).split(".")
    more = part(issuer.claims(RESOURCE, "bash"))
    assert await refusal(oauth, f"{head}.{more}.{signature}") == reason
    _, body, _ = issuer.sign(issuer.claims(RESOURCE)).split(".")
    assert await refusal(oauth, f"{head}.{body}.{'A' * len(signature)}") == reason
    other = issuer.sign(issuer.claims(RESOURCE), key=private_key("RS256", "mallory"))
    assert await refusal(oauth, other) == reason


async def test_a_key_is_used_only_for_its_algorithm(issuer: Issuer) -> None:
    oauth = oauth_of(issuer)
    issuer.keys = []
    issuer.publish("RS256", "first", alg="RS512")
    issuer.publish("ES256", "second", use="enc")
    issuer.publish("ES384", "third", key_ops=["sign"])
    issuer.publish("ES512", "fourth", key_ops="verify")
    claims = issuer.claims(RESOURCE)
    for algorithm, name in (
        ("RS256", "first"),
        ("PS256", "first"),
        ("ES256", "second"),
        ("ES384", "third"),
        ("ES512", "fourth"),
    ):
        reason = await refusal(oauth, issuer.sign(claims, algorithm, kid=name))
        assert reason == "the token is signed with an unknown key"
    assert await oauth.verify(issuer.sign(claims, "RS512"))


async def test_a_curve_is_used_only_for_its_algorithm(issuer: Issuer) -> None:
    issuer.keys = [public_jwk(private_key("ES384"), "first")]
    token = issuer.sign(issuer.claims(RESOURCE), "ES256")
    await refusal(oauth_of(issuer), token)


async def test_a_weak_or_broken_key_is_not_used(issuer: Issuer) -> None:
    weak = private_key("RS256", "weak", 1024)
    issuer.keys = [
        public_jwk(weak, "weak"),
        {"kty": "RSA", "kid": "broken", "n": "%%%", "e": "AQAB"},
        {"kty": "EC", "crv": "P-256", "kid": "off", "x": part(b"1" * 32), "y": part(b"2" * 32)},
        {"kty": "RSA", "kid": "empty"},
        {"kty": "RSA", "kid": "typed", "n": 7, "e": 3},
        "no key at all",  # type: ignore[list-item]
    ]
    oauth = oauth_of(issuer)
    claims = issuer.claims(RESOURCE)
    await refusal(oauth, signed({"kid": "weak"}, claims, weak))
    for name in ("broken", "off", "empty", "typed"):
        algorithm = "ES256" if name == "off" else "RS256"
        reason = await refusal(oauth, issuer.sign(claims, algorithm, kid=name))
        assert reason == "the token is signed with an unknown key"


@pytest.mark.parametrize(
    "header",
    [
        {"typ": "dpop+jwt"},
        {"typ": "logout+jwt"},
        {"typ": 7},
        {"crit": ["b64"], "b64": True},
        {"crit": []},
        {"kid": 7},
        {"kid": ["first"]},
    ],
)
async def test_an_unsupported_header_is_refused(issuer: Issuer, header: dict[str, Any]) -> None:
    await refusal(oauth_of(issuer), signed(header, issuer.claims(RESOURCE)))


@pytest.mark.parametrize(
    "token",
    [
        "",
        "x",
        "..",
        "a.b.c",
        "a.b.c.d",
        "é.é.é",
        "x" * 20_000,
        f"{part(b'[' * 6000)}.{part({})}.x",
        f"{part([])}.{part({})}.x",
        f"{part(b'null')}.{part({})}.x",
        f"{part({'alg': 'RS256'})}.{part(b'no json')}.{part(b'x' * 256)}",
    ],
)
async def test_an_invalid_token_is_refused(issuer: Issuer, token: str) -> None:
    with pytest.raises(Unauthenticated):
        await oauth_of(issuer).verify(token)


# --- keys -----------------------------------------------------------------------------------------


async def test_keys_are_fetched_once(issuer: Issuer) -> None:
    oauth = oauth_of(issuer)
    token = issuer.sign(issuer.claims(RESOURCE))
    await asyncio.gather(*(oauth.verify(token) for _ in range(50)))
    assert issuer.requests == [METADATA, KEYS]


async def test_a_new_key_is_found_and_an_unknown_key_is_fetched_at_most_once_a_minute(
    issuer: Issuer, clock: Clock
) -> None:
    oauth = oauth_of(issuer, clock)
    claims = issuer.claims(RESOURCE)
    assert await oauth.verify(issuer.sign(claims))
    issuer.publish("RS256", "second")
    second = issuer.sign(claims, kid="second")
    await refusal(oauth, second)  # the keys were fetched a moment ago
    clock.now += jwks.REFETCH_S + 1
    await asyncio.gather(*(oauth.verify(second) for _ in range(20)))
    assert len(issuer.requests) == 4
    for number in range(20):
        await refusal(oauth, issuer.sign(claims, key=private_key("RS256"), kid=f"no {number}"))
    assert len(issuer.requests) == 4
    assert await oauth.verify(issuer.sign(claims))


async def test_a_key_that_was_withdrawn_is_refused_within_an_hour(
    issuer: Issuer, clock: Clock
) -> None:
    oauth = oauth_of(issuer, clock)
    token = issuer.sign(issuer.claims(RESOURCE))
    assert await oauth.verify(token)
    issuer.keys = []
    issuer.publish("RS256", "second")
    clock.now += jwks.FRESH_S + 1
    await refusal(oauth, token)


async def test_a_token_without_a_key_id_is_accepted_if_only_one_key_matches(issuer: Issuer) -> None:
    token = issuer.sign(issuer.claims(RESOURCE), kid=None)
    assert await oauth_of(issuer).verify(token)
    issuer.publish("ES256", "of another kind")
    assert await oauth_of(issuer).verify(token)
    issuer.publish("RS256", "second")
    reason = await refusal(oauth_of(issuer), token)
    assert reason == "the token is signed with an unknown key"


@pytest.mark.parametrize("path", ["", "/tenant"])
@pytest.mark.parametrize("place", ["oauth", "openid", "openid below"])
async def test_metadata_are_found_at_the_paths_of_both_standards(path: str, place: str) -> None:
    with issuing(path) as issuer:
        issuer.publish()
        places = {
            "oauth": METADATA + path,
            "openid": OPENID + path,
            "openid below": path + OPENID,
        }
        issuer.answers[METADATA + path] = lambda handler: send(handler, {}, 404)
        issuer.answers[places[place]] = lambda handler: send(handler, issuer.metadata())
        assert await oauth_of(issuer).verify(issuer.sign(issuer.claims(RESOURCE)))
        assert issuer.requests[-2:] == [places[place], KEYS]


@pytest.mark.parametrize("trusted", [True, False])
async def test_tls_requires_a_trusted_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trusted: bool
) -> None:
    tls, authority = certified(tmp_path)
    if trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    with issuing(tls=tls) as issuer:
        issuer.publish()
        token = issuer.sign(issuer.claims(RESOURCE))
        if trusted:
            assert await oauth_of(issuer).verify(token)
        else:
            with pytest.raises(Unavailable):
                await oauth_of(issuer).verify(token)
            assert issuer.requests == []


async def test_an_https_issuer_cannot_serve_keys_over_http(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, issuer: Issuer
) -> None:
    tls, authority = certified(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    with issuing(tls=tls) as secure:
        elsewhere = secure.metadata(jwks_uri=issuer.host + KEYS)
        secure.answers[METADATA] = lambda handler: send(handler, elsewhere)
        with pytest.raises(Unavailable):
            await oauth_of(secure).verify(secure.sign(secure.claims(RESOURCE)))
    assert issuer.requests == []


async def test_metadata_of_another_issuer_are_not_used(issuer: Issuer) -> None:
    other = issuer.metadata(issuer="https://other.example")
    issuer.answers[METADATA] = lambda handler: send(handler, other)
    with pytest.raises(Unavailable):
        await oauth_of(issuer).verify(issuer.sign(issuer.claims(RESOURCE)))
    assert KEYS not in issuer.requests


def drip(handler: BaseHTTPRequestHandler) -> None:
    """Respond indefinitely, a byte at a time."""
    handler.close_connection = True
    try:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        for _ in range(200):
            handler.wfile.write(b" ")
            time.sleep(0.05)
    except OSError:
        pass


def flood(handler: BaseHTTPRequestHandler) -> None:
    """Respond with far too much data, without announcing its size."""
    handler.close_connection = True
    try:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
        for _ in range(200):
            handler.wfile.write(b" " * 64 * 1024)
    except OSError:
        pass


def garbage(handler: BaseHTTPRequestHandler) -> None:
    handler.close_connection = True
    handler.wfile.write(b"\x00\xff" * 100)


def nothing(handler: BaseHTTPRequestHandler) -> None:
    handler.close_connection = True


BAD_ANSWERS = {
    "slow": drip,
    "huge": flood,
    "garbage": garbage,
    "nothing": nothing,
    "an error": lambda handler: send(handler, {"keys": []}, 500),
    "no JSON": lambda handler: send(handler, b"<html>"),
    "no object": lambda handler: send(handler, [1, 2]),
    "too deep": lambda handler: send(handler, b"[" * 5000 + b"]" * 5000),
    "too many": lambda handler: send(handler, b"[" + b"[]," * 60_000 + b"[]]"),
    "a redirect": lambda handler: send(handler, {}, 302, Location="/elsewhere"),
    "a lasting redirect": lambda handler: send(handler, {}, 308, Location="/elsewhere"),
}


@pytest.mark.parametrize("place", [METADATA, KEYS])
@pytest.mark.parametrize("kind", BAD_ANSWERS)
async def test_a_misbehaving_issuer_fails_within_limits(
    issuer: Issuer, kind: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jwks, "FETCH_S", 1.0)
    issuer.answers[place] = BAD_ANSWERS[kind]
    issuer.answers["/elsewhere"] = lambda handler: send(handler, issuer.metadata())
    token = issuer.sign(issuer.claims(RESOURCE))
    oauth = oauth_of(issuer)
    async with asyncio.timeout(20):
        with pytest.raises(Unavailable) as refused:
            await oauth.verify(token)
    assert refused.value.status == 503
    assert "/elsewhere" not in issuer.requests
    asked = len(issuer.requests)
    with pytest.raises(Unavailable):
        await oauth.verify(token)
    assert len(issuer.requests) == asked, "it is left alone for a moment"


@pytest.mark.parametrize(
    "address", ["ftp://127.0.0.1/keys", "http://192.0.2.1/keys", "file:///etc/passwd", "", 7, None]
)
async def test_keys_are_fetched_only_from_allowed_urls(issuer: Issuer, address: Any) -> None:
    metadata = issuer.metadata(jwks_uri=address)
    issuer.answers[METADATA] = lambda handler: send(handler, metadata)
    with pytest.raises(Unavailable):
        await oauth_of(issuer).verify(issuer.sign(issuer.claims(RESOURCE)))


def test_a_remote_issuer_cannot_redirect_us_to_this_machine() -> None:
    with pytest.raises(ValueError, match="https"):
        jwks.parse_address("http://127.0.0.1/keys", plain=False)


async def test_keys_that_are_known_are_used_while_the_issuer_is_down(clock: Clock) -> None:
    with issuing() as issuer:
        issuer.publish()
        oauth = oauth_of(issuer, clock)
        token = issuer.sign(issuer.claims(RESOURCE))
        assert await oauth.verify(token)
    clock.now += jwks.FRESH_S + 1
    assert await oauth.verify(token)
    await refusal(oauth, issuer.sign(issuer.claims(RESOURCE), kid="second"))
    clock.now += jwks.KEEP_S
    with pytest.raises(Unavailable):
        await oauth.verify(token)


async def test_an_issuer_that_was_down_is_used_again_when_it_is_back(
    issuer: Issuer, clock: Clock
) -> None:
    issuer.answers[METADATA] = nothing
    oauth = oauth_of(issuer, clock)
    token = issuer.sign(issuer.claims(RESOURCE))
    with pytest.raises(Unavailable):
        await oauth.verify(token)
    del issuer.answers[METADATA]
    clock.now += jwks.RETRY_S + 1
    assert await oauth.verify(token)


async def test_tokens_with_a_known_key_do_not_wait_for_a_slow_issuer(
    issuer: Issuer, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    oauth = oauth_of(issuer, clock)
    token = issuer.sign(issuer.claims(RESOURCE))
    assert await oauth.verify(token)
    clock.now += jwks.REFETCH_S + 1
    monkeypatch.setattr(jwks, "FETCH_S", 3.0)
    loop, begun = asyncio.get_running_loop(), asyncio.Event()

    def begin(handler: BaseHTTPRequestHandler) -> None:
        loop.call_soon_threadsafe(begun.set)
        drip(handler)

    issuer.answers[METADATA] = begin
    unknown = asyncio.create_task(refusal(oauth, issuer.sign(issuer.claims(RESOURCE), kid="new")))
    async with asyncio.timeout(10):
        await begun.wait()
    assert await oauth.verify(token)
    assert not unknown.done()
    await unknown


# --- metadata and challenges ----------------------------------------------------------------------


def test_the_metadata_contain_what_a_client_needs(issuer: Issuer) -> None:
    oauth = oauth_of(issuer)
    assert oauth.metadata() == {
        "resource": RESOURCE,
        "authorization_servers": [issuer.url],
        "scopes_supported": ["arbor.write", "bash", "read"],
        "bearer_methods_supported": ["header"],
    }
    root = "/.well-known/oauth-protected-resource"
    assert oauth.metadata_paths == {root, f"{root}/mcp"}
    assert urlsplit(METADATA_AT).path in oauth.metadata_paths


def test_a_server_below_a_folder_has_its_metadata_there_too(issuer: Issuer) -> None:
    oauth = OAuth(issuer.url, "https://tools.example/a/mcp", lambda: SCOPES)
    root = "/.well-known/oauth-protected-resource"
    assert oauth.metadata_paths == {root, f"{root}/mcp", f"{root}/a/mcp"}
    assert f'resource_metadata="https://tools.example{root}/a/mcp"'.encode() in oauth.challenge()


def test_challenges_name_the_metadata_and_the_scopes(issuer: Issuer) -> None:
    oauth = oauth_of(issuer)
    where = f'resource_metadata="{METADATA_AT}"'.encode()
    assert oauth.challenge() == b'Bearer scope="arbor.write bash read", ' + where
    assert oauth.challenge("bash", "insufficient_scope") == (
        b'Bearer error="insufficient_scope", scope="bash", ' + where
    )


# --- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    [
        "http://login.example",
        "http://192.168.0.1",
        "http://127.0.0.1.evil.example",
        "http://localhost.evil.example",
        "ftp://127.0.0.1",
        "login.example",
        "https://",
        "https://user@login.example",
        "https://login.example/#x",
        "https://login.example/?x=1",
        "https://login.example:99999",
        "",
    ],
)
def test_an_issuer_that_cannot_be_trusted_is_refused_at_the_start(address: str) -> None:
    with pytest.raises(SettingsError, match="oauth_issuer"):
        OAuth(address, RESOURCE, lambda: SCOPES)


@pytest.mark.parametrize(
    "address",
    ["https://login.example/tenant", "http://127.0.0.1:1", "http://localhost:1", "http://[::1]:1"],
)
def test_an_issuer_is_remote_by_tls_or_on_this_machine(address: str) -> None:
    assert OAuth(address, RESOURCE, lambda: SCOPES).issuer == address


@pytest.mark.parametrize(
    "address", ["api://tools", "tools.example/mcp", "https:///mcp", "https://é/"]
)
def test_the_resource_must_be_a_url(address: str) -> None:
    with pytest.raises(SettingsError, match="oauth_audience"):
        OAuth("https://login.example", address, lambda: SCOPES)


def test_without_the_extra_the_error_names_the_missing_packages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "jwt", None)
    with pytest.raises(SettingsError, match="plexus-substrate\\[oauth\\]"):
        OAuth("https://login.example", RESOURCE, lambda: SCOPES)


def test_no_issuer_is_trusted_unless_configured() -> None:
    assert Settings().oauth_issuer == ""
    assert Settings().oauth_audience == ""


def test_without_an_issuer_its_packages_are_not_imported() -> None:
    code = "import sys, substrate.server.serve; print({'jwt', 'cryptography'} & set(sys.modules))"
    root = Path(__file__).parents[2]
    ran = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, timeout=30)
    assert ran.stdout.strip() == b"set()", ran.stderr

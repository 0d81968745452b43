"""An OAuth issuer on loopback, with real keys and HTTP, that can misbehave in every way."""

from __future__ import annotations

import base64
import datetime
import hashlib
import hmac
import ipaddress
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import jwt
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

METADATA = "/.well-known/oauth-authorization-server"
OPENID = "/.well-known/openid-configuration"
KEYS = "/keys"
TOKEN = "/token"
#: The client that may request tokens, and its secret.
CLIENT = ("robot", "robot's secret")

PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey
Answer = Callable[[BaseHTTPRequestHandler], None]

CURVES = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}


def private_key(algorithm: str, name: str = "first", bits: int = 2048) -> PrivateKey:
    """Return the key of this name for this algorithm."""
    return _made_key(family(algorithm), name, bits)


@cache  # generating an RSA key is slow
def _made_key(algorithm: str, _name: str, bits: int) -> PrivateKey:
    if algorithm in CURVES:
        return ec.generate_private_key(CURVES[algorithm])
    if algorithm == "EdDSA":
        return ed25519.Ed25519PrivateKey.generate()
    return rsa.generate_private_key(65537, bits)


def family(algorithm: str) -> str:
    """Return the family of an algorithm; algorithms of one family can share a key."""
    return "RSA" if algorithm[:2] in ("RS", "PS") else algorithm


def public_jwk(key: PrivateKey, name: str | None, **more: Any) -> dict[str, Any]:
    """Return the public key as an entry of a JWK set."""
    if isinstance(key, rsa.RSAPrivateKey):
        jwk = RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
    elif isinstance(key, ec.EllipticCurvePrivateKey):
        jwk = ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
    else:
        jwk = OKPAlgorithm.to_jwk(key.public_key(), as_dict=True)
    jwk.pop("key_ops", None)
    return jwk | ({} if name is None else {"kid": name}) | more


def public_pem(key: PrivateKey) -> bytes:
    """Return the public key as PEM."""
    return key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def part(value: Any) -> str:
    """Encode one part of a token."""
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def forged(header: dict[str, Any], claims: dict[str, Any], secret: bytes | None = None) -> str:
    """Return a token with any header, signed with the secret or unsigned."""
    payload = f"{part(header)}.{part(claims)}"
    mac = b"" if secret is None else hmac.digest(secret, payload.encode(), hashlib.sha256)
    return f"{payload}.{part(mac) if mac else ''}"


def signed(header: dict[str, Any], claims: Any, key: PrivateKey | None = None) -> str:
    """Return a token with any header and any claims, signed with RS256."""
    used = private_key("RS256") if key is None else key
    assert isinstance(used, rsa.RSAPrivateKey)
    payload = f"{part({'alg': 'RS256', 'kid': 'first'} | header)}.{part(claims)}"
    signature = used.sign(payload.encode(), padding.PKCS1v15(), hashes.SHA256())
    return f"{payload}.{part(signature)}"


class Issuer:
    """A running issuer."""

    def __init__(self, path: str = "", tls: ssl.SSLContext | None = None) -> None:
        self.requests: list[str] = []
        #: The forms posted to the token endpoint.
        self.asked: list[dict[str, str]] = []
        #: Responses that replace the usual ones, by path.
        self.answers: dict[str, Answer] = {}
        self.keys: list[dict[str, Any]] = []
        #: The scopes that the client may request.
        self.grants: frozenset[str] = frozenset()
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                issuer.requests.append(self.path)
                answer = issuer.answers.get(self.path)
                if answer is not None:
                    answer(self)
                elif self.path == METADATA + path:
                    send(self, issuer.metadata())
                elif self.path == KEYS:
                    send(self, {"keys": issuer.keys})
                else:
                    send(self, {"error": "not here"}, 404)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                form = {key: values[-1] for key, values in parse_qs(body.decode()).items()}
                send(self, *issuer.grant(form, self.headers["Authorization"] or ""))

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as above
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if tls is not None:
            self.server.socket = tls.wrap_socket(self.server.socket, server_side=True)
        scheme = "http" if tls is None else "https"
        self.host = f"{scheme}://127.0.0.1:{self.server.server_port}"
        self.url = self.host + path

    def metadata(self, **more: Any) -> dict[str, Any]:
        return {
            "issuer": self.url,
            "jwks_uri": self.host + KEYS,
            "authorization_endpoint": self.host + "/authorize",
            "token_endpoint": self.host + TOKEN,
            "response_types_supported": ["code"],
            "grant_types_supported": ["client_credentials"],
            "token_endpoint_auth_methods_supported": ["client_secret_basic"],
        } | more

    def publish(self, algorithm: str = "RS256", name: str | None = "first", **more: Any) -> None:
        """Add a key to the published JWK set."""
        self.keys.append(public_jwk(private_key(algorithm, name or "first"), name, **more))

    def sign(
        self,
        claims: dict[str, Any],
        algorithm: str = "RS256",
        key: PrivateKey | None = None,
        **header: Any,
    ) -> str:
        """Return a token with these claims."""
        name = header.get("kid", "first")
        used = private_key(algorithm, name or "first") if key is None else key
        more = {field: value for field, value in ({"kid": "first"} | header).items() if value}
        return jwt.encode(claims, used, algorithm, headers=more)

    def claims(self, audience: str | list[str], scope: str = "read", **more: Any) -> dict[str, Any]:
        """Return the claims of a valid token; claims that are None are omitted."""
        now = int(time.time())
        good = {
            "iss": self.url,
            "aud": audience,
            "sub": "alice",
            "scope": scope,
            "iat": now,
            "nbf": now,
            "exp": now + 300,
        }
        return {name: value for name, value in (good | more).items() if value is not None}

    def grant(self, form: dict[str, str], authorization: str) -> tuple[dict[str, Any], int]:
        """Return the token endpoint's response, with the requested scopes the client may have."""
        self.asked.append(form)
        given = base64.b64decode(authorization.removeprefix("Basic ")).decode().replace("+", " ")
        if parse_qs(f"x={given}")["x"] != [f"{CLIENT[0]}:{CLIENT[1]}"]:
            return {"error": "invalid_client"}, 401
        scopes = [each for each in form.get("scope", "").split() if each in self.grants]
        claims = self.claims(form["resource"], " ".join(scopes), sub=CLIENT[0])
        return {
            "access_token": self.sign(claims),
            "token_type": "Bearer",
            "expires_in": 300,
            "scope": " ".join(scopes),
        }, 200


def send(handler: BaseHTTPRequestHandler, value: Any, status: int = 200, **headers: str) -> None:
    """Send JSON, or these bytes."""
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    handler.send_response(status)
    for name, text in ({"Content-Length": str(len(body))} | headers).items():
        handler.send_header(name, text)
    handler.end_headers()
    handler.wfile.write(body)


def certified(folder: Path) -> tuple[ssl.SSLContext, Path]:
    """Return a TLS context for 127.0.0.1, and the file with its certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "loopback issuer")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    trusted, private = folder / "trusted.pem", folder / "private.pem"
    trusted.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(trusted, private)
    return tls, trusted


@contextmanager
def issuing(path: str = "", tls: ssl.SSLContext | None = None) -> Iterator[Issuer]:
    """Run an issuer for the duration of the block."""
    issuer = Issuer(path, tls)
    thread = threading.Thread(target=issuer.server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield issuer
    finally:
        issuer.server.shutdown()
        issuer.server.server_close()
        thread.join(5)

"""An OAuth issuer on loopback: real keys, real HTTP, and every way to misbehave."""

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
#: The one client that may ask for tokens, and its secret.
CLIENT = ("robot", "robot's secret")

PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey
Answer = Callable[[BaseHTTPRequestHandler], None]

CURVES = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}


def private_key(algorithm: str, name: str = "first", bits: int = 2048) -> PrivateKey:
    """The key of this name for this algorithm."""
    return _made_key(family(algorithm), name, bits)


@cache  # making one for RSA takes a while
def _made_key(algorithm: str, _name: str, bits: int) -> PrivateKey:
    if algorithm in CURVES:
        return ec.generate_private_key(CURVES[algorithm])
    if algorithm == "EdDSA":
        return ed25519.Ed25519PrivateKey.generate()
    return rsa.generate_private_key(65537, bits)


def family(algorithm: str) -> str:
    """Algorithms that may share a key."""
    return "RSA" if algorithm[:2] in ("RS", "PS") else algorithm


def public_jwk(key: PrivateKey, name: str | None, **more: Any) -> dict[str, Any]:
    """The public half, as a set of keys has it."""
    if isinstance(key, rsa.RSAPrivateKey):
        jwk = RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
    elif isinstance(key, ec.EllipticCurvePrivateKey):
        jwk = ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
    else:
        jwk = OKPAlgorithm.to_jwk(key.public_key(), as_dict=True)
    jwk.pop("key_ops", None)
    return jwk | ({} if name is None else {"kid": name}) | more


def public_pem(key: PrivateKey) -> bytes:
    """The public half as text, as everybody can have it."""
    return key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def part(value: Any) -> str:
    """One part of a token."""
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def forged(header: dict[str, Any], claims: dict[str, Any], secret: bytes | None = None) -> str:
    """A token with any header; signed with the secret, or not at all."""
    said = f"{part(header)}.{part(claims)}"
    mac = b"" if secret is None else hmac.digest(secret, said.encode(), hashlib.sha256)
    return f"{said}.{part(mac) if mac else ''}"


def signed(header: dict[str, Any], claims: Any, key: PrivateKey | None = None) -> str:
    """A token with any header and any claims, signed as RS256 has it."""
    used = private_key("RS256") if key is None else key
    assert isinstance(used, rsa.RSAPrivateKey)
    said = f"{part({'alg': 'RS256', 'kid': 'first'} | header)}.{part(claims)}"
    signature = used.sign(said.encode(), padding.PKCS1v15(), hashes.SHA256())
    return f"{said}.{part(signature)}"


class Issuer:
    """The issuer, while it is running."""

    def __init__(self, path: str = "", tls: ssl.SSLContext | None = None) -> None:
        self.requests: list[str] = []
        #: What is asked for at the token endpoint.
        self.asked: list[dict[str, str]] = []
        #: Instead of the usual answer, by path.
        self.answers: dict[str, Answer] = {}
        self.keys: list[dict[str, Any]] = []
        #: Which scopes the client may have.
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
        """Add a key to those that everybody can fetch."""
        self.keys.append(public_jwk(private_key(algorithm, name or "first"), name, **more))

    def sign(
        self,
        claims: dict[str, Any],
        algorithm: str = "RS256",
        key: PrivateKey | None = None,
        **header: Any,
    ) -> str:
        """A token with these claims."""
        name = header.get("kid", "first")
        used = private_key(algorithm, name or "first") if key is None else key
        more = {field: value for field, value in ({"kid": "first"} | header).items() if value}
        return jwt.encode(claims, used, algorithm, headers=more)

    def claims(self, audience: str | list[str], scope: str = "read", **more: Any) -> dict[str, Any]:
        """What a good token says; a claim that is None is left out."""
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
        """The answer of the token endpoint: as many of the scopes as the client may have."""
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
    """Answer with JSON, or with these bytes."""
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    handler.send_response(status)
    for name, text in ({"Content-Length": str(len(body))} | headers).items():
        handler.send_header(name, text)
    handler.end_headers()
    handler.wfile.write(body)


def certified(folder: Path) -> tuple[ssl.SSLContext, Path]:
    """TLS for 127.0.0.1, and the file that whoever trusts it has to have."""
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
    """An issuer for as long as the block lasts."""
    issuer = Issuer(path, tls)
    thread = threading.Thread(target=issuer.server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield issuer
    finally:
        issuer.server.shutdown()
        issuer.server.server_close()
        thread.join(5)

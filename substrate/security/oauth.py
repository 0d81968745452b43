"""OAuth 2.1: this server as the protected resource of an issuer, as MCP's revisions have it.

A token is taken if the issuer signed it, for this server, and it is in force. Nothing of it is
kept or sent on. PyJWT is imported only where an issuer is configured: extra `oauth`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from plexus.principal import Principal, is_scope
from substrate.security.errors import Unauthenticated, Unavailable
from substrate.security.jwks import ALGORITHMS, IssuerKeys, IssuerUnreachable, checked_address
from substrate.security.tokens import credential_of, digest_of
from substrate.settings import SettingsError

if TYPE_CHECKING:  # the package is imported when an issuer is configured
    from jwt import PyJWK

__all__ = ("OAuth",)

#: RFC 9728: what stands before the path of a resource in the address of its metadata.
WELL_KNOWN: Final = "/.well-known/oauth-protected-resource"
MCP: Final = "/mcp"

#: How far the issuer's clock may be from ours.
LEEWAY_S: Final = 30
#: A token is in a header, and headers are small.
TOKEN_CHARS: Final = 16 * 1024
#: OpenID bounds a subject like this.
SUBJECT_CHARS: Final = 255
#: More are read from no token.
SCOPES: Final = 64
#: What a token may say that it is: RFC 9068 has `at+jwt`, and many issuers say less.
TYPES: Final = frozenset({"jwt", "at+jwt", "application/at+jwt"})
#: What must be in a token.
REQUIRED: Final = ("exp", "iss", "aud", "sub")
UNREACHABLE: Final = "the issuer of tokens cannot be reached; try again later"


class OAuth:
    """Tokens of one issuer, for this server."""

    def __init__(
        self,
        issuer: str,
        resource: str,
        scopes: Callable[[], Iterable[str]],
        *,
        audience: str | None = None,
        keys: IssuerKeys | None = None,
    ) -> None:
        """Take tokens of `issuer` for `audience`. That is the address by which clients know this
        server; an issuer that calls it otherwise has clients know it by `resource`. Raises
        SettingsError."""
        self._audience = audience or resource
        if self._audience.startswith(("http://", "https://")):
            resource = self._audience
        _check(issuer, resource)
        self.issuer = issuer
        self.resource = resource
        self._scopes = scopes
        self._keys = IssuerKeys(issuer) if keys is None else keys
        address = urlsplit(resource)
        path = address.path.rstrip("/")
        self._metadata_at = f"{address.scheme}://{address.netloc}{WELL_KNOWN}{path}"
        #: Where the metadata are served: at the root and at the endpoint's own path, which is
        #: another if a proxy has the server below some folder.
        self.metadata_paths = frozenset({WELL_KNOWN, WELL_KNOWN + MCP, WELL_KNOWN + path})

    async def verify(self, bearer: str) -> tuple[Principal, float]:
        """Return whose token this is, and when it ends in seconds since the epoch.

        Raises Unauthenticated for one that is not accepted, and Unavailable if the issuer cannot
        be asked for its keys.
        """
        from jwt import PyJWTError, decode

        try:
            name, algorithm = _read_header(bearer)
            claims = decode(
                bearer,
                await self._key(name, algorithm),
                algorithms=[algorithm],
                audience=self._audience,
                issuer=self.issuer,
                leeway=LEEWAY_S,
                options={"require": [*REQUIRED]},
            )
            return self._principal(claims), float(claims["exp"]) + LEEWAY_S
        except _Refused as refused:
            raise self._unauthenticated(str(refused)) from None
        except (PyJWTError, RecursionError) as error:
            raise self._unauthenticated(_reason(error)) from None
        except IssuerUnreachable as error:
            raise Unavailable(UNREACHABLE) from error

    def _principal(self, claims: Mapping[str, Any]) -> Principal:
        """Who the token is about; raises _Refused. Tokens for the same subject and client are one
        credential, whatever their scopes: clients refresh them, and ask for more scopes, while
        they have something open."""
        name = f"{_subject(claims)}@{self.issuer}"
        client = claims.get("client_id", claims.get("azp"))
        login = credential_of(digest_of(f"client {client}"), name, None)
        return Principal(name, _scopes(claims), login)

    async def _key(self, name: str | None, algorithm: str) -> PyJWK:
        key = await self._keys.find(name, algorithm)
        if key is None:
            raise _Refused("the token is signed with a key that the issuer does not have")
        return key

    def metadata(self) -> dict[str, Any]:
        """RFC 9728: what a client has to know to get a token."""
        return {
            "resource": self.resource,
            "authorization_servers": [self.issuer],
            "scopes_supported": sorted(set(self._scopes())),
            "bearer_methods_supported": ["header"],
        }

    def challenge(
        self, scope: str | None = None, error: str | None = None, description: str | None = None
    ) -> bytes:
        """The value of WWW-Authenticate: where to get a token, for what, and what was wrong.
        Without a scope it names every one: what is listed depends on the scopes that a client
        has, so it could not learn later what else there is to ask for."""
        wanted = " ".join(sorted(set(self._scopes()))) if scope is None else scope
        fields = {
            "error": error,
            "error_description": description,
            "scope": wanted,
            "resource_metadata": self._metadata_at,
        }
        said = ", ".join(f'{name}="{value}"' for name, value in fields.items() if value)
        return f"Bearer {said}".encode("ascii")

    def _unauthenticated(self, reason: str) -> Unauthenticated:
        return Unauthenticated(reason, self.challenge(None, "invalid_token", reason))


class _Refused(Exception):
    """A token is not taken; the message says why, and is fit for a header."""


def _check(issuer: str, resource: str) -> None:
    try:
        query = checked_address(issuer, plain=True).query
    except ValueError as error:
        raise SettingsError(f"oauth_issuer cannot be {issuer!r}: {error}.") from error
    if query:
        raise SettingsError(f"oauth_issuer cannot be {issuer!r}: it must have no query.")
    address = urlsplit(resource)
    if address.scheme not in ("http", "https") or not address.hostname or not resource.isascii():
        raise SettingsError(f"oauth_audience: {resource!r} is no address of a server.")
    try:
        import jwt.algorithms
    except ImportError:
        installed = False
    else:
        installed = jwt.algorithms.has_crypto
    if not installed:
        raise SettingsError(
            "oauth_issuer needs PyJWT and cryptography: pip install 'plexus-substrate[oauth]'."
        )


def _read_header(bearer: str) -> tuple[str | None, str]:
    """The name of the key and the algorithm, as the token has them; raises _Refused."""
    from jwt import get_unverified_header

    if len(bearer) > TOKEN_CHARS:
        raise _Refused("the token is too long")
    header = get_unverified_header(bearer)
    name, algorithm, kind = header.get("kid"), header.get("alg"), header.get("typ", "jwt")
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        raise _Refused("the token is not signed in a way that is taken here")
    if not isinstance(kind, str) or kind.lower() not in TYPES:
        raise _Refused("the token is no access token")
    if "crit" in header or not isinstance(name, str | None):
        raise _Refused("the token has a header that is not understood here")
    return name, algorithm


def _subject(claims: Mapping[str, Any]) -> str:
    """Whom the token is about; raises _Refused."""
    if "cnf" in claims:
        # RFC 9449 and RFC 8705: it counts only with a proof that is not asked for here.
        raise _Refused("the token is bound to a key of its owner")
    subject: str = claims["sub"]
    if not subject or len(subject) > SUBJECT_CHARS or not subject.isprintable():
        raise _Refused("the token has no usable sub")
    return subject


def _scopes(claims: Mapping[str, Any]) -> frozenset[str]:
    """What the token allows, as `scope` (RFC 9068) or `scp` has it: a text with spaces, or a list.
    Words that no scope of ours could be mean something to somebody else."""
    said = claims.get("scope", claims.get("scp", ""))
    words = said.split(" ") if isinstance(said, str) else said if isinstance(said, list) else []
    return frozenset([word for word in words if is_scope(word)][:SCOPES])


def _reason(error: Exception) -> str:
    import jwt

    reasons: dict[type[Exception], str] = {
        jwt.ExpiredSignatureError: "the token has expired",
        jwt.ImmatureSignatureError: "the token is not in force yet",
        jwt.InvalidAudienceError: "the token is not for this server",
        jwt.InvalidIssuerError: "the token is of another issuer",
        jwt.InvalidSignatureError: "the signature is wrong",
    }
    if isinstance(error, jwt.MissingRequiredClaimError):
        return f"the token has no {error.claim}"
    return reasons.get(type(error), "the token cannot be read")

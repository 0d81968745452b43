"""OAuth 2.1: this server as the protected resource of an issuer, as specified by MCP.

A token is accepted if the issuer signed it for this server and it is valid now. It is neither
stored nor forwarded. PyJWT is imported only if an issuer is configured: extra `oauth`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from plexus.principal import Principal, is_scope
from substrate.security.errors import Unauthenticated, Unavailable
from substrate.security.jwks import ALGORITHMS, IssuerKeys, IssuerUnreachable, parse_address
from substrate.security.tokens import CredentialKind, credential_of, digest_of
from substrate.settings import SettingsError

if TYPE_CHECKING:  # the package is imported when an issuer is configured
    from jwt import PyJWK

__all__ = ("OAuth",)

#: RFC 9728: prefix of the metadata path of a resource.
WELL_KNOWN: Final = "/.well-known/oauth-protected-resource"
MCP: Final = "/mcp"

#: Maximum clock skew of the issuer, in seconds.
LEEWAY_S: Final = 30
#: Maximum length of a token: it is sent in a header, and headers are small.
TOKEN_CHARS: Final = 16 * 1024
#: Maximum length of a subject, as in OpenID.
SUBJECT_CHARS: Final = 255
#: Maximum number of scopes read from a token.
SCOPES: Final = 64
#: Accepted token types: RFC 9068 has `at+jwt`, and many issuers use a generic one.
TYPES: Final = frozenset({"jwt", "at+jwt", "application/at+jwt"})
#: Required claims.
REQUIRED: Final = ("exp", "iss", "aud", "sub")
UNREACHABLE: Final = "the OAuth issuer cannot be reached; try again later"


class OAuth:
    """Verifier of one issuer's tokens for this server."""

    def __init__(
        self,
        issuer: str,
        resource: str,
        scopes: Callable[[], Iterable[str]],
        *,
        audience: str | None = None,
        keys: IssuerKeys | None = None,
    ) -> None:
        """Accept tokens of `issuer` for `audience`. Raises SettingsError.

        The audience is the URL of this server. If the issuer uses another identifier, clients get
        the URL from `resource`.
        """
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
        #: Paths of the metadata: at the root and at the endpoint's own path, which differs if a
        #: proxy serves the server below a folder.
        self.metadata_paths = frozenset({WELL_KNOWN, WELL_KNOWN + MCP, WELL_KNOWN + path})

    async def verify(self, bearer: str) -> tuple[Principal, float]:
        """Return the token's principal, and its expiry in seconds since the epoch.

        Raises Unauthenticated for a token that is not accepted, and Unavailable if the issuer's
        keys cannot be fetched.
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
        """Return the principal of the token. Raises _Refused.

        Tokens for the same subject and client are one credential, whatever their scopes: clients
        refresh them, and request more scopes, while they have something open.
        """
        name = f"{_subject(claims)}@{self.issuer}"
        client = claims.get("client_id", claims.get("azp"))
        login = credential_of(CredentialKind.LOGIN, digest_of(f"client {client}"), name, None)
        return Principal(name, _scopes(claims), login)

    async def _key(self, name: str | None, algorithm: str) -> PyJWK:
        key = await self._keys.find(name, algorithm)
        if key is None:
            raise _Refused("the token is signed with an unknown key")
        return key

    def metadata(self) -> dict[str, Any]:
        """Return the metadata of RFC 9728, which a client needs to get a token."""
        return {
            "resource": self.resource,
            "authorization_servers": [self.issuer],
            "scopes_supported": sorted(set(self._scopes())),
            "bearer_methods_supported": ["header"],
        }

    def challenge(
        self, scope: str | None = None, error: str | None = None, description: str | None = None
    ) -> bytes:
        """Return the value of WWW-Authenticate: where to get a token, for what, and what was wrong.

        Without a scope it names all of them: listings depend on the scopes that a client has, so it
        could not discover the others later.
        """
        requested = " ".join(sorted(set(self._scopes()))) if scope is None else scope
        fields = {
            "error": error,
            "error_description": description,
            "scope": requested,
            "resource_metadata": self._metadata_at,
        }
        parameters = ", ".join(f'{name}="{value}"' for name, value in fields.items() if value)
        return f"Bearer {parameters}".encode("ascii")

    def _unauthenticated(self, reason: str) -> Unauthenticated:
        return Unauthenticated(reason, self.challenge(None, "invalid_token", reason))


class _Refused(Exception):
    """A token is refused. The message says why, and is safe in a header."""


def _check(issuer: str, resource: str) -> None:
    try:
        query = parse_address(issuer, plain=True).query
    except ValueError as error:
        raise SettingsError(f"oauth_issuer cannot be {issuer!r}: {error}.") from error
    if query:
        raise SettingsError(f"oauth_issuer cannot be {issuer!r}: it must have no query.")
    address = urlsplit(resource)
    if address.scheme not in ("http", "https") or not address.hostname or not resource.isascii():
        raise SettingsError(f"oauth_audience: {resource!r} is not the URL of a server.")
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
    """Return the key id and the algorithm of the token. Raises _Refused."""
    from jwt import get_unverified_header

    if len(bearer) > TOKEN_CHARS:
        raise _Refused("the token is too long")
    header = get_unverified_header(bearer)
    name, algorithm, kind = header.get("kid"), header.get("alg"), header.get("typ", "jwt")
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        raise _Refused("the signature algorithm of the token is not supported")
    if not isinstance(kind, str) or kind.lower() not in TYPES:
        raise _Refused("the token is not an access token")
    if "crit" in header or not isinstance(name, str | None):
        raise _Refused("the token has an unsupported header")
    return name, algorithm


def _subject(claims: Mapping[str, Any]) -> str:
    """Return the subject of the token. Raises _Refused."""
    if "cnf" in claims:
        # RFC 9449 and RFC 8705: it is valid only with a proof of possession, which is not
        # supported.
        raise _Refused("the token requires proof of possession, which is not supported")
    subject: str = claims["sub"]
    if not subject or len(subject) > SUBJECT_CHARS or not subject.isprintable():
        raise _Refused("the token has no valid sub")
    return subject


def _scopes(claims: Mapping[str, Any]) -> frozenset[str]:
    """Return the scopes of the token, from `scope` (RFC 9068) or `scp`: a string or a list.

    Words that are not valid scopes here are ignored: they are meant for other servers.
    """
    claim = claims.get("scope", claims.get("scp", ""))
    words = claim.split(" ") if isinstance(claim, str) else claim if isinstance(claim, list) else []
    return frozenset([word for word in words if is_scope(word)][:SCOPES])


def _reason(error: Exception) -> str:
    import jwt

    reasons: dict[type[Exception], str] = {
        jwt.ExpiredSignatureError: "the token has expired",
        jwt.ImmatureSignatureError: "the token is not valid yet",
        jwt.InvalidAudienceError: "the token is not for this server",
        jwt.InvalidIssuerError: "the token is from another issuer",
        jwt.InvalidSignatureError: "the signature of the token is invalid",
    }
    if isinstance(error, jwt.MissingRequiredClaimError):
        return f"the token has no {error.claim}"
    return reasons.get(type(error), "the token cannot be decoded")

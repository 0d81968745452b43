"""Secrets in names and texts: which names denote a secret, and where a text contains one.

`secrecy_of` classifies a name, such as `api_key` or `GITHUB_TOKEN`, by its words. `find_secrets`
returns the spans of a text that are keys, tokens or passwords: by their own form, or because they
follow such a name in an assignment, a header, JSON or a command line.

Both prefer too much to too little: a redacted word costs nothing, a stored password may cost a lot.
Time is linear in the length of the text, whatever it contains: every repetition is bounded,
possessive, or consumed by its match. Patterns are compiled at first use.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from functools import cache, lru_cache
from itertools import pairwise
from typing import Final, NamedTuple

__all__ = (
    "PRIVATE_KEY_END",
    "RANDOM_CHARS",
    "Secrecy",
    "Span",
    "find_secrets",
    "may_contain_secret",
    "secrecy_of",
)

#: Length of the tokens of `substrate.security.tokens`: 32 bytes in base64url.
TOKEN_CHARS: Final = 43
#: Minimum runs of lower case letters, upper case letters and digits in such a token. Random ones
#: have 27 on average, with a standard deviation of 3; names of this length have fewer.
TOKEN_RUNS: Final = 12
#: Minimum length of a value that looks random.
RANDOM_CHARS: Final = 20
#: Maximum characters of a name before the keyword that it was found by.
NAME_CHARS: Final = 64


class Secrecy(enum.IntEnum):
    """How secret the value of a name is."""

    #: Not secret.
    NONE = 0
    #: Secret if the value looks random, as a key does.
    IF_RANDOM = 1
    #: Secret unless the value is a number, a boolean or a usual option.
    UNLESS_PLAIN = 2
    #: Secret, whatever the value.
    ALWAYS = 3
    #: A set of environment variables.
    ENVIRONMENT = 4


class Span(NamedTuple):
    """The part of a text that is a secret."""

    start: int
    end: int


# --- names ------------------------------------------------------------------------------------

_WORD: Final = r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+"

_ALWAYS: Final = frozenset({"passwd", "passcode", "pwd", "pw", "sshpass", "secrets", "passwords"})
#: Endings of words written as one, as in `PGPASSWORD` or `clientsecret`.
_ALWAYS_ENDINGS: Final = ("password", "passphrase", "passwd", "secret")
_UNLESS_PLAIN: Final = frozenset(
    {
        *("token", "tokens", "authorization", "auth", "cookie", "cookies", "credential"),
        *("credentials", "cred", "creds", "jwt", "bearer", "otp", "pass", "passkey"),
    }
)
_UNLESS_PLAIN_ENDINGS: Final = ("apikey", "accesskey", "privatekey", "secretkey", "token")
#: Words that make a following `key` secret.
_OF_KEYS: Final = frozenset(
    {
        *("access", "account", "api", "auth", "deploy", "encryption", "license", "master"),
        *("private", "secret", "service", "session", "shared", "signing", "ssh", "storage"),
    }
)
_IF_RANDOM: Final = frozenset(
    {"key", "keys", "nonce", "salt", "session", "sid", "sig", "signature"}
)
#: Last words of names that denote something about a secret, not the secret.
_ABOUT: Final = frozenset(
    {
        *("budget", "bytes", "chars", "count", "domain", "endpoint", "env", "expires", "expiry"),
        *("fd", "field", "file", "format", "length", "limit", "name", "names", "path", "policy"),
        *("prefix", "size", "stdin", "ttl", "type", "uri", "url", "usage", "used", "var"),
    }
)
_ENVIRONMENTS: Final = frozenset(
    {
        *("env", "envs", "environ", "environment", "envvars"),
        *("env vars", "env variables", "environment vars", "environment variables"),
    }
)


@lru_cache(maxsize=2048)
def secrecy_of(name: str) -> Secrecy:
    """Return how secret the value of a name is, judged by the whole words of the name."""
    words = [word.lower() for word in re.findall(_WORD, name)]
    if not words or "public" in words:
        return Secrecy.NONE
    if " ".join(words) in _ENVIRONMENTS:
        return Secrecy.ENVIRONMENT
    if words[-1] in _ABOUT:
        return Secrecy.NONE
    if any(word in _ALWAYS or word.endswith(_ALWAYS_ENDINGS) for word in words):
        return Secrecy.ALWAYS
    if any(word in _UNLESS_PLAIN or word.endswith(_UNLESS_PLAIN_ENDINGS) for word in words):
        return Secrecy.UNLESS_PLAIN
    for word, following in pairwise(words):
        if following in ("key", "keys") and word in _OF_KEYS:
            return Secrecy.UNLESS_PLAIN
    return Secrecy.IF_RANDOM if words[-1] in _IF_RANDOM else Secrecy.NONE


# --- texts ------------------------------------------------------------------------------------

#: A cheap test on the text in lower case: without a match there is no secret. The alternatives are
#: grouped by their first character, so that most positions are skipped by one comparison each.
_HINTS: Final = (
    r"s(?:k[-_]|ecret|ig|ession|id|alt)|rk_|g(?:h[pousr]_|ithub_pat|lpat-|sk_)|xox"
    r"|a(?:kia|sia|iza|ge-secret|uth)|eyj|hf_|n(?:pm_|once)|p(?:ypi-|ass|wd|w[ =:])|ya29"
    r"|b(?:earer|egin )|token|key|c(?:ookie|red)|jwt|otp|-(?:u|-user)|:(?=//[^/\s]*@)"
)
#: The body of a token. Quotes inside it are removed by a shell.
_BODY: Final = r"(?:[\w-]|[\"'](?=[\w-]))"
#: A private key; the rest of the text if its end is missing.
_PEM: Final = (
    r"(?P<pem>-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
    r".*?(?:-----END [A-Z0-9 ]{0,40}-----|\Z))"
)
#: Keys and tokens with a prefix. The last is a JSON Web Token: the base64url form of `{"`, and one
#: to four further parts.
_PREFIXED: Final = (
    rf"(?P<token>(?<![A-Za-z0-9])(?:sk-(?=[\w\"'-]{{0,64}}[0-9]){_BODY}{{16,}}"
    rf"|[sr]k_(?:live|test)_{_BODY}{{10,}}|gh[pousr]_{_BODY}{{20,}}|github_pat_{_BODY}{{20,}}"
    rf"|glpat-{_BODY}{{16,}}|xox[abceoprs]-{_BODY}{{10,}}|A[KS]IA[0-9A-Z]{{16}}"
    rf"|AIza{_BODY}{{30,}}|hf_{_BODY}{{30,}}|npm_{_BODY}{{30,}}|pypi-{_BODY}{{30,}}"
    rf"|gsk_{_BODY}{{30,}}|ya29\.{_BODY}{{20,}}|AGE-SECRET-KEY-1{_BODY}{{20,}}"
    rf"|(?<![\w-])eyJ[\w-]{{8,}}+(?:\.{_BODY}*){{1,4}}))"
)
_BEARER: Final = r"(?P<bearer>(?<![A-Za-z0-9])(?i:bearer)[ \t]+(?=[\w.~+/=-]{6}))"
_URL: Final = r"(?P<url>://[^\s/:@\"'<>]{0,256}:(?=[^\s/@\"'<>]{1,256}@))"
#: `curl -u name:password`, but not `docker run -u 1000:1000`.
_USER: Final = (
    r"(?P<user>(?<![\w-])(?:-u|-U|--user|--proxy-user)(?:[ \t]+|=)?[\"']?"
    r"[^\s:\"'=-][^\s:\"'=]{0,63}:(?![0-9]+(?:[\s\"']|\Z)))"
)
_SSHPASS: Final = r"(?P<sshpass>(?<![\w-])sshpass[ \t]+-p)"
#: A name, to be judged by its words, and what separates it from its value.
_NAMED: Final = (
    r"(?P<name>(?i:pass|pwd|pw(?=[\"' \t=:])|secret|token|key|auth|cookie|cred|jwt|otp|sig|session"
    r"|sid|salt|nonce)[\w-]{0,40}+)"
    r"(?P<separator>(?:\\{0,4}+[\"'])?\]?[ \t]{0,8}+(?::=|=>|={1,3}|:(?!//))[ \t]{0,8}+"
    r"|(?:[ \t]|\\\n){1,16}+)"
)
#: A token of this program, which has no prefix: its length, letters of both cases, and its runs.
_OWN: Final = (
    rf"(?P<own>(?<![\w-])(?=[\w-]{{{TOKEN_CHARS}}}(?![\w-]))(?=[a-z0-9_-]*+[A-Z])"
    rf"(?=[A-Z0-9_-]*+[a-z])(?=(?:[_-]*+(?:[a-z]++|[A-Z]++|[0-9]++)){{{TOKEN_RUNS}}})"
    rf"[\w-]{{{TOKEN_CHARS}}})"
)
_FORMS: Final = "|".join((_PEM, _PREFIXED, _OWN, _BEARER, _URL, _USER, _SSHPASS, _NAMED))
PRIVATE_KEY_END: Final = r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"

#: A value: quoted or not, with what a shell would join to it.
_QUOTED: Final = r"(?:\$?\"(?:[^\"\\]|\\.)*+(?:\"|\\?\Z)|\$?'[^']*+(?:'|\Z))"
_UNQUOTED: Final = r"(?:[^\s\"'\\`;&|<>()]|\\.|[\"'](?=[^\s\"';&|<>(),}\]])[^\"']*+[\"']?)"
_VALUES: Final = {
    # Escaped quotes: JSON inside of a string.
    "escaped": r"\\{1,7}+(?:\"[^\"]*+\"?|'[^']*+'?)",
    "quoted": _QUOTED,
    "joined": rf"{_QUOTED}(?:(?!,){_UNQUOTED})*+",
    "unquoted": rf"{_UNQUOTED}++",
    # Parameters of a header follow in the same line.
    "header": r"[^\r\n\"']++",
    "random": rf"[\"']?[\w+/=.-]{{{RANDOM_CHARS},128}}",
    "bearer": r"[\w.~+/=-]+",
    "url": r"[^\s/@\"'<>]{1,256}",
    "user": r"[^\s\"']{1,256}",
}
_HEADERS: Final = frozenset({"authorization", "proxy-authorization", "cookie", "set-cookie"})
#: Values that are not secret: variables and substitutions of a shell, and what is redacted already.
_REFERENCE: Final = (
    r"[\"']?(?:(?i:basic|bearer|token)[ ]+)?(?:\$(?:\w+|\{\w+\}|\([^)]{0,200}\)?)?|\[redacted\]"
    r"|\*{2,}|\.{3})[\"']?"
)
_NUMBER: Final = r"[\"']?[+-]?[0-9]{1,15}(?:\.[0-9]{1,15})?[\"']?[,}\])]*+"
#: Usual values of options and types of parameters whose name contains such a word.
_PLAIN: Final = frozenset(
    {
        *("off", "on", "none", "null", "true", "false", "yes", "no", "required", "optional"),
        *("token", "basic", "digest", "oauth", "oauth2", "bearer", "default", "auto"),
        *("str", "string", "bytes", "int", "float", "bool", "any", "number", "boolean"),
    }
)
#: Words that follow "bearer" in prose.
_PROSE: Final = frozenset(
    {"tokens", "authentication", "authorization", "scheme", "header", "format"}
)
#: Minimum length of an unquoted value after a colon, as in "unexpected token: comma".
_AFTER_COLON: Final = 6


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.ASCII | re.DOTALL)


def may_contain_secret(text: str) -> bool:
    """Return False if a text certainly contains no secret. Much faster than `find_secrets`."""
    if len(text) >= TOKEN_CHARS and _compiled(_OWN).search(text) is not None:
        return True
    return _compiled(_HINTS).search(text.lower()) is not None


def find_secrets(text: str) -> Iterator[Span]:
    """Yield the spans of secrets in a text, in order and without overlaps."""
    search = _compiled(_FORMS).search
    at = 0
    while (found := search(text, at)) is not None:
        kind = found.lastgroup
        at = found.end()
        if kind in ("pem", "token", "own"):
            yield Span(found.start(), at)
            continue
        end = _end_of_value(text, found)
        if end is None:
            # The value may contain a name itself.
            at = found.end("name") if kind == "separator" else at
        elif end > at:
            yield Span(at, end)
            at = end


def _end_of_value(text: str, found: re.Match[str]) -> int | None:
    """Return the end of the secret that follows a match; None if it is not a secret."""
    kind = found.lastgroup
    start = found.end()
    if kind == "separator":
        return _end_of_named(text, found)
    if kind == "sshpass":
        gap = _compiled(r"[ \t]*+").match(text, start)
        assert gap is not None, "the pattern matches an empty text"
        end = _word_end(text, gap.end(), after_colon=False)
    else:
        assert kind is not None, "every alternative is a group"
        value = _compiled(_VALUES[kind]).match(text, start)
        end = start if value is None else value.end()
    value_text = text[start:end]
    if not value_text.strip() or _is_reference(value_text.strip()):
        return None
    return None if kind == "bearer" and value_text.lower() in _PROSE else end


def _end_of_named(text: str, found: re.Match[str]) -> int | None:
    name = _whole_name(text, found)
    secrecy = secrecy_of(name)
    if secrecy in (Secrecy.NONE, Secrecy.ENVIRONMENT):
        return None
    start, separator = found.end(), found["separator"].strip("\\\"' \t\n]")
    if not separator and (not name.startswith("-") or text.startswith("-", start)):
        return None  # a word in prose, or a flag without a value
    if secrecy is Secrecy.IF_RANDOM:
        value = _compiled(_VALUES["random"]).match(text, start)
        if value is None or not _is_random(value[0]):
            return None
        return _word_end(text, value.end(), after_colon=False)
    if separator == ":" and name.lower() in _HEADERS and not text.startswith(('"', "'"), start):
        value = _compiled(_VALUES["header"]).match(text, start)
        end = start if value is None else value.end()
    else:
        end = _word_end(text, start, after_colon=separator == ":")
    value_text = text[start:end]
    if not value_text or _is_reference(value_text) or value_text.strip("\"',") in _PLAIN:
        return None
    if secrecy is Secrecy.UNLESS_PLAIN:
        if _compiled(_NUMBER).fullmatch(value_text) is not None:
            return None
        is_prose = (
            separator == ":" and found["separator"][0] == ":" and value_text[0] not in "\"'\\"
        )
        if is_prose and len(value_text) < _AFTER_COLON:
            return None
    return end


def _word_end(text: str, start: int, *, after_colon: bool) -> int:
    """Return the end of a quoted or unquoted value."""
    for kind in ("escaped", "quoted" if after_colon else "joined", "unquoted"):
        value = _compiled(_VALUES[kind]).match(text, start)
        if value is not None:
            return value.end()
    return start


def _whole_name(text: str, found: re.Match[str]) -> str:
    """Return the name that a match is the end of, with the hyphens of a flag."""
    start = found.start()
    least = max(0, start - NAME_CHARS)
    while start > least and ((before := text[start - 1]).isalnum() or before in "_-."):
        start -= 1
    return text[start : found.end("name")]


def _is_reference(value: str) -> bool:
    return _compiled(_REFERENCE).fullmatch(value) is not None


def _is_random(value: str) -> bool:
    """Return whether a value looks like a key: long hexadecimal digits, or a mix of characters."""
    value = value.strip("\"'")
    if re.fullmatch(r"[0-9a-fA-F]{32,}", value):
        return True
    return len(re.findall(r"[a-z]+|[A-Z]+|[0-9]+", value)) >= len(value) * 0.3

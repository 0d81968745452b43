"""The recorded form of a call: no secret is part of it, its size is bounded, and nothing raises."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import json
import math
import secrets
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, SecretStr

from plexus.principal import Principal
from substrate.run_store.redaction import (
    ARGUMENTS_BYTES,
    REDACTED,
    SUMMARY_CHARS,
    describe_call,
    redact_text,
)
from substrate.run_store.secret_patterns import Secrecy, may_contain_secret, secrecy_of
from substrate.security.tokens import new_token

#: Upper bound of the time for hostile input; the usual figures are below a tenth of it.
MOST_S = 5.0
BODY = "A1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q7r8S9t0"
PEM = (
    "-----BEGIN RSA PRIVATE KEY-----\n"
    + "\n".join("MIIEpAIBAAKCAQEA0sometext" for _ in range(30))
    + "\n-----END RSA PRIVATE KEY-----"
)


def described(arguments: Mapping[str, Any], *secret: str, method: str = "x.y") -> tuple[Any, str]:
    """Return the recorded arguments, decoded, and the summary; check the bounds of both."""
    text, summary = describe_call(method, arguments, frozenset(secret))
    assert len(text.encode()) <= ARGUMENTS_BYTES
    assert len(summary) <= SUMMARY_CHARS
    assert summary == " ".join(summary.split())
    return json.loads(text), summary


# --- texts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "token",
    [
        *(f"sk-{BODY}", f"sk-ant-api03-{BODY}-{BODY}", f"sk-proj-{BODY}", f"sk_live_{BODY}"),
        *(f"ghp_{BODY}", f"gho_{BODY}", f"ghs_{BODY}", f"github_pat_{BODY}_{BODY}"),
        *(f"glpat-{BODY[:20]}", f"xoxb-123-456-{BODY}", f"xoxp-{BODY}", f"xoxa-{BODY}"),
        *("AKIAIOSFODNN7EXAMPLE", "ASIAIOSFODNN7EXAMPLE", f"AIza{BODY[:35]}", f"hf_{BODY}"),
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.SflKxwRJSMeKKF2QT4fwpMeJf36POk6yJV",
        PEM,
        PEM.replace("RSA ", "").replace("\n", "\\n"),
    ],
)
@pytest.mark.parametrize("around", ["{}", "echo {} | cat", '{{"a": "{}"}}', "x='{}'", "/x/{}/y"])
def test_a_key_is_recognised_by_its_form(token: str, around: str) -> None:
    text = around.format(token)
    assert redact_text(text) == around.format(REDACTED)
    assert token not in str(described({"value": text, "list": [[text]]}))


def test_tokens_of_this_program_are_recognised() -> None:
    # Random, and tokens that begin like names.
    starts = ("", "Sid", "pwd", "jWt", "Key")
    for token in [f"{start}{new_token()[len(start) :]}" for start in starts for _ in range(200)]:
        assert redact_text(f"substrate --port 1 {token} x") == f"substrate --port 1 {REDACTED} x"


def test_a_name_as_long_as_a_token_is_judged_as_a_name() -> None:
    name = "THE_NAME_IS_AS_LONG_AS_A_TOKEN_OF_THE_TOKEN"
    assert len(name) == len(new_token())
    assert redact_text(f"{name}=hunter2 {name.lower()}") == f"{name}={REDACTED} {name.lower()}"


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("curl -H 'Authorization: Bearer abc.def' x.org", "curl -H 'Authorization: []' x.org"),
        ('curl -H "authorization: basic dXNlcjpwdw==" x', 'curl -H "authorization: []" x'),
        ("AUTHORIZATION: Token abc", "AUTHORIZATION: []"),
        ("the header is Bearer hunter22 now", "the header is Bearer [] now"),
        ("Cookie: a=b; c=d\nAccept: x", "Cookie: []\nAccept: x"),
        ("git clone https://me:hunter2@host/x.git", "git clone https://me:[]@host/x.git"),
        ("psql postgresql://u:p%40@127.0.0.1/db", "psql postgresql://u:[]@127.0.0.1/db"),
        ("mysql --password hunter2 -h db", "mysql --password [] -h db"),
        ("mysql --password=hunter2 -h db", "mysql --password=[] -h db"),
        ("tool --api-key 'a b' --verbose", "tool --api-key [] --verbose"),
        ("tool --Api-Key\thunter2", "tool --Api-Key\t[]"),
        ("tool -Password hunter2", "tool -Password []"),
        ("PASSWORD=hunter2 ./run", "PASSWORD=[] ./run"),
        ("export FOO_TOKEN=hunter2; ls", "export FOO_TOKEN=[]; ls"),
        ("export foo_secret='a b'\"c d\"e && ls", "export foo_secret=[] && ls"),
        ('PGPASSWORD="a \\" b" psql', "PGPASSWORD=[] psql"),
        ("MYSQL_PWD=hunter2 mysql", "MYSQL_PWD=[] mysql"),
        ("TOKEN=hun'ter'2 ls", "TOKEN=[] ls"),
        ('TOKEN=hun"te r"2 ls', "TOKEN=[] ls"),
        ("TOKEN=hunter\\ 2 ls", "TOKEN=[] ls"),
        ("TOKEN='never closed ls", "TOKEN=[]"),
        ("curl -d 'user=me&password=hunter2&x=1' y.org", "curl -d 'user=me&password=[]&x=1' y.org"),
        ("curl -d 'user=me&password=hunter2' y.org", "curl -d 'user=me&password=[]' y.org"),
        ("curl 'x.org?token=hunter2#top'", "curl 'x.org?token=[]'"),
        ('{"password": "hun ter2", "user": "me"}', '{"password": [], "user": "me"}'),
        ("{'dbPassword': 'hunter2', 'b': 1}", "{'dbPassword': [], 'b': 1}"),
        ('-d "{\\"apiKey\\": \\"hunter2\\", \\"b\\": 1}"', '-d "{\\"apiKey\\": [], \\"b\\": 1}"'),
        ("client_secret: hunter2", "client_secret: []"),
        ('os.environ["API_TOKEN"] = "hunter2"', 'os.environ["API_TOKEN"] = []'),
        ("curl -u me:hunter2 x.org", "curl -u me:[] x.org"),
        ("curl --user 'me:hunter2' x.org", "curl --user 'me:[]' x.org"),
        ("sshpass -p hunter2 ssh x", "sshpass -p[] ssh x"),
        ("tool --key 0123456789abcdef0123456789abcdef", "tool --key []"),
        (f"SIGNING={BODY} key={BODY}", f"SIGNING={BODY} key=[]"),
        ("secret=secret=secret", "secret=[]"),
        ("key=password=hunter2", "key=password=[]"),
        ("token --password hunter2", "token --password []"),
    ],
)
def test_a_secret_is_recognised_by_what_precedes_it(text: str, redacted: str) -> None:
    assert redact_text(text) == redacted.replace("[]", REDACTED)


@pytest.mark.parametrize(
    "text",
    [
        *("", "ls -la", "pytest -q tests", "git commit -m 'Keep the monkey: it is a donkey'"),
        *("tokens_used=120", "max_tokens=4096", "--max-tokens 4096", '{"max_tokens": 4096}'),
        *("substrate --auth off", "PASSWORD=$PASSWORD ./x", 'tool --token "$TOKEN" run'),
        *("TOKEN=$(cat file) ls", "TOKEN=${TOKEN} ls", "curl -H 'Authorization: Bearer $T' x"),
        *("docker login --password-stdin", "docker run -u 1000:1000 x", "unexpected token: }"),
        *("the author: Ada", "secret_name=db", "keyboard=us", "git@github.com:a/b.git"),
        *("https://example.org:8080/a@b", "ssh://git@host/x", "key=value", "sort --key 2"),
        *("def f(token: str, n: int)", "bearer authentication", "PUBLIC_KEY=abc", "design: x"),
        "tests/test_a_very_long_name_of_a_test_that_says_what_it_does.py",
        "d2a84f4b8b650937ec8f73cd8be2c74add5a911ba64df27458ed8229da804a26",
    ],
)
def test_an_ordinary_text_is_kept(text: str) -> None:
    assert redact_text(text) == text


def test_a_text_that_was_redacted_stays_as_it_is() -> None:
    once = redact_text(f"TOKEN=hunter2 curl -H 'Authorization: Bearer {BODY}' u:p@x https://a:b@c")
    assert redact_text(once) == once


@given(st.text(alphabet="skey=:'\"\\ -$@/passwordToken{}[]\n.0", max_size=300))
def test_any_text_is_redacted_without_an_error_and_only_shortened_by_it(text: str) -> None:
    redacted = redact_text(text)
    parts = redacted.split(REDACTED)
    assert redacted == text or len(parts) > 1
    assert may_contain_secret(text) or redacted == text


# --- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        *("password", "Password", "PASSWD", "db_password", "dbPassword", "db-password", "pwd"),
        *("secret", "clientSecret", "SECRET_KEY", "secrets", "token", "accessToken", "API_TOKEN"),
        *("api_key", "apikey", "apiKey", "APIKey", "x-api-key", "Authorization", "cookie"),
        *("Set-Cookie", "private_key", "privateKey", "credential", "credentials", "passphrase"),
        *("PGPASSWORD", "authtoken", "ssh_key", "jwt"),
    ],
)
def test_a_value_with_a_secret_name_is_not_recorded(name: str) -> None:
    for value in ("hunter2", ["hunter2"], {"hunter2"}, b"hunter2", Path("hunter2")):
        arguments = {"a": {"b": [{name: value}]}, name: value}
        assert described(arguments)[0] == {"a": {"b": [{name: REDACTED}]}, name: REDACTED}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("monkey", "x"), ("donkey", "x"), ("key", "a"), ("keyboard", "us"), ("author", "Ada")),
        *(("tokens_used", 120), ("max_tokens", 4096), ("token_count", 3), ("max_tokens", "4096")),
        *(("token_type", "bearer"), ("password_length", 12), ("secret_name", "db")),
        *(("compass", "north"), ("session", "tea"), ("public_key", "abc"), ("use_token", True)),
        *(("password", None), ("environment", "production"), ("env", None), ("auth", "off")),
    ],
)
def test_a_value_with_an_ordinary_name_is_recorded(name: str, value: Any) -> None:
    assert described({name: value})[0] == {name: value}
    assert described({"a": [{name: value}]})[0] == {"a": [{name: value}]}


def test_names_are_judged_by_whole_words() -> None:
    assert secrecy_of("dbPassword") is Secrecy.ALWAYS
    assert secrecy_of("HTTPToken") is Secrecy.UNLESS_PLAIN
    assert secrecy_of("tokenizer") is Secrecy.NONE
    assert secrecy_of("") is secrecy_of("日本") is Secrecy.NONE


@pytest.mark.parametrize("name", ["env", "ENV", "Env", "environ", "environment", "env_vars"])
def test_environment_variables_are_not_recorded(name: str) -> None:
    arguments = {"command": "ls", name: {"A": "hunter2"}, "jobs": [{name: [["A", "hunter2"]]}]}
    recorded, summary = described(arguments, method="bash.execute")
    assert recorded == {"command": "ls", name: REDACTED, "jobs": [{name: REDACTED}]}
    assert summary == "ls"


def test_a_parameter_that_is_declared_secret_is_not_recorded() -> None:
    arguments = {"pin": 1234, "note": "hunter2", "open": True, "other": {"note": "kept"}}
    assert described(arguments, "pin", "note", "open") == (
        {"pin": REDACTED, "note": REDACTED, "open": REDACTED, "other": {"note": "kept"}},
        'pin=[redacted], note=[redacted], open=[redacted], other={"note":"kept"}',
    )
    assert described({"note": "hunter2"}, "note") == ({"note": REDACTED}, "note=[redacted]")


@pytest.mark.parametrize(
    ("value", "recorded"),
    [
        (["tool", "--password", "hunter2", "-v"], ["tool", "--password", REDACTED, "-v"]),
        (["tool", "--token", "-v"], ["tool", "--token", "-v"]),
        ([("Cookie", "a=b"), ("Accept", "x")], [["Cookie", REDACTED], ["Accept", "x"]]),
        ([{"name": "API_KEY", "value": "b"}], [{"name": "API_KEY", "value": REDACTED}]),
        ([{"name": "colour", "value": "b"}], [{"name": "colour", "value": "b"}]),
    ],
)
def test_names_and_values_in_lists_belong_together(value: Any, recorded: Any) -> None:
    assert described({"value": value})[0] == {"value": recorded}


def test_a_secret_in_a_name_is_not_recorded() -> None:
    recorded, _ = described({"a": {f"ghp_{BODY}": 1, f"sk-{BODY}" * 3: 2}})
    assert BODY[:10] not in str(recorded)


# --- values ---------------------------------------------------------------------------------------


class Colour(enum.Enum):
    RED = "red"


class Model(BaseModel):
    user: str
    password: str
    key: SecretStr


@dataclasses.dataclass
class Login:
    user: str
    api_key: str


class Pair(NamedTuple):
    user: str
    token: str


class Text(str):
    """A subclass whose methods are of no use."""

    def __len__(self) -> int:
        raise RuntimeError("no length")

    def __str__(self) -> str:
        raise RuntimeError("no text")


class Hostile:
    """A value that raises whatever is asked of it."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __repr__(self) -> str:
        raise RuntimeError("no representation")

    __str__ = __repr__


class EndlessMapping(Mapping[str, Any]):
    """A mapping that raises in the middle."""

    def __getitem__(self, key: str) -> Any:
        raise RuntimeError(key)

    def __iter__(self) -> Iterator[str]:
        yield "a"
        raise RuntimeError("no more keys")

    def __len__(self) -> int:
        return 2


def test_every_kind_of_value_has_a_recorded_form() -> None:
    number = uuid.uuid4()
    moment = datetime.datetime(2026, 1, 2, 3, 4, 5)
    recorded, _ = described(
        {
            "enum": Colour.RED,
            "model": Model(user="me", password="hunter2", key=SecretStr("hunter2")),
            "login": Login("me", "hunter2"),
            "pair": Pair("me", "hunter2"),
            "bytes": b"hunter2",
            "path": Path("/a/b"),
            "times": [moment, moment.date(), datetime.timedelta(seconds=1)],
            "numbers": [1, 1.5, True, decimal.Decimal("1.1"), 2**70, 10**5000],
            "floats": [math.nan, math.inf],
            "uuid": number,
            "set": {1},
            "caller": Principal("me", credential=b"hunter2"),
            "class": Model,
            "text": Text("hunter"),
            "hostile": Hostile(),
            "mapping": EndlessMapping(),
            "function": described,
        }
    )
    assert recorded == {
        "enum": "red",
        "model": {"user": "me", "password": REDACTED, "key": REDACTED},
        "login": {"user": "me", "api_key": REDACTED},
        "pair": {"user": "me", "token": REDACTED},
        "bytes": "[7 bytes]",
        "path": "/a/b",
        "times": ["2026-01-02T03:04:05", "2026-01-02", "0:00:01"],
        "numbers": [1, 1.5, True, "1.1", "[integer of 71 bits]", "[integer of 16610 bits]"],
        "floats": ["nan", "inf"],
        "uuid": str(number),
        "set": [1],
        "caller": REDACTED,
        "class": "[ModelMetaclass]",
        "text": "hunter",
        "hostile": "[Hostile]",
        "mapping": "[EndlessMapping]",
        "function": "[function]",
    }


def test_names_that_are_not_texts_are_recorded() -> None:
    arguments = {"a": {1: "x", None: "y", (1, 2): "z", Hostile: "h"}}
    assert described(arguments)[0] == {"a": {"1": "x", "None": "y", "[tuple]": "z", "[type]": "h"}}


def test_lone_surrogates_are_escaped() -> None:
    assert described({"a": "x\ud800y", "\udfff": 1})[0] == {"a": "x\\ud800y", "\\udfff": 1}
    assert described({"a": "x\ud800y"})[1] == "x\\ud800y"


def test_a_value_that_contains_itself_is_cut() -> None:
    circle: list[Any] = []
    circle += [circle, {"again": circle}]
    loop: dict[str, Any] = {"password": "hunter2"}
    loop["loop"] = loop
    recorded, _ = described({"circle": circle, "loop": loop})
    assert "hunter2" not in str(recorded)


class Endless:
    """A value that leads to a new value at every step."""

    model_dump = None

    def __init__(self) -> None:
        self.first = self.second = None

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]  # what `vars` returns
        return {str(n): Endless() for n in range(100)}


def test_a_value_without_an_end_is_cut() -> None:
    before = time.process_time()
    described({"a": Endless(), "b": [Endless()] * 50})
    assert time.process_time() - before < MOST_S


@settings(max_examples=60)
@given(
    st.dictionaries(
        st.text(),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
            lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
        ),
    )
)
def test_any_arguments_have_a_recorded_form(arguments: dict[str, Any]) -> None:
    described(arguments)


# --- bounds ---------------------------------------------------------------------------------------


def test_a_long_text_keeps_its_head_and_tail_and_counts_the_rest() -> None:
    text = "".join(f"{n:05} " for n in range(5000))
    kept = described({"text": text})[0]["text"]
    head, _, rest = kept.partition("[... ")
    count, _, tail = rest.partition(" characters omitted ...]")
    assert text.startswith(head)
    assert text.endswith(tail)
    assert len(head) > 1000
    assert len(tail) > 300
    assert int(count) == len(text) - len(head) - len(tail)


@pytest.mark.parametrize("size", [5_000, 20_000, 10_000_000])
@pytest.mark.parametrize("place", [0, 6_000, 6_140, 6_150, -4_000, -2_100, -2_060, -2_040, -100])
def test_a_secret_at_a_cut_is_not_recorded(size: int, place: int) -> None:
    filler = "word " * (size // 5)
    at = place % size
    for secret in (
        f" sk-ant-{BODY * 2} ",
        f" TOKEN={BODY} ",
        PEM,
        f" eyJhbGciOiJIUzI1NiJ9.{BODY * 50} ",
    ):
        recorded = str(described({"text": filler[:at] + secret + filler[at:]})[0])
        assert BODY[5:] not in recorded
        assert "MIIE" not in recorded
        assert "sometext" not in recorded


def test_the_end_of_a_word_longer_than_what_is_searched_is_not_recorded() -> None:
    recorded = described({"text": "a " * 10_000 + BODY * 200 + " end"})[0]["text"]
    assert BODY not in recorded
    assert recorded.endswith(" end")


@pytest.mark.parametrize(
    "arguments",
    [
        {"list": list(range(1_000_000))},
        {"list": ["word " * 200] * 10_000},
        {"list": ["\x00" * 9000] * 100},
        {"text": "\U0001f600" * 9000},
        {"text": "\x00" * 9000},
        {f"name{n}" * 50: "\x01" * 100 for n in range(1000)},
        {"\x00" * 500 + str(n): "\x00" * 500 for n in range(1000)},
        {"deep": [[[[[[[[[["\x00" * 500] * 50] * 50] * 50] * 50] * 50] * 50] * 50] * 50] * 50]},
        {"wide": {str(n): {str(m): "word " * 50 for m in range(100)} for n in range(1000)}},
    ],
    ids=range(9),
)
def test_large_arguments_are_cut(arguments: dict[str, Any]) -> None:
    before = time.process_time()
    recorded, _ = described(arguments)
    assert time.process_time() - before < MOST_S
    assert recorded


def test_omitted_entries_are_counted() -> None:
    recorded, _ = described({"list": list(range(100)), "object": {str(n): n for n in range(70)}})
    assert recorded["list"] == [*range(64), "... 36 more"]
    assert recorded["object"]["..."] == "6 more"


HOSTILE = [
    *("a", "-", "_", "key", "key=", "key ", "token:", "PASSWORD=", 'PASSWORD="', "password='"),
    *(
        "secret\\",
        "sk-",
        "-sk-",
        "eyJ",
        "-eyJaaaaaaaaa",
        "eyJaaaaaaaa.",
        "://a:",
        "://",
        "@:",
        "-u ",
    ),
    *("-u a:", "Bearer ", "bearer\t", "-----BEGIN ", "-----BEGIN PRIVATE KEY-----", "ghp_", "\\"),
    *("\"'", "key\\\n", "--password ", "token = ", "auth]=", "\u00e9", "A1", "=", "key" + "-" * 41),
    *("session=aaaaaaaaaaaaaaaaaaaaaaaaaaa ", "key=" + "aA1" * 300 + " ", "sshpass -p ", "$(", "'"),
]


@pytest.mark.parametrize("piece", HOSTILE)
def test_hostile_repetition_takes_linear_time(piece: str) -> None:
    def cpu_s(size: int) -> float:
        before = time.process_time()
        redact_text(piece * (size // len(piece)))
        return time.process_time() - before

    cpu_s(1000)  # compiles the patterns
    # Quadratic time would be 64 times as long.
    assert cpu_s(200_000) < 24 * (cpu_s(25_000) + 0.002)
    for start in ("x ", "PASSWORD='", '"'):
        describe_call("x.y", {"text": start + piece * (10_000_000 // len(piece))}, frozenset())


def test_ten_megabytes_take_no_longer_than_one() -> None:
    def cpu_s(size: int) -> float:
        text = secrets.token_hex(size // 2)
        before = time.process_time()
        described({"text": text, "again": [text] * 100})
        return time.process_time() - before

    cpu_s(1000)  # compiles the patterns
    assert cpu_s(10_000_000) < 10 * (cpu_s(1_000_000) + 0.01)


# --- summaries ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "arguments", "summary"),
    [
        ("bash.execute", {"cwd": "/tmp", "command": " ls\n  -la\t"}, "ls -la"),
        ("bash.execute", {"command": "a\x1b[31mb\u202ec"}, "a[31mbc"),
        ("chat.send", {"session": "tea", "message": "Green or black?"}, "Green or black?"),
        ("arbor.get", {"tree": "t1", "depth": 2}, "t1"),
        ("x.y", {"a": 1, "b": [1, 2], "c": None, "d": ""}, "a=1, b=[1,2], c=null, d="),
        ("x.y", {"password": "hunter2"}, "password=[redacted]"),
        ("x.y", {"password": "hunter2", "user": "me"}, "me"),
        ("x.y", {}, ""),
        ("x.y", {"text": "word " * 100}, "word " * 39 + "wo..."),
        ("bash.execute", {"command": "TOKEN=hunter2 ls"}, "TOKEN=[redacted] ls"),
    ],
)
def test_a_summary_says_what_a_call_does(
    method: str, arguments: dict[str, Any], summary: str
) -> None:
    assert described(arguments, method=method)[1] == summary

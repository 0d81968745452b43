"""Secret parameters: how they are found, how schemas show them, and where they do not appear."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, SecretBytes, SecretStr
from typing_extensions import TypedDict

from plexus import Activation, Secret
from plexus.errors import InvalidParams, RegistrationError
from plexus.registry import plain_types, schema
from plexus.registry.lean_schema import lean_schema
from plexus.registry.secrets import REDACTED, is_secret, redact_arguments
from plexus.registry.signature import MethodSpec, read_methods
from plexus.testing import local

pytestmark = pytest.mark.anyio

Password = Annotated[str, Secret()]


class Login(BaseModel):
    user: str
    password: Password


class Account(BaseModel):
    logins: list[Login] = []


class Loop(BaseModel):
    inner: Loop | None = None
    token: SecretStr | None = None


class Plain(BaseModel):
    name: str


@dataclasses.dataclass
class Key:
    name: str
    value: Password


class Headers(TypedDict):
    authorization: Password


vault = Activation("vault", description="A vault.")


@vault.method
async def unlock(
    name: str,
    password: Password,
    pin: Annotated[int | None, Secret()] = None,
    hint: Annotated[str | None, Field(max_length=5), Secret()] = None,
    login: Login | None = None,
) -> str:
    """Unlock a vault.

    Args:
        password: Its password.
    """
    return f"{name} {password} {pin} {hint} {login and login.password}"


@vault.method(
    schema={
        "type": "object",
        "properties": {
            "url": {"type": "string"},
            "auth": {
                "type": "object",
                "properties": {"key": {"type": "string", "writeOnly": True}},
            },
            "writeOnly": {"type": "boolean"},
        },
    }
)
async def fetch(**arguments: Any) -> int:
    """Fetch something with a given schema."""
    return len(arguments)


def spec_of(name: str) -> MethodSpec:
    return next(each for each in read_methods(vault, "vault") if each.name == f"vault.{name}")


@pytest.mark.parametrize(
    "hint",
    [
        Password,
        Password | None,
        Annotated[str | None, Secret()],
        list[Password],
        dict[str, list[Password]],
        Annotated[Plain, Secret()],
        SecretStr,
        SecretBytes,
        list[SecretStr] | None,
        Login,
        Account,
        Loop,
        dict[str, Account | int],
        Key,
        Headers,
    ],
)
def test_a_type_that_is_marked_or_contains_a_secret_is_secret(hint: Any) -> None:
    assert is_secret(hint)


@pytest.mark.parametrize(
    "hint",
    [str, Any, int | None, list[str], dict[str, list[int]], Literal["a"], Plain, list[Plain]],
)
def test_other_types_are_not_secret(hint: Any) -> None:
    assert not is_secret(hint)


def test_a_method_knows_its_secret_parameters() -> None:
    assert spec_of("unlock").secret_names == {"password", "pin", "hint", "login"}


def test_a_given_schema_marks_secrets_with_write_only() -> None:
    assert spec_of("fetch").secret_names == {"auth"}


def test_the_schema_of_a_secret_is_write_only_and_a_password_if_it_is_text() -> None:
    described = schema.parameters_schema(spec_of("unlock"))
    shown = described["properties"]
    secret_text = {"type": "string", "format": "password", "writeOnly": True}
    assert shown["password"] == secret_text | {"description": "Its password."}
    assert shown["pin"]["writeOnly"] is True
    assert "format" not in shown["pin"]
    assert (shown["hint"]["format"], shown["hint"]["writeOnly"]) == ("password", True)
    nested = described["$defs"]["Login"]["properties"]
    assert nested["password"] == secret_text | {"description": "password"}
    assert "writeOnly" not in nested["user"]
    assert lean_schema(described)["properties"]["password"]["writeOnly"] is True


async def test_the_method_receives_the_values_and_constraints_are_enforced() -> None:
    async with local(vault) as plexus:
        login = {"user": "a", "password": "inner"}
        unlocked = await plexus.call(
            "vault.unlock", name="n", password="p", pin=1, hint="h", login=login
        )
        assert unlocked == "n p 1 h inner"
        assert await plexus.call("vault.fetch", auth={"key": "k"}) == 1
        with pytest.raises(InvalidParams, match="hint"):
            await plexus.call("vault.unlock", name="n", password="p", hint="too long")


def test_a_marked_plain_type_needs_no_pydantic_to_validate() -> None:
    assert plain_types.core_schema(Password) == {"type": "str"}
    program = (
        "import sys; from typing import Annotated; from plexus import Secret; "
        "from plexus.registry.secrets import is_secret; "
        "assert is_secret(Annotated[str, Secret()]) and not is_secret(dict[str, int] | None); "
        "assert 'pydantic' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.mark.parametrize("wrong", [Annotated[str, Secret], Secret])
def test_the_class_in_place_of_an_instance_is_refused(wrong: Any) -> None:
    wrongly = Activation("wrongly", description="Wrong.")

    async def enter(password) -> int:  # type: ignore[no-untyped-def]  # set below
        return len(password)

    enter.__annotations__["password"] = wrong
    wrongly.method(enter)
    with pytest.raises(RegistrationError, match=r"'password': write .*Secret\(\)\]"):
        read_methods(wrongly, "wrongly")


def test_a_marker_as_the_default_is_refused() -> None:
    wrongly = Activation("wrongly", description="Wrong.")

    @wrongly.method
    async def enter(password: str = Secret()) -> int:  # type: ignore[assignment]  # the mistake
        return len(password)

    with pytest.raises(RegistrationError, match=r"'password': write .*Secret\(\)\]"):
        read_methods(wrongly, "wrongly")


# --- redaction ------------------------------------------------------------------------------------


async def test_redacted_arguments_contain_no_secret_and_everything_else() -> None:
    async with local(vault) as plexus:
        find = plexus.hub.find_method
        given = {"name": "n", "password": "p", "login": {"user": "u", "password": "q"}}
        hidden = {"name": "n", "password": REDACTED, "login": REDACTED}
        assert redact_arguments(find("vault.unlock"), given, find) == hidden
        assert given["password"] == "p", "the arguments of the run are not changed"

        call = {"method": "vault.unlock", "params": given}
        assert redact_arguments(find("plexus.call"), call, find) == call | {"params": hidden}
        twice = {"method": "plexus.call", "params": call}
        assert "'p'" not in str(redact_arguments(find("plexus.call"), twice, find))


async def test_the_arguments_of_an_unknown_method_are_all_redacted() -> None:
    async with local(vault) as plexus:
        find = plexus.hub.find_method
        assert redact_arguments(None, {"a": 1}, find) == {"a": REDACTED}
        call = {"method": "vault.unlok", "params": {"password": "p"}}
        hidden = call | {"params": {"password": REDACTED}}
        assert redact_arguments(find("plexus.call"), call, find) == hidden

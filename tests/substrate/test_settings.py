"""Settings: precedence of sources, and errors about invalid values."""

from __future__ import annotations

import os
from typing import Any, Literal

import pytest
from pydantic import TypeAdapter, ValidationError

from substrate.server.limits import ServerLimits
from substrate.settings import (
    Settings,
    SettingsError,
    allowed,
    parse_value,
    read_settings,
    setting_names,
)


def load_settings(flags: dict[str, Any], content: bytes | None = None) -> Settings:
    return read_settings(flags, content).settings


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("SUBSTRATE_")]:
        monkeypatch.delenv(name)


def test_defaults_apply_without_any_source() -> None:
    assert load_settings({"port": None, "activation": ()}) == Settings()


def test_flags_win_over_variables_and_variables_over_the_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    content = b"port = 1\nlog_level = 'info'\neof_grace_s = 3\n"
    monkeypatch.setenv("SUBSTRATE_PORT", "2")
    monkeypatch.setenv("SUBSTRATE_LOG_LEVEL", "error")

    loaded = read_settings({"port": 3}, content)

    settings = loaded.settings
    assert (settings.port, settings.log_level, settings.eof_grace_s) == (3, "error", 3.0)
    assert loaded.origins == {
        "port": "flag",
        "log_level": "SUBSTRATE_LOG_LEVEL",
        "eof_grace_s": "substrate.toml",
    }


def test_limits_can_be_set_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    content = b"[limits]\nrun_s = 5\nlog_items = 10\n"
    monkeypatch.setenv("SUBSTRATE_LIMITS__RUN_S", "7")
    assert load_settings({}, content).limits == ServerLimits(run_s=7.0, log_items=10)


def test_one_variable_can_list_several_activations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUBSTRATE_ACTIVATION", "a:A,b.py")
    assert load_settings({}).activation == ("a:A", "b.py")


def test_an_unknown_variable_is_reported_and_not_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SUBSTRATE_PROT", "1")
    monkeypatch.setenv("SUBSTRATE_LIMITS__NOTHING", "1")
    loaded = read_settings({})
    assert loaded.unknown == ["SUBSTRATE_LIMITS__NOTHING", "SUBSTRATE_PROT"]
    assert loaded.settings == Settings()


@pytest.mark.parametrize(
    ("variable", "value", "means"),
    [
        ("SUBSTRATE_PORT", "abc", "a whole number from 0 to 65535"),
        ("SUBSTRATE_PORT", "65536", "a whole number from 0 to 65535"),
        ("SUBSTRATE_EOF_GRACE_S", "-1", "a number of at least 0"),
        ("SUBSTRATE_BASH_SANDBOX", "tight", "one of off, workspace, strict"),
        ("SUBSTRATE_LIMITS__LOG_ITEMS", "0", "a whole number above 0"),
        ("SUBSTRATE_LIMITS__RUN_S", "soon", "a number above 0"),
    ],
)
def test_an_invalid_variable_is_reported_with_what_is_allowed(
    variable: str, value: str, means: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingsError) as refused:
        load_settings({})
    name = variable.removeprefix("SUBSTRATE_").lower().replace("__", ".")
    assert (
        str(refused.value) == f"{variable}: invalid value {value!r} for {name}. Allowed: {means}."
    )


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("port = 'x'", "substrate.toml: invalid value 'x' for port. Allowed: a whole number"),
        (
            "activation = 'a:A'",
            "invalid value 'a:A' for activation. Allowed: a list",
        ),
        ("[limits]\nrun_s = 0", "substrate.toml: invalid value 0 for limits.run_s. Allowed"),
        ("prot = 1", "substrate.toml: unknown setting 'prot'. Did you mean port?"),
        (
            "[limits]\nruns_s = 1",
            "unknown setting 'limits.runs_s'. Did you mean limits.run_s?",
        ),
        ("[colours]\nred = 1", "substrate.toml: unknown setting 'colours'."),
        ("limits = 3", "limits must be a table"),
        ("port = ", "is not valid TOML"),
    ],
)
def test_an_invalid_file_is_reported_with_the_setting_and_what_is_allowed(
    text: str, complaint: str
) -> None:
    with pytest.raises(SettingsError) as refused:
        load_settings({}, text.encode())
    assert complaint in str(refused.value)


@pytest.mark.parametrize("name", ["", " "])
def test_an_activation_without_a_name_is_refused_with_where_it_was_set(name: str) -> None:
    with pytest.raises(SettingsError, match=r"flag: activation cannot be an empty text\. "):
        read_settings({"activation": ("a:A", name)})
    with pytest.raises(SettingsError, match=r"toml: activation cannot be an empty text\. "):
        read_settings({}, f"activation = [{name!r}]".encode())


def test_a_flag_does_not_hide_a_bad_file() -> None:
    with pytest.raises(SettingsError):
        load_settings({"port": 1}, b"port = 'x'")


@pytest.mark.parametrize("content", [b"\xff", b"a = " + b"[" * 100_000])
def test_a_file_that_cannot_be_parsed_is_a_settings_error(content: bytes) -> None:
    with pytest.raises(SettingsError, match="is not valid TOML"):
        load_settings({}, content)


def test_every_setting_describes_its_allowed_values() -> None:
    assert all(allowed(name) for name in setting_names())


@pytest.mark.parametrize("hint", [bool, int, float, str, tuple[str, ...], Literal["off", "on"]])
@pytest.mark.parametrize(
    "value",
    [
        *("", " ", "1", " 7 ", "+7", "-7", "007", "1_000", "1__0", "_1", "1.0"),
        *(
            "inf",
            "-inf",
            "x",
            "true",
            "TRUE",
            "Yes",
            "off",
            "on",
            "t",
            "N",
            " true",
            "\u0663",
            "0x1",
        ),
        *(True, False, 0, 1, 2, -1, 10**400, 0.0, 1.0, 1.5, float("inf"), -0.0),
        *([], ["a", "b"], ["a", 1], {}, {"a": 1}),
    ],
    ids=repr,
)
def test_a_value_is_converted_as_pydantic_does(hint: Any, value: Any) -> None:
    try:
        expected = TypeAdapter(hint).validate_python(value)
    except ValidationError:
        with pytest.raises((ValueError, OverflowError)):
            parse_value(hint, value)
    else:
        assert repr(parse_value(hint, value)) == repr(expected)


@pytest.mark.parametrize("value", ["nan", float("nan")])
def test_a_setting_is_never_not_a_number(value: Any) -> None:
    with pytest.raises(ValueError, match="out of bounds"):
        parse_value(float, value)


def test_a_number_too_large_is_refused_with_what_is_allowed() -> None:
    with pytest.raises(SettingsError, match=r"eof_grace_s\. .* a number of at least 0"):
        load_settings({}, b"eof_grace_s = 1" + b"0" * 400)

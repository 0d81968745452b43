"""Every setting of the program, in one frozen value, and where each came from.

Flags win over `SUBSTRATE_*` variables, which win over `substrate.toml` in the project folder,
which wins over what stands here. Values that were read are checked by pydantic, which is
imported only if there are any, because it costs as much as the rest of a cold start.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from plexus.limits import Limits

__all__ = (
    "FILE",
    "PREFIX",
    "Loaded",
    "Settings",
    "SettingsError",
    "allowed",
    "did_you_mean",
    "load_settings",
    "read_settings",
    "setting_names",
    "variable_of",
)

PREFIX = "SUBSTRATE_"
#: What stands between `limits` and the name of a limit in a variable.
NESTED = "__"
FILE = "substrate.toml"


@dataclasses.dataclass(frozen=True)
class Settings:
    """What can be set, with the defaults. Bounds stand in the metadata, in pydantic's words."""

    #: The port of the server on 127.0.0.1; 0 for any that is free.
    port: int = dataclasses.field(default=4444, metadata={"ge": 0, "le": 65535})
    #: Activations to load: `module:Class`, `module`, or the path of a Python file.
    activation: tuple[str, ...] = ()
    #: The folder of plugin files, relative to the project folder.
    activations_folder: str = "activations.d"
    #: How bash commands are confined: not at all, to the project folder, or without network too.
    bash_sandbox: Literal["off", "workspace", "strict"] = "off"
    #: How many seconds runs may go on after the input of `--stdio` has ended.
    eof_grace_s: float = dataclasses.field(default=2.0, metadata={"ge": 0})
    #: What is logged to stderr.
    log_level: Literal["debug", "info", "warning", "error"] = "warning"
    #: The bounds on everything; in the environment `SUBSTRATE_LIMITS__RUN_S` and so on.
    limits: Limits = dataclasses.field(default_factory=Limits)


class SettingsError(Exception):
    """A setting has a value that it cannot have; the message says which, where and what it can."""


@dataclasses.dataclass(frozen=True)
class Loaded:
    """The settings in force, and what is known about them."""

    settings: Settings
    #: Where each setting that is not left at its default comes from: `flag`, the variable, or
    #: the file. Limits are named as in `limits.run_s`.
    origins: dict[str, str]
    #: Variables that begin like ours and set nothing.
    unknown: list[str]


def load_settings(flags: Mapping[str, Any], project: Path) -> Settings:
    """Settings from everywhere. A flag that is None was not given. Raises SettingsError."""
    return read_settings(flags, project).settings


def read_settings(flags: Mapping[str, Any], project: Path) -> Loaded:
    """Settings from everywhere, with their origins. Raises SettingsError."""
    given = {name: value for name, value in flags.items() if value not in (None, ())}
    by_flag = dict.fromkeys(given, "flag")
    values, variables, unknown = _read_variables()
    file = project / FILE
    if not values and not file.is_file():
        return Loaded(Settings(**given), by_flag, unknown)
    read = _read_file(file) if file.is_file() else {}
    origins = dict.fromkeys(read, FILE) | variables
    settings = dataclasses.replace(_checked(read | values, origins), **given)
    return Loaded(settings, origins | by_flag, unknown)


def setting_names() -> list[str]:
    """Every setting, a limit as in `limits.run_s`."""
    names = [field.name for field in dataclasses.fields(Settings) if field.name != "limits"]
    return names + [f"limits.{field.name}" for field in dataclasses.fields(Limits)]


def allowed(name: str) -> str:
    """What a setting can be, in words."""
    hint, bounds = _hint(name)
    least, most, above = (bounds.get(bound) for bound in ("ge", "le", "gt"))
    if typing.get_origin(hint) is Literal:
        return "one of " + ", ".join(typing.get_args(hint))
    if hint not in (int, float):
        return "text" if hint is str else "a list of texts"
    kind = "a whole number" if hint is int else "a number"
    if most is not None:
        return f"{kind} from {least} to {most}"
    return f"{kind} above {above}" if above is not None else f"{kind} of at least {least}"


def _hint(name: str) -> tuple[Any, Mapping[str, Any]]:
    """The type of a setting, and its bounds."""
    owner, _, limit = name.rpartition(".")
    if owner:
        # A bound of nothing would refuse everything, so each has to be above zero.
        return typing.get_type_hints(Limits)[limit], types.MappingProxyType({"gt": 0})
    field = next(field for field in dataclasses.fields(Settings) if field.name == name)
    return typing.get_type_hints(Settings)[name], field.metadata


# --- reading ----------------------------------------------------------------------------------


def variable_of(name: str) -> str:
    """The variable that sets this setting."""
    return PREFIX + name.replace(".", NESTED).upper()


def _read_variables() -> tuple[dict[str, Any], dict[str, str], list[str]]:
    """The values that variables set, the variable of each, and those that set nothing."""
    present = sorted(name for name in os.environ if name.startswith(PREFIX))
    if not present:
        return {}, {}, []
    known = {variable_of(name): name for name in setting_names()}
    values = {known[name]: os.environ[name] for name in present if name in known}
    if "activation" in values:
        values["activation"] = tuple(filter(None, values["activation"].split(",")))  # type: ignore[assignment]
    origins = {known[name]: name for name in present if name in known}
    return values, origins, [name for name in present if name not in known]


def _read_file(file: Path) -> dict[str, Any]:
    import tomllib

    try:
        tables = tomllib.loads(file.read_text())
    except OSError as error:
        raise SettingsError(f"{file} cannot be read: {error.strerror}") from error
    except ValueError as error:  # no TOML, or no UTF-8
        raise SettingsError(f"{file} is not TOML: {error}") from error
    limits = tables.pop("limits", {})
    if not isinstance(limits, dict):
        raise SettingsError(f"{FILE}: limits must be a table; begin it with [limits]")
    values = tables | {f"limits.{name}": value for name, value in limits.items()}
    known = setting_names()
    for name in values:
        if name not in known:
            raise SettingsError(
                f"{FILE} sets {name}, which does not exist"
                f"{did_you_mean(name, known)} `substrate config` lists every setting."
            )
    return values


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about a name that is wrong."""
    nearest = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f". Did you mean {nearest[0]}?" if nearest else "."


# --- checking ---------------------------------------------------------------------------------


def _checked(values: Mapping[str, Any], origins: Mapping[str, str]) -> Settings:
    from pydantic import Field, TypeAdapter, ValidationError

    good: dict[str, Any] = {}
    for name, value in values.items():
        hint, bounds = _hint(name)
        # Validated as from text: a variable is one, and TOML's own types are taken too.
        form: Any = typing.Annotated[hint, Field(**bounds)]
        adapter: TypeAdapter[Any] = TypeAdapter(form)
        try:
            good[name] = adapter.validate_python(value)
        except ValidationError:
            raise SettingsError(
                f"{origins[name]}: {name} cannot be {value!r}; allowed: {allowed(name)}."
            ) from None
    limits = {name[7:]: good.pop(name) for name in list(good) if name.startswith("limits.")}
    return Settings(**good, limits=Limits(**limits))

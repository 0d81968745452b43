"""A method's JSON Schema as the options of a command.

Each parameter is an option, `max_output_bytes` written `--max-output-bytes` or with underscores;
values without an option fill the parameters in order; `--params` gives the whole object.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from plexus.errors import PlexusError
from plexus.limits import Limits
from plexus.registry.schema import resolve_reference
from plexus.rpc import wire

__all__ = (
    "ParameterOption",
    "Shape",
    "as_written",
    "dashed",
    "parameter_options",
    "params_option",
    "read_json",
    "read_params",
    "shape_of",
    "type_in_words",
    "values_argument",
)

#: Names that no parameter can have: those with a leading underscore are reserved.
VALUES, PARAMS = "_values", "_params"


class ParameterOption(click.Option):
    """One parameter of a method. Its texts become values in `read_params`, not before, because
    values without an option are read in the same way."""

    def __init__(
        self, name: str, schema: Mapping[str, Any], shape: Shape, *, required: bool, negatable: bool
    ) -> None:
        flag = "--" + dashed(name)
        if shape.is_flag and negatable:
            flag += "/--no-" + dashed(name)
        options: dict[str, Any] = {"is_flag": True} if shape.is_flag else {"metavar": shape.metavar}
        super().__init__(
            [flag, name],
            default=None,
            multiple=shape.is_list,
            type=bool if shape.is_flag else str,
            help=_help(schema, required=required),
            shell_complete=self._complete,
            **options,
        )
        self.shape = shape
        self.wanted = required

    def values(self, ctx: click.Context) -> Any:
        """What was given, as the schema wants it; raises BadParameter."""
        given = ctx.params[self.name]
        if self.shape.is_flag:
            return given
        return [self.read(text, ctx) for text in given] if self.multiple else self.read(given, ctx)

    def read(self, text: str, ctx: click.Context) -> Any:
        """One value; raises BadParameter."""
        try:
            return self.shape.read(text)
        except ValueError as error:
            raise click.BadParameter(str(error), ctx, self) from None

    def _complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        if self.shape.is_path:
            return click.Path().shell_complete(ctx, param, incomplete)
        return [CompletionItem(c) for c in self.shape.choices if c.startswith(incomplete)]


def dashed(name: str) -> str:
    """A parameter's name as an option has it."""
    return name.replace("_", "-")


def parameter_options(schema: Mapping[str, Any]) -> list[ParameterOption]:
    """An option for each parameter, in the order of the method's signature."""
    properties: Mapping[str, Any] = schema.get("properties", {})
    definitions = schema.get("$defs", {})
    required = schema.get("required", ())
    return [
        ParameterOption(
            name,
            entry,
            shape_of(entry, definitions),
            required=name in required,
            negatable=f"no_{name}" not in properties,
        )
        for name, entry in properties.items()
    ]


def values_argument(options: Sequence[ParameterOption]) -> click.Argument:
    """Whatever is given without an option."""
    names = [f"[{o.name.upper()}]" for o in options if o.wanted]
    rest = ["..."] if len(names) < len(options) or any(o.multiple for o in options) else []
    return click.Argument([VALUES], nargs=-1, metavar=" ".join(names + rest), required=False)


def params_option() -> click.Option:
    """`--params`."""
    return click.Option(
        ["--params", PARAMS],
        metavar="JSON",
        help="All parameters as one JSON object; - reads it from stdin.",
    )


def read_params(ctx: click.Context, options: Sequence[ParameterOption]) -> dict[str, Any]:
    """The parameters that the command line gives; raises click's usage errors."""
    params = _whole_object(ctx)
    params |= {
        option.name: option.values(ctx)
        for option in options
        if ctx.get_parameter_source(option.name) is ParameterSource.COMMANDLINE
    }
    _fill(params, list(ctx.params[VALUES]), options, ctx)
    if not params.keys() <= {option.name for option in options}:
        # The method refuses the name it does not know, with the nearest one that it does: more use
        # than that the right one is missing.
        return params
    for option in options:
        if option.wanted and option.name not in params:
            raise click.UsageError(
                f"{option.name} is missing: give it as --{dashed(option.name)} "
                f"{option.shape.metavar}, or as a plain value.",
                ctx,
            )
    return params


def _whole_object(ctx: click.Context) -> dict[str, Any]:
    text = ctx.params.get(PARAMS)
    if text is None:
        return {}
    try:
        params = read_json(sys.stdin.read() if text == "-" else text)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param_hint="'--params'") from None
    if not isinstance(params, dict):
        raise click.BadParameter(
            "It must be a JSON object, as in '{\"name\": 1}'.", ctx, param_hint="'--params'"
        )
    return params


def _fill(
    params: dict[str, Any],
    values: list[str],
    options: Sequence[ParameterOption],
    ctx: click.Context,
) -> None:
    """Give the values that have no name to the parameters in their order."""
    for option in options:
        if not values:
            return
        if option.name in params:
            raise click.UsageError(
                f"{option.name} is given twice: as {values[0]!r} and by its name. Values without "
                "a name fill the parameters in order.",
                ctx,
            )
        if option.multiple:  # a list takes all there are
            params[option.name] = [option.read(text, ctx) for text in values]
            return
        params[option.name] = option.read(values.pop(0), ctx)
    if values:
        raise click.UsageError(
            f"There are too many values: {values[0]!r} belongs to no parameter. "
            "Text with spaces needs quotes.",
            ctx,
        )


def _help(schema: Mapping[str, Any], *, required: bool) -> str:
    remarks = ["required"] if required else []
    if schema.get("default") is not None:
        remarks.append(f"default: {as_written(schema['default'])}")
    least, most = schema.get("minimum"), schema.get("maximum")
    if least is not None:
        remarks.append(f"at least {least}")
    if most is not None:
        remarks.append(f"at most {most}")
    text = str(schema.get("description", ""))
    return f"{text}  [{'; '.join(remarks)}]" if remarks else text


# --- text to values -------------------------------------------------------------------------------


Schema = Mapping[str, Any]

#: What an integer can be on our wire; anything beyond would arrive as a float.
SMALLEST, LARGEST = -(2**63), 2**64 - 1
TRUE, FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
#: How a person writes the value that is none.
NULL = "null"


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """How one value is written on a command line."""

    #: What stands for the value in a help text.
    metavar: str
    #: The value that a text means; raises ValueError that says what is wrong with it.
    read: Callable[[str], Any]
    #: All the texts there are, if they can be counted.
    choices: tuple[str, ...] = ()
    is_flag: bool = False
    #: Whether it is a list, whose entries are written one by one.
    is_list: bool = False
    is_path: bool = False


def shape_of(schema: Schema, definitions: Schema) -> Shape:
    """How a value of this schema is written."""
    plain, nullable = _without_null(resolve_reference(schema, definitions), definitions)
    shape = _plain_shape(plain, definitions)
    # Where leaving it out means null, "null" is a text like any other.
    if nullable and not shape.is_list and schema.get("default", "") is not None:
        return dataclasses.replace(shape, read=partial(_read_nullable, shape.read))
    return shape


def _plain_shape(schema: Schema, definitions: Schema) -> Shape:
    if "enum" in schema or "const" in schema:
        values = {as_written(value): value for value in schema.get("enum", [schema.get("const")])}
        names = tuple(values)
        return Shape(f"[{'|'.join(names)}]", partial(_read_choice, values), choices=names)
    kind = schema.get("type")
    if kind == "string":
        return Shape("TEXT", str, is_path="path" in schema.get("format", ""))
    if kind == "integer":
        return Shape("INTEGER", _read_integer)
    if kind == "number":
        return Shape("NUMBER", _read_number)
    if kind == "boolean":
        return Shape("BOOLEAN", _read_boolean, is_flag=True)
    if kind == "array" and "prefixItems" not in schema:
        entry = shape_of(schema.get("items", {}), definitions)
        return dataclasses.replace(entry, is_list=True, is_flag=False)
    members = [resolve_reference(member, definitions) for member in schema.get("anyOf", ())]
    if any(member.get("type") == "string" for member in members):
        return Shape("JSON|TEXT", _read_json_or_text)
    return Shape("JSON", read_json)


def _without_null(schema: Schema, definitions: Schema) -> tuple[Schema, bool]:
    """The schema of what is not null, and whether null is allowed."""
    members = [resolve_reference(member, definitions) for member in schema.get("anyOf", ())]
    others = [member for member in members if member.get("type") != "null"]
    nullable = len(others) < len(members)
    return (others[0] if len(others) == 1 else schema), nullable


def as_written(value: Any) -> str:
    """How a value is written on a command line: text bare, all else as JSON."""
    return value if isinstance(value, str) else wire.encode(value).decode()


def type_in_words(schema: Schema, definitions: Schema) -> str:
    """What a value of this schema is, for a reader: `text or null`, `list of integer`."""
    plain, nullable = _without_null(resolve_reference(schema, definitions), definitions)
    if "enum" in plain or "const" in plain:
        words = " | ".join(as_written(v) for v in plain.get("enum", [plain.get("const")]))
    elif plain.get("type") == "array":
        words = f"list of {type_in_words(plain.get('items', {}), definitions)}"
    elif "anyOf" in plain:
        members = [m for m in plain["anyOf"] if m.get("type") != "null"]
        words = " or ".join(type_in_words(member, definitions) for member in members)
    else:
        kind = str(plain.get("type", "any JSON"))
        words = "text" if kind == "string" else kind
    return f"{words} or null" if nullable else words


# --- reading ----------------------------------------------------------------------------------


def _read_nullable(read: Callable[[str], Any], text: str) -> Any:
    return None if text == NULL else read(text)


def _read_choice(values: Mapping[str, Any], text: str) -> Any:
    if text not in values:
        raise ValueError(f"{text!r} is not one of {', '.join(values)}.")
    return values[text]


def _read_integer(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a whole number.") from None
    if not SMALLEST <= number <= LARGEST:
        raise ValueError(f"{text} does not fit into 64 bits.")
    return number


def _read_number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number.") from None
    if not math.isfinite(number):
        raise ValueError(f"{text!r} is not a finite number.")
    return number


def _read_boolean(text: str) -> bool:
    if text.lower() in TRUE:
        return True
    if text.lower() in FALSE:
        return False
    raise ValueError(f"{text!r} is neither true nor false.")


def read_json(text: str) -> Any:
    """The JSON value that this text is; raises ValueError that says how to write one."""
    try:
        return wire.decode_value(text.encode(), Limits())
    except PlexusError as error:
        raise ValueError(f"{error.message}.") from None
    except ValueError as error:
        raise ValueError(
            f"{text!r} is not JSON ({error}). Text needs its quotes, as in '\"text\"'."
        ) from None


def _read_json_or_text(text: str) -> Any:
    try:
        return wire.decode_value(text.encode(), Limits())
    except (PlexusError, ValueError):
        return text

"""Command-line options derived from a method's JSON Schema.

Each parameter is an option: `max_output_bytes` is `--max-output-bytes` or `--max_output_bytes`.
Values without an option fill the parameters in order. `--params` passes the whole object. A value
can also come from stdin or a file, see `substrate.cli.parameter_input`.
"""

from __future__ import annotations

import dataclasses
import math
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
from substrate.cli.numbers import number_range
from substrate.cli.parameter_input import STDIN_PARAMETER, ParameterInput

__all__ = (
    "ParameterOption",
    "Shape",
    "format_value",
    "option_name",
    "parameter_options",
    "params_option",
    "read_json",
    "read_params",
    "shape_of",
    "type_label",
    "values_argument",
)

#: No parameter can have these names: a leading underscore is reserved.
VALUES, PARAMS = "_values", "_params"


class ParameterOption(click.Option):
    """Option for a parameter of a method.

    `read_params` parses its text, because values without an option are parsed in the same way.
    """

    def __init__(
        self, name: str, schema: Mapping[str, Any], shape: Shape, *, required: bool, negatable: bool
    ) -> None:
        flag = "--" + option_name(name)
        if shape.is_flag and negatable:
            flag += "/--no-" + option_name(name)
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
        self.is_required = required

    def values(self, ctx: click.Context, source: ParameterInput) -> Any:
        """Return the value for the schema. Raises BadParameter."""
        value = ctx.params[self.name]
        if self.shape.is_flag:
            return value
        if self.multiple:
            return [self.read(text, ctx, source) for text in value]
        return self.read(value, ctx, source)

    def read(self, text: str, ctx: click.Context, source: ParameterInput) -> Any:
        """Parse a value, or the text of stdin or a file. Raises BadParameter."""
        try:
            content = source.resolve(text, str(self.name))
            # The last line of a file with a number ends with a newline, too.
            is_exact = content is text or self.shape.read is str
            return self.shape.read(content if is_exact else content.strip())
        except ValueError as error:
            raise click.BadParameter(str(error), ctx, self) from None

    def _complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        if self.shape.is_path:
            return click.Path().shell_complete(ctx, param, incomplete)
        return [CompletionItem(c) for c in self.shape.choices if c.startswith(incomplete)]


def option_name(name: str) -> str:
    """Return the option name of a parameter, without dashes in front."""
    return name.replace("_", "-")


def parameter_options(schema: Mapping[str, Any]) -> list[ParameterOption]:
    """Return an option for each parameter, in the order of the method's signature."""
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
    """Return the argument for values without an option."""
    names = [f"[{o.name.upper()}]" for o in options if o.is_required]
    rest = ["..."] if len(names) < len(options) or any(o.multiple for o in options) else []
    return click.Argument([VALUES], nargs=-1, metavar=" ".join(names + rest), required=False)


def params_option() -> click.Option:
    """Return the option `--params`."""
    return click.Option(
        ["--params", PARAMS],
        metavar="JSON",
        help="All parameters as a JSON object; - reads it from stdin, @FILE from a file.",
    )


def read_params(
    ctx: click.Context, options: Sequence[ParameterOption], source: ParameterInput
) -> dict[str, Any]:
    """Return the parameters from the command line, stdin and files. Raises click's usage errors."""
    params = _read_object(ctx, source)
    params |= {
        option.name: option.values(ctx, source)
        for option in options
        if ctx.get_parameter_source(option.name) is ParameterSource.COMMANDLINE
    }
    _fill(params, list(ctx.params[VALUES]), options, ctx, source)
    if not params.keys() <= {option.name for option in options}:
        # The method rejects the unknown name and suggests a similar one, which helps more than an
        # error about the missing parameter.
        return params
    for option in options:
        if option.is_required and option.name not in params:
            raise click.UsageError(
                f"Missing parameter {option.name}. Pass it as --{option_name(option.name)} "
                f"{option.shape.metavar}, or as a plain value.",
                ctx,
            )
    _fill_from_stdin(params, options, ctx, source)
    return params


def _read_object(ctx: click.Context, source: ParameterInput) -> dict[str, Any]:
    text = ctx.params.get(PARAMS)
    if text is None:
        return {}
    try:
        params = read_json(source.resolve(text, "--params"))
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param_hint="'--params'") from None
    if not isinstance(params, dict):
        raise click.BadParameter(
            "must be a JSON object, as in '{\"name\": 1}'.", ctx, param_hint="'--params'"
        )
    return params


def _fill(
    params: dict[str, Any],
    values: list[str],
    options: Sequence[ParameterOption],
    ctx: click.Context,
    source: ParameterInput,
) -> None:
    """Assign the values without an option to the parameters in order. Raises UsageError."""
    for option in options:
        if not values:
            return
        if option.name in params:
            raise click.UsageError(
                f"Parameter {option.name} is set twice: by the plain value {values[0]!r} and by "
                "its option. Plain values fill the parameters in order.",
                ctx,
            )
        if option.multiple:  # a list takes all remaining values
            params[option.name] = [option.read(text, ctx, source) for text in values]
            return
        params[option.name] = option.read(values.pop(0), ctx, source)
    if values:
        raise click.UsageError(
            f"Too many values: {values[0]!r} has no parameter. Put text with spaces in quotes.",
            ctx,
        )


def _fill_from_stdin(
    params: dict[str, Any],
    options: Sequence[ParameterOption],
    ctx: click.Context,
    source: ParameterInput,
) -> None:
    """Set an optional text parameter named `stdin` to what is piped in. Raises BadParameter."""
    option = next((option for option in options if option.name == STDIN_PARAMETER), None)
    if option is None or option.shape.read is not str or STDIN_PARAMETER in params:
        return
    if source.has_stdin and not option.is_required:
        try:
            text = source.read_stdin(STDIN_PARAMETER)
        except ValueError as error:
            raise click.BadParameter(str(error), ctx, option) from None
        if text:
            params[STDIN_PARAMETER] = text


def _help(schema: Mapping[str, Any], *, required: bool) -> str:
    remarks = ["required"] if required else []
    if schema.get("default") is not None:
        remarks.append(f"default: {format_value(schema['default'])}")
    if allowed := number_range(schema.get("minimum"), schema.get("maximum")):
        remarks.append(allowed)
    text = str(schema.get("description", ""))
    return f"{text}  [{'; '.join(remarks)}]" if remarks else text


# --- text to values -------------------------------------------------------------------------------


Schema = Mapping[str, Any]

#: Range of an integer on the wire; anything beyond would arrive as a float.
SMALLEST, LARGEST = -(2**63), 2**64 - 1
TRUE, FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
#: Text for the null value.
NULL = "null"


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """Format of a value on the command line."""

    #: Placeholder in help texts.
    metavar: str
    #: Parse a text. Raises ValueError with the reason.
    read: Callable[[str], Any]
    #: All valid texts, if they are a fixed set.
    choices: tuple[str, ...] = ()
    is_flag: bool = False
    #: Whether the value is a list whose entries are passed one by one.
    is_list: bool = False
    is_path: bool = False


def shape_of(schema: Schema, definitions: Schema) -> Shape:
    """Return the command-line format of a schema's values."""
    plain, nullable = _without_null(resolve_reference(schema, definitions), definitions)
    shape = _plain_shape(plain, definitions)
    # If the default is null, the text "null" has no special meaning.
    if nullable and not shape.is_list and schema.get("default", "") is not None:
        return dataclasses.replace(shape, read=partial(_read_nullable, shape.read))
    return shape


def _plain_shape(schema: Schema, definitions: Schema) -> Shape:
    if "enum" in schema or "const" in schema:
        values = {format_value(value): value for value in schema.get("enum", [schema.get("const")])}
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
    """Return the schema without null, and whether null is allowed."""
    members = [resolve_reference(member, definitions) for member in schema.get("anyOf", ())]
    others = [member for member in members if member.get("type") != "null"]
    nullable = len(others) < len(members)
    return (others[0] if len(others) == 1 else schema), nullable


def format_value(value: Any) -> str:
    """Format a value for the command line: a string unchanged, anything else as JSON."""
    return value if isinstance(value, str) else wire.encode(value).decode()


def type_label(schema: Schema, definitions: Schema) -> str:
    """Return a readable type of a schema: `text or null`, `list of integer`."""
    plain, nullable = _without_null(resolve_reference(schema, definitions), definitions)
    if "enum" in plain or "const" in plain:
        words = " | ".join(format_value(v) for v in plain.get("enum", [plain.get("const")]))
    elif plain.get("type") == "array":
        words = f"list of {type_label(plain.get('items', {}), definitions)}"
    elif "anyOf" in plain:
        members = [m for m in plain["anyOf"] if m.get("type") != "null"]
        words = " or ".join(type_label(member, definitions) for member in members)
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
    """Parse a JSON value. Raises ValueError with a hint about quoting."""
    try:
        return wire.decode_value(text.encode(), Limits())
    except PlexusError as error:
        raise ValueError(f"{error.message}.") from None
    except ValueError as error:
        raise ValueError(
            f"{text!r} is not JSON ({error}). A string needs quotes, as in '\"text\"'."
        ) from None


def _read_json_or_text(text: str) -> Any:
    try:
        return wire.decode_value(text.encode(), Limits())
    except (PlexusError, ValueError):
        return text

"""A method's JSON Schema as the options of a command.

Each parameter is an option, `max_output_bytes` written `--max-output-bytes` or with underscores;
values without an option fill the parameters in order; `--params` gives the whole object.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from substrate.cli.option_values import Shape, as_written, read_json, shape_of

__all__ = (
    "ParameterOption",
    "dashed",
    "parameter_options",
    "params_option",
    "read_params",
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

"""`substrate call`: call a method and show its events.

Each method is a command of this group, built from its JSON Schema on use: options, help, checks
and completion follow from the schema. Flags of `call` itself are accepted before and after the
method's name; after it, a parameter of the same name takes precedence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from plexus.errors import InvalidParams, PlexusError, UnknownMethod
from plexus.registry.selection import OFF, Selection
from substrate.cli.commands.list import print_namespaces
from substrate.cli.main import files_of, settings_of
from substrate.cli.parameter_input import ParameterInput
from substrate.cli.schema_options import (
    option_name,
    parameter_options,
    params_option,
    read_params,
    values_argument,
)
from substrate.cli.target.catalogue import find_method, method_names, suggest
from substrate.cli.target.local import LocalTarget
from substrate.cli.target.protocol import Target
from substrate.cli.target.selection import Choice, choose_target, target_options
from substrate.cli.terminal.display import Streams, choose_display, parameter_errors
from substrate.cli.terminal.prompter import Prompter
from substrate.cli.terminal.run_follower import INTERRUPTED, RunFollower

__all__ = ("call",)

TARGET = "substrate.target"


def output_options() -> list[click.Option]:
    """Return the options that select the output format."""
    return [
        click.Option(["--json", "_json"], is_flag=True, help="Print each event as a line of JSON."),
        click.Option(
            ["--exit-code", "_exit_code"],
            is_flag=True,
            help="Exit with the exit code of the command that the method runs.",
        ),
    ]


class CallGroup(click.Group):
    """Group whose commands are the methods of the target."""

    def invoke(self, ctx: click.Context) -> None:
        """Find the method and call it. Ctrl-C before the call starts has the same exit code."""
        try:
            super().invoke(ctx)
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command for the method named by the first argument."""
        name, *rest = args
        choice = Choice(bool(ctx.params.get("local")), ctx.params.get("url"))
        trailing = _trailing_choice(rest)
        if trailing is not None and choice == Choice() and not _has_parameter(ctx, name, trailing):
            choice = trailing
        target = _target(ctx, choice)
        method = find_method(target.catalogue, name)
        if method is None:
            if ctx.resilient_parsing:
                return None, None, rest
            raise click.UsageError(_unknown_method(ctx, target, name), ctx)
        return method, MethodCommand(target, target.catalogue.method(method)), rest

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete method names and the flags of `call`."""
        methods = [
            CompletionItem(method.name, help=method.summary)
            for namespace in _target(ctx, Choice()).catalogue.namespaces()
            for method in namespace.methods
            if method.name.startswith(incomplete)
        ]
        return methods + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, _: click.Context, formatter: click.HelpFormatter) -> None:
        """Refer to `substrate list` instead of listing every method."""
        with formatter.section("Methods"):
            formatter.write_text(
                "`substrate list` lists all methods; `substrate call METHOD --help` shows the "
                "parameters of one method."
            )


class MethodCommand(click.Command):
    """Command that calls one method."""

    def __init__(self, target: Target, schema: Mapping[str, Any]) -> None:
        self.schema = schema
        self.target = target
        self.parameters = parameter_options(schema["params"])
        names = {option.name for option in self.parameters}
        common = [params_option(), *output_options(), *target_options()]
        self.common = [option for option in common if not names.intersection(_flag_names(option))]
        super().__init__(
            schema["name"],
            # `--max_output_bytes` is `--max-output-bytes`.
            context_settings={"token_normalize_func": option_name},
            params=[*self.parameters, values_argument(self.parameters), *self.common],
            help=schema["description"],
        )

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the method's parameters first, then the options common to all methods."""
        for title, options in (
            ("Parameters", self.parameters),
            ("Options", [*self.common, self.get_help_option(ctx)]),
        ):
            records = [option.get_help_record(ctx) for option in options if option is not None]
            if any(records):
                with formatter.section(title):
                    formatter.write_dl([record for record in records if record is not None])

    def invoke(self, ctx: click.Context) -> None:
        """Call the method and exit with its exit code."""
        ctx.exit(self.call_method(ctx))

    def call_method(self, ctx: click.Context) -> int:
        """Call the method. Returns the exit code. Raises click's errors if it is rejected."""
        source = ParameterInput(settings_of(ctx).limits.message_bytes)
        params = read_params(ctx, self.parameters, source)
        streams = Streams()
        display = choose_display(streams, as_json=_has_flag(ctx, "_json"))
        follower = RunFollower(
            self.target,
            display,
            Prompter.at_terminal(streams.err),
            passes_exit_code=_has_flag(ctx, "_exit_code"),
        )
        # A method with neither events nor a result follows a run that another client started.
        follows = self.schema.keys().isdisjoint(("events", "result"))
        try:
            return self.target.run(follower.follow(self.schema["name"], params, detach=follows))
        except (InvalidParams, UnknownMethod) as error:
            raise click.UsageError(_error_text(error), ctx) from error
        except PlexusError as error:
            raise click.ClickException(f"{error.message} ({error.code})") from error


def _has_flag(ctx: click.Context, name: str) -> bool:
    """Return whether a flag of `call` is set, before or after the method's name."""
    group = ctx.parent.params if ctx.parent is not None else {}
    return bool(ctx.params.get(name) or group.get(name))


def _flag_names(option: click.Option) -> list[str]:
    return [flag.removeprefix("--") for flag in option.opts]


def _trailing_choice(rest: Sequence[str]) -> Choice | None:
    """Return the target selected after the method's name, before its options are known."""
    local, url = False, None
    for word, following in zip_longest(rest, rest[1:]):
        if word == "--":
            break
        local = local or word == "--local"
        if word == "--url":
            url = following
        elif word.startswith("--url="):
            url = word.removeprefix("--url=")
    return Choice(local, url) if local or url else None


def _has_parameter(ctx: click.Context, name: str, trailing: Choice) -> bool:
    """Return whether the method has a parameter with the same name as the flag.

    The method is looked up on the target without the flag, or locally for `--local`.
    """
    catalogue = _target(ctx, Choice(local=trailing.url is None)).catalogue
    method = find_method(catalogue, name)
    if method is None:
        return False
    own = catalogue.method(method)["params"].get("properties", {})
    return (trailing.local and "local" in own) or (trailing.url is not None and "url" in own)


def _target(ctx: click.Context, choice: Choice) -> Target:
    """Return the target of a choice, created once per command."""
    targets: dict[Choice, Target] = ctx.meta.setdefault(TARGET, {})
    if choice not in targets:
        targets[choice] = choose_target(ctx, choice)
    return targets[choice]


def _unknown_method(ctx: click.Context, target: Target, name: str) -> str:
    names = method_names(target.catalogue)
    inside = [known for known in names if known.startswith(f"{name}.")]
    if inside:
        return f"{name!r} is a namespace. Its methods are: {', '.join(inside)}."
    if target.command is not None:
        own = LocalTarget(settings_of(ctx), Path.cwd(), files_of(ctx))
        ctx.call_on_close(own.close)
        here = find_method(own.catalogue, name)
        if here is not None:
            return _capitalized(
                f"{target.name} does not have {here}, but this project has. Use --local to run it "
                "here, or restart the server, which then loads it."
            )
    if not Selection(settings_of(ctx).only, settings_of(ctx).without).allows(name):
        return f"{name} is {OFF}: see `substrate config only without`."
    advice = _file_advice(name) or suggest(name, names) or "`substrate list` shows all methods."
    if target.command is None:
        return f"Unknown method {name!r}. {advice}"
    return _capitalized(f"{target.name} has no method {name!r}. {advice}")


def _file_advice(name: str) -> str:
    """Return how to call a method of a file that no configuration names, if there is one."""
    namespace = name.partition(".")[0]
    if not namespace.isidentifier() or not Path(f"{namespace}.py").is_file():
        return ""
    file = f"{namespace}.py"
    return f"To load {file} for this call, use `substrate --activation {file} call {name}`."


def _capitalized(text: str) -> str:
    return text[0].upper() + text[1:]


def _error_text(error: PlexusError) -> str:
    """Return the message, or a list if several parameters are invalid."""
    errors = parameter_errors(error.data)
    return "\n  ".join(["Invalid parameters:", *errors]) if errors else error.message


@click.command(
    cls=CallGroup,
    short_help="Call a method and show its events.",
    invoke_without_command=True,
    subcommand_metavar="METHOD [VALUES]...",
    params=[*output_options(), *target_options()],
)
@click.pass_context
def call(ctx: click.Context, /, **_: Any) -> None:
    """Call METHOD and show its events as they arrive.

    Pass parameters as options (`--command ls`) or as plain values in order. The output is the text
    of the answer, also in a pipe; with --json it is one event per line. A value - is read from
    stdin, and @FILE from a file (@@ for a text that begins with @). Ctrl-C stops the run.

    Exit codes: 0 success, 1 failure, 2 invalid call, 130 interrupted by Ctrl-C.

    `substrate completion` sets up shell completion of methods and parameters.
    """
    if ctx.invoked_subcommand is None:
        choice = Choice(bool(ctx.params.get("local")), ctx.params.get("url"))
        print_namespaces(_target(ctx, choice).catalogue.namespaces(), as_json=False)

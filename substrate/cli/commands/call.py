"""`substrate call`: call a method and see its events.

A method is a command of this group, made from its JSON Schema when it is named: options, help,
checks and completion follow from that. Flags of `call` itself are taken before and after the
method's name; a parameter that is called like one of them wins after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from plexus.errors import InvalidParams, PlexusError, UnknownMethod
from substrate.cli.commands.list import print_namespaces
from substrate.cli.main import files_of, settings_of
from substrate.cli.schema_options import (
    dashed,
    parameter_options,
    params_option,
    read_params,
    values_argument,
)
from substrate.cli.target.catalogue import find_method, method_names, nearest
from substrate.cli.target.local import LocalTarget
from substrate.cli.target.protocol import Target
from substrate.cli.target.selection import Choice, choose_target, target_options
from substrate.cli.terminal.display import Display, Streams, choose_display, faults_in
from substrate.cli.terminal.prompter import Prompter
from substrate.cli.terminal.run_follower import INTERRUPTED, RunFollower

__all__ = ("call",)

TARGET = "substrate.target"


def output_options() -> list[click.Option]:
    """The flags that choose how events are shown."""
    return [
        click.Option(["--json", "_json"], is_flag=True, help="Each event as a line of JSON."),
        click.Option(["--text", "_text"], is_flag=True, help="Readable, also when piped."),
    ]


class CallGroup(click.Group):
    """A group whose commands are the methods there are."""

    def invoke(self, ctx: click.Context) -> None:
        """Find the method and call it; Ctrl-C before the call has begun ends it the same way."""
        try:
            super().invoke(ctx)
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command of the method that is named first."""
        name, *rest = args
        choice = Choice(bool(ctx.params.get("local")), ctx.params.get("url"))
        late = _late_choice(rest)
        if late is not None and choice == Choice() and not _has_own(ctx, name, late):
            choice = late
        target = _target(ctx, choice)
        method = find_method(target.catalogue, name)
        if method is None:
            if ctx.resilient_parsing:
                return None, None, rest
            raise click.UsageError(_no_such_method(ctx, target, name), ctx)
        return method, MethodCommand(target, target.catalogue.method(method)), rest

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Names of methods, and the flags of `call`."""
        methods = [
            CompletionItem(method.name, help=method.summary)
            for namespace in _target(ctx, Choice()).catalogue.namespaces()
            for method in namespace.methods
            if method.name.startswith(incomplete)
        ]
        return methods + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, _: click.Context, formatter: click.HelpFormatter) -> None:
        """The help says where the methods are listed, and lists none."""
        with formatter.section("Methods"):
            formatter.write_text(
                "`substrate list` shows them, `substrate call METHOD --help` the parameters of one."
            )


class MethodCommand(click.Command):
    """One method."""

    def __init__(self, target: Target, described: Mapping[str, Any]) -> None:
        self.described = described
        self.target = target
        self.parameters = parameter_options(described["params"])
        taken = {option.name for option in self.parameters}
        ours = [params_option(), *output_options(), *target_options()]
        self.ours = [option for option in ours if not taken.intersection(_flag_names(option))]
        super().__init__(
            described["name"],
            # `--max_output_bytes` is `--max-output-bytes`.
            context_settings={"token_normalize_func": dashed},
            params=[*self.parameters, values_argument(self.parameters), *self.ours],
            help=described["description"],
        )

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Parameters first, then what every method has."""
        for title, options in (
            ("Parameters", self.parameters),
            ("Options", [*self.ours, self.get_help_option(ctx)]),
        ):
            records = [option.get_help_record(ctx) for option in options if option is not None]
            if any(records):
                with formatter.section(title):
                    formatter.write_dl([record for record in records if record is not None])

    def invoke(self, ctx: click.Context) -> None:
        """Call the method and end with its exit code."""
        ctx.exit(self.play(ctx))

    def play(self, ctx: click.Context) -> int:
        """Call the method; the exit code. Raises click's errors if it is refused."""
        params = read_params(ctx, self.parameters)
        streams = Streams()
        display = _display(ctx, streams)
        follower = RunFollower(self.target, display, Prompter.at_terminal(streams.err))
        # What has neither events nor a result of its own follows a run that somebody else began.
        follows = self.described.keys().isdisjoint(("events", "result"))
        name = self.described["name"]
        try:
            return self.target.run(follower.play(name, params, follows=follows))
        except (InvalidParams, UnknownMethod) as error:
            raise click.UsageError(_with_faults(error), ctx) from error
        except PlexusError as error:
            raise click.ClickException(f"{error.message} ({error.code})") from error


def _display(ctx: click.Context, streams: Streams) -> Display:
    group = ctx.parent.params if ctx.parent is not None else {}
    wants = {name: bool(ctx.params.get(name) or group.get(name)) for name in ("_json", "_text")}
    return choose_display(streams, as_json=wants["_json"], as_text=wants["_text"])


def _flag_names(option: click.Option) -> list[str]:
    return [flag.removeprefix("--") for flag in option.opts]


def _late_choice(rest: Sequence[str]) -> Choice | None:
    """What is said about the target after the method's name, before its options are known."""
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


def _has_own(ctx: click.Context, name: str, late: Choice) -> bool:
    """Whether the method has a parameter of its own that is called like the flag.

    Looked up where the method would be called without the flag, or, for `--local`, here.
    """
    catalogue = _target(ctx, Choice(local=late.url is None)).catalogue
    method = find_method(catalogue, name)
    if method is None:
        return False
    own = catalogue.method(method)["params"].get("properties", {})
    return (late.local and "local" in own) or (late.url is not None and "url" in own)


def _target(ctx: click.Context, choice: Choice) -> Target:
    """The target of this choice; made once."""
    known: dict[Choice, Target] = ctx.meta.setdefault(TARGET, {})
    if choice not in known:
        known[choice] = choose_target(ctx, choice)
    return known[choice]


def _no_such_method(ctx: click.Context, target: Target, name: str) -> str:
    names = method_names(target.catalogue)
    inside = [known for known in names if known.startswith(f"{name}.")]
    if inside:
        return f"{name} is a namespace. Its methods are: {', '.join(inside)}."
    if target.command is not None:
        own = LocalTarget(settings_of(ctx), Path.cwd(), files_of(ctx))
        ctx.call_on_close(own.close)
        here = find_method(own.catalogue, name)
        if here is not None:
            return f"{target.name} does not have {here}; --local runs it here.".capitalize()
    advice = nearest(name, names) or "`substrate list` shows what there is."
    return f"There is no method {name}. {advice}"


def _with_faults(error: PlexusError) -> str:
    """The message, with every fault where there are several."""
    faults = faults_in(error.data)
    return "\n  ".join(["The parameters do not fit:", *faults]) if faults else error.message


@click.command(
    cls=CallGroup,
    short_help="Call a method and show its events.",
    invoke_without_command=True,
    subcommand_metavar="METHOD [VALUES]...",
    params=[*output_options(), *target_options()],
)
@click.pass_context
def call(ctx: click.Context, /, **_: Any) -> None:
    """Call METHOD and show its events as they come.

    Parameters are options (`--command ls`) or plain values in their order. On a terminal events
    are readable; piped, or with --json, each is a line of JSON. Ctrl-C stops the run. The exit
    code is 0 if the run did its work, 1 if it failed, 2 for a wrong call, 130 after Ctrl-C.

    `substrate completion` sets up a shell to complete methods and their parameters.
    """
    if ctx.invoked_subcommand is None:
        choice = Choice(bool(ctx.params.get("local")), ctx.params.get("url"))
        print_namespaces(_target(ctx, choice).catalogue.namespaces(), as_json=False)

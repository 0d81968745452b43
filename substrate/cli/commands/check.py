"""`substrate check`: find problems in activations that clients and models would run into."""

from __future__ import annotations

import dataclasses
import sys
import traceback
from collections.abc import Iterable, Sequence
from contextlib import redirect_stdout
from pathlib import Path

import click

from plexus.activation import Activation
from plexus.errors import PlexusError
from plexus.registry.activation_tree import methods_of, read_activation
from plexus.registry.plugin_namespaces import BuiltIns, Registrable
from plexus.registry.plugins import Find, plugin_errors
from plexus.registry.signature import MethodSpec
from plexus.runtime.hub import Plexus
from substrate.build_hub import built_in_hub, finder
from substrate.cli.event_loop import run_async
from substrate.cli.main import files_of, script_of, settings_of
from substrate.cli.project_package import UNTRUSTED, author_files, project_package
from substrate.cli.terminal.display import coloured
from substrate.cli.terminal.tables import print_json_line
from substrate.devtools.lint import Finding, check_activation, check_methods
from substrate.devtools.plugin_sources import NoSource, PluginSources, find_sources, project_sources
from substrate.devtools.source_location import (
    SourceLocation,
    display_path,
    location_of_activation,
    location_of_error,
)
from substrate.settings import ProjectFiles, Settings

__all__ = ("check",)

#: Rule of the finding for an activation that cannot be loaded.
LOAD = "load"
COLOURS = {"error": "red", "warning": "yellow"}


@dataclasses.dataclass(frozen=True, slots=True)
class LoadResult:
    """Methods and findings of the loaded sources."""

    methods: list[MethodSpec]
    findings: list[Finding]


@click.command(short_help="Check activations for problems.")
@click.argument("source", required=False, metavar="[PATH|MODULE]")
@click.option("--json", "as_json", is_flag=True, help="Print each finding as a line of JSON.")
@click.option("--strict", is_flag=True, help="Exit with 1 for warnings too.")
@click.option(
    "--server",
    default="substrate",
    show_default=True,
    metavar="NAME",
    help="Name of the server in the MCP host. It is part of every tool name.",
)
@click.pass_context
def check(
    ctx: click.Context, *, source: str | None, as_json: bool, strict: bool, server: str
) -> None:
    """Load the activations of PATH and report problems for clients and models.

    PATH is a Python file, a folder of Python files, or a project whose pyproject.toml names
    activations. MODULE is module or module:Class. Without either, the project in this folder is
    checked. The exit code is 1 for an error, and with --strict for any finding.
    """
    try:
        settings = settings_of(ctx)
        source = source or script_of(ctx)
        if source is not None:
            sources, refused = find_sources(source), False
        else:
            package, refused = project_package(ctx)
            sources = project_sources(settings, author_files(ctx)).merged_with(package)
    except NoSource as error:
        raise click.UsageError(str(error), ctx) from error
    if refused:
        click.echo(f"Warning: {UNTRUSTED.format(command='check')}", err=True)
    if not sources.current():
        if refused or files_of(ctx).skipped is not None:
            raise click.UsageError("Nothing was checked: the folder is not trusted.", ctx)
        raise click.UsageError(
            f"No activations found: no file in {settings.activations_folder}/ and no package that "
            "names any. Pass a file, a folder or a module, or create a package with "
            "`substrate new NAME`.",
            ctx,
        )
    with redirect_stdout(sys.stderr):  # stdout carries only the findings, not plugins' output
        loaded = run_async(_load(sources, settings, files_of(ctx)))
    found = [*loaded.findings, *check_methods(loaded.methods, server)]
    found.sort(key=lambda each: (each.level, str(each.place or ""), each.rule))
    _print(found, loaded, as_json=as_json)
    if any(strict or each.level == "error" for each in found):
        ctx.exit(1)


# --- loading --------------------------------------------------------------------------------------


async def _load(sources: PluginSources, settings: Settings, files: ProjectFiles) -> LoadResult:
    """Register the activations of the sources after the built-in activations.

    This runs on an event loop because a server does the same.
    """
    find = finder(settings, Path.cwd(), files)
    sources.add_to_sys_path()
    hub = built_in_hub(settings, Path.cwd())
    built_in = {path: type(activation) for path, activation in hub.activations()}
    built_ins = BuiltIns(hub)
    loaded = LoadResult([], [])
    for name in sources.current():
        before = len(loaded.findings)
        classes = _classes(name, find, loaded)
        for cls in classes:
            _register(cls, hub, built_in, loaded)
        for index, found in enumerate(loaded.findings[before:], before):
            if found.rule == LOAD:
                switched_off = built_ins.switch_off(name, classes)
                loaded.findings[index] = found._replace(message=found.message + switched_off)
    await hub.close()
    return loaded


def _classes(name: str, find: Find, loaded: LoadResult) -> list[Registrable]:
    try:
        with plugin_errors():
            return list(find(name))
    except PlexusError as error:
        loaded.findings.append(_broken(name, error, _files_of(error)))
        return []


def name_of(activation: Registrable) -> str:
    """Return what findings call an activation: its class, or its namespace if it has none."""
    if isinstance(activation, type):
        return activation.__name__
    if type(activation) is not Activation:
        return type(activation).__name__
    return activation.namespace


def _register(
    cls: Registrable, hub: Plexus, built_in: dict[str, type[Activation]], loaded: LoadResult
) -> None:
    place = location_of_activation(cls)
    replaced = built_in.get(getattr(cls, "namespace", ""))
    if replaced not in (None, cls):
        loaded.findings.append(
            Finding(
                "warning",
                "namespace-taken",
                name_of(cls),
                f"replaces the built-in activation {cls.namespace}",
                "choose another namespace unless the replacement is intended",
                place,
            )
        )
    try:
        with plugin_errors():
            node = read_activation(cls)
            clash = _clash(methods_of(node), loaded.methods)
            if clash is not None:
                loaded.findings.append(clash)
                return
            hub.register(node.activation)
    except PlexusError as error:
        loaded.findings.append(_broken(name_of(cls), error, [place.file] if place else []))
    else:
        loaded.methods.extend(methods_of(node))
        loaded.findings.extend(check_activation(node))


def _clash(methods: Iterable[MethodSpec], known: Sequence[MethodSpec]) -> Finding | None:
    """Return a finding if clients cannot tell two methods apart; the hub accepts only the first."""
    flat = {spec.name.replace(".", "_"): spec for spec in known}
    for spec in methods:
        other = flat.get(spec.name.replace(".", "_"))
        if other is not None:
            message = f"clients cannot tell it from {other.name}: dots become underscores"
            if other.name == spec.name:
                message = f"duplicate name, also defined by {name_of(other.owner)}"
            place = location_of_activation(spec.owner)
            advice = "rename one of the two"
            return Finding("error", "name-collision", spec.name, message, advice, place)
    return None


def _broken(subject: str, error: PlexusError, files: Iterable[Path]) -> Finding:
    return Finding(
        "error",
        LOAD,
        display_path(Path(subject)) if "/" in subject else subject,
        " ".join(error.message.split()),
        "fix it; a server would skip this activation",
        location_of_error(error, files),
    )


def _files_of(error: BaseException) -> list[Path]:
    """Return the files in an error's traceback, without Python's import machinery and plexus."""
    cause = error.__cause__
    frames = traceback.extract_tb(None if cause is None else cause.__traceback__)
    ours = Path(__file__).parents[3]
    files = [Path(frame.filename) for frame in frames if not frame.filename.startswith("<")]
    return [
        file
        for file in files
        if "importlib" not in file.parts and not file.is_relative_to(ours / "plexus")
    ]


# --- printing -------------------------------------------------------------------------------------


def _print(found: Sequence[Finding], loaded: LoadResult, *, as_json: bool) -> None:
    if as_json:
        for each in found:
            print_json_line(_fields(each))
        return
    for each in found:
        where = f"{each.place}: " if each.place else ""
        level = coloured(each.level, COLOURS[each.level]) if sys.stdout.isatty() else each.level
        click.echo(f"{where}{level}: {each.subject}: {each.message} [{each.rule}]")
        click.echo(f"    {each.advice}")
    counted = {level: sum(each.level == level for each in found) for level in ("error", "warning")}
    summary = ", ".join(_plural(number, level) for level, number in counted.items() if number)
    click.echo(f"{_plural(len(loaded.methods), 'method')}: {summary or 'no problems'}")


def _fields(finding: Finding) -> dict[str, object]:
    place: SourceLocation | None = finding.place
    return {
        "level": finding.level,
        "rule": finding.rule,
        "subject": finding.subject,
        "message": finding.message,
        "advice": finding.advice,
        "file": None if place is None else str(place.file),
        "line": None if place is None else place.line,
    }


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"

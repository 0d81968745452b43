"""`substrate new`: create the package of a new activation, with passing tests.

The templates are in `substrate/devtools/templates`: `project` for every package, `function` and
`class` for the two styles. Their names end with `.txt` so that no tool treats them as source; NAME
in a path stands for the activation's name.
"""

from __future__ import annotations

import importlib.util
import keyword
import re
import string
import sys
from collections.abc import Iterator
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

import click

from plexus.registry.signature import is_name
from plexus.version import __version__
from substrate.build_hub import NAMESPACES
from substrate.cli.terminal.tables import print_json_line
from substrate.devtools.source_location import display_path
from substrate.security.folder_trust.decision import real_folder, unsafe_reason
from substrate.security.folder_trust.records import RecordError, write_record

__all__ = ("RESERVED", "name_error", "new")

#: With a host's prefix and a method name, a tool name must fit into 64 characters.
MAX_NAME_CHARS = 24
#: Existing namespaces, and packages that would shadow the new package or be shadowed by it.
RESERVED = frozenset(
    {
        *NAMESPACES,
        *("activations", "mcp_view", "native_rpc", "substrate"),
        *("read", "src", "test", "tests"),
    }
)


def name_error(name: str) -> str | None:
    """Return why a name is invalid, as a predicate; None if it is valid."""
    if not name.isascii() or not is_name(name):
        return "must consist of lower case letters, digits and underscores, and start with a letter"
    if len(name) > MAX_NAME_CHARS:
        return f"has more than {MAX_NAME_CHARS} characters, too many for tool names in MCP hosts"
    if "__" in name or name.endswith("_"):
        return "has a double or final underscore, which MCP hosts use as a separator"
    if keyword.iskeyword(name) or keyword.issoftkeyword(name) or name in sys.stdlib_module_names:
        return "is a Python keyword or a module of the standard library"
    if name in RESERVED:
        return "is reserved by Substrate"
    installed = importlib.util.find_spec(name)
    if installed is not None and installed.origin is not None:
        return "is the name of an installed module"
    return None


def _checked_name(_: click.Context, __: click.Parameter, name: str) -> str:
    error = name_error(name)
    if error is None:
        return name
    nearest = re.sub(r"_+", "_", re.sub(r"\W+|(?<=[a-z])(?=[A-Z])", "_", name)).strip("_").lower()
    if name_error(nearest) is None and nearest != name:
        raise click.BadParameter(f"{name!r} {error}. Try {nearest}.")
    raise click.BadParameter(
        f"{name!r} {error}. Use one or two words, as in weather or build_logs."
    )


@click.command(short_help="Create a package for a new activation.")
@click.argument("name", callback=_checked_name)
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    help="Folder to create.  [default: ./NAME]",
)
@click.option(
    "--class", "as_class", is_flag=True, help="Write a class instead of functions, for state."
)
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as a line of JSON.")
def new(*, name: str, folder: Path | None, as_class: bool, as_json: bool) -> None:
    """Create a package with the activation NAME, its tests and a README.

    It contains a streaming method, a method that returns a value, and a test of each.
    NAME consists of lower case letters, digits and underscores. An existing folder is never
    overwritten.
    """
    target = (folder or Path(name)).absolute()
    try:
        target.mkdir(parents=True)
        files = [_write(target, path, text) for path, text in _render_files(name, as_class)]
    except FileExistsError:
        raise click.ClickException(
            f"{display_path(target)} already exists. Choose another folder with --folder."
        ) from None
    except OSError as error:
        raise click.ClickException(
            f"Cannot write {error.filename or target}: {error.strerror}."
        ) from error
    untrusted = _trust(target)
    if as_json:
        print_json_line(
            {
                "name": name,
                "folder": str(target),
                "files": [file.relative_to(target).as_posix() for file in files],
                "trusted": untrusted is None,
            }
        )
    else:
        for file in files:
            click.echo(f"Wrote {display_path(file)}")
    if untrusted is not None:
        click.echo(f"Not trusted: {untrusted} `substrate dev .` still loads it.", err=True)
    if as_json:
        return
    if untrusted is None:
        click.echo(
            f"Trusted {display_path(target)} always, so that your changes are loaded. "
            "`substrate trust --revoke` undoes this."
        )
    click.echo(
        f"\nNext, in {display_path(target)}:\n"
        "  pip install -e '.[test]'   # install it for all servers here, with pytest\n"
        "  python -m pytest           # run its tests\n"
        "  substrate dev              # serve it, and reload it on every change"
    )


def _trust(target: Path) -> str | None:
    """Trust the new folder always, so that changes are loaded. Returns why it is not trusted."""
    folder = real_folder(target)
    reason = unsafe_reason(folder)
    try:
        if reason is None:
            write_record(folder, None)
    except RecordError as error:
        return str(error)
    return reason


def _write(target: Path, path: str, text: str) -> Path:
    """Create a file. Raises OSError if it exists or cannot be written."""
    file = target / path
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("x", encoding="utf-8") as opened:
        opened.write(text)
    return file


def _render_files(name: str, as_class: bool) -> Iterator[tuple[str, str]]:
    """Yield the path and the text of every file."""
    class_name = "".join(part.capitalize() for part in name.split("_"))
    words = {
        "name": name,
        "project": name.replace("_", "-"),
        "Class": class_name,
        "object": class_name if as_class else name,
        "Title": name.replace("_", " ").capitalize(),
        "version": __version__,
    }
    folders = resources.files("substrate.devtools") / "templates"
    style = "class" if as_class else "function"
    for path, template in sorted([*_templates(folders / "project"), *_templates(folders / style)]):
        yield path.replace("NAME", name), string.Template(template).substitute(words)


def _templates(folder: Traversable, inside: str = "") -> Iterator[tuple[str, str]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _templates(entry, f"{inside}{entry.name}/")
        elif entry.name.endswith(".txt"):
            yield inside + entry.name.removesuffix(".txt"), entry.read_text(encoding="utf-8")

"""`substrate new`: write the package of a new activation, with a test that passes.

The files are in `substrate/devtools/templates/activation`, under their own names with `.txt` at
the end, so that nothing takes them for source; NAME in a path is the name that is given.
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
from substrate.devtools.source_location import display_path
from substrate.security.folder_trust.decision import real_folder, unsafe_reason
from substrate.security.folder_trust.records import RecordError, write_record

__all__ = ("TAKEN", "fault_of", "new")

#: With the name of a method and what hosts put before it, it has to fit into 64 characters.
LONGEST = 24
#: Namespaces that are there already, and packages that would be hidden or would hide this one.
TAKEN = frozenset(
    {
        *("activations", "mcp_view", "native_rpc", "plexus", "substrate"),
        *("approvals", "arbor", "bash", "chat", "claudecode", "health"),
        *("read", "src", "test", "tests"),
    }
)


def fault_of(name: str) -> str | None:
    """What is wrong with a name, as the end of a sentence; None if nothing is."""
    if not name.isascii() or not is_name(name):
        return "is not lower case letters, digits and underscores, beginning with a letter"
    if len(name) > LONGEST:
        return f"is over {LONGEST} characters long, and hosts put more before and after it"
    if "__" in name or name.endswith("_"):
        return "has underscores where hosts put theirs"
    if keyword.iskeyword(name) or keyword.issoftkeyword(name) or name in sys.stdlib_module_names:
        return "is a word, or a module, of Python itself"
    if name in TAKEN:
        return "is taken by Substrate itself"
    installed = importlib.util.find_spec(name)
    if installed is not None and installed.origin is not None:
        return "is a module that is installed here"
    return None


def _checked_name(_: click.Context, __: click.Parameter, name: str) -> str:
    fault = fault_of(name)
    if fault is None:
        return name
    nearest = re.sub(r"_+", "_", re.sub(r"\W+|(?<=[a-z])(?=[A-Z])", "_", name)).strip("_").lower()
    if fault_of(nearest) is None and nearest != name:
        raise click.BadParameter(f"{name!r} {fault}. Try {nearest}.")
    raise click.BadParameter(
        f"{name!r} {fault}. A good name is one or two words, as in weather or build_logs."
    )


@click.command(short_help="Write the package of a new activation.")
@click.argument("name", callback=_checked_name)
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    help="The folder to make.  [default: one of that name here]",
)
def new(*, name: str, folder: Path | None) -> None:
    """Write a package with an activation NAME: one method that streams, one that returns a value,
    a test of each, and a README.

    NAME is lower case letters, digits and underscores. A folder that exists is left alone.
    """
    target = (folder or Path(name)).absolute()
    try:
        target.mkdir(parents=True)
        files = [_write(target, path, text) for path, text in _rendered(name)]
    except FileExistsError:
        raise click.ClickException(
            f"{display_path(target)} exists already, and is left as it is. Choose another --folder."
        ) from None
    except OSError as error:
        raise click.ClickException(
            f"{error.filename or target} cannot be written: {error.strerror}."
        ) from error
    for file in files:
        click.echo(f"Wrote {display_path(file)}")
    _trust(target)
    click.echo(
        f"\nNext, in {display_path(target)}:\n"
        "  python -m pytest      # its tests pass\n"
        "  substrate dev         # serve it, and load it again at every change\n"
        "  pip install -e .      # install it, for every server in this environment"
    )


def _trust(target: Path) -> None:
    """Let the author's own folder be loaded as it changes."""
    folder = real_folder(target)
    reason = unsafe_reason(folder)
    try:
        if reason is None:
            write_record(folder, None)
    except RecordError as error:
        reason = str(error)
    if reason is None:
        click.echo(
            f"Trusted {display_path(target)} always, so that its code is loaded as you write it: "
            "`substrate trust --revoke` ends that."
        )
    else:
        click.echo(f"Not trusted: {reason} `substrate dev .` loads it all the same.", err=True)


def _write(target: Path, path: str, text: str) -> Path:
    """Write a file that is not there yet; raises OSError."""
    file = target / path
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("x", encoding="utf-8") as opened:
        opened.write(text)
    return file


def _rendered(name: str) -> Iterator[tuple[str, str]]:
    """The path and the text of every file."""
    words = {
        "name": name,
        "project": name.replace("_", "-"),
        "Class": "".join(part.capitalize() for part in name.split("_")),
        "Title": name.replace("_", " ").capitalize(),
        "version": __version__,
    }
    for path, template in sorted(
        _templates(resources.files("substrate.devtools") / "templates/activation")
    ):
        yield path.replace("NAME", name), string.Template(template).substitute(words)


def _templates(folder: Traversable, inside: str = "") -> Iterator[tuple[str, str]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _templates(entry, f"{inside}{entry.name}/")
        elif entry.name.endswith(".txt"):
            yield inside + entry.name.removesuffix(".txt"), entry.read_text(encoding="utf-8")

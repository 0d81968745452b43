"""`python -m bench.documents`: write the documents that quote `bench/results/latest.json`."""

from __future__ import annotations

from pathlib import Path

import click

from bench import capacity, performance
from bench.result import LATEST, Result
from bench.servers import ROOT

__all__ = ("DOCUMENTS", "main")

DOCUMENTS = {
    ROOT / "docs" / "performance.md": performance.render,
    ROOT / "docs" / "scaling.md": capacity.render,
}


@click.command()
@click.argument(
    "file", type=click.Path(exists=True, dir_okay=False, path_type=Path), default=LATEST
)
def main(file: Path) -> None:
    """Write the documents from a result of `python -m bench --json`."""
    result = Result.read(file)
    for path, render in DOCUMENTS.items():
        path.write_text(render(result))
        click.echo(path.relative_to(ROOT))


if __name__ == "__main__":
    main()

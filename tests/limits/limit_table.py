"""The table of limits in `docs/operating.md`; run this file to update it."""

from __future__ import annotations

import re
from pathlib import Path

from substrate.cli.commands.config import limit_rows
from substrate.server.limits import ServerLimits

__all__ = ("DOCUMENT", "filled")

DOCUMENT = Path(__file__).parents[2] / "docs" / "operating.md"
HEAD = "| Limit | Default | Why | Past it |\n|---|---|---|---|\n"
PLACE = re.compile(re.escape(HEAD) + r"(\|.*\n)*")


def shown(value: float, unit: str) -> str:
    """Format a value with its unit."""
    if unit == "bytes":
        for size, name in ((1024 * 1024, "MiB"), (1024, "KiB")):
            if value % size == 0:
                return f"{value // size:,} {name}"
    return (
        f"{value:,.10g} {unit}".strip() if isinstance(value, float) else f"{value:,} {unit}".strip()
    )


def filled(text: str) -> str:
    """Return the document with the table up to date."""
    rows = [
        f"| `{row.limit}` | {shown(row.value, row.unit)} | {row.reason} | {row.past} |\n"
        for row in limit_rows(ServerLimits())
    ]
    return PLACE.sub(lambda _: HEAD + "".join(rows), text)


if __name__ == "__main__":
    DOCUMENT.write_text(filled(DOCUMENT.read_text()))

"""The result as a plain text table."""

from __future__ import annotations

from collections.abc import Sequence

from bench.measure import Figure, Summary, Target

__all__ = ("render",)

HEAD = ("measure", "ours", "limit L", "unit", "ratio (quartiles)", "target", "reached")


def render(figures: Sequence[Figure]) -> str:
    """The table, and below it what each line means."""
    rows = [HEAD, *map(_row, figures)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    lines.insert(1, "  ".join("-" * width for width in widths))
    notes = [f"{figure.name}: {figure.note}." for figure in figures if figure.note]
    return "\n".join([*lines, "", *notes])


def _row(figure: Figure) -> tuple[str, ...]:
    reached = {True: "yes", False: "no", None: "-"}[figure.reached]
    return (
        figure.name,
        _median(figure.ours),
        _median(figure.limit),
        figure.unit,
        _spread(figure.ratio),
        _target(figure.target, figure.unit),
        reached,
    )


def _median(summary: Summary | None) -> str:
    return "-" if summary is None else _number(summary.median)


def _spread(summary: Summary | None) -> str:
    if summary is None:
        return "-"
    return f"{summary.median:.2f} ({summary.low:.2f} to {summary.high:.2f})"


def _target(target: Target | None, unit: str) -> str:
    if target is None:
        return "-"
    return f"<= {target.at_most:g} {'L' if target.of == 'ratio' else unit}"


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.2f}"

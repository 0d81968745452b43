"""Numbers on the command line, whose errors name the range that is allowed."""

from __future__ import annotations

import math
from typing import Any

import click

__all__ = ("Number", "WholeNumber", "number_range")


def number_range(least: float | None, most: float | None, *, above: bool = False) -> str:
    """Return a range in words: "from 1 to 1000", "of at least 1", "above 0"; empty without one."""
    if least is None:
        return "" if most is None else f"of at most {most:g}"
    if most is None:
        return f"above {least:g}" if above else f"of at least {least:g}"
    return f"from {least:.15g} to {most:.15g}"


def _in_help(words: str) -> str:
    return words.removeprefix("from ").removeprefix("of ")


class WholeNumber(click.IntRange):
    """A whole number within a range."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number. Raises BadParameter with the allowed range."""
        try:
            return int(super().convert(value, param, ctx))
        except click.BadParameter:
            wanted = f"a whole number {number_range(self.min, self.max)}".rstrip()
            self.fail(f"{value!r} is not {wanted}.", param, ctx)

    def _describe_range(self) -> str:
        return _in_help(number_range(self.min, self.max))


class Number(click.FloatRange):
    """A number within a range."""

    name = "number"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the number. Raises BadParameter with the allowed range."""
        try:
            number = float(super().convert(value, param, ctx))
        except click.BadParameter:
            number = math.nan
        if not math.isfinite(number):  # NaN is not below any bound
            wanted = f"a number {number_range(self.min, self.max, above=self.min_open)}".rstrip()
            self.fail(f"{value!r} is not {wanted}.", param, ctx)
        return number

    def _describe_range(self) -> str:
        return _in_help(number_range(self.min, self.max, above=self.min_open))

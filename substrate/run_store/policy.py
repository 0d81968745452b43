"""Policies of the run store, from the settings: what is recorded, and how long it is kept.

Recording: `record` is the most that is recorded of any run. The first rule of `record_methods` that
matches a method, and what the method declares, can only reduce that. A project file can therefore
not record more than the operator allows with `SUBSTRATE_RECORD`.

Retention: the first rule of `history_methods` that matches the method and the outcome of a run sets
its days; without one, `history_days` does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from plexus.registry.selection import check_patterns, matches

if TYPE_CHECKING:
    from substrate.settings import Settings

__all__ = (
    "MAX_DAYS",
    "MODES",
    "OUTCOMES",
    "HistoryRule",
    "Mode",
    "RecordPolicy",
    "RecordRule",
    "RetentionPolicy",
    "parse_history_rule",
    "parse_record_rule",
)

Mode: TypeAlias = Literal["all", "metadata", "off"]

#: From the strictest to the least strict.
MODES: Final[tuple[Mode, ...]] = ("off", "metadata", "all")
#: How runs end, as in `plexus.runs`. A command with an exit code other than 0 has failed.
OUTCOMES: Final = ("succeeded", "failed", "cancelled")
#: Maximum days of a rule, as of the setting `history_days`: a century.
MAX_DAYS: Final = 36_500
DAY_MS: Final = 24 * 3600 * 1000
#: Methods whose policy is cached. A hub has some hundreds.
CACHED: Final = 4096


class RecordRule(NamedTuple):
    """What is recorded of the methods that match a pattern."""

    pattern: str
    mode: Mode


class HistoryRule(NamedTuple):
    """How long runs of the methods that match a pattern are kept."""

    pattern: str
    #: The outcome that a run must have. Empty: any.
    outcome: str
    days: float


def parse_record_rule(text: str) -> RecordRule:
    """Parse a rule such as `bash.*=metadata`. Raises ValueError with what is allowed."""
    pattern, equals, word = (part.strip() for part in text.rpartition("="))
    mode = next((each for each in MODES if each == word), None)
    if not equals or mode is None:
        raise ValueError(
            f"{text!r} is not a rule. Write PATTERN=all, PATTERN=metadata or PATTERN=off, "
            "for example bash.*=metadata"
        )
    check_patterns([pattern])
    return RecordRule(pattern, mode)


def parse_history_rule(text: str) -> HistoryRule:
    """Parse a rule such as `*@failed=30`. Raises ValueError with what is allowed."""
    selector, equals, number = (part.strip() for part in text.rpartition("="))
    pattern, at, outcome = (part.strip() for part in selector.partition("@"))
    try:
        days = float(number) if number.isascii() else math.nan
    except ValueError:
        days = math.nan
    if not equals or not 0 <= days <= MAX_DAYS:
        raise ValueError(
            f"{text!r} is not a rule. Write PATTERN=DAYS or PATTERN@OUTCOME=DAYS with 0 to "
            f"{MAX_DAYS} days, for example *@failed=30"
        )
    if at and outcome not in OUTCOMES:
        raise ValueError(f"unknown outcome {outcome!r} in {text!r}. Use {', '.join(OUTCOMES)}")
    check_patterns([pattern])
    return HistoryRule(pattern, outcome, days)


class RecordPolicy:
    """Decides what is recorded of the runs of a method."""

    def __init__(self, most: Mode = "all", rules: Sequence[RecordRule] = ()) -> None:
        self._most = most
        self._rules = tuple(rules)
        self._modes: dict[tuple[str, str | None], Mode] = {}

    @classmethod
    def of(cls, settings: Settings) -> RecordPolicy:
        """Return the policy of these settings."""
        return cls(settings.record, [*map(parse_record_rule, settings.record_methods)])

    @property
    def is_off(self) -> bool:
        """Whether no run is recorded, whatever its method."""
        return self._most == "off"

    def mode(self, method: str, declared: str | None = None) -> Mode:
        """Return what is recorded of the runs of a method: the strictest of all that apply.

        declared: what the method itself declares, one of `MODES`.
        """
        known = self._modes.get((method, declared))
        if known is not None:
            return known
        rule = next((each for each in self._rules if matches(method, (each.pattern,))), None)
        applying = {self._most, declared, None if rule is None else rule.mode}
        found = next(mode for mode in MODES if mode in applying)
        if len(self._modes) >= CACHED:
            self._modes.clear()
        self._modes[method, declared] = found
        return found


class RetentionPolicy:
    """Decides how long finished runs are kept, and how much of them."""

    def __init__(self, days: float, max_bytes: int, rules: Sequence[HistoryRule] = ()) -> None:
        self._days = days
        #: Maximum size of all recorded runs together.
        self.max_bytes: Final = max_bytes
        self._rules = tuple(rules)
        self._found: dict[tuple[str, str], float] = {}

    @classmethod
    def of(cls, settings: Settings) -> RetentionPolicy:
        """Return the policy of these settings."""
        rules = [*map(parse_history_rule, settings.history_methods)]
        return cls(settings.history_days, settings.history_bytes, rules)

    def days(self, method: str, outcome: str) -> float:
        """Return how many days a run of a method with this outcome is kept."""
        found = self._found.get((method, outcome))
        if found is None:
            found = next(
                (
                    rule.days
                    for rule in self._rules
                    if rule.outcome in ("", outcome) and matches(method, (rule.pattern,))
                ),
                self._days,
            )
            if len(self._found) >= CACHED:
                self._found.clear()
            self._found[method, outcome] = found
        return found

    def kept_ms(self, method: str, outcome: str) -> int:
        """Return how long a run of a method with this outcome is kept, in milliseconds."""
        return round(self.days(method, outcome) * DAY_MS)

    def kept_until_ms(self, method: str, outcome: str, ended_ms: int, retention_ms: int = 0) -> int:
        """Return the time from which a finished run may be deleted.

        retention_ms: how long it is kept at least, as promised to the client of a task.
        """
        return ended_ms + max(self.kept_ms(method, outcome), retention_ms)

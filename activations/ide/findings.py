"""The findings of `analysis` in a file, as diagnostics of the editor."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import Any, Final

from activations.ide.checkers import ANALYSIS, MESSAGE_CHARS, Diagnostic
from activations.ide.positions import Range, range_of
from plexus import Failed
from plexus.errors import DeadlineExceeded
from plexus.events import ErrorEvent
from plexus.principal import LOCAL
from plexus.runtime.hub import Plexus

__all__ = ("Findings",)

METHOD: Final = "analysis.diagnose"
#: The client of its runs.
CLIENT: Final = "ide"
#: The languages of `analysis`, with the names that editors use.
LANGUAGES: Final = frozenset(
    {
        *("python", "rust", "go", "java", "c", "cpp"),
        *("javascript", "javascriptreact", "typescript", "typescriptreact"),
    }
)
SEVERITIES: Final = {"error": "Error", "warning": "Warning", "note": "Info"}
#: Maximum findings of one file that are read.
MAX_FINDINGS: Final = 1000


class Findings:
    """Complex functions, and comments that admit debt, as `analysis` reports them."""

    def __init__(self, hub: Callable[[], Plexus]) -> None:
        """Use the hub that `hub` returns, which is known once the activation is registered."""
        self._hub = hub
        self._is_missing = False

    @property
    def is_available(self) -> bool:
        """Whether the server offers `analysis`, as far as it is known to be installed."""
        return not self._is_missing and self._hub().find_method(METHOD) is not None

    def applies(self, language: str) -> bool:
        """Return whether files in this language are analysed."""
        return language in LANGUAGES and self.is_available

    async def check(self, path: str, text: str, timeout_s: float) -> list[Diagnostic]:
        """Return the findings in a file by its absolute path.

        Raises DeadlineExceeded, Failed, and what starting a run raises.
        """
        call = self._hub().call(METHOD, {"paths": [path]}, LOCAL, client=CLIENT)
        found: list[Diagnostic] = []
        try:
            async with (
                asyncio.timeout(timeout_s),
                aclosing(call.run.batches(call.after, owner=call.owned)) as batches,
            ):
                async for batch in batches:
                    events = [each for each in batch.events if each.type == "finding"]
                    found += [_diagnostic(each, text) for each in events]
                    del found[MAX_FINDINGS:]
                    if isinstance(batch.terminal, ErrorEvent):
                        self._check_installed(batch.terminal)
        except TimeoutError:
            raise DeadlineExceeded(
                f"{ANALYSIS} took longer than {timeout_s:g} s.", data={"limit_s": timeout_s}
            ) from None
        finally:
            call.run.cancel("the check has ended")  # nothing if it is complete
        return found

    def _check_installed(self, error: ErrorEvent) -> None:
        """Raise Failed, unless this server was installed without the analysers."""
        if error.code != "extra_missing":
            raise Failed(f"{ANALYSIS} failed: {error.message}", code=error.code)
        self._is_missing = True


def _diagnostic(event: Any, text: str) -> Diagnostic:
    """Return a finding as a diagnostic of its line; a whole function would be marked otherwise."""
    line = max(event.line - 1, 0)
    at: Range = range_of(text, (line, 0), (line, 2**31))
    severity = SEVERITIES.get(event.level, "Info")
    return Diagnostic(event.message[:MESSAGE_CHARS], severity, at, ANALYSIS, event.rule)

"""TEMPORARY stand-in until merged."""

from __future__ import annotations
from typing import Any

__all__ = ("RecordPolicy", "RetentionPolicy")


class RecordPolicy:
    @classmethod
    def of(cls, settings: Any) -> RecordPolicy:
        return cls()

    def mode(self, method: str, declared: str | None) -> str:
        return declared or "all"


class RetentionPolicy:
    @classmethod
    def of(cls, settings: Any) -> RetentionPolicy:
        return cls()

    def kept_ms(self, method: str, outcome: str) -> int:
        return 7 * 86400 * 1000

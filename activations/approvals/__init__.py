"""The `approvals` activation: list and answer the open questions of runs."""

from __future__ import annotations

from activations.approvals.activation import Approvals

__all__ = ("Approvals",)

"""The `approvals` activation: what runs ask for, in one list that can be answered."""

from __future__ import annotations

from activations.approvals.activation import Approvals

__all__ = ("Approvals",)

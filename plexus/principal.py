"""Who is calling."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ("LOCAL", "Principal")


class Principal(NamedTuple):
    """An identity. Runs, answers and keys belong to one and are invisible to all others."""

    name: str


#: The person at this machine: whoever started the process, or reaches it by loopback.
LOCAL = Principal("local")

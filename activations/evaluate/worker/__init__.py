"""The program of a session's process, which runs in any interpreter without our packages.

Its modules are sent to the interpreter, in the order of `MODULES`, as a package of another name.
They need only the standard library of Python 3.8, and import each other relatively.
"""

from __future__ import annotations

from typing import Final

__all__ = ("MODULES",)

MODULES: Final = ("text", "channel", "forms", "descriptions", "program")

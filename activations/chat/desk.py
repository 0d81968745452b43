"""The desk: everything that can be done with sessions, over a store that is open.

Imported when somebody first chats. It is made anew for each call: it holds nothing of its own.
"""

from __future__ import annotations

from activations.chat.reading import Reading
from activations.chat.talking import Talking

__all__ = ("Desk",)


class Desk(Talking, Reading):
    """What is done with sessions."""

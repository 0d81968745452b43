"""The states of a call, and the table of what can happen in each of them."""

from __future__ import annotations

import enum
from typing import Final

__all__ = ("ANSWERED", "RUNNING", "STARTING", "TRANSITIONS", "State", "Step")


class State(enum.IntEnum):
    """Where a call is on its way from the request to the answer."""

    #: Its first effect is with the driver, which has not reported yet.
    STARTING = enum.auto()
    #: It has a run and reads its items.
    RUNNING = enum.auto()
    #: Its run is to be kept as a task; the driver has not reported yet.
    KEEPING = enum.auto()
    #: It was answered, refused or cancelled. Nothing about it is sent after that.
    ANSWERED = enum.auto()


class Step(enum.IntEnum):
    """What can happen to a call."""

    STARTED = enum.auto()
    REFUSED = enum.auto()
    ITEMS = enum.auto()
    TIMER = enum.auto()
    #: The client has responded to a request of ours.
    RESPONSE = enum.auto()
    #: The driver has carried out an effect, or failed to.
    OUTCOME = enum.auto()
    #: The client does not want the answer any more.
    CANCELLED = enum.auto()
    #: The answer cannot be made, or the client may not have it any more.
    FAILED = enum.auto()


_ENDS: Final = frozenset({State.ANSWERED})
#: The states that each step can lead to. A step that a state has no row for is ignored there.
TRANSITIONS: Final[dict[State, dict[Step, frozenset[State]]]] = {
    State.STARTING: {
        Step.STARTED: frozenset({State.RUNNING, State.KEEPING}),
        Step.REFUSED: _ENDS,
        Step.OUTCOME: frozenset({State.STARTING, State.ANSWERED}),
        Step.CANCELLED: _ENDS,
        Step.FAILED: _ENDS,
    },
    State.RUNNING: {
        Step.ITEMS: frozenset({State.RUNNING, State.KEEPING, State.ANSWERED}),
        Step.TIMER: frozenset({State.RUNNING}),
        Step.RESPONSE: frozenset({State.RUNNING}),
        Step.OUTCOME: frozenset({State.RUNNING, State.ANSWERED}),
        Step.CANCELLED: _ENDS,
        Step.FAILED: _ENDS,
    },
    State.KEEPING: {
        Step.OUTCOME: _ENDS,
        Step.CANCELLED: _ENDS,
        Step.FAILED: _ENDS,
    },
    State.ANSWERED: {},
}
# Looking up a member of an enum costs as much as a short method, and every call enters these.
STARTING: Final = State.STARTING
RUNNING: Final = State.RUNNING
ANSWERED: Final = State.ANSWERED

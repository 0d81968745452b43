"""The state that travels with a question: which run is parked, signed so that it can be trusted.

The client keeps it and gives it back; to us it is what an attacker may have written. It names
the run, the item up to which the client has seen it, the request it belongs to, and until when
it holds. Whose run it is, is checked where the run is looked up.
"""

from __future__ import annotations

import binascii
from typing import Any, NamedTuple

from plexus.errors import InvalidParams
from plexus.limits import Limits
from plexus.rpc import wire

__all__ = ("RequestState", "open_state", "seal_state")

MAC_BYTES = 32
LIMITS = Limits()


class RequestState(NamedTuple):
    """What a parked run is found by."""

    run: int
    #: The number of the last item that the client has had.
    seen: int
    #: The number of the last question that it was asked.
    asked: int
    #: Of the request's name and arguments: the state is good for no other request.
    digest: str
    #: Wall-clock seconds.
    expires: int


def seal_state(state: RequestState, secret: bytes) -> str:
    """Return the state as text, signed so that a change is noticed."""
    payload = wire.encode(list(state))
    return _text(_mac(payload, secret) + payload)


def open_state(text: Any, secret: bytes, now: float) -> RequestState:
    """Read a state that came back; raises InvalidParams for one that we did not make, or that
    no longer holds."""
    import hmac

    try:
        sealed = binascii.a2b_base64(text.replace("-", "+").replace("_", "/"), strict_mode=True)
        mac, payload = sealed[:MAC_BYTES], sealed[MAC_BYTES:]
    except (AttributeError, ValueError):
        raise InvalidParams("requestState is not one of ours") from None
    if not hmac.compare_digest(mac, _mac(payload, secret)):
        raise InvalidParams("requestState is not one of ours")
    state = RequestState(*wire.decode_value(payload, LIMITS))
    if state.expires < now:
        raise InvalidParams("requestState has expired")
    return state


def _mac(payload: bytes, secret: bytes) -> bytes:
    import hmac

    return hmac.digest(secret, payload, "sha256")


def _text(data: bytes) -> str:
    encoded = binascii.b2a_base64(data, newline=False).decode()
    return encoded.replace("+", "-").replace("/", "_")

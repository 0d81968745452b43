"""What goes wrong with a server of models, as the errors that callers know.

The adapter sorts what servers answer; this module gives each its code and says what to do. What a
server says of it is repeated, but never a key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from activations.chat.providers.endpoints import Endpoint
from plexus.errors import Failed
from plexus.text import shorten

if TYPE_CHECKING:  # heavy and optional: imported when first used
    from pydantic_ai.exceptions import ModelAPIError

__all__ = ("provider_error", "request_errors")

#: What pydantic-ai raises over an answer of another shape: it does not look before it reads.
UNREADABLE = (AssertionError, AttributeError, LookupError, TypeError, ValueError)
#: How much of what a server says is repeated.
QUOTED_CHARACTERS = 500


def request_errors() -> tuple[type[Exception], ...]:
    """Return what a request may raise.

    pydantic-ai's own errors, and its refusal of what it cannot send, are RuntimeErrors; some of
    HTTP comes as it is.
    """
    import httpx2

    return (RuntimeError, httpx2.HTTPError, httpx2.InvalidURL, *UNREADABLE)


def provider_error(
    error: Exception,
    endpoint: Endpoint,
    model: str,
    key: str | None,
    silent_s: float,
    *,
    said: bool,
) -> Failed:
    """Return the error for callers. `said`: whether some of the answer has come already."""
    import httpx2
    from pydantic_ai.exceptions import (
        ModelAuthenticationError,
        ModelConnectionError,
        ModelContextWindowExceededError,
        ModelHTTPError,
        ModelNotFoundError,
        ModelQuotaExceededError,
        ModelRateLimitError,
        ModelServerError,
        ModelUnavailableError,
    )

    name = endpoint.name
    text = _quoted(error, key)
    data: dict[str, Any] = {"provider": name, "model": f"{name}:{model}"}
    if isinstance(error, ModelHTTPError):
        data["status"] = error.status_code
    if _is_silence(error):
        data["silent_s"] = silent_s
        return Failed(f"{name} said nothing for {silent_s:g} s", code="provider_silent", data=data)
    if said:
        return Failed(f"{name} broke off its answer: {text}", code="provider_broke", data=data)
    if isinstance(error, ModelRateLimitError | ModelUnavailableError | ModelServerError):
        if error.retry_after is not None:
            data["retry_after_s"] = error.retry_after
        if isinstance(error, ModelRateLimitError):
            return Failed(
                f"{name} takes no more requests for now{_when(error)}: {text}",
                code="rate_limited",
                data=data,
            )
        return Failed(
            f"{name} cannot work now{_when(error)}: {text}", code="provider_down", data=data
        )
    if isinstance(error, ModelConnectionError | httpx2.TransportError):
        return Failed(
            f"{name} cannot be reached at {endpoint.url}: {text}", code="provider_down", data=data
        )
    if isinstance(error, ModelAuthenticationError):
        variable = endpoint.variables[0]
        data["variable"] = variable
        whose = "the key" if key else "a request without a key"
        return Failed(
            f"{name} refused {whose}: {text}. Set {variable} to one that it takes",
            code="bad_key",
            data=data,
        )
    if isinstance(error, ModelNotFoundError):
        return Failed(f"{name} has no model {model!r}: {text}", code="unknown_model", data=data)
    if isinstance(error, ModelContextWindowExceededError):
        data["reason"] = "too_long"
    elif isinstance(error, ModelQuotaExceededError):
        data["reason"] = "quota"
    if _is_unreadable(error):
        return Failed(
            f"{name} answered what cannot be read: {text}", code="provider_broke", data=data
        )
    return Failed(f"{name} refused the request: {text}", code="provider_refused", data=data)


def _is_silence(error: Exception) -> bool:
    """Whether nothing came for too long; a connection that is not made in time is another thing."""
    import httpx2
    from pydantic_ai.exceptions import ModelTimeoutError

    if isinstance(error, ModelTimeoutError):
        return error.phase == "read"
    return isinstance(error, httpx2.ReadTimeout)


def _is_unreadable(error: Exception) -> bool:
    """Whether an answer came, but none of this format. What was never sent is no such thing."""
    from pydantic_ai.exceptions import AgentRunError, ModelHTTPError

    if isinstance(error, AgentRunError):
        return not isinstance(error, ModelHTTPError)
    return isinstance(error, UNREADABLE)


def _when(error: ModelAPIError) -> str:
    return "" if error.retry_after is None else f", try again in {error.retry_after:g} s"


def _quoted(error: Exception, key: str | None) -> str:
    """What is said of it, by the server where it says something; never with the key."""
    from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError

    text = None
    if isinstance(error, ModelAPIError):
        text = _message(error.body)
    if not text:
        text = f"status {error.status_code}" if isinstance(error, ModelHTTPError) else str(error)
    if key:
        text = text.replace(key, "***")
    text = " ".join(text.split()).rstrip(".") or type(error).__name__
    return shorten(text, QUOTED_CHARACTERS)


def _message(body: object) -> str | None:
    """The message in the body of an error, however deep it is in there."""
    while isinstance(body, dict):
        body = body.get("error") or body.get("message")
    return body if isinstance(body, str) else None

"""What another server asks in the middle of a call, as questions of the run.

A form, an address to open, a sampling or the roots are asked through the context, so that whichever
client, page or terminal watches the run can answer. The answer goes back as the server expects it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from activations.gateway.visible_text import show_invisible
from plexus.caller_environment import caller_directory
from plexus.context import Context
from plexus.errors import DeadlineExceeded, Declined, PlexusError, Unsupported
from plexus.questions import Form, OpenUrl, Roots, Sample

__all__ = ("answer_question", "find_roots")

#: Maximum characters of the text of a question.
MAX_MESSAGE: Final = 4000
#: The word for a result of MCP that a person declined, and one that was not given.
DECLINE: Final = {"action": "decline"}
CANCEL: Final = {"action": "cancel"}
DEFAULT_TOKENS: Final = 1024


async def answer_question(
    ctx: Context, mount: str, kind: str, params: dict[str, Any]
) -> dict[str, Any]:
    """Ask the caller of a run what a server asks, and return the answer for the server.

    Raises PlexusError if it cannot be asked or answered.
    """
    if kind == "form":
        return await _ask_form(ctx, mount, params)
    if kind == "url":
        return await _ask_url(ctx, mount, params)
    if kind == "sampling":
        return await _ask_model(ctx, params)
    if kind == "roots":
        return {"roots": await find_roots(ctx)}
    raise Unsupported(f"Questions of the kind {kind[:40]!r} are not supported.")


async def _ask_form(ctx: Context, mount: str, params: dict[str, Any]) -> dict[str, Any]:
    schema = params.get("requestedSchema")
    fields = schema if isinstance(schema, dict) else {"type": "object", "properties": {}}
    if not isinstance(fields.get("properties", {}), dict):
        raise Unsupported("requestedSchema has no properties of an object.")
    try:
        answer = await ctx.ask(Form(_message(mount, params), fields))
    except Declined:
        return dict(DECLINE)
    except DeadlineExceeded:
        return dict(CANCEL)
    return {"action": "accept", "content": answer}


async def _ask_url(ctx: Context, mount: str, params: dict[str, Any]) -> dict[str, Any]:
    url = params.get("url")
    if not isinstance(url, str) or not url.startswith(("https://", "http://")):
        raise Unsupported("The address to open must begin with https:// or http://.")
    try:
        agreed = await ctx.ask(OpenUrl(_message(mount, params), url))
    except Declined:
        return dict(DECLINE)
    except DeadlineExceeded:
        return dict(CANCEL)
    return {"action": "accept"} if agreed else dict(DECLINE)


async def _ask_model(ctx: Context, params: dict[str, Any]) -> dict[str, Any]:
    messages = [_model_message(each) for each in params.get("messages") or ()]
    tokens, system = params.get("maxTokens"), params.get("systemPrompt")
    answer = await ctx.ask(
        Sample(
            messages,
            max_tokens=tokens if type(tokens) is int and tokens > 0 else DEFAULT_TOKENS,
            system_prompt=system if isinstance(system, str) else None,
        )
    )
    return {
        "role": "assistant",
        "content": {"type": "text", "text": answer.text},
        "model": answer.model or "unknown",
        "stopReason": answer.stop_reason or "endTurn",
    }


def _model_message(message: Any) -> dict[str, str]:
    """Return a message of a sampling. Raises Unsupported for one that is not text."""
    content = message.get("content") if isinstance(message, dict) else None
    blocks = content if isinstance(content, list) else [content]
    texts: list[str] = []
    for each in blocks:
        text = each.get("text") if isinstance(each, dict) else None
        if not isinstance(text, str):
            raise Unsupported("Only text can be sent to the model of the caller.")
        texts.append(text)
    role = message.get("role")
    return {"role": "assistant" if role == "assistant" else "user", "content": "\n".join(texts)}


async def find_roots(ctx: Context | None) -> list[dict[str, str]]:
    """Return the folders that the caller works in: as it answers, or its working directory.

    Only a client that has declared roots is asked: a person would have to answer at every call.
    """
    if ctx is not None and "roots" in (ctx.question_kinds or ()):
        try:
            roots = await ctx.ask(Roots())
        except PlexusError:
            roots = []
        if roots:
            return [{"uri": root.uri, "name": root.name or root.uri} for root in roots]
    folder = Path(ctx.caller.directory) if ctx is not None and ctx.caller else caller_directory()
    return [{"uri": folder.as_uri(), "name": folder.name or "/"}]


def _message(mount: str, params: dict[str, Any]) -> str:
    text = params.get("message")
    shown = show_invisible(text)[:MAX_MESSAGE] if isinstance(text, str) else ""
    return f"{mount} asks: {shown}"

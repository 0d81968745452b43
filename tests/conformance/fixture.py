"""The tools, resources and prompts that the scenarios of the conformance suites name.

The suites define the names and the texts; the rest is written as any author would write it,
independent of the protocol. Questions and background work are in `questions`.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from plexus import (
    Activation,
    Audio,
    Change,
    Content,
    Context,
    Failed,
    Image,
    Message,
    Progress,
    Resource,
    completer,
    method,
    prompt,
    resource,
)

__all__ = ("Contents", "Lists", "Prompts", "Resources", "Running")

#: A red pixel, and audio of one sample.
PNG = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJg"
    "gg=="
)
WAV = base64.b64encode(
    b"RIFF\x26\x00\x00\x00WAVEfmt \x10\x00\x00\x00\x01\x00\x01\x00"
    b"\x40\x1f\x00\x00\x80\x3e\x00\x00\x02\x00\x10\x00data\x02\x00\x00\x00\x00\x00"
).decode()
#: The pause that the suites require between two notifications.
STEP_S = 0.06
#: Longer than the fixture's server keeps a response open, so that the client must reconnect.
RECONNECTION_S = 1.5
WATCHED = "test://watched-resource"

#: Every keyword of this schema must be listed unchanged.
ADDRESS_BOOK: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}


class Contents(Activation):
    """Every kind of content that a method can return."""

    namespace = "contents"
    version = "1.0.0"

    @method(read_only=True)
    async def test_simple_text(self) -> str:
        """Return a text."""
        return "This is a simple text response for testing."

    @method
    async def test_image_content(self) -> AsyncIterator[Image]:
        """Return an image."""
        yield Image(data=PNG, mime_type="image/png")

    @method
    async def test_audio_content(self) -> AsyncIterator[Audio]:
        """Return audio."""
        yield Audio(data=WAV, mime_type="audio/wav")

    @method
    async def test_embedded_resource(self) -> AsyncIterator[Resource]:
        """Return a resource with its content."""
        yield Resource(
            uri="test://embedded-resource",
            mime_type="text/plain",
            content="This is an embedded resource content.",
        )

    @method
    async def test_multiple_content_types(self) -> AsyncIterator[Content | Image | Resource]:
        """Return a text, an image and a resource."""
        yield Content(text="Multiple content types test:")
        yield Image(data=PNG, mime_type="image/png")
        yield Resource(
            uri="test://mixed-content-resource",
            mime_type="application/json",
            content='{"test":"data","value":123}',
        )

    @method
    async def test_error_handling(self) -> str:
        """Fail."""
        raise Failed("This tool intentionally returns an error for testing")

    @method(schema=ADDRESS_BOOK)
    async def json_schema_2020_12_tool(
        self,
        name: str | None = None,
        address: dict[str, Any] | None = None,
        contactMethod: Literal["phone", "email"] | None = None,  # noqa: N803
        phone: str | None = None,
        email: str | None = None,
    ) -> str:
        """Tool with JSON Schema 2020-12 features."""
        return f"{name} at {address}, by {contactMethod}: {phone or email}"

    @method
    async def test_x_mcp_header(
        self, region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})]
    ) -> str:
        """Return the requested region.

        Args:
            region: The region, which a client repeats in a header.
        """
        return f"region: {region}"


class Running(Activation):
    """Methods that report while they run."""

    namespace = "running"
    version = "1.0.0"

    def __init__(self) -> None:
        self._stopped = 0

    @method
    async def test_tool_with_logging(self, *, ctx: Context) -> str:
        """Log three messages."""
        await ctx.log("info", "Tool execution started")
        await asyncio.sleep(STEP_S)
        await ctx.log("info", "Tool processing data")
        await asyncio.sleep(STEP_S)
        await ctx.log("info", "Tool execution completed")
        return "Three remarks were logged."

    @method
    async def test_logging_tool(self, *, ctx: Context) -> str:
        """Log one message."""
        await ctx.log("info", "A remark")
        return "One remark was logged."

    @method
    async def test_tool_with_progress(self) -> AsyncIterator[Progress | Content]:
        """Report progress three times."""
        for done in (0, 50, 100):
            yield Progress(done=done, total=100)
            await asyncio.sleep(STEP_S)
        yield Content(text="All steps are done.")

    @method
    async def test_reconnection(self, *, ctx: Context) -> str:
        """Take longer than a response stays open."""
        await ctx.log("info", "This takes longer than the response stays open")
        await asyncio.sleep(RECONNECTION_S)
        return "Reconnection test completed successfully."

    @method(deadline_s=None)
    async def wait_for_cancel(self) -> AsyncIterator[Progress]:
        """Report the start, and wait until cancelled."""
        yield Progress(done=1, message="waiting")
        try:
            await asyncio.Event().wait()
        finally:
            self._stopped += 1

    @method(read_only=True)
    async def stopped_calls(self) -> int:
        """Return how many calls of wait_for_cancel were cancelled so far."""
        return self._stopped


class Resources(Activation):
    """Resources of every kind."""

    namespace = "things"
    version = "1.0.0"

    def __init__(self) -> None:
        self._changes = 0

    @resource("test://static-text", name="static-text")
    async def static_text(self) -> str:
        """A text that never changes."""
        return "This is the content of the static text resource."

    @resource("test://static-binary", name="static-binary", mime_type="image/png")
    async def static_binary(self) -> Resource:
        """A picture that never changes."""
        return Resource.of_bytes("test://static-binary", base64.b64decode(PNG), "image/png")

    @resource(WATCHED, name="watched-resource")
    async def watched(self) -> str:
        """A text that changes whenever touch_watched_resource is called."""
        return f"This resource has changed {self._changes} times."

    @resource("test://template/{id}/data", name="template-data", mime_type="application/json")
    async def template_data(self, id: str) -> str:  # noqa: A002
        """Return data about an id.

        Args:
            id: Any text.
        """
        data = {"id": id, "templateTest": True, "data": f"Data for ID: {id}"}
        return json.dumps(data, separators=(",", ":"))

    @method
    async def touch_watched_resource(self, *, ctx: Context) -> int:
        """Change the watched resource, and return how often it was changed."""
        self._changes += 1
        ctx.plexus.notify(Change("resource", WATCHED))
        return self._changes


class Prompts(Activation):
    """Prompts of every kind."""

    namespace = "prompts"
    version = "1.0.0"

    #: The completions of the first argument of `test_prompt_with_arguments`.
    WORDS: ClassVar = ("paris", "park", "party")

    @prompt(title="Simple prompt")
    async def test_simple_prompt(self) -> str:
        """A prompt that is always the same."""
        return "This is a simple prompt for testing."

    @prompt
    async def test_prompt_with_arguments(self, arg1: str, arg2: str) -> str:
        """A prompt that contains its arguments.

        Args:
            arg1: First test argument.
            arg2: Second test argument.
        """
        return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"

    @completer("test_prompt_with_arguments", "arg1")
    async def complete_arg1(self, value: str, given: dict[str, str]) -> list[str]:  # noqa: ARG002
        """Return the words with this prefix."""
        return [word for word in self.WORDS if word.startswith(value)]

    @prompt
    async def test_prompt_with_embedded_resource(self, resourceUri: str) -> list[Message]:  # noqa: N803
        """A prompt with an embedded resource.

        Args:
            resourceUri: The URI of the resource.
        """
        embedded = Resource(
            uri=resourceUri,
            mime_type="text/plain",
            content="Embedded resource content for testing.",
        )
        return [
            Message("user", embedded),
            Message("user", Content(text="Please process the embedded resource above.")),
        ]

    @prompt
    async def test_prompt_with_image(self) -> list[Message]:
        """A prompt with an image."""
        return [
            Message("user", Image(data=PNG, mime_type="image/png")),
            Message("user", Content(text="Please analyze the image above.")),
        ]


class Lists(Activation):
    """Methods that change the server's lists, so that listeners are notified."""

    namespace = "lists"
    version = "1.0.0"

    def __init__(self) -> None:
        self._tools = self._prompts = 0

    @method
    async def test_trigger_tool_change(self, *, ctx: Context) -> str:
        """Add a method, or remove it again."""
        self._tools += 1
        ctx.plexus.register(MoreTools if self._tools % 2 else FewerTools)
        return "The list of tools has changed."

    @method
    async def test_trigger_prompt_change(self, *, ctx: Context) -> str:
        """Add a prompt, or remove it again."""
        self._prompts += 1
        ctx.plexus.register(MorePrompts if self._prompts % 2 else FewerPrompts)
        return "The list of prompts has changed."


class FewerTools(Activation):
    """The changing list of tools, short form."""

    namespace = "changing_tools"
    version = "1.0.0"

    @method
    async def stays(self) -> str:
        """Is always there."""
        return "still here"


class MoreTools(FewerTools):
    """The changing list of tools, long form."""

    @method
    async def comes_and_goes(self) -> str:
        """Is there every other time."""
        return "here for now"


class FewerPrompts(Activation):
    """The changing list of prompts, short form."""

    namespace = "changing_prompts"
    version = "1.0.0"

    @prompt
    async def stays(self) -> str:
        """Is always there."""
        return "still here"


class MorePrompts(FewerPrompts):
    """The changing list of prompts, long form."""

    @prompt
    async def comes_and_goes(self) -> str:
        """Is there every other time."""
        return "here for now"

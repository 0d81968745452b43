"""The tools of a FastMCP server, and of one of the official SDK, as methods."""

import pytest
from fastmcp import Context as FastContext
from fastmcp import FastMCP
from fastmcp.utilities.types import Image as FastImage
from mcp.server import MCPServer

from activations.fastmcp_server import from_fastmcp
from plexus.errors import Failed
from plexus.events import Image, Log, Progress, Result
from plexus.testing import local

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(60),
    # FastMCP warns that clients of 2026-07-28 get no log messages; ours speaks an earlier revision.
    pytest.mark.filterwarnings("ignore:The logging capability is deprecated"),
]


def weather() -> FastMCP:
    server = FastMCP("Weather Service", instructions="Weather tools.", version="2.0")

    @server.tool(annotations={"readOnlyHint": True}, title="Forecast")
    async def forecast(city: str, ctx: FastContext) -> dict[str, str]:
        """Forecast the weather of a city."""
        await ctx.report_progress(1, 2, "asking")
        await ctx.info("asked")
        return {"city": city, "sky": "clear"}

    @server.tool
    def add(a: int, b: int = 2) -> int:
        """Add numbers."""
        return a + b

    @server.tool(name="my-picture")
    def picture() -> FastImage:
        """Draw."""
        return FastImage(data=b"\x89PNG\r\n\x1a\n", format="png")

    @server.tool
    def fail() -> str:
        """Fail."""
        raise ValueError("no forecast")

    @server.tool
    async def ask(ctx: FastContext) -> str:
        """Ask for a name."""
        answer = await ctx.elicit("Your name?", str)
        return f"{answer.action} {getattr(answer, 'data', None)}"

    return server


async def test_every_tool_is_a_method_with_its_own_schema_and_hints() -> None:
    async with local(from_fastmcp(weather())) as plexus:
        methods = {spec.name: spec for spec in plexus.hub.methods()}
        spec = methods["weather_service.forecast"]
        assert (spec.title, spec.description, spec.hints.read_only) == (
            "Forecast",
            "Forecast the weather of a city.",
            True,
        )
        assert spec.given_schema is not None
        assert spec.given_schema["properties"]["city"]["type"] == "string"
        assert "weather_service.my_picture" in methods
        [node] = [each for each in plexus.hub.nodes() if each.path == "weather_service"]
        assert (node.version, node.description) == ("2.0", "Weather tools.")


async def test_progress_and_logs_are_events_and_the_value_is_the_result() -> None:
    async with local(from_fastmcp(weather(), "weather")) as plexus:
        assert await plexus.events("weather.forecast", city="Oslo") == [
            Progress(1.0, 2.0, "asking"),
            Log("info", "asked"),
            Result({"city": "Oslo", "sky": "clear"}),
        ]
        assert await plexus.call("weather.add", a=1) == 3


async def test_an_image_is_an_image() -> None:
    async with local(from_fastmcp(weather(), "weather")) as plexus:
        first = (await plexus.events("weather.my_picture"))[0]
    assert isinstance(first, Image)
    assert first.mime_type == "image/png"


async def test_a_tool_that_fails_or_is_called_wrongly_fails_the_run() -> None:
    async with local(from_fastmcp(weather(), "weather")) as plexus:
        with pytest.raises(Failed, match="no forecast"):
            await plexus.call("weather.fail")
        with pytest.raises(Failed, match="city"):
            await plexus.call("weather.forecast", town="Oslo")


async def test_what_a_tool_elicits_is_a_question_of_the_run() -> None:
    async with local(from_fastmcp(weather(), "weather")) as plexus:
        answered = plexus.answering({"value": "Ann"})
        assert await answered.call("weather.ask") == "accept Ann"


async def test_a_server_of_the_official_sdk_works_too() -> None:
    server = MCPServer("plain")

    @server.tool()
    def double(n: int) -> int:
        """Double a number."""
        return 2 * n

    async with local(from_fastmcp(server)) as plexus:
        assert await plexus.call("plain.double", n=4) == {"result": 8}  # as that SDK has it


def test_something_else_is_refused() -> None:
    with pytest.raises((TypeError, ValueError)):
        from_fastmcp(object())

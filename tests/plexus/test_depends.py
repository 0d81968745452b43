"""Dependencies: provided for each call, shared within it, closed after it."""

from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

import pytest
from hub_calls import until

from plexus import Activation, Complete, Content, Context, Depends, Plexus, Principal
from plexus.errors import RegistrationError
from plexus.events import Cancelled, ErrorEvent
from plexus.testing import local

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

Log = list[str]


def scoped(log: Log) -> Any:
    async def opened() -> AsyncIterator[str]:
        log.append("open")
        try:
            yield "value"
        finally:
            log.append("close")

    return opened


@pytest.mark.parametrize("kind", ["async generator", "generator", "coroutine", "function"])
async def test_every_kind_of_provider_provides_its_value(kind: str) -> None:
    async def async_generator() -> AsyncIterator[str]:
        yield "value"

    def generator() -> Iterator[str]:
        yield "value"

    async def coroutine() -> str:
        return "value"

    def function() -> str:
        return "value"

    provider = {
        "async generator": async_generator,
        "generator": generator,
        "coroutine": coroutine,
        "function": function,
    }[kind]
    use = Activation("use")

    @use.method
    async def it(given: Annotated[str, Depends(provider)]) -> str:
        """Use it."""
        return given

    @use.method
    async def default(given: str = Depends(provider)) -> str:  # type: ignore[assignment]
        """Use it, marked by its default."""
        return given

    @use.method
    def plain(given: Annotated[str, Depends(provider)], n: int = 1) -> str:
        """Use it in a thread."""
        return given * n

    async with local(use) as plexus:
        assert await plexus.call("use.it") == "value"
        assert await plexus.call("use.default") == "value"
        assert await plexus.call("use.plain", n=2) == "valuevalue"
        [spec] = [each for each in plexus.hub.methods() if each.name == "use.it"]
        assert spec.names == ()


async def test_a_scoped_dependency_is_closed_when_a_stream_ends_fails_or_is_cancelled() -> None:
    log: Log = []
    use = Activation("use")
    provide = scoped(log)

    @use.method
    async def stream(given: Annotated[str, Depends(provide)]) -> AsyncIterator[str]:
        """Stream it."""
        yield given

    @use.method
    async def fail(given: Annotated[str, Depends(provide)]) -> AsyncIterator[str]:
        """Fail."""
        yield given
        raise ValueError("no")

    @use.method
    async def endless(given: Annotated[str, Depends(provide)]) -> AsyncIterator[str]:
        """Stream without an end."""
        while True:
            yield given

    async with local(use) as plexus:
        assert await plexus.events("use.stream") == [Content("value"), Complete()]
        assert log == ["open", "close"]
        assert isinstance((await plexus.events("use.fail"))[-1], ErrorEvent)
        assert log == ["open", "close"] * 2
        async with plexus.stream("use.endless") as stream_:
            await anext(stream_)
            stream_.run.cancel("enough")
            await until(lambda: stream_.run.terminal is not None)
        assert stream_.run.terminal == Cancelled("enough")
        assert log == ["open", "close"] * 3


async def test_a_provider_runs_once_for_a_call_and_may_depend_on_others() -> None:
    runs: Log = []

    def settings() -> dict[str, str]:
        runs.append("settings")
        return {"name": "db"}

    def connection(
        given: Annotated[dict[str, str], Depends(settings)], ctx: Context, principal: Principal
    ) -> str:
        return f"{given['name']} of {principal.name} in run {ctx.run_id}"

    use = Activation("use")

    @use.method
    async def both(
        first: Annotated[dict[str, str], Depends(settings)],
        second: Annotated[str, Depends(connection)],
        ctx: Context,
    ) -> bool:
        """Use both."""
        return second == f"{first['name']} of local in run {ctx.run_id}"

    async with local(use) as plexus:
        assert await plexus.call("use.both") is True
        assert runs == ["settings"]


async def test_a_dependency_that_raises_ends_the_run_and_closes_those_before_it() -> None:
    log: Log = []

    async def broken() -> str:
        raise ValueError("no database")

    use = Activation("use")

    @use.method
    async def it(
        first: Annotated[str, Depends(scoped(log))], second: Annotated[str, Depends(broken)]
    ) -> str:
        """Use both."""
        return first + second

    async with local(use) as plexus:
        [end] = await plexus.events("use.it")
    assert isinstance(end, ErrorEvent)
    assert end.code == "internal"
    assert "no database" not in end.message
    assert log == ["open", "close"]


def _needs_an_argument(name: str) -> str:
    return name


def _loop(given: Any) -> str:
    return str(given)


_loop.__annotations__["given"] = Annotated[str, Depends(_loop)]


@pytest.mark.parametrize(
    ("provider", "message"),
    [
        (_needs_an_argument, "dependency '_needs_an_argument': argument 'name': give it a default"),
        ("text", "Depends('text') needs a function"),
        (_loop, "the dependency '_loop' depends on itself"),
    ],
)
def test_a_wrong_dependency_is_refused_at_registration(provider: Any, message: str) -> None:
    use = Activation("use")

    @use.method
    async def it(given: Annotated[str, Depends(provider)]) -> str:
        """Use it."""
        return given

    with pytest.raises(RegistrationError) as caught:
        Plexus().register(use)
    assert "use.it: argument 'given'" in caught.value.message
    assert message in caught.value.message

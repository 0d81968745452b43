"""Resources: found by URI, listed in one order, and read as text."""

from __future__ import annotations

import logging
from typing import Any, Literal

import pytest
from activations_for_tests import Demo
from conftest import OpenHub
from hub_calls import OTHER, call, end_of, read, settled, until

from plexus import Activation, Content, NotFound, Plexus, Principal, ResourceInfo, method, resource
from plexus.events import ErrorEvent, Result
from plexus.limits import Limits
from plexus.principal import LOCAL
from plexus.runtime.transcript import PAGE_CHARACTERS, transcript

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]


class Shelf(Activation):
    """Books, some of which come and go."""

    namespace = "shelf"
    version = "1.0.0"

    def __init__(self, *books: str) -> None:
        self.books = sorted(books)
        self.asked: list[tuple[str, str | None, int]] = []

    @resource("book://index", title="Index", mime_type="text/markdown")
    async def index(self) -> str:
        """All books."""
        return "\n".join(self.books)

    @resource("book://{number}")
    async def by_number(self, number: int) -> str:
        """A book by its number."""
        return self.books[number]

    @resource("book://by/{title}{?part}")
    async def by_title(self, title: str, part: Literal["first", "last"] | None = None) -> str:
        """A book by its title."""
        return f"{title} {part}"

    @resource("book://by/{title}/cover")
    async def cover(self, title: str) -> str:
        """The cover of a book."""
        return title

    async def resources(
        self, principal: Principal, after: str | None, limit: int
    ) -> list[ResourceInfo]:
        """The books that are there."""
        self.asked.append((principal.name, after, limit))
        listed = [ResourceInfo(f"book://by/{book}", book, size=len(book)) for book in self.books]
        return [each for each in listed if after is None or each.uri > after][:limit]


# --- finding -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("uri", "name", "arguments"),
    [
        ("book://index", "index", {}),
        ("book://by/Emma", "by_title", {"title": "Emma"}),
        ("book://by/Emma?part=last", "by_title", {"title": "Emma", "part": "last"}),
        ("book://by/War%20and%20Peace/cover", "cover", {"title": "War and Peace"}),
    ],
)
async def test_an_address_leads_to_the_method_that_reads_it(
    uri: str, name: str, arguments: dict[str, Any], open_hub: OpenHub
) -> None:
    hub = open_hub(Shelf)
    spec, found = hub.find_resource(uri)
    assert (spec.name, found) == (f"shelf.{name}", arguments)
    assert isinstance(await end_of(hub, spec.name, found), Result)


@pytest.mark.parametrize("uri", ["book://7", "book://-7", "book://007"])
async def test_an_integer_variable_is_read_as_an_integer(uri: str, open_hub: OpenHub) -> None:
    spec, found = open_hub(Shelf).find_resource(uri)
    assert (spec.name, found) == ("shelf.by_number", {"number": int(uri.removeprefix("book://"))})


@pytest.mark.parametrize(
    "uri",
    [
        "book://",
        "book://seven",
        "book://7.5",
        "book://%D9%A7",
        f"book://{'9' * 5000}",
        "book://by/Emma?part=middle",
        "book://by/Emma?other=1",
        "book://by/Emma/back",
        "other://7",
        "",
    ],
)
async def test_an_unknown_uri_is_not_found(uri: str, open_hub: OpenHub) -> None:
    with pytest.raises(NotFound) as caught:
        open_hub(Shelf).find_resource(uri)
    assert caught.value.data == {"uri": uri}
    assert len(caught.value.message) < 300


async def test_of_several_matches_the_most_specific_wins(open_hub: OpenHub) -> None:
    class Nested(Activation):
        """Read any path."""

        namespace = "nested"
        version = "1.0.0"

        @resource("tree://{a}/{b}")
        async def any_pair(self, a: str, b: str) -> str:
            """Any."""
            return a + b

        @resource("tree://root/{b}")
        async def below_root(self, b: str) -> str:
            """Below the root."""
            return b

        @resource("tree://root/leaf")
        async def leaf(self) -> str:
            """The leaf."""
            return "leaf"

    hub = open_hub(Nested)
    assert hub.find_resource("tree://x/y")[0].name == "nested.any_pair"
    assert hub.find_resource("tree://root/y")[0].name == "nested.below_root"
    assert hub.find_resource("tree://root/leaf")[0].name == "nested.leaf"


# --- listing -------------------------------------------------------------------------------------


class Loose(Activation):
    """Resources without templates."""

    namespace = "loose"
    version = "1.0.0"

    def __init__(self, *uris: str) -> None:
        self.uris = uris

    @resource("m://fixed", title="Fixed")
    async def fixed(self) -> str:
        """Always there."""
        return ""

    async def resources(
        self,
        principal: Principal,  # noqa: ARG002
        after: str | None,  # noqa: ARG002
        limit: int,  # noqa: ARG002
    ) -> list[ResourceInfo]:
        """More than is asked for, in no order."""
        return [ResourceInfo(uri, uri) for uri in self.uris]


async def addresses(
    hub: Plexus, after: str | None = None, limit: int = 100, principal: Principal = LOCAL
) -> list[str]:
    [end] = await call(hub, "plexus.resources", {"after": after, "limit": limit}, principal)
    assert isinstance(end, Result)
    return [entry["uri"] for entry in end.result]


async def test_all_resources_are_listed_in_the_order_of_their_addresses(open_hub: OpenHub) -> None:
    hub = open_hub(Loose("z://1", "a://1", "m://2"))
    assert await addresses(hub) == ["a://1", "m://2", "m://fixed", "z://1"]


@pytest.mark.parametrize("size", [1, 2, 3, 100])
async def test_a_page_begins_where_the_one_before_it_ended(size: int, open_hub: OpenHub) -> None:
    hub = open_hub(Loose("z://1", "a://1", "m://2", "b://2", "c://3"))
    seen: list[str] = []
    while page := await addresses(hub, seen[-1] if seen else None, size):
        assert len(page) <= size
        seen += page
    assert seen == await addresses(hub)
    assert len(seen) == 6


@pytest.mark.parametrize("limit", [0, -1])
async def test_a_page_of_nothing_is_empty(limit: int, open_hub: OpenHub) -> None:
    assert await addresses(open_hub(Loose("a://1")), limit=limit) == []


async def test_an_entry_omits_unknown_fields(open_hub: OpenHub) -> None:
    end = await end_of(open_hub(Loose("m://2")), "plexus.resources")
    assert end == Result(
        [
            {"uri": "m://2", "name": "m://2"},
            {
                "uri": "m://fixed",
                "name": "fixed",
                "title": "Fixed",
                "description": "Always there.",
                "mime_type": "text/plain",
            },
        ]
    )


async def test_the_list_hook_receives_the_principal_and_the_position(open_hub: OpenHub) -> None:
    shelf = Shelf("Emma", "Ulysses")
    hub = open_hub(shelf)
    assert await addresses(hub, "book://by/Emma", 5, OTHER) == ["book://by/Ulysses", "book://index"]
    assert shelf.asked == [(OTHER.name, "book://by/Emma", 5)]


async def test_a_list_that_fails_is_reported_and_the_others_are_shown(
    open_hub: OpenHub, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(Activation):
        """Has a list hook that fails."""

        namespace = "failing"
        version = "1.0.0"

        @method
        async def nothing(self) -> None:
            """Do nothing."""

        async def resources(self, *_: Any) -> list[ResourceInfo]:
            """Fail."""
            raise RuntimeError("no database")

    hub = open_hub(Failing, Loose("a://1"))
    with caplog.at_level(logging.ERROR):
        assert await addresses(hub) == ["a://1", "m://fixed"]
    assert "the resources of failing" in caplog.text


async def test_an_activation_lists_no_resources_by_default() -> None:
    assert await Demo().resources(LOCAL, None, 10) == []


# --- runs ----------------------------------------------------------------------------------------


async def text_of(hub: Plexus, uri: str, principal: Principal = LOCAL) -> str:
    spec, arguments = hub.find_resource(uri)
    [end] = await call(hub, spec.name, arguments, principal)
    assert isinstance(end, Result), end
    assert isinstance(end.result, str)
    return end.result


async def test_runs_are_resources_of_their_principal(open_hub: OpenHub) -> None:
    hub = open_hub(Demo, Shelf)
    mine = hub.call("demo.count", {"to": 3}).run
    other = hub.call("demo.echo", ["b"], OTHER).run
    await settled(mine)
    await settled(other)
    await end_of(hub, "shelf.index")  # looking at something is not worth a look
    [_, end] = [await call(hub, "plexus.resources"), await end_of(hub, "plexus.resources")]
    assert isinstance(end, Result)
    runs = [entry for entry in end.result if entry["uri"].startswith("run://")]
    assert runs == [
        {"uri": f"run://{mine.id}", "name": "demo.count (complete)", "mime_type": "text/plain"}
    ]
    assert f"run://{other.id}" in await addresses(hub, principal=OTHER)


async def test_only_the_newest_runs_are_listed_and_in_the_order_of_addresses(
    open_hub: OpenHub,
) -> None:
    hub = open_hub(Demo)
    for _ in range(105):
        await settled(hub.call("demo.echo", ["a"]).run)
    newest = sorted(f"run://{run.id}" for run in hub.runs.list_for(LOCAL)[:100])
    assert await addresses(hub, limit=1000) == newest
    assert await addresses(hub, newest[49], 10) == newest[50:60]


async def test_the_transcript_of_a_run_is_read_by_its_number(open_hub: OpenHub) -> None:
    hub = open_hub(Demo)
    run = hub.call("demo.count", {"to": 3}).run
    await settled(run)
    assert await text_of(hub, f"run://{run.id}") == "1 2 3 "
    assert await text_of(hub, f"run://{run.id}?after=1") == "2 3 "
    assert await text_of(hub, f"run://{run.id}?after=-5") == "1 2 3 "
    assert await text_of(hub, f"run://{run.id}?after=99") == ""


async def test_the_error_of_a_run_is_on_a_separate_line(open_hub: OpenHub) -> None:
    hub = open_hub(Demo)
    made = hub.call("demo.fail", ["x", "no Vulcan"])
    await read(made)
    assert await text_of(hub, f"run://{made.run.id}") == "so far, so good\nno Vulcan"


async def test_a_value_that_is_not_text_is_shown_as_json(open_hub: OpenHub) -> None:
    hub = open_hub(Demo)
    run = hub.call("plexus.runs", {"system": True}).run
    await settled(run)
    assert f'"run": {run.id}' in await text_of(hub, f"run://{run.id}")
    run = hub.call("demo.echo", ["some text"]).run
    await settled(run)
    assert await text_of(hub, f"run://{run.id}") == "some text"


async def test_the_transcript_of_a_running_run_ends_with_its_uri(open_hub: OpenHub) -> None:
    hub = open_hub(Demo)
    run = hub.call("demo.wait").run
    assert await transcript(run) == f"[still running: run://{run.id}?after=0]"
    await until(lambda: run.log.last == 1)
    assert await text_of(hub, f"run://{run.id}") == (
        f"waiting\n[still running: run://{run.id}?after=1]"
    )


async def test_a_long_run_is_read_page_by_page(open_hub: OpenHub) -> None:
    hub = open_hub(Demo)
    run = hub.call("demo.flood", {"size": 30_000}).run
    await until(lambda: run.log.last >= 20)
    run.cancel("enough")
    await settled(run)
    pages, uri = [], f"run://{run.id}"
    while True:
        text = await text_of(hub, uri)
        body, _, rest = text.rpartition("\n")
        assert len(text) <= PAGE_CHARACTERS + 100
        if not rest.startswith("[continues: "):
            pages.append(text)
            break
        pages.append(body)
        uri = rest.removeprefix("[continues: ").removesuffix("]")
    assert len(pages) > 2
    output = "".join(each.as_text() for each in run.log.events if isinstance(each, Content))
    assert "".join(pages).replace("\n", "") == output + "Cancelled: enough"


async def test_one_item_past_the_size_of_a_page_is_shown_whole(open_hub: OpenHub) -> None:
    hub = open_hub(Demo)
    run = hub.call("demo.echo", ["x", PAGE_CHARACTERS + 5]).run
    await settled(run)
    assert await text_of(hub, f"run://{run.id}") == "x" * (PAGE_CHARACTERS + 5)


async def test_a_transcript_begins_with_the_items_that_are_missing(open_hub: OpenHub) -> None:
    hub = open_hub(Demo, limits=Limits(log_items=10, log_bytes=2000))
    run = hub.call("demo.count", {"to": 2000}).run
    await settled(run)
    first = run.log.first
    assert first > 1
    text = await text_of(hub, f"run://{run.id}?after=3")
    assert text.startswith(f"[items 4 to {first - 1} are no longer available]\n{first} ")
    assert not (await text_of(hub, f"run://{run.id}?after={first}")).startswith("[")


async def test_the_run_of_another_is_not_found(open_hub: OpenHub) -> None:
    hub = open_hub(Demo)
    run = hub.call("demo.echo", ["a"]).run
    await settled(run)
    spec, arguments = hub.find_resource(f"run://{run.id}")
    [end] = await call(hub, spec.name, arguments, OTHER)
    assert isinstance(end, ErrorEvent)
    assert end.code == "not_found"

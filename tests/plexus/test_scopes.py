"""Scopes: they are declared, checked before any effect, and passed on to nested calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from conftest import OpenHub
from hub_calls import call, quiet, read, settled, until

from plexus import (
    Activation,
    Confirm,
    Context,
    Denied,
    InvalidParams,
    NotFound,
    Plexus,
    Principal,
    PromptInfo,
    ResourceInfo,
    method,
    prompt,
    resource,
)
from plexus.errors import RegistrationError, UnknownMethod
from plexus.events import ErrorEvent, Result
from plexus.principal import LOCAL
from plexus.runtime.hub import MAX_SCHEMAS

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]

ADA = "ada"
#: The same person by four ways.
READER = Principal(ADA, frozenset())
SHOPPER = Principal(ADA, frozenset({"shop"}))
KEEPER = Principal(ADA, frozenset({"shop", "shop.stock", "back"}))
OWNER = Principal(ADA)

#: The scope of each method of the hub below.
DECLARED = {
    "shop.buy": "shop",
    "shop.look": "read",
    "shop.count": "shop.stock",
    "shop.greeting": "read",
    "shop.order": "shop",
    "shop.window": "read",
    "shop.shelf": "read",
    "shop.ledger": "shop.stock",
    "shop.relay": "read",
    "shop.sure": "shop",
    "shop.office.safe": "back",
    "shop.office.papers": "back",
    "shop.office.clock": "read",
    "shop.yard.sweep": "shop",
}

SHELVES = [f"shelf://{number:03}" for number in range(20)]
LEDGERS = [f"ledger://{number:03}" for number in range(20)]


class Office(Activation):
    """The room behind."""

    namespace = "office"
    version = "1.0.0"
    scope = "back"

    @method
    async def safe(self) -> str:
        """Open the safe."""
        return "gold"

    @method(read_only=True)
    async def papers(self) -> str:
        """Read the stock."""
        return "secret"

    @method(scope="read")
    async def clock(self) -> str:
        """Return the time, for every principal."""
        return "noon"


class Yard(Activation):
    """Outside."""

    namespace = "yard"
    version = "1.0.0"

    @method
    async def sweep(self) -> str:
        """Sweep."""
        return "swept"


class Shop(Activation):
    """Has methods for every principal."""

    namespace = "shop"
    version = "1.0.0"
    children = (Office, Yard)

    def __init__(self) -> None:
        self.bought = 0
        self.validated = 0

    @method
    async def buy(self, what: str) -> str:
        """Buy something."""
        self.bought += 1
        return what

    @method(read_only=True)
    async def look(self) -> str:
        """Look around."""
        return "things"

    @method(read_only=True, scope="shop.stock")
    async def count(self) -> int:
        """How much there is."""
        return 3

    @prompt
    async def greeting(self) -> str:
        """Say hello."""
        return "hello"

    @prompt(template="shop.order.{name}", scope="shop")
    async def order(self, name: str) -> str:
        """An order."""
        return name

    @resource("window://")
    async def window(self) -> str:
        """What is in the window."""
        return "hats"

    @resource("shelf://{number}")
    async def shelf(self, number: str) -> str:
        """What is on a shelf."""
        return number

    @resource("ledger://{number}", scope="shop.stock")
    async def ledger(self, number: str) -> str:
        """What is in a ledger."""
        return number

    @method(read_only=True)
    async def relay(self, what: str, *, ctx: Context) -> Any:
        """Call something else for the caller."""
        return await ctx.call(what, **({"what": "hat"} if what == "shop.buy" else {}))

    @method
    async def sure(self, *, ctx: Context) -> bool:
        """Ask, and wait."""
        return await ctx.ask(Confirm("Sure?"))

    async def resources(
        self,
        principal: Principal,  # noqa: ARG002 - the hub decides
        after: str | None,
        limit: int,
    ) -> list[ResourceInfo]:
        """Shelves and ledgers."""
        there = sorted([*SHELVES, *LEDGERS])
        return [ResourceInfo(uri, uri) for uri in there if after is None or uri > after][:limit]

    async def prompts(
        self,
        principal: Principal,  # noqa: ARG002 - the hub decides
        after: str | None,
        limit: int,
    ) -> list[PromptInfo]:
        """Two orders."""
        there = ["shop.order.a", "shop.order.b"]
        return [PromptInfo(name) for name in there if after is None or name > after][:limit]


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture
def hub(open_hub: OpenHub, shop: Shop) -> Plexus:
    return open_hub(shop)


async def value(hub: Plexus, name: str, params: Any, principal: Principal) -> Any:
    end = (await call(hub, name, params, principal))[-1]
    assert isinstance(end, Result), end
    return end.result


async def failure(hub: Plexus, name: str, params: Any, principal: Principal) -> ErrorEvent:
    end = (await call(hub, name, params, principal))[-1]
    assert isinstance(end, ErrorEvent), end
    return end


# --- principals -----------------------------------------------------------------------------------


def test_the_name_is_the_identity_of_a_principal() -> None:
    assert READER == OWNER == SHOPPER
    assert len({READER, OWNER, SHOPPER}) == 1
    assert Principal("bob") != OWNER
    assert OWNER != ADA
    assert {READER: 1}[OWNER] == 1


def test_a_principal_has_its_scopes_and_the_minimal_scope() -> None:
    assert SHOPPER.may("shop")
    assert SHOPPER.may("read")
    assert not SHOPPER.may("shop.stock")
    assert not SHOPPER.may("sho")
    assert Principal(ADA, frozenset({"shop.stock"})).may("shop") is False
    assert READER.may("read")


def test_without_scopes_everything_is_allowed() -> None:
    assert LOCAL.scopes is None
    assert LOCAL.may("anything")


def test_the_repr_of_a_principal_shows_its_name_and_scopes() -> None:
    assert repr(KEEPER) == "<Principal ada: back shop shop.stock>"
    assert repr(READER) == "<Principal ada: read>"
    assert repr(OWNER) == "<Principal ada: everything>"


# --- declaring ------------------------------------------------------------------------------------


async def test_every_method_has_a_scope(hub: Plexus) -> None:
    found = {spec.name: spec.scope for spec in hub.methods() if spec.name.startswith("shop")}
    assert found == DECLARED
    assert hub.scopes() == {"read", "shop", "shop.stock", "back"}


async def test_the_schema_contains_the_scope_of_a_method(hub: Plexus) -> None:
    [plexus, shop] = hub.schema()["activations"]
    entries = [*plexus["methods"], *shop["methods"]]
    entries += [entry for child in shop["children"] for entry in child["methods"]]
    found = {entry["name"]: entry["scope"] for entry in entries}
    assert found.items() >= DECLARED.items()
    assert len(found) == len(hub.methods())


def _with_scope(given: Any) -> type[Activation]:
    class Odd(Activation):
        """Odd."""

        namespace = "odd"
        version = "1.0.0"

        @method(scope=given)
        async def go(self) -> str:
            """Go."""
            return ""

    return Odd


def _with_class_scope(given: Any) -> type[Activation]:
    class Odd(Activation):
        """Odd."""

        namespace = "odd"
        version = "1.0.0"
        scope = given

        @method
        async def go(self) -> str:
            """Go."""
            return ""

    return Odd


def _with_prompt_scope(given: Any) -> type[Activation]:
    class Odd(Activation):
        """Odd."""

        namespace = "odd"
        version = "1.0.0"

        @prompt(scope=given)
        async def go(self) -> str:
            """Go."""
            return ""

    return Odd


def _with_resource_scope(given: Any) -> type[Activation]:
    class Odd(Activation):
        """Odd."""

        namespace = "odd"
        version = "1.0.0"

        @resource("odd://", scope=given)
        async def go(self) -> str:
            """Go."""
            return ""

    return Odd


WAYS = (_with_scope, _with_class_scope, _with_prompt_scope, _with_resource_scope)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("odd", ["", "Bash", "a b", "a-b", "a/b", "a:b", "é", "a\n", "*", 5, True])
def test_an_invalid_scope_is_refused(way: Callable[[Any], type[Activation]], odd: Any) -> None:
    with pytest.raises(RegistrationError, match=r"^Odd\.go: the scope .* must be lower case"):
        Plexus().register(way(odd))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("good", ["a", "arbor.write", "a_b", "a.b.c", "2fa", "read"])
def test_a_scope_is_letters_digits_underscores_and_dots(
    way: Callable[[Any], type[Activation]], good: str
) -> None:
    hub = Plexus()
    hub.register(way(good))
    assert hub.resolve("odd.go").scope == good


def test_a_namespace_named_like_the_minimal_scope_needs_a_scope() -> None:
    class Read(Activation):
        """A namespace with the name of the minimal scope."""

        namespace = "read"
        version = "1.0.0"

        @method
        async def erase(self) -> str:
            """Erase."""
            return ""

    with pytest.raises(RegistrationError, match=r"Read\.erase: needs a scope"):
        Plexus().register(Read)


def test_a_method_that_would_hide_the_scope_of_its_activation_is_refused() -> None:
    class Odd(Activation):
        """Odd."""

        namespace = "odd"
        version = "1.0.0"

        @method
        async def scope(self) -> str:  # type: ignore[override]  # which is what is refused
            """Hide it."""
            return ""

    with pytest.raises(RegistrationError, match=r'Odd\.scope: .*@method\(name="scope"\)'):
        Plexus().register(Odd)


# --- calling --------------------------------------------------------------------------------------


@pytest.mark.parametrize("principal", [READER, SHOPPER, KEEPER, OWNER], ids=repr)
@pytest.mark.parametrize("name", DECLARED)
async def test_exactly_what_the_scopes_allow_can_be_called(
    hub: Plexus, name: str, principal: Principal
) -> None:
    allowed = principal.scopes is None or DECLARED[name] in {*principal.scopes, "read"}
    # No method has such a parameter: what is allowed comes as far as its parameters.
    with pytest.raises(InvalidParams if allowed else Denied):
        hub.call(name, {"no such parameter": 1}, principal)
    assert hub.runs.list_for(principal) == []


async def test_a_denied_call_names_the_missing_scope_and_has_no_effect(
    hub: Plexus, shop: Shop
) -> None:
    told: list[Any] = []
    hub.on_change(told.append)
    with pytest.raises(Denied) as caught:
        hub.call("shop.buy", {"what": "hat", "_run": "once"}, READER)
    assert caught.value.code == "denied"
    assert caught.value.data == {"scope": "shop"}
    assert caught.value.message == "shop.buy needs the scope 'shop', which ada does not have"
    await quiet()
    assert (shop.bought, hub.runs.list_for(READER), told) == (0, [], [])
    # The key was not used up, either.
    assert hub.call("shop.buy", {"what": "hat", "_run": "once"}, SHOPPER).fresh


async def test_the_scope_comes_before_the_parameters_and_the_key(hub: Plexus) -> None:
    for params in ({"what": 5}, {"_run": 5}, {"_after": -1}, ["too", "many"], {"what": "x"}, None):
        with pytest.raises(Denied):
            hub.call("shop.buy", params, READER)


async def test_the_legacy_spelling_does_not_bypass_scopes(hub: Plexus) -> None:
    with pytest.raises(Denied):
        hub.call("shop_buy", {"what": "hat"}, READER)


async def test_resuming_a_run_by_its_key_needs_the_scope_too(hub: Plexus) -> None:
    first = hub.call("shop.buy", {"what": "hat", "_run": "k"}, SHOPPER)
    await settled(first.run)
    with pytest.raises(Denied):
        hub.call("shop.buy", {"what": "hat", "_run": "k"}, READER)
    assert hub.call("shop.buy", {"what": "hat", "_run": "k"}, OWNER).run is first.run


async def test_a_call_from_inside_a_run_has_the_scopes_of_its_caller(
    hub: Plexus, shop: Shop
) -> None:
    for name in ("shop.buy", "shop.count", "shop.office.safe"):
        error = await failure(hub, "shop.relay", {"what": name}, READER)
        assert (error.code, error.data) == ("denied", {"scope": DECLARED[name]})
    assert shop.bought == 0
    assert await value(hub, "shop.relay", {"what": "shop.buy"}, SHOPPER) == "hat"
    assert await value(hub, "shop.relay", {"what": "shop.look"}, READER) == "things"


async def test_a_buffered_call_checks_the_scope_of_the_called_method(
    hub: Plexus, shop: Shop
) -> None:
    inner = {"method": "shop.buy", "params": {"what": "hat"}}
    twice = {"method": "plexus.call", "params": inner}
    for wanted in (inner, twice):
        error = await failure(hub, "plexus.call", wanted, READER)
        assert error.code == "denied"
    assert shop.bought == 0
    assert (await value(hub, "plexus.call", inner, SHOPPER))["terminal"].result == "hat"


async def test_suggestions_need_the_scope_of_the_method(hub: Plexus) -> None:
    wanted = {"method": "shop.order", "argument": "name", "value": ""}
    error = await failure(hub, "plexus.complete", wanted, READER)
    assert (error.code, error.data) == ("denied", {"scope": "shop"})
    assert (await value(hub, "plexus.complete", wanted, SHOPPER))["values"] == []


# --- steering what is under way -------------------------------------------------------------------


async def test_a_run_is_controlled_only_with_the_scope_to_start_it(
    hub: Plexus,
) -> None:
    run = hub.call("shop.sure", {}, SHOPPER).run
    await until(lambda: bool(run.questions))
    request = next(iter(run.questions or {}))
    for name, params in (
        ("plexus.cancel", {"run": run.id}),
        ("plexus.respond", {"run": run.id, "request": request, "answer": True}),
    ):
        error = await failure(hub, name, params, READER)
        assert (error.code, error.data) == ("denied", {"scope": "shop"})
    assert run.terminal is None
    assert run.cancel_reason is None
    # Inspecting it needs only "read".
    [shown] = await value(hub, "plexus.runs", {"state": "asking"}, READER)
    assert shown["run"] == run.id
    assert hub.call("plexus.attach", {"run": run.id}, READER).run is run
    params = {"run": run.id, "request": request, "answer": True}
    assert await value(hub, "plexus.respond", params, KEEPER) is True
    assert await settled(run) == Result(True)


async def test_another_principal_gets_not_found_instead_of_denied(hub: Plexus) -> None:
    run = hub.call("shop.sure", {}, SHOPPER).run
    for stranger in (Principal("bob"), Principal("bob", frozenset())):
        with pytest.raises(NotFound):
            hub.find_run_to_control(run.id, stranger)
    with pytest.raises(Denied):
        hub.find_run_to_control(run.id, READER)
    assert hub.find_run_to_control(run.id, OWNER) is run
    assert hub.may_control(run, SHOPPER)
    assert not hub.may_control(run, READER)
    assert not hub.may_control(run, Principal("bob"))


async def test_a_run_of_an_unregistered_method_is_controlled_only_with_all_scopes(
    hub: Plexus,
) -> None:
    run = hub.call("shop.sure", {}, SHOPPER).run
    hub.unregister("shop")
    with pytest.raises(Denied, match=r"shop\.sure is no longer registered"):
        hub.find_run_to_control(run.id, SHOPPER)
    assert hub.find_run_to_control(run.id, OWNER) is run
    run.cancel("the test is over")


# --- seeing ---------------------------------------------------------------------------------------


def names_in(described: dict[str, Any]) -> set[str]:
    def walk(nodes: list[Any]) -> set[str]:
        found = {entry["name"] for node in nodes for entry in node["methods"]}
        return found.union(*(walk(node.get("children", [])) for node in nodes))

    return walk(described["activations"])


@pytest.mark.parametrize("principal", [READER, SHOPPER, KEEPER, OWNER], ids=repr)
async def test_lists_and_schema_show_what_can_be_called(hub: Plexus, principal: Principal) -> None:
    may = {name for name, scope in DECLARED.items() if principal.may(scope)}
    own = {spec.name for spec in hub.methods() if spec.name.startswith("plexus.")}
    assert {spec.name for spec in hub.methods(principal)} == may | own
    assert names_in(hub.schema(principal)) == may | own
    assert names_in(await value(hub, "plexus.schema", {}, principal)) == may | own
    assert await value(hub, "plexus.hash", {}, principal) == hub.schema(principal)["hash"]


async def test_a_namespace_without_callable_methods_is_not_visible(hub: Plexus) -> None:
    [_, shop] = hub.schema(READER)["activations"]
    assert [child["namespace"] for child in shop["children"]] == ["shop.office"]
    error = await failure(hub, "plexus.schema", {"namespace": "shop.yard"}, READER)
    absent = await failure(hub, "plexus.schema", {"namespace": "shop.attic"}, READER)
    assert (error.code, error.message) == (
        absent.code,
        absent.message.replace("shop.attic", "shop.yard"),
    )


async def test_an_inner_namespace_can_be_seen_where_the_outer_has_nothing(
    open_hub: OpenHub,
) -> None:
    class Outer(Activation):
        """Closed, with something open inside."""

        namespace = "outer"
        version = "1.0.0"
        children = (Office,)

        @method
        async def act(self) -> str:
            """Act."""
            return ""

    described = open_hub(Outer).schema(READER)
    outer = next(node for node in described["activations"] if node["namespace"] == "outer")
    assert outer["methods"] == []
    assert names_in({"activations": [outer]}) == {"outer.office.clock"}


async def test_the_hash_is_of_what_is_seen(hub: Plexus) -> None:
    hashes = [hub.schema(each)["hash"] for each in (READER, SHOPPER, KEEPER)]
    assert len({*hashes}) == 3
    # Who has all scopes there are sees the same as who has everything.
    assert hub.schema(KEEPER) == hub.schema(OWNER)
    assert hub.hash == hub.schema(OWNER)["hash"]
    before = hub.schema(READER)["hash"]
    hub.register(Yard)  # which adds nothing that a reader sees
    assert hub.schema(READER)["hash"] == before
    assert hub.hash != hashes[2]


async def test_scopes_without_methods_share_a_schema(hub: Plexus) -> None:
    seen = hub.schema(READER)
    for number in range(3 * MAX_SCHEMAS):
        odd = Principal(f"p{number}", frozenset({f"odd{number}"}))
        assert hub.schema(odd) is seen


def test_many_sets_of_scopes_are_each_shown_their_own() -> None:
    hub = Plexus()
    hub.register(_many(8))
    for turn in range(2):
        for number in range(4 * MAX_SCHEMAS):
            scopes = frozenset(f"s{bit}" for bit in range(8) if number >> bit & 1)
            names = names_in(hub.schema(Principal(f"p{turn}", scopes)))
            assert names == {f"many.m{scope[1:]}" for scope in scopes}


def _many(count: int) -> type[Activation]:
    def make(number: int) -> Any:
        async def go(self: Activation) -> str:  # noqa: ARG001 - it is a method
            """Go."""
            return ""

        return method(scope=f"s{number}", name=f"m{number}")(go)

    body = {f"m{number}": make(number) for number in range(count)}
    about = {"namespace": "many", "version": "1.0.0", "__doc__": "Many."}
    return type("Many", (Activation,), {**about, **body})


async def test_suggestions_do_not_reveal_invisible_methods(hub: Plexus) -> None:
    with pytest.raises(UnknownMethod) as caught:
        hub.call("shop.bux", {}, READER)
    assert not {"shop.buy"} & set(caught.value.data["nearest"])
    assert "shop.buy" not in caught.value.message
    with pytest.raises(UnknownMethod, match=r"Did you mean shop\.buy"):
        hub.call("shop.bux", {}, SHOPPER)


# --- resources and prompts ------------------------------------------------------------------------


async def pages(
    page: Callable[[str | None], Any], key: Callable[[Any], str], size: int
) -> list[str]:
    """All keys, page by page; every page but the last is full."""
    found: list[str] = []
    while True:
        entries = await page(found[-1] if found else None)
        found += [key(entry) for entry in entries]
        if len(entries) < size:
            return found


@pytest.mark.parametrize("size", [1, 3, 7, 100])
async def test_resources_are_listed_for_principals_that_may_read_them(
    hub: Plexus, size: int
) -> None:
    async def listed(principal: Principal) -> list[str]:
        return await pages(
            lambda after: hub.list_resources(principal, after, size), lambda e: e.uri, size
        )

    everything = sorted([*SHELVES, *LEDGERS, "window://"])
    assert await listed(OWNER) == everything
    assert await listed(KEEPER) == everything
    assert await listed(SHOPPER) == [*SHELVES, "window://"]
    assert await listed(READER) == [*SHELVES, "window://"]


async def test_prompts_are_listed_for_principals_that_may_use_them(hub: Plexus) -> None:
    async def listed(principal: Principal) -> list[str]:
        return await pages(lambda after: hub.list_prompts(principal, after, 2), lambda e: e.name, 2)

    assert await listed(READER) == ["shop.greeting"]
    assert await listed(SHOPPER) == ["shop.greeting", "shop.order.a", "shop.order.b"]
    for principal in (READER, SHOPPER):
        found = await value(hub, "plexus.prompts", {}, principal)
        assert [entry["name"] for entry in found] == await listed(principal)


@pytest.mark.parametrize("limit", [0, 1, 5])
async def test_a_list_hook_that_repeats_itself_is_not_called_indefinitely(
    open_hub: OpenHub, limit: int
) -> None:
    class Stuck(Activation):
        """Lists the same again and again."""

        namespace = "stuck"
        version = "1.0.0"
        asked = 0

        @resource("stuck://{number}", scope="stuck")
        async def one(self, number: str) -> str:
            """One."""
            return number

        async def resources(
            self,
            principal: Principal,  # noqa: ARG002 - it knows no better
            after: str | None,  # noqa: ARG002
            limit: int,  # noqa: ARG002
        ) -> list[ResourceInfo]:
            type(self).asked += 1
            return [ResourceInfo(f"stuck://{number}", "one") for number in range(9)]

    hub = open_hub(Stuck)
    assert await hub.list_resources(READER, None, limit) == []
    assert Stuck.asked <= 2


async def test_a_listed_resource_without_a_method_is_visible_with_all_scopes_only(
    open_hub: OpenHub,
) -> None:
    class Lost(Activation):
        """Lists resources that no method reads."""

        namespace = "lost"
        version = "1.0.0"

        @resource("kept://{number}", scope="lost")
        async def one(self, number: str) -> str:
            """One."""
            return number

        async def resources(
            self,
            principal: Principal,  # noqa: ARG002 - it is the same for all
            after: str | None,  # noqa: ARG002
            limit: int,  # noqa: ARG002
        ) -> list[ResourceInfo]:
            return [ResourceInfo("lost://1", "one")]

    hub = open_hub(Lost)
    assert [entry.uri for entry in await hub.list_resources(OWNER)] == ["lost://1"]
    assert await hub.list_resources(READER) == []


async def test_reading_what_is_not_shown_is_denied(hub: Plexus) -> None:
    for uri in LEDGERS[:2]:
        spec, arguments = hub.find_resource(uri)
        with pytest.raises(Denied):
            hub.call(spec.name, arguments, READER)
    spec, arguments = hub.find_prompt("shop.order.a")
    with pytest.raises(Denied):
        hub.call(spec.name, arguments, READER)
    assert (await read(hub.call(spec.name, arguments, SHOPPER)))[-1] == Result("a")

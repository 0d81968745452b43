"""Fair shares of a pool, for one principal and under contention."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plexus.principal import LOCAL
from plexus.runtime.shares import FairCache, FairPool

OPERATOR = LOCAL.name


def make_pool(total: int) -> FairPool:
    return FairPool("places", total, "places in use", "Release one.")


def fill(pool: FairPool, name: str) -> int:
    """How many places this principal gets if it takes all it can get."""
    taken = 0
    while pool.acquire(name):
        taken += 1
    return taken


# --- what is in use ------------------------------------------------------------------------------


def test_one_principal_alone_gets_nearly_everything_and_the_next_ones_still_get_some() -> None:
    pool = make_pool(1024)
    assert [fill(pool, name) for name in "abcd"] == [840, 105, 14, 1]


@pytest.mark.parametrize("total", [1, 2, 3, 7])
def test_a_pool_that_is_too_small_to_share_can_be_used_up(total: int) -> None:
    pool = make_pool(total)
    assert fill(pool, "a") == total
    assert fill(pool, "b") == 0


def test_the_operator_gets_places_whatever_others_hold() -> None:
    pool = make_pool(1024)
    for number in range(2000):
        fill(pool, f"other{number}")
    assert fill(pool, OPERATOR) == 64
    assert pool.used == pool.total


def test_the_operator_that_holds_some_already_can_still_use_its_reserve() -> None:
    pool = make_pool(1024)
    for _ in range(500):
        assert pool.acquire(OPERATOR)
    for number in range(2000):
        fill(pool, f"other{number}")
    for _ in range(500):
        pool.release(OPERATOR)
    for number in range(2000):
        fill(pool, f"other{number}")
    assert fill(pool, OPERATOR) >= 64


def test_places_that_are_released_go_to_the_principal_that_has_fewer() -> None:
    pool = make_pool(1024)
    fill(pool, "a")
    fill(pool, "b")
    for _ in range(2000):
        if pool.held_by("a"):
            pool.release("a")
        pool.acquire("b")
        pool.acquire("a")
    assert abs(pool.held_by("a") - pool.held_by("b")) <= 8


def test_a_principal_without_places_costs_no_memory() -> None:
    pool = make_pool(64)
    for number in range(1000):
        assert pool.acquire(f"p{number}")
        pool.release(f"p{number}")
    assert (pool.used, pool.holders) == (0, 0)


def test_a_refusal_names_the_limit_the_holding_and_the_remedy() -> None:
    pool = make_pool(64)
    fill(pool, "a")
    mine = pool.refusal("a")
    assert mine.data == {"limit": 64, "name": "places", "held": pool.held_by("a")}
    assert mine.message == (
        f"Your share of limits.places = 64 (places in use) is used up: "
        f"you hold {pool.held_by('a')}. Release one."
    )
    theirs = pool.refusal("c")
    assert theirs.data == {"limit": 64, "name": "places", "held": 0}
    assert "used up by others" in theirs.message


@given(
    st.integers(1, 100),
    st.lists(st.tuples(st.sampled_from(["a", "b", "c", OPERATOR]), st.booleans()), max_size=300),
)
def test_a_pool_never_exceeds_its_total(total: int, steps: list[tuple[str, bool]]) -> None:
    pool = make_pool(total)
    held: Counter[str] = Counter()
    for name, takes in steps:
        if takes:
            held[name] += pool.acquire(name)
        elif held[name]:
            pool.release(name)
            held[name] -= 1
        assert pool.used == held.total() <= total
        assert held.total() - held[OPERATOR] <= total - total // 16
        assert all(pool.held_by(each) == count for each, count in held.items())
    assert pool.holders == sum(1 for count in held.values() if count)


# --- what has ended ------------------------------------------------------------------------------


def kept(cache: FairCache[int, str]) -> Counter[str]:
    """Return the number of entries by principal; an item begins with its name."""
    return Counter(item[0] for _, _, item, _, _ in cache.entries.values())


def test_one_principal_alone_uses_the_whole_cache_and_loses_its_oldest() -> None:
    cache: FairCache[int, str] = FairCache(10, 1000)
    for number in range(15):
        cache.add(number, "a", f"a{number}", 1)
    assert cache.of("a") == [f"a{number}" for number in range(5, 15)]
    assert (cache.get(4), cache.get(5)) == (None, "a5")


def test_the_principal_that_holds_the_most_loses_its_oldest() -> None:
    cache: FairCache[int, str] = FairCache(10, 1000)
    for number in range(3):
        cache.add(number, "b", f"b{number}", 1)
    for number in range(100, 200):
        cache.add(number, "a", f"a{number}", 1)
    assert kept(cache) == {"a": 7, "b": 3}
    for number in range(10, 100):
        cache.add(number, "b", f"b{number}", 1)
    assert kept(cache) == {"a": 5, "b": 5}
    assert cache.of("a")[-1] == "a199"
    assert cache.of("b")[-1] == "b99"


def test_the_same_holds_for_bytes() -> None:
    cache: FairCache[int, str] = FairCache(100, 1000)
    cache.add(0, "b", "b", 400)
    for number in range(1, 50):
        cache.add(number, "a", "a", 100)
    assert kept(cache) == {"a": 6, "b": 1}
    assert cache.size == 1000
    cache.add(50, "c", "c", 2000)  # more than there may be at all
    assert kept(cache) == {"a": 6, "b": 1}


def test_one_large_entry_evicts_several_small_ones_also_the_last_of_a_principal() -> None:
    cache: FairCache[int, str] = FairCache(100, 1000)
    cache.add(0, "b", "b", 600)
    for number in range(1, 5):
        cache.add(number, "a", "a", 100)
    cache.add(5, "a", "a", 550)
    assert kept(cache) == {"a": 1}
    assert (cache.size, cache.holders) == (550, 1)


def test_the_operator_keeps_some_however_many_others_there_are() -> None:
    cache: FairCache[int, str] = FairCache(256, 10_000)
    for number in range(100):
        cache.add(number, OPERATOR, f"o{number}", 1)
    for number in range(1000, 3000):
        cache.add(number, f"p{number}", f"p{number}", 1)
    assert len(cache.of(OPERATOR)) >= 256 // 16


def test_the_callback_is_called_for_evicted_but_not_for_discarded_entries() -> None:
    evicted: list[str] = []
    cache: FairCache[int, str] = FairCache(2, 1000)
    for number in range(3):
        cache.add(number, "a", f"a{number}", 1, evicted.append)
    cache.discard(2)
    cache.discard(0)
    assert evicted == ["a0"]
    assert (cache.of("a"), cache.size) == (["a1"], 1)
    cache.discard(1)
    cache.discard(1)
    assert (cache.holders, cache.size, cache.entries) == (0, 0, {})


def test_old_entries_of_all_principals_are_evicted() -> None:
    cache: FairCache[int, str] = FairCache(10, 1000)
    for number in range(6):
        name = "ab"[number % 2]
        cache.add(number, name, f"{name}{number}", 1)
    cache.evict_while(lambda item: int(item[1:]) < 3)
    assert (cache.of("a"), cache.of("b")) == (["a4"], ["b3", "b5"])
    cache.evict_while(lambda _: True)
    assert (cache.holders, cache.size) == (0, 0)


@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "b", "c", OPERATOR]), st.integers(0, 60)), max_size=200
    )
)
def test_a_cache_holds_its_bounds_and_takes_from_none_within_an_equal_share(
    steps: list[tuple[str, int]],
) -> None:
    cache: FairCache[int, str] = FairCache(12, 200)
    for number, (name, size) in enumerate(steps):
        before = {each: len(cache.of(each)) for each in ("a", "b", "c", OPERATOR)}
        too_many = len(cache.entries) == 12
        small = cache.size + size <= 200
        cache.add(number, name, name, size)
        assert len(cache.entries) <= 12
        assert cache.size <= 200
        assert cache.size == sum(entry[3] for entry in cache.entries.values())
        if too_many and small:  # only the count decides
            for each, count in before.items():
                if each != name and len(cache.of(each)) < count:
                    assert count >= max(*before.values(), before[name] + 1)

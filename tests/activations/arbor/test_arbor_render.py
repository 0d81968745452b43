"""Drawings of trees, and the width and truncation of text."""

from __future__ import annotations

import unicodedata
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from arbor_hub import Grove, growing
from hypothesis import example, given
from hypothesis import strategies as st

from activations.arbor.render import graphemes, one_line, preview, text_width, truncate
from plexus import Activation, Failed, InvalidParams, NotFound, method

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"


class Cone(Activation):
    """An activation that stores messages."""

    namespace = "cone"
    version = "1.0.0"

    @method(read_only=True)
    async def resolve_handle(self, handle: str) -> str:
        """Resolve a handle.

        Args:
            handle: The handle.
        """
        if handle.endswith("missing"):
            raise NotFound("no such message")
        return f"[user:me] {handle}"


class Danger(Activation):
    """An activation whose methods have side effects."""

    namespace = "danger"
    version = "1.0.0"
    calls = 0

    @method
    async def resolve_handle(self, handle: str) -> str:
        """Resolve a handle, without being marked read-only.

        Args:
            handle: The handle.
        """
        Danger.calls += 1
        raise Failed(f"it was called: {handle}")

    @method
    async def fire(self, target: str = "") -> str:
        """Have a side effect.

        Args:
            target: The target.
        """
        Danger.calls += 1
        return target


@pytest.fixture
async def grove(tmp_path: Path) -> AsyncIterator[Grove]:
    async with growing(tmp_path / "arbor.db", Cone, Danger) as opened:
        yield opened


async def drawn(grove: Grove, tree: str, **params: Any) -> str:
    text: str = await grove.value("tree_render", tree_id=tree, **params)
    return text


async def test_a_chain_reads_down_and_branches_have_lines(grove: Grove) -> None:
    tree = await grove.tree(metadata={"title": "Holiday"})
    question = await grove.text(tree, "Where shall we go?")
    sea = await grove.text(tree, "To the sea.", question)
    hills = await grove.text(tree, "To the hills.", question)
    await grove.text(tree, "When?", sea)
    warm = await grove.text(tree, "When it is warm.", hills)
    for answer in ("In May.", "In June."):
        await grove.text(tree, answer, warm)
    assert await drawn(grove, tree) == (
        "Holiday\n"
        "Where shall we go?\n"
        "├── To the sea.\n"
        "│   When?\n"
        "└── To the hills.\n"
        "    When it is warm.\n"
        "    ├── In May.\n"
        "    └── In June.\n"
    )
    assert await drawn(grove, tree, node_id=sea) == "To the sea.\nWhen?\n"


async def test_siblings_are_drawn_in_order_and_old_versions_are_marked(
    grove: Grove,
) -> None:
    tree = await grove.value("tree_create")
    t = tree["tree_id"]
    a, b = await grove.text(t, "a"), await grove.text(t, "b")
    await grove.value("node_edit", tree_id=t, node_id=a, content="A")
    await grove.value("node_move", tree_id=t, node_id=b, parent=tree["root"], position=0)
    assert await drawn(grove, t) == "(root)\n├── b\n├── a  (replaced)\n└── A\n"


async def test_ids_are_drawn_on_request(grove: Grove) -> None:
    tree = await grove.value("tree_create")
    node = await grove.text(tree["tree_id"], "a")
    text = await drawn(grove, tree["tree_id"], ids=True)
    assert text == f"(root)  {tree['root']}\na  {node}\n"


async def test_every_node_is_one_line_within_the_width(grove: Grove) -> None:
    tree = await grove.tree()
    contents = [
        "one\ntwo\r\nthree",
        "tab\there\x1b[31mred\x07",
        "日本語" * 30,
        FAMILY * 40,
        "e\u0301" * 200,
        "\u202eabc",
        "",
        "x" * 100_000,
    ]
    for content in contents:
        await grove.text(tree, content)
    lines = (await drawn(grove, tree)).splitlines()
    assert len(lines) == len(contents) + 1
    assert lines[1] == "├── one↵two↵three"
    assert "\x1b" not in lines[2]
    assert lines[7] == "├── (empty)"
    for line in lines[1:]:
        assert text_width(line[4:]) <= 60
    assert lines[3].endswith("…")
    assert lines[8].endswith("x…")


async def test_omitted_nodes_are_noted_where_they_are_missing(grove: Grove) -> None:
    tree = await grove.tree()
    nodes = [{"content": str(i)} for i in range(10)] + [{"content": "below", "parent": 0}]
    await grove.value("node_append", tree_id=tree, nodes=nodes)
    assert await drawn(grove, tree, limit=4) == (
        "(root)\n├── 0\n│   … 1 node below\n├── 1\n├── 2\n└── … 7 more\n"
    )
    assert await drawn(grove, tree, depth=0) == "(root)\n… 10 nodes below\n"
    assert "… 1 node below" in await drawn(grove, tree, depth=1)


async def test_a_very_deep_tree_is_drawn_up_to_the_limit(grove: Grove) -> None:
    tree = await grove.tree()
    chain = [{"content": str(i)} | ({"parent": i - 1} if i else {}) for i in range(5000)]
    await grove.value("node_append", tree_id=tree, nodes=chain)
    lines = (await drawn(grove, tree, depth=10_000, limit=1000)).splitlines()
    assert len(lines) == 1001
    assert lines[-2:] == ["998", "… 1 node below"]


async def test_a_tree_that_branches_at_every_level_stays_within_the_limit(grove: Grove) -> None:
    tree = await grove.tree()
    nodes: list[dict[str, Any]] = []
    for i in range(300):
        parent = {"parent": 2 * i - 2} if i else {}
        nodes += [{"content": "a"} | parent, {"content": "b"} | parent]
    await grove.value("node_append", tree_id=tree, nodes=nodes)
    text = await drawn(grove, tree, limit=1000)
    assert max(map(len, text.splitlines())) < 200
    assert "below" in text


@pytest.mark.parametrize(
    "bound", [{"limit": 0}, {"limit": 1001}, {"depth": -1}, {"width": 9}, {"width": 1001}]
)
async def test_bounds_out_of_range_are_refused(bound: dict[str, Any], grove: Grove) -> None:
    tree = await grove.tree()
    with pytest.raises(InvalidParams, match=f"{next(iter(bound))}: "):
        await grove.value("tree_render", tree_id=tree, **bound)


async def test_a_handle_is_resolved_by_the_plugin_that_it_names(grove: Grove) -> None:
    tree = await grove.tree()
    handles = ["cone@1::chat:5", "cone@1::chat:missing", "nobody@1::x", "bad name!@1::x"]
    nodes = [{"handle": handle} for handle in handles]
    await grove.value("node_append", tree_id=tree, nodes=nodes)
    assert await drawn(grove, tree) == (
        "(root)\n"
        "├── [user:me] cone@1::chat:5\n"
        "├── [unresolved cone@1::chat:missing]\n"
        "├── [unresolved nobody@1::x]\n"
        "└── [unresolved bad name!@1::x]\n"
    )


async def test_a_handle_never_calls_a_method_with_side_effects(grove: Grove) -> None:
    tree = await grove.tree()
    await grove.value("node_append", tree_id=tree, nodes=[{"handle": "danger@1::fire:all"}])
    assert "[unresolved danger@1::fire:all]" in await drawn(grove, tree)
    assert Danger.calls == 0


# --- width ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("", 0),
        ("abc", 3),
        ("日本", 4),
        ("e\u0301", 1),
        ("\u1112\u1161\u11ab", 2),
        (FAMILY, 2),
        ("\u2764\ufe0f", 2),
        ("\U0001f44d\U0001f3fd", 2),
        ("\U0001f1e9\U0001f1ea\U0001f1eb\U0001f1f7", 4),
        ("\u200b", 0),
        ("│├└─", 4),
    ],
)
def test_the_width_of_a_text_is_its_displayed_width(text: str, columns: int) -> None:
    assert text_width(text) == columns


@pytest.mark.parametrize(
    ("text", "columns", "kept"),
    [
        ("abcdef", 6, "abcdef"),
        ("abcdef", 5, "abcd…"),
        ("日本語", 6, "日本語"),
        ("日本語", 5, "日本…"),
        ("日本語", 4, "日…"),
        (FAMILY * 3, 6, FAMILY * 3),
        (FAMILY * 3, 5, FAMILY * 2 + "…"),
        ("e\u0301" * 5, 3, "e\u0301" * 2 + "…"),
        ("a b", 2, "a…"),
        ("abc", 1, "…"),
        ("abc", 0, ""),
        ("\U0001f1e9\U0001f1ea\U0001f1eb\U0001f1f7", 3, "\U0001f1e9\U0001f1ea…"),
    ],
)
def test_a_text_is_truncated_between_graphemes(text: str, columns: int, kept: str) -> None:
    assert truncate(text, columns) == kept


@given(st.text(max_size=60), st.integers(0, 40))
@example("\u0301" * 10, 3)
@example(FAMILY, 1)
def test_a_truncated_text_always_fits_and_never_splits_a_grapheme(text: str, columns: int) -> None:
    assert "".join(graphemes(text)) == text
    line = one_line(text)
    assert not any(unicodedata.category(c) in ("Cc", "Zl", "Zp", "Cs") for c in line)
    short = truncate(line, columns)
    assert text_width(short) <= columns
    if short != line and short:
        kept = short.removesuffix("…")
        whole = list(graphemes(line))
        assert any("".join(whole[:n]).rstrip() == kept for n in range(len(whole) + 1))


def test_a_preview_reads_only_the_beginning_of_a_large_text() -> None:
    assert preview("e" + "\u0301" * 4_000_000, 10).endswith("…")
    assert preview("\n" * 4_000_000, 3) == "↵↵…"
    assert preview("x" * 4096, 5000) == "x" * 4096
    assert preview("x" * 4097, 5000) == "x" * 4096 + "…"

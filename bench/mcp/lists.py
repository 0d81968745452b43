"""The list of tools on stdio, short and long."""

from __future__ import annotations

import time
from functools import partial

from bench.mcp import pipes
from bench.mcp.contenders import missing, start_all, stdio_commands
from bench.measure import LIMIT, OURS, Effort, Figure, Target, compare_all, take_turns
from bench.servers import Server

__all__ = ("lists",)


def lists(effort: Effort) -> list[Figure]:
    """A list of twenty tools and one of a thousand, besides those that ours always has."""
    return [
        _listed("mcp_list 20", "Few", (), effort),
        _listed("mcp_list 1000", "Thousand", (Target("ratio", 3.0),), effort),
    ]


def _listed(name: str, activation: str, targets: tuple[Target, ...], effort: Effort) -> Figure:
    with stdio_commands(activation, listing=True) as commands, start_all(commands) as servers:
        pages = {who: pipes.list_all(server) for who, server in servers.items()}
        tools = {who: b"".join(page).count(b'"inputSchema"') for who, page in pages.items()}
        taken = take_turns(
            {who: partial(_list_us, server, effort.mcp_lists) for who, server in servers.items()},
            effort.mcp_rounds,
        )
    size = sum(map(len, pages[OURS]))
    same = "the same bytes" if pages[OURS] == pages[LIMIT] else "OTHER BYTES"
    each = "in one page" if len(pages[OURS]) == 1 else f"in {len(pages[OURS])} pages"
    note = f"{tools[OURS]:,} tools, {size:,} bytes {each}, from the limit {same}; tools of peers: "
    note += ", ".join(f"{number:,}" for who, number in tools.items() if who not in (OURS, LIMIT))
    return compare_all(name, "us", missing(taken), targets, note)


def _list_us(server: Server, times: int) -> float:
    begun = time.perf_counter()
    for _ in range(times):
        pipes.list_all(server)
    return (time.perf_counter() - begun) / times * 1e6

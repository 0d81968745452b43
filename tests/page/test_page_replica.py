"""The page of one server with the runs of another one that shares its PostgreSQL database."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import NamedTuple

import pytest
from network import bearer, serving
from page_browser import SHOWCASE, Site, opened, shoot
from playwright.sync_api import expect
from postgres_server import PostgresServer, programs

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(programs() is None, reason="PostgreSQL is not installed"),
]


class Replicas(NamedTuple):
    """Two servers with one database and separate data folders."""

    site: Site
    other: Site
    database: PostgresServer
    name: str


@pytest.fixture(scope="module")
def replicas() -> Iterator[Replicas]:
    with ExitStack() as stack:
        database = PostgresServer()
        stack.callback(database.close)
        database.start()
        name = database.new_database()
        options = ("--database", database.url(name))
        site = stack.enter_context(opened(*options))
        other = stack.enter_context(serving("--activation", str(SHOWCASE), *options, auth="token"))
        yield Replicas(site, site.with_server(other), database, name)


def start(site: Site, method: str, **params: object) -> int:
    """Start a run that continues without its client, and return its number."""
    headers = {**bearer(site.server.token), "Accept": "text/event-stream"}
    params["_on_disconnect"] = "keep"
    with site.server.call(method, params, **headers) as stream:
        line = next(line for line in stream if line.startswith(b"data:"))
        return int(json.loads(line[5:])["result"])


def test_a_run_of_another_replica_is_followed_answered_and_stopped(
    replicas: Replicas,
) -> None:
    site, other, *_ = replicas
    with site.page() as page:
        site.open(page, "runs")
        run = start(other, "showcase.steady", count=100_000)
        listed = page.locator(f'.run-row[data-run="{run}"]')
        expect(listed.locator(".outcome")).to_contain_text("Running")
        site.open(page, "runs", str(run))
        expect(page.locator(".log")).to_contain_text("<40>")
        shoot(page, "run-of-a-replica")
        page.get_by_role("button", name="Stop", exact=True).click()
        expect(page.locator(".run-head .outcome")).to_contain_text("Stopped")
        asking = start(other, "showcase.ask")
        site.open(page, "questions")
        card = page.locator(".question")
        expect(card).to_contain_text("Shall we go?")
        card.get_by_role("button", name="Yes").click()
        expect(card).to_contain_text("What is your name?")
        other.call("plexus.cancel", run=asking)
        expect(card).to_have_count(0)


def test_the_source_of_a_run_of_another_machine_names_that_machine(replicas: Replicas) -> None:
    site, other, database, name = replicas
    with site.page() as page:
        pid = other.server.process.pid
        run = start(other, "showcase.steady", count=2)
        site.open(page, "runs")
        row = page.locator(f'.run-row[data-run="{run}"]')
        expect(row.locator(".outcome")).to_contain_text("Done")
        # Another process of this machine; the machine of all others needs no name.
        expect(row.locator(".source")).to_contain_text(f"pid {pid}")
        expect(row.locator(".source")).not_to_contain_text("machine")
        # As the database has the run of another machine, and one with a hostile name.
        for host, shown in (
            ("7c0ffee1-0000-4000-8000-000000000000.4026531836", "7c0ffee1"),
            ("\u202e<b>evil</b>", "\\u202e<b"),
        ):
            site.open(page, "runs")
            source, wanted = row.locator(".source"), f"pid {pid} · machine {shown}"
            for _ in range(10):  # its process may write the end of the run after that
                database.execute(name, f"UPDATE runs SET host = '{host}' WHERE id = {run}")
                page.reload()
                expect(source).to_contain_text(f"pid {pid}")
                if wanted in source.inner_text():
                    break
                page.wait_for_timeout(500)
            expect(source).to_contain_text(wanted)
        shoot(page, "runs-of-another-machine")
        site.open(page, "runs", str(run))
        facts = page.locator(".run-view .facts").first
        expect(facts).to_contain_text(f"pid {pid} · machine \\u202e<b")

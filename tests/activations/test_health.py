"""health: a single report, and repeated reports."""

from __future__ import annotations

import asyncio

import apsw
import pytest
from conftest import OpenHub
from hub_calls import end_of, follow, local, register, settled, until

from activations import health
from activations.health import Health
from plexus import Activation, InvalidParams, method
from plexus.events import Cancelled, Result
from plexus.limits import Limits
from plexus.rpc import wire

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]


class Patient(Activation):
    """An activation with a health check that can fail."""

    namespace = "patient"
    version = "2.0.0"

    def __init__(self, ailment: BaseException | None = None) -> None:
        self._ailment = ailment

    @method
    async def wait(self) -> str:
        """Wait until cancelled."""
        await asyncio.Event().wait()
        return "never"

    async def check_health(self) -> str:
        if self._ailment is not None:
            raise self._ailment
        return "feeling fine"


async def test_check_reports_versions_activations_runs_and_limits(open_hub: OpenHub) -> None:
    hub = open_hub(Health(), Patient(), limits=Limits(calls_in_flight=7))
    end = await end_of(hub, "health.check")
    assert isinstance(end, Result)
    report = wire.decode_plain(end)["result"]
    assert report["status"] == "healthy"
    assert report["uptime_s"] >= 0
    assert report["versions"].keys() == {"substrate", "python", "sqlite", "apsw"}
    assert report["versions"]["sqlite"] == apsw.sqlite_lib_version()
    assert report["versions"]["apsw"] == apsw.apsw_version()
    assert report["versions"]["substrate"] == hub.version
    probes = {probe["namespace"]: probe for probe in report["activations"]}
    assert probes.keys() == {"plexus", "health", "patient"}
    assert probes["patient"] == {
        "namespace": "patient",
        "version": "2.0.0",
        "ok": True,
        "detail": "feeling fine",
    }
    assert report["limits"]["calls_in_flight"] == 7
    assert "running" not in report["runs"]  # this call inspects the server


@pytest.mark.parametrize(
    ("ailment", "detail"), [(RuntimeError("a cold"), "a cold"), (ValueError(), "ValueError")]
)
async def test_a_failing_activation_makes_the_server_degraded(
    ailment: BaseException, detail: str, open_hub: OpenHub
) -> None:
    end = await end_of(open_hub(Health(), Patient(ailment)), "health.check")
    assert isinstance(end, Result)
    report = wire.decode_plain(end)["result"]
    assert report["status"] == "degraded"
    [probe] = [one for one in report["activations"] if one["namespace"] == "patient"]
    assert (probe["ok"], probe["detail"]) == (False, detail)


class Slow(Activation):
    """An activation whose health check waits for the test."""

    namespace = "slow"
    version = "1.0.0"

    def __init__(self) -> None:
        self.checks = 0
        self.may_end = asyncio.Event()

    @method
    async def nothing(self) -> str:
        """Return nothing of interest."""
        return ""

    async def check_health(self) -> str:
        self.checks += 1
        await self.may_end.wait()
        return f"check {self.checks}"


async def test_calls_share_one_check_for_a_moment_even_if_the_first_is_cancelled(
    open_hub: OpenHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow()
    hub = open_hub(Health(), slow)
    monkeypatch.setattr(health, "SHARED_S", 60.0)
    first, *others = (hub.call("health.check").run for _ in range(5))
    await until(lambda: slow.checks == 1)
    first.cancel("enough")
    assert await settled(first) == Cancelled("enough")
    slow.may_end.set()
    ends = [await settled(run) for run in others]
    ends.append(await end_of(hub, "health.check"))
    monkeypatch.setattr(health, "SHARED_S", 0.0)
    later = await end_of(hub, "health.check")
    details = []
    for end in (*ends, later):
        assert isinstance(end, Result)
        probes = wire.decode_plain(end)["result"]["activations"]
        details += [each["detail"] for each in probes if each["namespace"] == "slow"]
    assert details == ["check 1"] * 5 + ["check 2"]


async def test_a_check_is_not_shared_after_an_activation_was_added(
    open_hub: OpenHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = open_hub(Health())
    monkeypatch.setattr(health, "SHARED_S", 60.0)
    await end_of(hub, "health.check")
    register(hub, Patient())
    end = await end_of(hub, "health.check")
    assert isinstance(end, Result)
    names = [each["namespace"] for each in wire.decode_plain(end)["result"]["activations"]]
    assert "patient" in names


async def test_runs_are_counted(open_hub: OpenHub) -> None:
    hub = open_hub(Health(), Patient())
    run = hub.call("patient.wait").run
    await until(lambda: local(run).task is not None)
    end = await end_of(hub, "health.check")
    assert isinstance(end, Result)
    assert wire.decode_plain(end)["result"]["runs"]["running"] == 1
    await end_of(hub, "health.check")
    end = await end_of(hub, "health.check")
    assert isinstance(end, Result)
    assert wire.decode_plain(end)["result"]["runs"]["complete"] == 0  # as `plexus.runs` counts


async def test_watch_reports_repeatedly_until_stopped(open_hub: OpenHub) -> None:
    hub = open_hub(Health(), Patient())
    run = hub.call("health.watch", {"interval": 0.01}).run
    await until(lambda: run.log.last >= 2)
    run.cancel("enough")
    assert await settled(run) == Cancelled("enough")
    events = await follow(run)
    assert {event.type for event in events[:-1]} == {"status"}
    assert wire.decode_plain(events[0])["status"] == "healthy"
    assert "healthy, up" in events[0].as_line()
    assert events[0].as_text().endswith("\n")


@pytest.mark.parametrize("interval", ["5", None, [], True])
async def test_an_interval_is_a_number(interval: object, open_hub: OpenHub) -> None:
    with pytest.raises(InvalidParams):
        open_hub(Health()).call("health.watch", {"interval": interval})


async def test_skipped_plugins_and_the_server_are_reported(open_hub: OpenHub) -> None:
    hub = open_hub(Health())
    hub.skipped["plugin.py"] = "the key file is missing"
    hub.describe_server = lambda: {"pid": 7}
    end = await end_of(hub, "health.check")
    assert isinstance(end, Result)
    report = wire.decode_plain(end)["result"]
    assert report["skipped"] == [{"source": "plugin.py", "reason": "the key file is missing"}]
    assert report["server"] == {"pid": 7}
    assert report["status"] == "healthy"

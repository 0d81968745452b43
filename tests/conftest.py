"""What all tests share: coroutines run on asyncio, and a hub is closed when its test ends."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
from hypothesis import HealthCheck, settings

from plexus import Activation, Limits, Plexus
from plexus.runtime.builtin import PlexusItself

settings.register_profile(
    "ours",
    deadline=None,  # a busy machine is no defect
    max_examples=150,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("ours")

OpenHub = Callable[..., Plexus]

# A shell starts what it runs in the background with SIGINT ignored, and every process that a test
# starts would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


#: What cannot be installed, and so may be missing even where nothing else may.
NOT_INSTALLABLE = "MCP_SCHEMA_DIR is not set"


def pytest_sessionfinish(session: pytest.Session) -> None:
    """With NO_SKIPS set, a test that was skipped for want of a part is a failure."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if not os.environ.get("NO_SKIPS") or reporter is None:
        return
    reasons = [str(report.longrepr) for report in reporter.stats.get("skipped", ())]
    if any(NOT_INSTALLABLE not in reason for reason in reasons):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="session", autouse=True)
def _data_of_nobody(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test, and no server that a test starts, sees or touches the trees, or the tokens, of
    whoever runs it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def open_hub() -> AsyncIterator[OpenHub]:
    """Make a hub with these activations, beside `plexus` itself; it is closed at the end."""
    hubs: list[Plexus] = []

    def make(*activations: Activation | type[Activation], limits: Limits | None = None) -> Plexus:
        hub = Plexus(limits=limits or Limits())
        hub.register(PlexusItself(hub))
        for activation in activations:
            hub.register(activation)
        hubs.append(hub)
        return hub

    yield make
    for hub in hubs:
        await hub.close()

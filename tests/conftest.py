"""Fixtures and marks of all tests: coroutines run on asyncio, and hubs are closed at the end."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from pathlib import Path

import pytest
from hub_calls import register
from hypothesis import HealthCheck, settings

from plexus import Activation, Plexus
from plexus.limits import Limits
from plexus.private_files import make_folders, state_folder
from plexus.runtime.builtin import PlexusActivation
from substrate.build_hub import RECORDING_MARKER

settings.register_profile(
    "ours",
    deadline=None,  # a busy machine is not a defect
    max_examples=150,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("fast", settings.get_profile("ours"), max_examples=25)
settings.load_profile("ours")

OpenHub = Callable[..., Plexus]

# A shell starts background commands with SIGINT ignored, and every process that a test starts
# would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


#: Requirements of a test in addition to Python, by the helper modules that it imports.
PARTS = {
    "browser": {"page_browser"},
    "node": {"conformance.node", "conformance.legs", "client_files"},
    "postgres": {"postgres_server", "several_servers", "bench.replicas"},
}
#: Folders with long tests: they load, break, fuzz or measure whole servers.
LONG_FOLDERS = {
    "bench",
    "claude_code",
    "conformance",
    "distribution",
    "examples",
    "faults",
    "fuzz",
    "load",
    "page",
}
#: Other test modules that take long because they start, kill or wait for processes.
LONG_MODULES = {
    "test_access_lockfile",
    "test_api",
    "test_arbor_durability",
    "test_arbor_engines",
    "test_arbor_processes",
    "test_arbor_sqlite",
    "test_bash_attacks",
    "test_bash_tree",
    "test_chat_claude",
    "test_chat_killed",
    "test_codegen_command",
    "test_direct_calls",
    "test_from_fastmcp",
    "test_front",
    "test_guide",
    "test_isolation",
    "test_kill_rounds",
    "test_logs",
    "test_lost_processes",
    "test_manifest",
    "test_mcp_chat",
    "test_provider_claude_code",
    "test_provider_errors",
    "test_processes",
    "test_sandbox_escape",
    "test_sandbox_work",
    "test_scopes_built_in",
    "test_selection_flags",
    "test_smoke",
    "test_stdio",
    "test_storage_erasure",
    "test_storage_sqlite_files",
    "test_store_faults",
    "test_store_outages",
    "test_tutorial",
    "test_watch_server",
}
#: Modules that start a process or a server for nearly every test that uses them.
PROCESS_STARTERS = {"command_line", "network", "servers", "other_clients", "mcp_wires"}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests that need a browser, Node or PostgreSQL, and the slow ones.

    Slow tests run first in a worker, so that workers do not wait for one long file at the end.
    """
    folder = Path(__file__).parent
    for item in items:
        used = _modules_used_by(item)
        for part, modules in PARTS.items():
            if not modules.isdisjoint(used):
                item.add_marker(part)
        if "postgres" in _parameters_of(item):
            item.add_marker("postgres")
        folders = item.path.relative_to(folder).parts
        is_long = item.path.stem in LONG_MODULES or not LONG_FOLDERS.isdisjoint(folders)
        if is_long or not PROCESS_STARTERS.isdisjoint(used):
            item.add_marker("slow")
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def _modules_used_by(item: pytest.Item) -> set[str]:
    """Return the names of the modules that a test module imports, or imports names from."""
    values = vars(item.module).values() if isinstance(item, pytest.Function) else ()
    names = {getattr(each, "__module__", None) or getattr(each, "__name__", "") for each in values}
    return {name.removeprefix("tests.") for name in names if isinstance(name, str)}


def _parameters_of(item: pytest.Item) -> Collection[object]:
    spec = getattr(item, "callspec", None)
    return () if spec is None else [each for each in spec.params.values() if isinstance(each, str)]


#: A part that CI cannot install, so that skipping for this reason is allowed even with NO_SKIPS.
NOT_INSTALLABLE = "MCP_SCHEMA_DIR is not set"


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the session if NO_SKIPS is set and a test was skipped because of a missing part."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if not os.environ.get("NO_SKIPS") or reporter is None:
        return
    reasons = [str(report.longrepr) for report in reporter.stats.get("skipped", ())]
    if any(NOT_INSTALLABLE not in reason for reason in reasons):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="session", autouse=True)
def _isolated_data_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep tests and the servers that they start away from the user's trees and tokens."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        # The first start of a server announces that runs are recorded; the tests that read its
        # output start it as a later one.
        make_folders(state_folder())
        (state_folder() / RECORDING_MARKER).touch()
        yield


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the test its own cache folder."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


@pytest.fixture
async def open_hub() -> AsyncIterator[OpenHub]:
    """Create hubs with `plexus` and the given activations, and close them at the end."""
    hubs: list[Plexus] = []

    def make(*activations: Activation | type[Activation], limits: Limits | None = None) -> Plexus:
        hub = Plexus(limits=limits or Limits())
        register(hub, PlexusActivation(hub), *activations)
        hubs.append(hub)
        return hub

    yield make
    for hub in hubs:
        await hub.close()


@pytest.fixture(scope="module", autouse=True)
def _own_data_folder(
    _isolated_data_folders: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Keep modules apart: names of tokens may be the same, and servers list runs of others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        yield

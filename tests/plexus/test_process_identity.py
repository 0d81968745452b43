"""A process is distinguished from a later one with the same pid."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from plexus.process_identity import ENDED, host_id, is_running, start_time

linux = pytest.mark.skipif(sys.platform != "linux", reason="start times are read from /proc")


def test_this_process_runs_under_its_own_start_time_only() -> None:
    started = start_time(os.getpid())
    assert is_running(os.getpid(), started)
    assert not is_running(os.getpid(), (started or 0) + 1)


@linux
def test_a_process_that_was_not_reaped_yet_has_ended() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        deadline = time.monotonic() + 10
        while start_time(process.pid) != ENDED:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert not is_running(process.pid, start_time(os.getpid()))
    assert start_time(process.pid) is None


def test_a_number_that_no_process_can_have_is_not_running() -> None:
    assert not is_running(2**40, None)


def test_the_host_is_the_same_each_time() -> None:
    assert host_id() == host_id() != ""

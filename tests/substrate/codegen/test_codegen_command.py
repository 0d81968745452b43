"""`substrate codegen`: the file, the selected schema, and the check for staleness."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from child_processes import clean_environment
from project_folders import trust_always

WAIT_S = 30.0
LANGUAGES = ["python", "typescript"]
COUNT = '''
from collections.abc import AsyncIterator
from plexus import Activation, Content, method

class Count(Activation):
    """Counts, out loud."""
    namespace = "count"
    version = "1.0.0"

    @method
    async def up(self, to: int) -> AsyncIterator[Content]:
        """Count from 1 up to TO."""
        yield Content(text=f"{to} ")
'''


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "activations.d").mkdir()
    (tmp_path / "activations.d" / "count.py").write_text(COUNT)
    return trust_always(tmp_path)


def codegen(project: Path, *options: str, port: int = 0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "substrate", "--port", str(port), "codegen", *options],
        cwd=project,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_same_schema_generates_the_same_bytes(language: str, project: Path) -> None:
    first, second = (codegen(project, language) for _ in range(2))
    assert first.returncode == 0, first.stderr
    assert first.stdout == second.stdout
    assert "count.up" in first.stdout


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_file_that_was_written_is_fresh_until_the_schema_changes(
    language: str, project: Path
) -> None:
    assert codegen(project, language, "-o", "client").returncode == 0
    written = (project / "client").read_text()
    assert codegen(project, language).stdout == written
    fresh = codegen(project, language, "--check", "client")
    assert (fresh.returncode, fresh.stdout, fresh.stderr) == (0, "", "")

    (project / "activations.d" / "count.py").write_text(COUNT.replace("to: int", "to: float"))
    stale = codegen(project, language, "--check", "client")
    assert stale.returncode == 1
    assert (
        f"client is out of date. Generate it with `substrate codegen {language} -o client`."
        in stale.stderr
    )
    assert (project / "client").read_text() == written


def test_a_file_that_is_missing_is_not_fresh(project: Path) -> None:
    missing = codegen(project, "python", "--check", "client.py")
    assert missing.returncode == 1
    assert "client.py does not exist" in missing.stderr


@pytest.mark.parametrize("language", LANGUAGES)
def test_only_the_selected_namespaces_are_included(language: str, project: Path) -> None:
    both = codegen(project, language, "--namespace", "health", "--namespace", "count").stdout
    assert "count.up" in both
    assert "health.check" in both
    assert "bash.execute" not in both
    assert both == codegen(project, language, "--namespace=count", "--namespace=health").stdout


@pytest.mark.parametrize("language", LANGUAGES)
def test_excluded_namespaces_may_change(language: str, project: Path) -> None:
    options = (language, "--namespace", "health")
    before = codegen(project, *options).stdout
    (project / "activations.d" / "count.py").unlink()
    assert codegen(project, *options).stdout == before


def test_a_wrong_namespace_is_answered_with_the_nearest(project: Path) -> None:
    failed = codegen(project, "python", "--namespace", "helth")
    assert failed.returncode == 2
    assert "Unknown namespace 'helth'. Did you mean health?" in failed.stderr


@pytest.mark.parametrize("options", [["ruby"], [], ["python", "-o", "a", "--check", "b"]])
def test_a_wrong_call_is_refused(options: list[str], project: Path) -> None:
    failed = codegen(project, *options)
    assert failed.returncode == 2
    assert failed.stdout == ""


def test_a_file_that_cannot_be_written_is_reported(project: Path) -> None:
    failed = codegen(project, "python", "-o", "no/such/folder/client.py")
    assert failed.returncode == 1
    assert "Cannot write" in failed.stderr


def test_a_server_generates_the_same_as_its_project(project: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "substrate", "--port", "0"],
        cwd=project,
        env=clean_environment(),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            assert server.stderr is not None
            while " on http" not in (line := server.stderr.readline()):
                assert line
            port = int(line.partition("127.0.0.1:")[2].partition("/")[0].split()[0])
            elsewhere = project / "elsewhere"
            elsewhere.mkdir()
            asked = codegen(elsewhere, "typescript", port=port)
            assert asked.returncode == 0, asked.stderr
            assert asked.stdout == codegen(project, "typescript", "--local").stdout
        finally:
            server.kill()

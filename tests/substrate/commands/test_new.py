"""`substrate new`: a package whose tests pass; no existing file is overwritten."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from command_line import environment, lines, run

from substrate.build_hub import NAMESPACES, built_in_hub
from substrate.cli.commands.new import RESERVED
from substrate.settings import Settings

FILES = {"README.md", "pyproject.toml", "src/weather/__init__.py", "tests/test_weather.py"}


#: No downloads: the build uses the packages of the test environment.
INSTALL = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]


def written(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(params=[(), ("--class",)], ids=["functions", "class"])
def weather(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    made = run("new", "weather", *request.param, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    return tmp_path / "weather"


def test_a_package_is_written_and_every_file_is_listed(tmp_path: Path) -> None:
    made = run("new", "weather", cwd=tmp_path)
    assert made.returncode == 0
    assert written(tmp_path / "weather") == FILES
    for file in FILES:
        assert f"Wrote weather/{file}" in made.stdout
    assert "substrate dev" in made.stdout


def test_as_json_a_package_is_one_line(tmp_path: Path) -> None:
    [made] = lines(run("new", "weather", "--json", cwd=tmp_path).stdout)
    assert set(made.pop("files")) == FILES
    assert made == {"name": "weather", "folder": str(tmp_path / "weather"), "trusted": True}


def test_its_tests_pass_before_it_is_installed(weather: Path) -> None:
    tested = subprocess.run(
        [sys.executable, "-W", "error", "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=weather,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert tested.returncode == 0, tested.stdout
    assert "2 passed" in tested.stdout


def test_what_its_tests_import_is_installed_by_the_command_that_is_printed(tmp_path: Path) -> None:
    made = run("new", "weather", cwd=tmp_path)
    project = tomllib.loads((tmp_path / "weather/pyproject.toml").read_text())["project"]
    installed = [*project["dependencies"], *project["optional-dependencies"]["test"]]
    names = {re.split(r"[><=]", each)[0] for each in installed}
    tree = ast.parse((tmp_path / "weather/tests/test_weather.py").read_text())
    imported = set()
    for each in ast.walk(tree):
        if isinstance(each, ast.Import):
            imported |= {name.name.partition(".")[0] for name in each.names}
        elif isinstance(each, ast.ImportFrom):
            imported.add((each.module or "").partition(".")[0])
    provided = {"plexus": "plexus-substrate", "weather": project["name"]}
    missing = {provided.get(each, each) for each in imported - sys.stdlib_module_names}
    assert missing <= names | {"weather"}
    steps = made.stdout.partition("Next, in weather:")[2]
    assert steps.index("pip install -e '.[test]'") < steps.index("python -m pytest")


def test_one_of_its_methods_streams_and_the_other_returns(weather: Path) -> None:
    loaded = ("--activation", str(weather / "src" / "weather" / "__init__.py"), "call", "--json")
    count = run(*loaded, "weather.count", "3", cwd=weather)
    assert "".join(each.get("text", "") for each in lines(count.stdout)) == "1\n2\n3\n"
    assert lines(count.stdout)[-1] == {"type": "complete"}
    hello = run(*loaded, "weather.hello", "Ada", cwd=weather)
    assert lines(hello.stdout) == [{"type": "complete", "result": "Hello, Ada!"}]


def test_the_package_has_no_findings(weather: Path) -> None:
    checked = run("check", "--strict", str(weather), cwd=weather)
    assert (checked.returncode, checked.stdout) == (0, "2 methods: no problems\n")


def test_its_code_follows_our_style(weather: Path) -> None:
    for step in (["check", "--select", "E,F,I,B,UP,W"], ["format", "--check"]):
        styled = subprocess.run(
            [sys.executable, "-m", "ruff", *step, "--no-cache", "--line-length", "100", "."],
            cwd=weather,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert styled.returncode == 0, styled.stdout


def test_its_readme_explains_installation_tests_and_mcp(weather: Path) -> None:
    readme = (weather / "README.md").read_text()
    for command in (
        "pip install -e '.[test]'",
        "python -m pytest",
        "claude mcp add weather -- substrate --stdio --mcp",
    ):
        assert command in readme
    assert "$" not in readme


def test_functions_are_the_default_and_fit_in_twenty_lines(tmp_path: Path) -> None:
    assert run("new", "weather", cwd=tmp_path).returncode == 0
    source = (tmp_path / "weather/src/weather/__init__.py").read_text()
    description, code = source.split("\n\n", 1)
    assert description.startswith('"""Weather: ')
    assert 'weather = Activation("weather")' in code
    assert len([line for line in code.splitlines() if line.strip()]) < 20


@pytest.mark.parametrize(
    ("flags", "name", "code"),
    [
        ((), "build_logs", 'build_logs = Activation("build_logs")'),
        (("--class",), "BuildLogs", "class BuildLogs(Activation)"),
    ],
)
def test_a_name_of_two_words_is_written_for_each_context(
    tmp_path: Path, flags: tuple[str, ...], name: str, code: str
) -> None:
    made = run("new", *flags, "build_logs", "--folder", "somewhere/else", cwd=tmp_path)
    assert made.returncode == 0
    folder = tmp_path / "somewhere" / "else"
    described = tomllib.loads((folder / "pyproject.toml").read_text())
    assert described["project"]["name"] == "build-logs"
    assert described["project"]["entry-points"]["plexus.activations"] == {
        "build_logs": f"build_logs:{name}"
    }
    assert code in (folder / "src/build_logs/__init__.py").read_text()


def test_it_is_found_by_its_entry_point_once_it_is_installed(weather: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    installed = subprocess.run(
        [sys.executable, "-m", "pip", "install", *INSTALL, "--target", str(site), str(weather)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert installed.returncode == 0, installed.stderr
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    listed = run("list", "--local", "--json", cwd=elsewhere, PYTHONPATH=path)
    assert listed.returncode == 0, listed.stderr
    assert "weather.count" in {each["name"] for each in lines(listed.stdout)}


# --- rejected names -----------------------------------------------------------------------------


@pytest.mark.parametrize("content", [None, "mine"])
def test_an_existing_folder_is_not_changed(tmp_path: Path, content: str | None) -> None:
    folder = tmp_path / "weather"
    folder.mkdir()
    if content:
        (folder / "pyproject.toml").write_text(content)
    refused = run("new", "weather", cwd=tmp_path)
    assert refused.returncode == 1
    assert "already exists" in refused.stderr
    assert "--folder" in refused.stderr
    assert written(folder) == ({"pyproject.toml"} if content else set())
    if content:
        assert (folder / "pyproject.toml").read_text() == content


def test_a_file_instead_of_the_folder_is_not_changed(tmp_path: Path) -> None:
    (tmp_path / "weather").write_text("mine")
    assert run("new", "weather", cwd=tmp_path).returncode == 1
    assert (tmp_path / "weather").read_text() == "mine"


def test_a_folder_that_cannot_be_created_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused = run("new", "weather", "--folder", "file/weather", cwd=tmp_path)
    assert refused.returncode == 1
    assert "Cannot write" in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Weather", "Try weather."),
        ("my tool", "Try my_tool."),
        ("BuildLogs", "Try build_logs."),
        ("build-logs", "Try build_logs."),
        ("a__b", "Try a_b."),
        ("weather_", "Try weather."),
        ("../weather", "Try weather."),
        ("9lives", "start with a letter"),
        ("_x", "Try x."),
        ("wetterüber", "Use one or two words"),
        ("", "Use one or two words"),
        ("import", "standard library"),
        ("json", "standard library"),
        ("bash", "reserved by Substrate"),
        ("plexus", "reserved by Substrate"),
        ("click", "installed module"),
        ("a_name_that_is_longer_than_it_should_be", "more than 24 characters"),
    ],
)
def test_an_invalid_name_is_rejected_with_a_suggestion(
    tmp_path: Path, name: str, expected: str
) -> None:
    refused = run("new", "--", name, cwd=tmp_path)
    assert refused.returncode == 2
    assert expected in refused.stderr
    assert written(tmp_path) == set()


def test_exactly_the_built_in_namespaces_are_known_and_reserved(tmp_path: Path) -> None:
    hub = built_in_hub(Settings(database=str(tmp_path / "arbor.db")), tmp_path)
    assert {path.partition(".")[0] for path, _ in hub.activations()} == NAMESPACES
    assert NAMESPACES <= RESERVED


def test_the_templates_are_part_of_the_wheel() -> None:
    built = subprocess.run(
        [sys.executable, "-c", LIST_WHEEL], capture_output=True, text=True, timeout=60, check=False
    )
    assert built.returncode == 0, built.stderr
    names = json.loads(built.stdout)
    found = {
        name.removeprefix("substrate/devtools/templates/").partition("/")[0]
        for name in names
        if name.startswith("substrate/devtools/templates/")
    }
    assert found == {"class", "function", "project"}


#: Prints the names of the files that hatchling would put into the wheel.
LIST_WHEEL = f"""
import json
from hatchling.builders.wheel import WheelBuilder
builder = WheelBuilder({str(Path(__file__).parents[3])!r})
print(json.dumps([f.distribution_path for f in builder.recurse_included_files()]))
"""

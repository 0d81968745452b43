"""`substrate dev`: files are reloaded as they change, and no run is lost."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import SUBSTRATE, WAIT_S, Process, environment, run, started
from project_folders import trust_always

from native_rpc.client import Client, connect

pytestmark = pytest.mark.anyio

TALK = textwrap.dedent('''
    import asyncio
    from collections.abc import AsyncIterator
    from plexus import Activation, Content, method

    WORD = "one"

    class Talk(Activation):
        """Says a word."""
        namespace = "talk"
        version = "1.0.0"

        @method
        async def word(self) -> str:
            """The word."""
            return WORD

        @method
        async def again(self) -> AsyncIterator[Content]:
            """The word, again and again."""
            while True:
                yield Content(text=WORD)
                await asyncio.sleep(0.02)
''')


class Dev:
    """A development server, and the file that is edited."""

    def __init__(self, process: Process, file: Path) -> None:
        self.process = process
        self.file = file
        self.port = process.err.wait_for(r"http://127\.0\.0\.1:(\d+)")[1]
        self._read = 0

    def client(self) -> Client:
        return connect(f"ws://127.0.0.1:{self.port}")

    def says(self, pattern: str) -> str:
        """Wait until it prints this, after what it has printed before."""
        found = self.process.err.wait_for(f"(?s).{{{self._read}}}.*?({pattern})")
        self._read = found.end()
        return found[1]

    def change(self, old: str, new: str) -> None:
        text = self.file.read_text()
        assert old in text
        self.file.write_text(text.replace(old, new))


@contextlib.contextmanager
def developing(file: Path, *arguments: str, cwd: Path) -> Iterator[Dev]:
    with started("--auth", "off", "dev", "--port", "0", *arguments, cwd=cwd) as process:
        yield Dev(process, file)


@pytest.fixture
def talk(tmp_path: Path) -> Path:
    file = tmp_path / "talk.py"
    write(file, TALK)
    return file


def write(file: Path, text: str) -> None:
    file.write_text(text)


async def value(client: Client, method: str, **params: Any) -> Any:
    async with asyncio.timeout(WAIT_S):
        return await client.call(method, params)


# --- what is loaded ------------------------------------------------------------------------------


async def test_a_change_is_reported_and_takes_effect_for_the_next_call(
    talk: Path, tmp_path: Path
) -> None:
    with developing(talk, "talk.py", cwd=tmp_path) as dev:
        dev.says("Loaded talk.py: talk.again, talk.word")
        async with dev.client() as client:
            assert await value(client, "talk.word") == "one"
            dev.change('"one"', '"two"')
            dev.says("Reloaded talk.py: talk.again, talk.word")
            assert await value(client, "talk.word") == "two"


async def test_changes_within_a_second_of_the_same_size_are_detected(
    talk: Path, tmp_path: Path
) -> None:
    with developing(talk, "talk.py", cwd=tmp_path) as dev:
        dev.says("Loaded")
        async with dev.client() as client:
            before = "one"
            for word in ("two", "six", "ten"):
                dev.change(f'"{before}"', f'"{word}"')
                dev.says("Reloaded")
                assert await value(client, "talk.word") == word
                before = word


async def test_a_run_continues_with_the_code_it_started_with(talk: Path, tmp_path: Path) -> None:
    with developing(talk, "talk.py", cwd=tmp_path) as dev:
        dev.says("Loaded")
        async with dev.client() as client, client.call("talk.again") as call:
            items = call.__aiter__()
            assert (await anext(items)).text == "one"
            dev.change('"one"', '"two"')
            dev.says("Reloaded")
            assert await value(client, "talk.word") == "two"
            seen = {(await anext(items)).text for _ in range(50)}
            assert seen == {"one"}
            async with client.call("talk.again") as other:
                assert (await anext(other.__aiter__())).text == "two"
            assert (await anext(items)).text == "one"
            assert await call.cancel("enough")


async def test_a_project_is_served_without_being_installed(tmp_path: Path) -> None:
    assert run("new", "weather", cwd=tmp_path).returncode == 0
    project = tmp_path / "weather"
    file = project / "src" / "weather" / "__init__.py"
    with developing(file, cwd=project) as dev:
        dev.says("Loaded weather:weather: weather.count, weather.hello")
        dev.change("Hello", "Good day")
        dev.says("Reloaded weather:weather")
        async with dev.client() as client:
            assert await value(client, "weather.hello") == "Good day, world!"


SCRIPT = textwrap.dedent('''
    """Says a word."""

    from contextlib import asynccontextmanager

    from plexus import Activation

    WORD = "one"
    state = []

    @asynccontextmanager
    async def life():
        state.append(WORD)
        yield

    talk = Activation("talk", lifespan=life)

    @talk.method
    async def word() -> str:
        """The word of the lifespan."""
        return state[-1]

    if __name__ == "__main__":
        talk.serve()
''')


async def test_a_script_is_reloaded_with_its_lifespan(tmp_path: Path) -> None:
    file = tmp_path / "tools.py"
    write(file, SCRIPT)
    with developing(file, "tools.py", cwd=tmp_path) as dev:
        dev.says("Loaded tools.py: talk.word")
        async with dev.client() as client:
            assert await value(client, "talk.word") == "one"
            dev.change('"one"', '"two"')
            dev.says("Reloaded tools.py: talk.word")
            await until(client, "two")
            dev.change("state.append(WORD)", 'raise OSError("no port")')
            failed = dev.says(r"Not started: talk: [^\n]*")
            assert failed.endswith("OSError: no port (the previous version stays)")
            assert await value(client, "talk.word") == "two"
            write(file, SCRIPT.replace('"one"', '"six"'))
            dev.says("Reloaded tools.py: talk.word")
            await until(client, "six")


async def until(client: Client, expected: str) -> None:
    """Wait until the lifespan of a reloaded activation has started."""
    async with asyncio.timeout(WAIT_S):
        while True:
            with contextlib.suppress(Exception):
                if await client.call("talk.word") == expected:
                    return
            await asyncio.sleep(0.02)


async def test_a_new_activation_that_does_not_start_is_off_until_it_is_fixed(
    tmp_path: Path,
) -> None:
    folder = trust_always(tmp_path) / "activations.d"
    folder.mkdir()
    file = folder / "tools.py"
    with developing(file, cwd=tmp_path) as dev:
        dev.says("This folder has no activations yet")
        write(file, SCRIPT.replace("state.append(WORD)", "1 / 0"))
        assert "stays" not in dev.says(r"Not started: talk: [^\n]*")
        async with dev.client() as client:
            with pytest.raises(Exception, match="did not start"):
                await value(client, "talk.word")
            write(file, SCRIPT)
            dev.says("Reloaded activations.d/tools.py: talk.word")
            await until(client, "one")


async def test_a_script_serves_and_reloads_itself(tmp_path: Path) -> None:
    file = tmp_path / "tools.py"
    write(file, SCRIPT)
    program = (sys.executable, str(file))
    flags = ("--auth", "off", "dev", "--port", "0")
    with started(*flags, cwd=tmp_path, program=program) as process:
        dev = Dev(process, file)
        dev.says("Loaded tools.py: talk.word")
        async with dev.client() as client:
            names = {each["namespace"] for each in (await client.schema())["activations"]}
            assert names == {"health", "plexus", "talk"}
            dev.change('"one"', '"two"')
            dev.says("Reloaded tools.py: talk.word")
            await until(client, "two")


async def test_every_module_of_a_package_is_watched_including_new_ones(tmp_path: Path) -> None:
    assert run("new", "weather", cwd=tmp_path).returncode == 0
    package = tmp_path / "weather" / "src" / "weather"
    file = package / "__init__.py"
    with developing(file, "weather", cwd=tmp_path) as dev:
        dev.says("Loaded weather:weather")
        dev.change("import asyncio\n", "import asyncio\nfrom weather.words import GREETING\n")
        assert "weather.words" in dev.says(r"Not loaded: [^\n]*")
        (package / "words.py").write_text('GREETING = "Hi"\n')
        dev.says("Reloaded weather:weather")
        dev.change('f"Hello,', 'f"{GREETING},')
        dev.says("Reloaded weather:weather")
        async with dev.client() as client:
            assert await value(client, "weather.hello") == "Hi, world!"
            (package / "words.py").write_text('GREETING = "Ho"\n')
            dev.says("Reloaded weather:weather")
            assert await value(client, "weather.hello") == "Ho, world!"


async def test_files_of_a_folder_are_added_and_removed(talk: Path, tmp_path: Path) -> None:
    folder = trust_always(tmp_path) / "activations.d"
    folder.mkdir()
    with developing(talk, cwd=tmp_path) as dev:
        dev.says("This folder has no activations yet")
        shutil.copy(talk, folder)
        dev.says("Loaded activations.d/talk.py")
        async with dev.client() as client:
            assert await value(client, "talk.word") == "one"
            (folder / "talk.py").unlink()
            dev.says("Unloaded activations.d/talk.py: talk")
            names = [each["namespace"] for each in (await client.schema())["activations"]]
            assert "talk" not in names


async def test_a_changed_shared_module_reloads_all_files(tmp_path: Path) -> None:
    (tmp_path / "shared_words.py").write_text('WORD = "one"\n')
    (trust_always(tmp_path) / "activations.d").mkdir()
    source = TALK.replace('WORD = "one"', "from shared_words import WORD")
    (tmp_path / "activations.d" / "a.py").write_text(source)
    (tmp_path / "activations.d" / "b.py").write_text(source.replace('"talk"', '"chatter"'))
    with started(
        *("--auth", "off", "dev", "--port", "0"), cwd=tmp_path, PYTHONPATH=_path_with(tmp_path)
    ) as process:
        dev = Dev(process, tmp_path / "shared_words.py")
        dev.says("Loaded activations.d/b.py")
        dev.change("one", "two")
        dev.says("Reloaded activations.d/a.py")
        dev.says("Reloaded activations.d/b.py")
        async with dev.client() as client:
            assert await value(client, "talk.word") == "two"
            assert await value(client, "chatter.word") == "two"


def _path_with(folder: Path) -> str:
    return os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])


# --- what goes wrong -----------------------------------------------------------------------------

FAULTS = {
    "syntax": ("return WORD", "return return", r"talk\.py:16: SyntaxError"),
    "name": ('WORD = "one"', "WORD = one", r"talk\.py:6: NameError: name 'one' is not defined"),
    "import": ("import asyncio", "import no_such_thing", r"talk\.py:2: ModuleNotFoundError"),
    "method": ("-> str", "-> type(asyncio)", r"talk\.py:14: Talk\.word: its result has no schema"),
    "argument": ("word(self)", "word(self, *x)", r"talk\.py:14: .*argument 'x': \*args"),
    "class": ('"talk"', '"Talk"', r"talk\.py:8: Talk: namespace 'Talk' must be lower case"),
    "exit": ('WORD = "one"', "raise SystemExit(3)", r"talk\.py:6: SystemExit"),
    "init": (
        'version = "1.0.0"',
        'version = "1"\n    def __init__(self): 1 / 0',
        r"talk\.py:12: Talk: could not be instantiated: division by zero",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_an_error_is_reported_with_its_line_and_the_old_version_stays(
    fault: str, talk: Path, tmp_path: Path
) -> None:
    old, new, expected = FAULTS[fault]
    with developing(talk, "talk.py", cwd=tmp_path) as dev:
        dev.says("Loaded")
        async with dev.client() as client:
            dev.change(old, new)
            assert "the previous version stays" in dev.says(rf"Not loaded: {expected}[^\n]*")
            assert await value(client, "talk.word") == "one"
            write(talk, TALK.replace('"one"', '"two"'))
            dev.says("Reloaded")
            assert await value(client, "talk.word") == "two"


async def test_a_broken_file_is_loaded_once_it_is_fixed(talk: Path, tmp_path: Path) -> None:
    write(talk, TALK.replace('WORD = "one"', "WORD = one"))
    with developing(talk, "talk.py", cwd=tmp_path) as dev:
        assert "stays" not in dev.says(r"Not loaded: talk\.py:6: NameError[^\n]*")
        dev.change("WORD = one", 'WORD = "one"')
        dev.says("Reloaded talk.py: talk.again, talk.word")
        async with dev.client() as client:
            assert await value(client, "talk.word") == "one"


async def test_a_built_in_is_off_until_its_replacement_can_be_loaded(
    talk: Path, tmp_path: Path
) -> None:
    write(talk, TALK.replace('"talk"', '"bash"').replace('WORD = "one"', "WORD = one"))
    with developing(talk, "talk.py", cwd=tmp_path) as dev:
        dev.says("Not loaded: .*the built-in bash, which it replaces, is switched off")
        async with dev.client() as client:
            names = {each["namespace"] for each in (await client.schema())["activations"]}
            assert "bash" not in names
            dev.change("WORD = one", 'WORD = "one"')
            dev.says("Reloaded talk.py: bash.again, bash.word")
            assert await value(client, "bash.word") == "one"


async def test_if_one_class_of_a_file_is_rejected_none_is_replaced(
    talk: Path, tmp_path: Path
) -> None:
    both = TALK + TALK.replace("Talk", "Other").replace('"talk"', '"other"')
    write(talk, both)
    with developing(talk, "talk.py", cwd=tmp_path) as dev:
        dev.says("Loaded talk.py: other.again, other.word, talk.again, talk.word")
        async with dev.client() as client:
            text = both.replace('"one"', '"two"').replace('"talk"', '"speech"')
            write(talk, text.replace('namespace = "other"', 'namespace = "Not Good"'))
            dev.says("Not loaded: .*Other: namespace 'Not Good'")
            assert await value(client, "talk.word") == "one"
            assert await value(client, "other.word") == "one"
            names = {each["namespace"] for each in (await client.schema())["activations"]}
            assert "speech" not in names


async def test_renaming_a_namespace_removes_the_old_one(talk: Path, tmp_path: Path) -> None:
    with developing(talk, "talk.py", cwd=tmp_path) as dev:
        dev.says("Loaded")
        async with dev.client() as client:
            dev.change('"talk"', '"health"')
            dev.says("Reloaded talk.py: health.again, health.word")
            names = {each["namespace"] for each in (await client.schema())["activations"]}
            assert "talk" not in names
            # The built-in activation returns when its name is free again.
            dev.change('"health"', '"talk"')
            dev.says("Reloaded talk.py: talk.again, talk.word")
            assert (await value(client, "health.check"))["status"] == "healthy"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("no/such.py",), "neither a file nor a folder"),
        (("empty",), "substrate new NAME"),
        (("--mcp",), "--mcp requires --stdio"),
    ],
)
def test_invalid_arguments_are_usage_errors(
    arguments: tuple[str, ...], expected: str, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    refused = run("dev", *arguments, cwd=tmp_path)
    assert refused.returncode == 2
    assert expected in refused.stderr


# --- over stdio ----------------------------------------------------------------------------------


class Pipe:
    """A client that reads and writes lines of JSON."""

    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        assert child.stdin is not None
        assert child.stdout is not None
        self._stdin, self._stdout = child.stdin, child.stdout
        self._unread = b""

    def send(self, **message: Any) -> None:
        self._stdin.write(json.dumps({"jsonrpc": "2.0"} | message).encode() + b"\n")
        self._stdin.flush()

    def until(self, key: str, wanted: Any) -> dict[str, Any]:
        """Return the first message for which this is true."""
        end = time.monotonic() + WAIT_S
        while True:
            while b"\n" not in self._unread:
                ready, _, _ = select.select([self._stdout], [], [], max(end - time.monotonic(), 0))
                assert ready, f"waited in vain for {key} {wanted}"
                self._unread += os.read(self._stdout.fileno(), 65536)
            line, _, self._unread = self._unread.partition(b"\n")
            message: dict[str, Any] = json.loads(line)
            if message.get(key) == wanted:
                return message


def test_an_mcp_client_is_notified_and_its_call_continues(talk: Path, tmp_path: Path) -> None:
    with subprocess.Popen(
        [*SUBSTRATE, "dev", "--stdio", "--mcp", "talk.py"],
        cwd=tmp_path,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as child:
        try:
            pipe = Pipe(child)
            hello = {"protocolVersion": "2025-06-18", "capabilities": {}}
            hello["clientInfo"] = {"name": "test", "version": "1"}
            pipe.send(id=1, method="initialize", params=hello)
            offered = pipe.until("id", 1)["result"]["capabilities"]["tools"]
            assert offered["listChanged"] is True
            pipe.send(method="notifications/initialized")
            again = {"name": "talk.again", "arguments": {}, "_meta": {"progressToken": 7}}
            pipe.send(id=2, method="tools/call", params=again)
            pipe.until("method", "notifications/progress")
            text = talk.read_text().replace('"one"', '"two"')
            talk.write_text(text.replace("async def word", "async def phrase"))
            pipe.until("method", "notifications/tools/list_changed")
            pipe.send(id=3, method="tools/list")
            tools = {tool["name"] for tool in pipe.until("id", 3)["result"]["tools"]}
            assert "talk.phrase" in tools
            assert "talk.word" not in tools
            pipe.send(id=4, method="tools/call", params={"name": "talk.phrase", "arguments": {}})
            assert pipe.until("id", 4)["result"]["content"][0]["text"] == "two"
            progress = pipe.until("method", "notifications/progress")
            assert progress["params"]["progressToken"] == 7
        finally:
            child.kill()


def test_the_native_view_is_served_on_stdio_too(talk: Path, tmp_path: Path) -> None:
    asked = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "talk.word"})
    done = run("--stdio", "dev", str(talk), cwd=tmp_path, stdin=asked + "\n")
    assert done.returncode == 0
    last = json.loads(done.stdout.splitlines()[-1])
    assert last["params"]["result"] == {"type": "complete", "result": "one"}

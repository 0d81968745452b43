"""Templates run in a sandbox, in a process that can be killed, with limited time and memory."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from hub_calls import until
from template_folders import METADATA, URI, offering, write_template

from activations.templates import renderer as renderer_module
from activations.templates.library import Library
from activations.templates.model import CONTENT_BYTES
from activations.templates.renderer import MAX_PROCESSES, Renderer
from plexus.errors import DeadlineExceeded, Failed, PlexusError, TooBig
from plexus.events import ErrorEvent
from plexus.testing import Local

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

GOOD = "template://text/any/good"


def loop(body: str) -> str:
    """Return the text of a template that repeats a body as often as possible."""
    return f"{{% for each in range(99999) %}}{body}{{% endfor %}}"


def exists(pid: int) -> bool:
    """Return whether a process exists."""
    return Path(f"/proc/{pid}").exists()


async def render(plexus: Local, uri: str = URI) -> str:
    text: str = await plexus.call("generate_template", resource_uri=uri, parameters={})
    return text


@pytest.mark.parametrize(
    "text",
    [
        loop(loop(loop(""))),
        "{% macro m() %}" + loop(loop("")) + "{{ m() }}{% endmacro %}{{ m() }}",
        "{{ 9 ** (9 ** 9) }}",
    ],
)
async def test_a_template_that_does_not_end_is_stopped_and_the_next_one_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    write_template(tmp_path, text)
    write_template(tmp_path, "good", name="text/any/good")
    async with offering(tmp_path) as plexus:
        assert await render(plexus, GOOD) == "good"
        monkeypatch.setattr(renderer_module, "RENDER_S", 0.5)
        with pytest.raises(DeadlineExceeded, match=r"was stopped: it took more than 0.5 s") as late:
            await render(plexus)
        assert late.value.data == {"limit_s": 0.5}
        monkeypatch.undo()
        assert await render(plexus, GOOD) == "good"


@pytest.mark.parametrize(
    "text",
    [
        "{% for a in range(99999) %}{{ 'x' * 1000 }}{% endfor %}",
        "{{ 'x' * 200000 }}",
        "{{ 'ä' * 70000 }}",
        "{{ 'x' * 10 ** 10 }}",
        "{{ [0] * 10 ** 9 }}",
        "{{ '%999999999d' % 1 }}",
        "{{ 'x' | center(10 ** 10) }}",
        "{{ 'x' | indent(10 ** 10, true) }}",
        "{% set ns = namespace(x='ab') %}" + loop("{% set ns.x = ns.x ~ ns.x %}"),
    ],
)
async def test_a_template_that_generates_too_much_is_an_error(tmp_path: Path, text: str) -> None:
    write_template(tmp_path, text)
    write_template(tmp_path, "good", name="text/any/good")
    async with offering(tmp_path) as plexus:
        with pytest.raises(PlexusError) as caught:
            await render(plexus)
        assert caught.value.code in ("too_big", "render")
        assert await render(plexus, GOOD) == "good"


async def test_the_largest_file_is_generated_and_one_more_byte_is_not(tmp_path: Path) -> None:
    write_template(tmp_path, f"{{{{ '\x01' * {CONTENT_BYTES} }}}}")
    write_template(tmp_path, f"{{{{ 'x' * {CONTENT_BYTES + 1} }}}}", name="text/any/more")
    async with offering(tmp_path) as plexus:
        assert await render(plexus) == "\x01" * CONTENT_BYTES
        with pytest.raises(TooBig) as caught:
            await render(plexus, "template://text/any/more")
        assert caught.value.data == {"limit": CONTENT_BYTES}


@pytest.mark.parametrize(
    "text",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ ''['__class__'] }}",
        "{{ ''|attr('__class__') }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ self.__init__.__globals__ }}",
        "{{ '{0.__class__}'.format(1) }}",
        "{{ ('{0.__class__}'|string).format(1) }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ [].append(1) }}",
        "{{ {}.update({1: 2}) }}",
        "{{ open('/etc/passwd').read() }}",
        "{{ lipsum() }}",
        "{{ [1, 2]|random }}",
        "{% import 'os' as os %}{{ os }}",
        "{% extends '/etc/passwd' %}",
        "{% set x = {}.__class__.__base__.__subclasses__() %}{{ x }}",
        "{{ ['x']|map('eval')|list }}",
        "{{ [{}]|map(attribute='__class__')|list|first.__mro__ }}",
    ],
)
async def test_a_template_cannot_leave_the_sandbox(tmp_path: Path, text: str) -> None:
    write_template(tmp_path, text)
    async with offering(tmp_path) as plexus:
        with pytest.raises(Failed, match=r"text/any/plain cannot be generated from its text"):
            await render(plexus)


async def test_a_template_that_uses_an_unknown_name_is_an_error_with_its_line(
    tmp_path: Path,
) -> None:
    write_template(tmp_path, "one\n{{ projct }}\n")
    write_template(tmp_path, "one\n{% if %}\n", name="text/any/syntax")
    write_template(tmp_path, "{{ 1 / 0 }}", name="text/any/zero")
    write_template(tmp_path, "{{ '\\ud800' }}", name="text/any/surrogate")
    write_template(tmp_path, "x", METADATA.replace("a.txt", "{{ no }}"), name="text/any/path")
    async with offering(tmp_path) as plexus:
        with pytest.raises(Failed, match=r"'projct' is undefined \(line 2\)") as caught:
            await render(plexus)
        assert caught.value.code == "render"
        with pytest.raises(Failed, match=r"its text: Expected an expression.* \(line 2\)"):
            await render(plexus, "template://text/any/syntax")
        with pytest.raises(Failed, match="ZeroDivisionError"):
            await render(plexus, "template://text/any/zero")
        with pytest.raises(Failed, match="UTF-8"):
            await render(plexus, "template://text/any/surrogate")
        with pytest.raises(Failed, match="from its path: UndefinedError"):
            await render(plexus, "template://text/any/path")


@pytest.mark.parametrize(
    "text",
    [
        "(" * 5000,
        "{{ " + "(" * 5000 + ")" * 5000 + " }}",
        "{{ " + "-" * 100_000 + "1 }}",
        "{% if 1 %}" * 3000 + "{% endif %}" * 3000,
        "{{ " + "+".join(["1"] * 50_000) + " }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% include 'text/any/plain.j2' %}",
    ],
)
async def test_a_template_that_is_nested_too_deeply_breaks_only_itself(
    tmp_path: Path, text: str
) -> None:
    write_template(tmp_path, text)
    write_template(tmp_path, "good", name="text/any/good")
    async with offering(tmp_path) as plexus:
        end = (await plexus.events("generate_template", resource_uri=URI, parameters={}))[-1]
        if isinstance(end, ErrorEvent):
            assert end.code in ("render", "deadline", "too_big")
        else:
            assert end.as_text() in (text, "50000")
        assert await render(plexus, GOOD) == "good"


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "../a.txt",
        "a/../../b.txt",
        "a//b",
        "./a",
        "a/",
        " ",
        ".git/hooks/pre-commit",
        "x/.GIT/config",
        "a\\b",
        "a:b",
        "a\tb",
        "{{ 'x' * 600 }}",
        "{{ 'x/' * 20 }}y",
        "{{ 'ä' * 200 }}",
        ".substrate-templates.json",
    ],
)
async def test_a_template_cannot_name_a_path_outside_of_the_project(
    tmp_path: Path, path: str
) -> None:
    write_template(tmp_path, "x", f"name = 'A'\ndescription = 'A'\npath = '''{path}'''\n")
    async with offering(tmp_path) as plexus:
        with pytest.raises(Failed) as caught:
            await render(plexus)
        assert caught.value.code == "unsafe_path"
        assert len(caught.value.message) < 400


async def test_values_cannot_break_out_of_the_syntax_of_a_file(tmp_path: Path) -> None:
    metadata = METADATA + '[parameters.text]\ntype = "string"\ndescription = "Text."\n'
    write_template(tmp_path, "{{ text | quote }} {{ text }}", metadata)
    hostile = '"]\\ {{ 7 * 7 }} {% raw %} ${X} \x7f'.replace("\x7f", "ü\U0001f600")
    async with offering(tmp_path) as plexus:
        text = await plexus.call(
            "generate_template", resource_uri=URI, parameters={"text": hostile}
        )
    quoted = hostile.replace("\\", "\\\\").replace('"', '\\"')
    assert text == f'"{quoted}" {hostile}'


async def test_one_process_serves_a_folder_and_ends_with_the_renderer(tmp_path: Path) -> None:
    write_template(tmp_path, "good")
    catalogue, _ = await Library([tmp_path]).catalogue()
    template = catalogue.get(URI)
    texts = catalogue.texts_of(template)
    renderer = Renderer()
    try:
        found = await asyncio.gather(*(renderer.render(template, texts, {}) for _ in range(20)))
        assert {each.content for each in found} == {"good"}
        [pid] = renderer.pids
        await renderer.render(template, texts, {})
        assert renderer.pids == [pid]
        # A process that was killed is replaced.
        os.kill(pid, signal.SIGKILL)
        await until(lambda: not renderer.pids, 20)
        assert (await renderer.render(template, texts, {})).content == "good"
        [last] = renderer.pids
    finally:
        await renderer.close()
    assert renderer.pids == []
    assert not any(map(exists, (pid, last)))
    with pytest.raises(Failed, match="stopping"):
        await renderer.render(template, texts, {})


async def test_processes_of_folders_that_are_not_used_end_first(tmp_path: Path) -> None:
    for number in range(MAX_PROCESSES + 2):
        write_template(tmp_path / str(number), "good", name=f"text/any/t{number}")
    folders = [tmp_path / str(number) for number in range(MAX_PROCESSES + 2)]
    catalogue, _ = await Library(folders).catalogue()
    renderer = Renderer()
    try:
        pids = []
        for number in range(MAX_PROCESSES + 2):
            template = catalogue.get(f"template://text/any/t{number}")
            await renderer.render(template, catalogue.texts_of(template), {})
            pids.append(renderer.pids[-1])
        assert renderer.pids == pids[2:]
    finally:
        await renderer.close()


async def test_a_cancelled_call_does_not_leave_its_answer_to_the_next(tmp_path: Path) -> None:
    loops = "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}slow"
    write_template(tmp_path, loops)
    write_template(tmp_path, "good", name="text/any/good")
    async with offering(tmp_path) as plexus:
        await render(plexus, GOOD)
        async with plexus.stream("generate_template", resource_uri=URI, parameters={}) as stream:
            await asyncio.sleep(0.2)  # the template runs
            stream.cancel()
        assert await render(plexus, GOOD) == "good"

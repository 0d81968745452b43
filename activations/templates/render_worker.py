"""The program of a render process: renders templates in the immutable sandbox of Jinja.

It is started as a bare script, so it imports only the standard library and Jinja. Requests come on
standard input, answers go to standard output, each as a line with its size and then JSON. The first
request has the import path and the texts that templates may include: those of one folder, so that
no template includes a text of another source.

The server limits its memory, and kills it when an answer takes too long.
"""

from __future__ import annotations

import json
import sys

TYPE_CHECKING = False  # `typing` would add to the start
if TYPE_CHECKING:
    from typing import Any, BinaryIO

    import jinja2

__all__ = ("main",)


class TooLong(Exception):
    """A text is longer than allowed."""


def main() -> None:
    """Render until the server closes the input."""
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    first = read(requests)
    if first is None:
        return
    sys.path.extend(each for each in first["path"] if each not in sys.path)
    environment = make_environment(first["texts"])
    write(answers, {"ready": True})
    while (request := read(requests)) is not None:
        write(answers, answer(environment, request))


def read(stream: BinaryIO) -> Any:
    """Return the next request; None at the end."""
    size = stream.readline()
    return json.loads(stream.read(int(size))) if size else None


def write(stream: BinaryIO, value: dict[str, Any]) -> None:
    """Write an answer."""
    # Non-ASCII characters are escaped, also lone surrogates, which UTF-8 cannot represent.
    data = json.dumps(value).encode()
    stream.write(b"%d\n" % len(data) + data)
    stream.flush()


def make_environment(texts: dict[str, str]) -> jinja2.Environment:
    """Return the environment of the templates of one folder."""
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        loader=jinja2.DictLoader(texts),
        undefined=jinja2.StrictUndefined,
        autoescape=False,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    # The same parameters always generate the same text.
    del environment.globals["lipsum"], environment.filters["random"]
    environment.filters["quote"] = quote
    environment.filters["snake_case"] = lambda text: "_".join(words_of(text))
    environment.filters["kebab_case"] = lambda text: "-".join(words_of(text))
    environment.filters["pascal_case"] = lambda text: "".join(map(str.capitalize, words_of(text)))
    return environment


def quote(value: object) -> str:
    """Return a text in double quotes, as JSON, TOML and YAML write it."""
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def words_of(text: object) -> list[str]:
    """Return the words of a name."""
    return "".join(each if each.isalnum() else " " for each in str(text)).lower().split()


def answer(environment: jinja2.Environment, request: dict[str, Any]) -> dict[str, Any]:
    """Return the path and the content that a template generates, or the error."""
    import jinja2

    where, values, limit = "path", request["values"], request["limit"]
    try:
        path = render(environment.from_string(request["path"]), values, limit)
        where = "text"
        content = render(environment.get_template(request["file"]), values, limit)
        (path + content).encode()
    except jinja2.TemplateSyntaxError as error:
        return failure(where, f"{error.message} (line {error.lineno})")
    except jinja2.TemplateNotFound as error:
        return failure(where, f"it includes {error.name!r}, which its folder does not have")
    except TooLong:
        return failure(where, f"it generates more than {limit:,} bytes", code="too_big")
    except UnicodeEncodeError:
        return failure(where, "it generates text that UTF-8 cannot represent")
    except MemoryError:
        return failure(where, "it needs too much memory", code="too_big", lost=True)
    except RecursionError:
        return failure(where, "it is nested too deeply")
    except Exception as error:  # noqa: BLE001 - a template may raise anything
        return failure(where, f"{type(error).__name__}: {describe(error)}{line_of(error)}")
    return {"path": path, "content": content}


def failure(
    where: str, message: str, *, code: str = "render", lost: bool = False
) -> dict[str, Any]:
    """Return the answer for an error; `lost` if the process should not be used again."""
    return {"error": message, "where": where, "code": code, "lost": lost}


def describe(error: BaseException) -> str:
    """Return the text of an exception, which may be one that a template has caused."""
    try:
        return str(error)[:500]
    except Exception:  # noqa: BLE001 - so may an object of a template when it is shown
        return "?"


def line_of(error: BaseException) -> str:
    """Return the line of the template that raised an exception, for a message."""
    trace, line = error.__traceback__, None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<template>" or "top-level template code" in (
            trace.tb_frame.f_code.co_name
        ):
            line = trace.tb_lineno
        trace = trace.tb_next
    return "" if line is None else f" (line {line})"


def render(template: jinja2.Template, values: dict[str, Any], limit: int) -> str:
    """Return the text of a template. Raises TooLong past the limit, as soon as it is reached."""
    parts, size = [], 0
    for part in template.generate(values):
        parts.append(part)
        size += len(part) if part.isascii() else len(part.encode(errors="replace"))
        if size > limit:
            raise TooLong
    return "".join(parts)


if __name__ == "__main__":
    main()

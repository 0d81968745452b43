"""Generation of a project: everything is rendered and checked first, then files are written.

What is wrong with any template, parameter or path is found before the first file is written. Files
appear one after the other, each whole or not at all, so a cancelled run leaves no partial file.
"""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from activations.templates.errors import invalid_argument, invalid_parameters
from activations.templates.events import Action, File, Outcome, Scaffolded
from activations.templates.library import Catalogue
from activations.templates.model import RECORD, SCHEME, Template
from activations.templates.parameters import Fault, Values, check_values
from activations.templates.project_folder import Existing, Moved, ProjectFolder, Workspace
from activations.templates.provenance import record_entry, update_record
from activations.templates.renderer import Renderer
from plexus import Confirm, Context, Declined, Failed
from plexus.errors import DeadlineExceeded, Unsupported
from plexus.registry.validation import nearest
from plexus.text import head_and_tail, replace_controls, shorten

__all__ = ("Scaffold", "select_templates")

T = TypeVar("T")

#: The name that selects all templates of a toolchain.
ALL: Final = "all"
#: Lines of files that are compared, and characters of a difference in an event and in a question.
DIFF_LINES: Final = 2_000
DIFF_CHARACTERS: Final = 50_000
QUESTION_CHARACTERS: Final = 4_000
#: Attempts to write a file that other processes change.
ATTEMPTS: Final = 3


@dataclass(frozen=True, slots=True)
class _Planned:
    """A file that was generated."""

    template: Template
    values: Values
    path: str
    text: str

    @property
    def content(self) -> bytes:
        return self.text.encode()


def select_templates(catalogue: Catalogue, toolchain: str, names: Sequence[str]) -> list[Template]:
    """Return the templates of a project, in the order of their names, each once.

    A name is a category, a category with a variant, the name of the file, a URI, or "all".
    Raises InvalidParams for unknown ones, with the nearest; reports all of them together.
    """
    offered = catalogue.select(toolchain)
    chosen: dict[str, Template] = {}
    faults: list[Fault] = []
    for index, name in enumerate(names):
        found = _named(name, offered)
        if name.startswith(SCHEME):
            found = [catalogue.get(name)]
            if found[0].toolchain != toolchain:
                faults.append(Fault(f"templates.{index}", f"{name} is not of {toolchain}"))
        elif not found:
            faults.append(Fault(f"templates.{index}", _unknown(name, offered)))
        elif len({each.category for each in found}) == 1 < len(found) and name != ALL:
            variants = " or ".join(f"{each.category}/{each.variant}" for each in found)
            faults.append(Fault(f"templates.{index}", f"{name!r} has variants: {variants}"))
        chosen |= {each.uri: each for each in found}
    if faults:
        error = invalid_argument("templates", "; ".join(each.fault for each in faults))
        error.data["errors"] = [{"at": each.at, "fault": each.fault} for each in faults]
        raise error
    return list(chosen.values())


def _named(name: str, offered: Sequence[Template]) -> list[Template]:
    if name == ALL:
        return list(offered)
    for key in (
        lambda each: each.category,
        lambda each: f"{each.category}/{each.variant}",
        lambda each: each.file_name,
        lambda each: each.path,
    ):
        found = [each for each in offered if key(each).casefold() == name.casefold()]
        if found:
            return found
    return []


def _unknown(name: str, offered: Sequence[Template]) -> str:
    categories = sorted({each.category for each in offered})
    near = nearest(name, [*categories, *(each.file_name for each in offered)], 1)
    hint = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(categories)}"
    return f"unknown template {shorten(name, 100)!r}{hint}"


class Scaffold:
    """One project."""

    def __init__(
        self, ctx: Context, target: Path, workspace: Workspace | None, *, asks: bool
    ) -> None:
        """Set the folder of the project, and the only folder that may be written to, if any.

        asks: whether to ask before a file is replaced; otherwise it is kept.
        """
        self._ctx = ctx
        self._folder = ProjectFolder(target)
        self._workspace = workspace
        #: Why files that exist are kept without asking; None while the caller can be asked.
        self._kept_because = None if asks else "it exists"
        self._files: list[_Planned] = []

    async def plan(
        self,
        renderer: Renderer,
        catalogue: Catalogue,
        templates: Sequence[Template],
        parameters: Mapping[str, Any],
    ) -> None:
        """Render all files and check their paths. Raises the error of the first wrong template."""
        names = {each.name for template in templates for each in template.parameters}
        checked: list[Values] = []
        faults: dict[Fault, None] = {}
        for template in templates:
            values, wrong = check_values(template.parameters, parameters, known=names)
            checked.append(values)
            faults |= dict.fromkeys(wrong)
        if faults:
            subject = templates[0].uri if len(templates) == 1 else "the templates"
            raise invalid_parameters(subject, list(faults))
        for template, values in zip(templates, checked, strict=True):
            found = await renderer.render(template, catalogue.texts_of(template), values)
            self._check_path(template, found.path)
            self._files.append(_Planned(template, values, found.path, found.content))

    def _check_path(self, template: Template, path: str) -> None:
        for other in self._files:
            if other.path.casefold() == path.casefold():
                raise Failed(
                    f"{other.template.uri} and {template.uri} both generate {path}; leave one out",
                    code="conflict",
                )
        if self._workspace is not None and self._workspace.protects(self._folder.path / path):
            raise Failed(
                f"{template.uri} generates {path}, which is protected while the sandbox is on",
                code="unsafe_path",
            )

    async def run(self, *, write: bool, record: bool) -> AsyncGenerator[File | Scaffolded]:
        """Write the files, or only show them."""
        # A path that leads outside is found before anything is written.
        for each in self._files:
            await asyncio.to_thread(self._folder.read, each.path)
        outcomes = []
        entries = {}
        for number, each in enumerate(self._files):
            await self._ctx.progress(number, len(self._files), each.path)
            event = await (self._write(each) if write else self._preview(each))
            yield event
            outcomes.append(Outcome(each.path, event.action))
            if event.action in ("created", "replaced", "unchanged"):
                entries[each.path] = record_entry(each.template, each.values, each.content)
        await self._ctx.progress(len(self._files), len(self._files))
        recorded = None
        if write and record and entries:
            problem = await _finish(update_record, self._folder, entries)
            recorded = RECORD if problem is None else None
            if problem is not None:
                await self._ctx.warning(f"The templates were not recorded: {problem}.")
        yield Scaffolded(str(self._folder.path), write, outcomes, recorded)

    async def _preview(self, planned: _Planned) -> File:
        found = await asyncio.to_thread(self._folder.read, planned.path)
        if found is None:
            return _file(planned, "create")
        if found.content == planned.content:
            return _file(planned, "unchanged")
        diff, obstacle = await asyncio.to_thread(_compare, planned, found)
        return _file(planned, "kept" if diff is None else "ask", diff=diff, reason=obstacle)

    async def _write(self, planned: _Planned) -> File:
        for _ in range(ATTEMPTS):
            try:
                return await self._attempt(planned)
            except Moved:
                continue
        return _file(planned, "kept", reason="other processes change it all the time")

    async def _attempt(self, planned: _Planned) -> File:
        """Write a file. Raises Moved if it was changed meanwhile."""
        found = await asyncio.to_thread(self._folder.read, planned.path)
        if found is None:
            await _finish(self._folder.create, planned.path, planned.content)
            return _file(planned, "created")
        if found.content == planned.content:
            return _file(planned, "unchanged")
        diff, obstacle = await asyncio.to_thread(_compare, planned, found)
        if diff is None or found.content is None:
            return _file(planned, "kept", reason=obstacle)
        refusal = self._kept_because or await self._ask(planned.path, diff)
        if refusal is not None:
            return _file(planned, "kept", diff=diff, reason=refusal)
        await _finish(self._folder.replace, planned.path, planned.content, found.content)
        return _file(planned, "replaced", diff=diff)

    async def _ask(self, path: str, diff: str) -> str | None:
        """Ask whether to replace a file. Returns why not, or None."""
        shown = head_and_tail(diff, QUESTION_CHARACTERS)
        try:
            agreed = await self._ctx.ask(
                Confirm(f"Replace {path} in {self._folder.path}?\n\n{shown}"), key=path
            )
        except Declined:
            agreed = False
        except (DeadlineExceeded, Unsupported):
            # The next question would not be answered either.
            self._kept_because = "it differs, and the question whether to replace it had no answer"
            return self._kept_because
        return None if agreed else "its replacement was declined"


def _file(
    planned: _Planned, action: Action, *, diff: str | None = None, reason: str | None = None
) -> File:
    return File(planned.path, planned.text, action, planned.template.uri, diff, reason)


def _compare(planned: _Planned, found: Existing) -> tuple[str | None, str | None]:
    """Return the difference to an existing file, or why there is none."""
    if found.content is None:
        return None, f"it {found.obstacle}"
    try:
        old = found.content.decode()
    except UnicodeDecodeError:
        return None, "it is not text"
    before, after = (text.splitlines(keepends=True) for text in (old, planned.text))
    # A comparison takes quadratic time.
    if max(len(before), len(after)) > DIFF_LINES:
        return None, f"it is too large to compare: the maximum is {DIFF_LINES:,} lines"
    path = planned.path
    parts = difflib.unified_diff(before, after, f"{path} (now)", f"{path} (new)")
    diff = "".join(each if each.endswith("\n") else f"{each}\n" for each in parts)
    return head_and_tail(replace_controls(diff, "?", "\n\t"), DIFF_CHARACTERS), None


async def _finish(function: Callable[..., T], *arguments: Any) -> T:
    """Run a function in a thread, to its end also if the caller is cancelled.

    A cancelled run has then left no file half written, and writes nothing after its end.
    """
    writing = asyncio.ensure_future(asyncio.to_thread(function, *arguments))
    try:
        return await asyncio.shield(writing)
    except asyncio.CancelledError:
        await asyncio.wait([writing])
        if not writing.cancelled():
            writing.exception()  # retrieved, because nothing reports it any more
        raise

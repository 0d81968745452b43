"""The `templates` activation: files and whole projects from templates.

A template is a file with parameters, identified by `template://{category}/{toolchain}/{variant}`.
Its parameters are checked as a whole before anything is generated, and it is rendered in a separate
process. A project is only written on request, never outside of its folder, and a file that
exists is replaced only after a person has seen the difference and agreed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from annotated_types import Len

from activations.templates.errors import invalid_parameters
from activations.templates.events import (
    FaultInfo,
    File,
    Scaffolded,
    SearchResult,
    TemplateDetails,
    TemplateInfo,
    Validation,
)
from activations.templates.library import Catalogue, Library
from activations.templates.model import TEMPLATE_URI, Template, parse_uri
from activations.templates.parameters import check_values, describe_parameters
from activations.templates.project_folder import Workspace, resolve_target
from activations.templates.renderer import Renderer
from activations.templates.scaffold import Scaffold, select_templates
from activations.templates.search import search_templates
from plexus import (
    Activation,
    Change,
    Context,
    Failed,
    Principal,
    Resource,
    ResourceInfo,
    completer,
    method,
    resource,
)
from plexus.caller_environment import caller_directory

__all__ = ("Templates",)

#: Templates of one project.
MAX_FILES: Final = 200
#: Suggested values.
MAX_SUGGESTIONS: Final = 100

Query = Annotated[str, Len(1, 500)]
Names = Annotated[list[str], Len(1, MAX_FILES)]


class Templates(Activation):
    """Generate files and whole projects from templates."""

    namespace = "templates"
    audience = "client"
    version = "1.0.0"

    def __init__(
        self,
        folders: Iterable[str | Path] = (),
        workspace: Path | None = None,
        protected: Iterable[str] = (),
    ) -> None:
        """Set the folders of templates in addition to the built-in ones. Reads nothing.

        With a `workspace`, projects are written only in it, and never to `protected` names or to
        others that a sandboxed command could not write to.
        """
        self._library = Library(folders)
        self._renderer = Renderer()
        self._workspace = None if workspace is None else Workspace(workspace, protected)

    @method(
        title="Generate a file from a template",
        alias="generate_template",
        max_result_chars=200_000,  # a file that is cut in the middle is of no use
        read_only=True,
        open_world=False,
    )
    async def generate_template(self, resource_uri: str, parameters: dict[str, Any]) -> str:
        """Generate a single file from a template. Writes nothing; returns the content.

        Args:
            resource_uri: URI of the template, such as template://makefile/rust/cli.
            parameters: Parameters of the template; templates.describe_template lists them.
        """
        catalogue = await self._catalogue()
        template = catalogue.get(resource_uri)
        values, faults = check_values(template.parameters, parameters)
        if faults:
            raise invalid_parameters(template.uri, faults)
        return (await self._renderer.render(template, catalogue.texts_of(template), values)).content

    @method(title="List templates", alias="list_templates", read_only=True, open_world=False)
    async def list_templates(
        self, toolchain: str | None = None, category: str | None = None
    ) -> list[TemplateInfo]:
        """List the available templates, sorted by URI.

        Args:
            toolchain: Only of this toolchain, such as rust.
            category: Only of this category, such as makefile.
        """
        found = (await self._catalogue()).select(toolchain, category)
        return [_info(each) for each in found]

    @method(
        title="Validate the parameters of a template",
        alias="validate_template",
        read_only=True,
        open_world=False,
    )
    async def validate_template(self, resource_uri: str, parameters: dict[str, Any]) -> Validation:
        """Check parameters against a template without generating it. Returns all errors together.

        Args:
            resource_uri: URI of the template, such as template://makefile/rust/cli.
            parameters: Parameters to validate.
        """
        template = (await self._catalogue()).get(resource_uri)
        _, faults = check_values(template.parameters, parameters)
        errors = [FaultInfo(each.at, each.fault) for each in faults]
        return Validation(valid=not errors, errors=errors)

    @method(
        title="Generate a project from templates",
        alias="scaffold_project",
        deadline_s=None,
        restart="never",  # files were written, and a person was asked
        # It replaces a file only after a person has seen the difference and agreed.
        destructive=False,
        idempotent=True,
        open_world=False,
    )
    async def scaffold_project(
        self,
        toolchain: str,
        templates: Names,
        parameters: dict[str, Any],
        target: str = ".",
        write: bool = False,
        existing: Literal["ask", "skip"] = "ask",
        record: bool = True,
        *,
        ctx: Context,
    ) -> AsyncIterator[File | Scaffolded]:
        """Generate the files of a project from several templates, and write them if asked to.

        Streams one `file` for each. A file that exists is replaced only after a person agreed.

        Args:
            toolchain: Toolchain of the project, such as python-uv.
            templates: Categories such as makefile, file names, URIs, or "all".
            parameters: Parameters for all templates.
            target: Folder of the project.
            write: Write the files; false only shows them.
            existing: "skip" keeps files that exist without asking.
            record: Record the templates in .substrate-templates.json.
        """
        catalogue = await self._catalogue()
        chosen = select_templates(catalogue, toolchain, templates)
        folder = await asyncio.to_thread(
            resolve_target, target, caller_directory(), self._workspace
        )
        scaffold = Scaffold(ctx, folder, self._workspace, asks=existing == "ask")
        await scaffold.plan(self._renderer, catalogue, chosen, parameters)
        async with aclosing(scaffold.run(write=write, record=record)) as events:
            async for event in events:
                yield event

    @method(title="Search templates", alias="search_templates", read_only=True, open_world=False)
    async def search_templates(
        self, query: Query, toolchain: str | None = None
    ) -> list[SearchResult]:
        """Find templates by words, best first, at most 20, each with its relevance from 0 to 1.

        Args:
            query: Words such as "rust ci".
            toolchain: Only of this toolchain.
        """
        found = (await self._catalogue()).select(toolchain)
        hits = await asyncio.to_thread(search_templates, query, found)
        return [
            SearchResult(
                hit.template.uri,
                hit.template.name,
                hit.template.description,
                hit.relevance,
                hit.matched,
            )
            for hit in hits
        ]

    @method(title="Describe a template", read_only=True, open_world=False)
    async def describe_template(self, resource_uri: str) -> TemplateDetails:
        """Describe a template: its text, its source, and the JSON Schema of its parameters.

        Args:
            resource_uri: URI of the template, such as template://makefile/rust/cli.
        """
        found = (await self._catalogue()).get(resource_uri)
        return TemplateDetails(
            found.uri,
            found.name,
            found.description,
            found.category,
            found.toolchain,
            found.variant,
            found.version,
            found.hash,
            found.source,
            found.mime_type,
            found.path,
            list(found.tags),
            describe_parameters(found.parameters),
            found.text,
        )

    # --- resources --------------------------------------------------------------------------------

    @resource(TEMPLATE_URI, name="template", title="Text of a template")
    async def read_template(self, category: str, toolchain: str, variant: str) -> Resource:
        """The text of a template, before anything is generated.

        Args:
            category: Category, such as makefile.
            toolchain: Toolchain, such as rust.
            variant: Variant, such as cli.
        """
        uri = f"template://{category}/{toolchain}/{variant}"
        parse_uri(uri)
        found = (await self._catalogue()).get(uri)
        return Resource(found.uri, found.name, found.mime_type, found.text)

    async def resources(
        self,
        principal: Principal,  # noqa: ARG002 - all principals see the same templates
        after: str | None,
        limit: int,
    ) -> list[ResourceInfo]:
        """Return a page of templates."""
        found = [
            ResourceInfo(
                each.uri,
                each.name,
                description=each.description,
                mime_type=each.mime_type,
                size=len(each.text.encode()),
            )
            for each in (await self._catalogue()).templates
            if after is None or each.uri > after
        ]
        return found[:limit]

    @completer("generate_template", "resource_uri")
    @completer("validate_template", "resource_uri")
    @completer("describe_template", "resource_uri")
    async def suggest_uris(self, value: str, _given: dict[str, str]) -> list[str]:
        """Return URIs that start with this prefix."""
        return _starting(value, (await self._catalogue()).uris)

    @completer("list_templates", "toolchain")
    @completer("search_templates", "toolchain")
    @completer("scaffold_project", "toolchain")
    @completer("read_template", "toolchain")
    async def suggest_toolchains(self, value: str, given: dict[str, str]) -> list[str]:
        """Return toolchains that start with this prefix, of the given category."""
        found = _matching(await self._catalogue(), category=given.get("category"))
        return _starting(value, sorted({each.toolchain for each in found}))

    @completer("list_templates", "category")
    @completer("read_template", "category")
    async def suggest_categories(self, value: str, given: dict[str, str]) -> list[str]:
        """Return categories that start with this prefix, of the given toolchain."""
        found = _matching(await self._catalogue(), toolchain=given.get("toolchain"))
        return _starting(value, sorted({each.category for each in found}))

    @completer("read_template", "variant")
    async def suggest_variants(self, value: str, given: dict[str, str]) -> list[str]:
        """Return variants that start with this prefix, of the given category and toolchain."""
        found = _matching(await self._catalogue(), given.get("category"), given.get("toolchain"))
        return _starting(value, sorted({each.variant for each in found}))

    # --- hooks ------------------------------------------------------------------------------------

    async def check_health(self) -> str:
        """Return the number of templates and what could not be used.

        Raises Failed if a folder or a package cannot be read.
        """
        catalogue = await self._catalogue()
        if catalogue.failures:
            source, reason = next(iter(catalogue.failures.items()))
            raise Failed(f"the templates of {source} are missing: {reason}")
        found = f"{len(catalogue.templates)} templates"
        if not catalogue.problems:
            return found
        where, problem = next(iter(catalogue.problems.items()))
        return f"{found}; {len(catalogue.problems)} files are not used, first {where}: {problem}"

    async def close(self) -> None:
        """End the render processes."""
        await self._renderer.close()

    async def _catalogue(self) -> Catalogue:
        """Return the templates, and notify clients if they have changed."""
        catalogue, changed = await self._library.catalogue()
        if changed:
            self.plexus.notify(Change("resources"))
        return catalogue


def _info(template: Template) -> TemplateInfo:
    return TemplateInfo(
        template.uri,
        template.name,
        template.description,
        template.mime_type,
        template.path,
        [each.name for each in template.parameters if each.required],
        [each.name for each in template.parameters if not each.required],
    )


def _matching(
    catalogue: Catalogue, category: str | None = None, toolchain: str | None = None
) -> Sequence[Template]:
    """Return the templates of a category and a toolchain; empty and missing ones mean all."""
    return [
        each
        for each in catalogue.templates
        if category in (None, "", each.category) and toolchain in (None, "", each.toolchain)
    ]


def _starting(value: str, values: Sequence[str]) -> list[str]:
    return [each for each in values if each.startswith(value)][:MAX_SUGGESTIONS]

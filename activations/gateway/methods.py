"""The methods of a mount, made from the definitions of the other server.

Each tool and each prompt is a method; one method reads all resources. Nothing here is trusted: a
definition that has another form than it should is put right, so that lists, search and schemas of
all other methods work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from activations.gateway.argument_schema import compile_schema
from activations.gateway.catalogue import Catalogue
from activations.gateway.mounted_tool import (
    CONTEXT,
    MountedTool,
    describe,
    parameters_of,
    summarise,
    title_of,
)
from activations.gateway.names import (
    MountTemplate,
    method_names,
    outer_uri,
    variables_of,
)
from activations.gateway.visible_text import show_invisible
from plexus.activation import Hints, ResourceMark
from plexus.principal import Principal
from plexus.registry.activation_tree import NAME_LENGTH
from plexus.registry.roles import Completer
from plexus.registry.signature import MethodSpec
from plexus.registry.uri_templates import Template

if TYPE_CHECKING:  # imported for annotations only: it imports this module
    from activations.gateway.mount import Mount

__all__ = ("mount_methods",)

#: The name under which the caller is passed to a completer.
PRINCIPAL: Final = "principal"
#: The method that reads resources, and the ends of names that would otherwise exist twice.
READ: Final = "read_resource"
PROMPT: Final = "_prompt"
TEMPLATE: Final = "_template"
NO_HINTS: Final = Hints()


def mount_methods(mount: Mount, catalogue: Catalogue) -> list[MethodSpec]:
    """Return the methods of a mount."""
    config = mount.config
    offered = {name: each for name, each in catalogue.tools.items() if config.offers(name)}
    waiting = [name for name in catalogue.held if config.offers(name)]
    names = method_names(config.name, {*offered, *waiting}, config.rename)
    specs: dict[str, MethodSpec] = {
        names[tool]: MountedTool(
            mount, names[tool], tool, definition, is_held=tool in catalogue.held
        )
        for tool, definition in offered.items()
    }
    for tool in waiting:
        if names[tool] not in specs:
            definition = {"name": tool, "description": "Held until a person approves it."}
            specs[names[tool]] = MountedTool(mount, names[tool], tool, definition, is_held=True)
    for prompt in catalogue.prompts:
        name = method_names(config.name, [prompt["name"]], {})[prompt["name"]]
        for free in (name, name + PROMPT):
            if free not in specs and len(free) <= NAME_LENGTH:
                specs[free] = _prompt(mount, free, prompt)
                break
    if catalogue.resources or catalogue.templates:
        specs |= _resources(mount, specs, catalogue.templates)
    return list(specs.values())


def _validate_first(
    spec: MethodSpec, schema: dict[str, Any], arguments: dict[str, Any]
) -> dict[str, Any]:
    """Compile the schema of a tool at its first call."""
    spec.validate = compile_schema(spec.name, schema)
    return spec.validate(arguments)


def _prompt(mount: Mount, name: str, prompt: dict[str, Any]) -> MethodSpec:
    listed = prompt.get("arguments")
    properties: dict[str, Any] = {}
    required: list[str] = []
    for each in listed if isinstance(listed, list) else ():
        if isinstance(each, dict) and isinstance(each.get("name"), str):
            text = each.get("description")
            described = show_invisible(text) if isinstance(text, str) else ""
            properties[each["name"]] = {"type": "string", "description": described}
            if each.get("required") is True:
                required.append(each["name"])
    schema = {"type": "object", "properties": properties, "required": required}
    spec = _spec(
        mount,
        name,
        partial(_get_prompt, mount, prompt["name"]),
        description=prompt.get("description", ""),
        title=prompt.get("title"),
        schema=schema | {"additionalProperties": False},
        role="prompt",
    )
    spec.validate = partial(_validate_first, spec, spec.given_schema or {})
    _add_completers(spec, mount, {"type": "ref/prompt", "name": prompt["name"]}, properties)
    return spec


def _add_completers(
    spec: MethodSpec, mount: Mount, ref: dict[str, str], names: Iterable[str]
) -> None:
    """Let the server suggest values for these arguments."""
    for name in names:
        spec.completers[name] = Completer(partial(_complete, mount, ref, name), PRINCIPAL)


def _resources(
    mount: Mount, taken: Iterable[str], templates: list[dict[str, Any]]
) -> dict[str, MethodSpec]:
    """Return the method that reads every resource, and one entry for each template."""
    path, names = mount.config.name, set(taken)
    name = next(
        each for each in (f"{path}.{READ}", f"{path}.{READ}_of_server") if each not in names
    )
    reader = _reader(mount, name, "Read a resource of the server.", MountTemplate(path))
    specs = {name: reader}
    for number, each in enumerate(templates, 1):
        inner = each.get("uriTemplate")
        if not isinstance(inner, str):
            continue
        template = _ListedTemplate(outer_uri(path, inner))
        label, kind = each.get("name"), each.get("mimeType")
        described = each.get("description", "")
        entry = _reader(mount, f"{path}.{READ}{TEMPLATE}_{number}", described, template)
        entry.resource = ResourceMark(
            template.uri,
            label if isinstance(label, str) else None,
            None,
            kind if isinstance(kind, str) else None,
        )
        _add_completers(entry, mount, {"type": "ref/resource", "uri": inner}, variables_of(inner))
        specs[entry.name] = entry
    return specs


class _ListedTemplate(Template):
    """A template of the other server: it is listed, and its URIs are read by the mount's own."""

    def __init__(self, uri: str) -> None:
        super().__init__(uri.partition("{")[0] + "{rest}")
        self.uri = self.shape = uri

    def match(self, uri: str) -> dict[str, str] | None:  # noqa: ARG002 - the base has it
        """Match nothing."""
        return None


def _reader(mount: Mount, name: str, description: Any, template: Template) -> MethodSpec:
    uri = {"type": "string", "description": "URI at the server."}
    schema = {"type": "object", "properties": {"uri": uri}, "required": ["uri"]}
    spec = _spec(
        mount,
        name,
        partial(_read_resource, mount),
        description=description,
        title=None,
        schema=schema,
        role="resource",
        hints=Hints(read_only=True),
    )
    spec.template = template
    spec.resource = ResourceMark(template.uri, None, None, None)
    spec.validate = partial(_validate_first, spec, schema)
    return spec


def _spec(
    mount: Mount,
    name: str,
    function: Callable[..., Any],
    *,
    description: Any,
    title: str | None,
    schema: dict[str, Any],
    role: Any = "method",
    hints: Hints = NO_HINTS,
    listed: bool = True,
    audience: Any = "client",
    alias: str | None = None,
    **given: Any,
) -> MethodSpec:
    text = describe(description)
    config = mount.config
    return MethodSpec(
        name=name,
        owner=mount,
        function=function,
        source=function,
        kind="stream",
        title=title_of(title),
        summary=summarise(text),
        description=text,
        parameters=tuple(parameters_of(schema)),
        events=(),
        data=Any,
        yields=(),
        is_open=True,
        returns=None,
        deadline_s=config.timeout_s or "default",
        context_name=CONTEXT,
        principal_name=None,
        role=role,
        hints=hints,
        background="optional",
        scope=config.required_scope,
        listed=listed,
        max_result_chars=None,
        given_schema=schema,
        resource=None,
        template=None,
        name_template=None,
        audience=audience,
        alias=alias,
        **given,
    )


def _get_prompt(mount: Mount, prompt: str, /, **arguments: Any) -> Any:
    ctx = arguments.pop(CONTEXT)
    return mount.calls.get_prompt(ctx, prompt, arguments)


async def _complete(
    mount: Mount,
    ref: dict[str, str],
    argument: str,
    value: str,
    given: dict[str, str],
    **caller: Principal,
) -> list[str]:
    typed = {"name": argument, "value": value}
    return await mount.calls.complete(caller[PRINCIPAL], ref, typed, given)


def _read_resource(mount: Mount, /, **arguments: Any) -> Any:
    ctx = arguments.pop(CONTEXT)
    return mount.calls.read_resource(ctx, arguments["uri"])

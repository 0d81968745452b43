"""The resources and prompts of a hub: find one by its URI or name, and list them in pages.

A list is sorted by URI or name across all activations, so that each page starts where the previous
one ended, even if entries were added or removed in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import nsmallest
from typing import Any, Literal, TypeAlias, TypeVar

from plexus.activation import Activation, PromptInfo, ResourceInfo
from plexus.errors import Internal, NotFound, RegistrationError
from plexus.principal import Principal
from plexus.registry.roles import read_variable
from plexus.registry.signature import MethodSpec
from plexus.registry.uri_templates import NameTemplate

__all__ = ("Prompts", "Resources")

#: What an activation can list, which is also the name of the hook.
ListName: TypeAlias = Literal["resources", "prompts"]
#: Returns whether the caller can see the entry with this key.
IsVisible: TypeAlias = Callable[[str], bool]
E = TypeVar("E", ResourceInfo, PromptInfo)


class Resources:
    """Resources by URI. Built again whenever an activation is registered."""

    def __init__(self, specs: Iterable[MethodSpec]) -> None:
        """Raise RegistrationError if two methods read the same URI."""
        self._fixed: dict[str, MethodSpec] = {}
        self._open: list[MethodSpec] = []
        shapes: dict[str, MethodSpec] = {}
        for spec in specs:
            if spec.template is None:
                continue
            other = shapes.setdefault(spec.template.shape, spec)
            if other is not spec:
                raise RegistrationError(
                    f"{type(spec.owner).__name__}: {spec.name} and {other.name} read the same "
                    f"uri {spec.template.uri!r}"
                )
            if spec.template.fixed:
                self._fixed[spec.template.uri] = spec
            else:
                self._open.append(spec)
        # If several match, the most specific wins.
        self._open.sort(key=_openness)

    def find(self, uri: str) -> tuple[MethodSpec, dict[str, Any]]:
        """Return the method that reads this URI, and its arguments. Raises NotFound."""
        spec = self._fixed.get(uri)
        if spec is not None:
            return spec, {}
        for spec in self._open:
            arguments = _arguments(spec, uri)
            if arguments is not None:
                return spec, arguments
        raise NotFound(
            f"Unknown resource {uri[:200]!r}. List resources with plexus.resources.",
            data={"uri": uri},
        )

    async def page(
        self,
        activations: Iterable[Activation],
        principal: Principal,
        after: str | None,
        limit: int,
    ) -> list[ResourceInfo]:
        """Return the first `limit` resources after this URI, of all activations."""
        fixed = {
            uri: _resource_info(spec)
            for uri, spec in self._fixed.items()
            if principal.may(spec.scope)
        }
        is_visible = _visibility_filter(self._open, self.find, principal)
        return await _page("resources", activations, fixed, principal, after, limit, is_visible)


def _openness(spec: MethodSpec) -> tuple[int, str]:
    assert spec.template is not None, "a resource has a URI"
    return -spec.template.weight, spec.template.uri


def _arguments(spec: MethodSpec, uri: str) -> dict[str, Any] | None:
    assert spec.template is not None, "a resource has a URI"
    values = spec.template.match(uri)
    if values is None:
        return None
    try:
        return {
            parameter.name: read_variable(parameter, values[parameter.name])
            for parameter in spec.parameters
            if parameter.name in values
        }
    except ValueError:
        return None


def _resource_info(spec: MethodSpec) -> ResourceInfo:
    mark = spec.resource
    assert mark is not None, "a resource has a URI"
    name = mark.name or spec.name
    return ResourceInfo(mark.uri, name, mark.title, spec.description, mark.mime_type)


class Prompts:
    """Prompts by name. Built again whenever an activation is registered."""

    def __init__(self, specs: Iterable[MethodSpec]) -> None:
        """Raise RegistrationError if two methods render the same prompts."""
        self._fixed: dict[str, MethodSpec] = {}
        self._aliases: dict[str, MethodSpec] = {}
        by_prefix: dict[str, tuple[NameTemplate, MethodSpec]] = {}
        for spec in specs:
            if spec.role != "prompt":
                continue
            if spec.alias is not None:
                self._aliases[spec.alias] = spec
            template = spec.name_template
            if template is None:
                self._fixed[spec.name] = spec
                continue
            _, other = by_prefix.setdefault(template.prefix, (template, spec))
            if other is not spec:
                raise RegistrationError(
                    f"{type(spec.owner).__name__}: {spec.name} and {other.name} render the same "
                    f"prompts {template.text!r}"
                )
        # If several match, the most specific wins.
        self._open = [by_prefix[prefix] for prefix in sorted(by_prefix, key=len, reverse=True)]

    def find(self, name: str) -> tuple[MethodSpec, dict[str, Any]]:
        """Return the method that renders this prompt, and the arguments that the name contains.

        Raises NotFound.
        """
        spec = self._fixed.get(name) or self._aliases.get(name)
        if spec is not None:
            return spec, {}
        for template, spec in self._open:
            value = template.match(name)
            if value is not None and _fits(spec, template.variable, value):
                return spec, {template.variable: value}
        raise NotFound(
            f"Unknown prompt {name[:200]!r}. List prompts with plexus.prompts.", data={"name": name}
        )

    async def page(
        self,
        activations: Iterable[Activation],
        principal: Principal,
        after: str | None,
        limit: int,
    ) -> list[PromptInfo]:
        """Return the first `limit` prompts after this name, of all activations."""
        fixed = {
            name: PromptInfo(name, spec.title, spec.description)
            for name, spec in self._fixed.items()
            if principal.may(spec.scope)
        }
        is_visible = _visibility_filter((spec for _, spec in self._open), self.find, principal)
        return await _page("prompts", activations, fixed, principal, after, limit, is_visible)


def _fits(spec: MethodSpec, variable: str, value: str) -> bool:
    """Return whether a parameter accepts this value; one with listed values accepts only those."""
    parameter = next(each for each in spec.parameters if each.name == variable)
    try:
        read_variable(parameter, value)
    except ValueError:
        return False
    return True


# --- pages ------------------------------------------------------------------------------------


def _visibility_filter(
    specs: Iterable[MethodSpec],
    find: Callable[[str], tuple[MethodSpec, dict[str, Any]]],
    principal: Principal,
) -> IsVisible | None:
    """Return which entries of these methods a principal can see; None for all.

    `find` looks up the method of an entry.
    """
    if all(principal.may(spec.scope) for spec in specs):
        return None

    def is_visible(key: str) -> bool:
        try:
            return principal.may(find(key)[0].scope)
        except NotFound:  # an activation lists an entry that no method provides
            return False

    return is_visible


async def _page(
    what: ListName,
    activations: Iterable[Activation],
    fixed: dict[str, E],
    principal: Principal,
    after: str | None,
    limit: int,
    is_visible: IsVisible | None,
) -> list[E]:
    """Return the first `limit` entries after this key.

    `activations` are those with a list hook; `fixed` are the entries that always exist. Without
    `is_visible`, all entries are included.
    """
    found: dict[str, E] = {}
    for activation in activations:
        try:
            listed: list[E] = await _listed(what, activation, principal, after, limit, is_visible)
        # A plugin may raise any exception; the entries of the others are still listed.
        except Exception as error:  # noqa: BLE001
            Internal.report(f"listing the {what} of {activation.namespace}", error)
        else:
            found |= {entry[0]: entry for entry in listed}
    found |= fixed
    beyond = [key for key in found if after is None or key > after]
    return [found[key] for key in nsmallest(limit, beyond)]


async def _listed(
    what: ListName,
    activation: Activation,
    principal: Principal,
    after: str | None,
    limit: int,
    is_visible: IsVisible | None,
) -> list[E]:
    """Return the first `limit` visible entries of one activation."""
    found: list[E] = []
    while True:
        page: list[E] = await getattr(activation, what)(principal, after, limit)
        if is_visible is None:
            return page
        found += [entry for entry in page if is_visible(entry[0])]
        # Stop if a hook ignores `after` and returns the same entries again.
        ended = not page or len(page) < limit or (after is not None and page[-1][0] <= after)
        if ended or len(found) >= limit:
            return found
        after = page[-1][0]

"""The resources and prompts of a hub: find one by its address or name, and list them in pages.

A list has one order, that of the addresses or names in it, over all activations, so that a page
begins where the one before it ended, whatever came and went meanwhile.
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

#: What an activation may list, which is also what the method that does is called.
ListName: TypeAlias = Literal["resources", "prompts"]
#: Whether the entry of this key is for whoever asks.
IsVisible: TypeAlias = Callable[[str], bool]
E = TypeVar("E", ResourceInfo, PromptInfo)


class Resources:
    """What can be read by its address. Made anew whenever an activation is registered."""

    def __init__(self, specs: Iterable[MethodSpec]) -> None:
        """Raises RegistrationError if two methods read the same address."""
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
        # Where several fit, the one that leaves the least open is meant.
        self._open.sort(key=_openness)

    def find(self, uri: str) -> tuple[MethodSpec, dict[str, Any]]:
        """The method that reads this address, and its arguments; raises NotFound."""
        spec = self._fixed.get(uri)
        if spec is not None:
            return spec, {}
        for spec in self._open:
            arguments = _arguments(spec, uri)
            if arguments is not None:
                return spec, arguments
        raise NotFound(f"there is no resource {uri[:200]}", data={"uri": uri})

    async def page(
        self,
        activations: Iterable[Activation],
        principal: Principal,
        after: str | None,
        limit: int,
    ) -> list[ResourceInfo]:
        """The first so many resources after this address, of all activations."""
        fixed = {
            uri: _resource_info(spec)
            for uri, spec in self._fixed.items()
            if principal.may(spec.scope)
        }
        is_visible = _visibility_filter(self._open, self.find, principal)
        return await _page("resources", activations, fixed, principal, after, limit, is_visible)


def _openness(spec: MethodSpec) -> tuple[int, str]:
    assert spec.template is not None, "a resource has an address"
    return -spec.template.weight, spec.template.uri


def _arguments(spec: MethodSpec, uri: str) -> dict[str, Any] | None:
    assert spec.template is not None, "a resource has an address"
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
    there = spec.resource
    assert there is not None, "a resource has an address"
    name = there.name or spec.name
    return ResourceInfo(there.uri, name, there.title, spec.description, there.mime_type)


class Prompts:
    """What can be asked for by its name. Made anew whenever an activation is registered."""

    def __init__(self, specs: Iterable[MethodSpec]) -> None:
        """Raises RegistrationError if two methods make the same prompts."""
        self._fixed: dict[str, MethodSpec] = {}
        by_prefix: dict[str, tuple[NameTemplate, MethodSpec]] = {}
        for spec in specs:
            if spec.role != "prompt":
                continue
            template = spec.name_template
            if template is None:
                self._fixed[spec.name] = spec
                continue
            _, other = by_prefix.setdefault(template.prefix, (template, spec))
            if other is not spec:
                raise RegistrationError(
                    f"{type(spec.owner).__name__}: {spec.name} and {other.name} make the same "
                    f"prompts {template.text!r}"
                )
        # Where several fit, the one that leaves the least open is meant.
        self._open = [by_prefix[prefix] for prefix in sorted(by_prefix, key=len, reverse=True)]

    def find(self, name: str) -> tuple[MethodSpec, dict[str, Any]]:
        """The method that makes this prompt, and what the name says of its arguments; raises
        NotFound."""
        spec = self._fixed.get(name)
        if spec is not None:
            return spec, {}
        for template, spec in self._open:
            value = template.match(name)
            if value is not None and _fits(spec, template.variable, value):
                return spec, {template.variable: value}
        raise NotFound(f"there is no prompt {name[:200]}", data={"name": name})

    async def page(
        self,
        activations: Iterable[Activation],
        principal: Principal,
        after: str | None,
        limit: int,
    ) -> list[PromptInfo]:
        """The first so many prompts after this name, of all activations."""
        fixed = {
            name: PromptInfo(name, spec.title, spec.description)
            for name, spec in self._fixed.items()
            if principal.may(spec.scope)
        }
        is_visible = _visibility_filter((spec for _, spec in self._open), self.find, principal)
        return await _page("prompts", activations, fixed, principal, after, limit, is_visible)


def _fits(spec: MethodSpec, variable: str, value: str) -> bool:
    """Whether a parameter takes this value: one that lists its values takes no other."""
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
    """What a principal is shown of what these methods give and `find` finds; None for all."""
    if all(principal.may(spec.scope) for spec in specs):
        return None

    def is_visible(key: str) -> bool:
        try:
            return principal.may(find(key)[0].scope)
        except NotFound:  # an activation lists what no method gives
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
    """Return the first `limit` entries after this key. `activations` are those that have such a
    list of their own; `fixed` are the entries that are always there. Without `is_visible`
    everything is shown."""
    found: dict[str, E] = {}
    for activation in activations:
        try:
            listed: list[E] = await _listed(what, activation, principal, after, limit, is_visible)
        # Somebody else's code may raise anything, and what the others list is still there.
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
    """The first so many of one activation that are shown."""
    found: list[E] = []
    while True:
        page: list[E] = await getattr(activation, what)(principal, after, limit)
        if is_visible is None:
            return page
        found += [entry for entry in page if is_visible(entry[0])]
        # Whoever leaves out what is asked for, and says the same again, is not asked again.
        ended = not page or len(page) < limit or (after is not None and page[-1][0] <= after)
        if ended or len(found) >= limit:
            return found
        after = page[-1][0]

"""The resources of a hub: finding the one that an address means, and listing those there are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from plexus.activation import Activation, ResourceInfo
from plexus.errors import NotFound, RegistrationError
from plexus.principal import Principal
from plexus.registry.pagination import page_of, shown
from plexus.registry.roles import read_variable
from plexus.registry.signature import MethodSpec

__all__ = ("Resources",)


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
            uri: _listed(spec) for uri, spec in self._fixed.items() if principal.may(spec.scope)
        }
        shows = shown(self._open, self.find, principal)
        return await page_of("resources", activations, fixed, principal, after, limit, shows)


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


def _listed(spec: MethodSpec) -> ResourceInfo:
    there = spec.resource
    assert there is not None, "a resource has an address"
    name = there.name or spec.name
    return ResourceInfo(there.uri, name, there.title, spec.description, there.mime_type)

"""The prompts of a hub: finding the one that a name means, and listing those there are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from plexus.activation import Activation, PromptInfo
from plexus.errors import NotFound, RegistrationError
from plexus.principal import Principal
from plexus.registry.pagination import page_of, shown
from plexus.registry.roles import read_variable
from plexus.registry.signature import MethodSpec
from plexus.registry.uri_templates import NameTemplate

__all__ = ("Prompts",)


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
        shows = shown((spec for _, spec in self._open), self.find, principal)
        return await page_of("prompts", activations, fixed, principal, after, limit, shows)


def _fits(spec: MethodSpec, variable: str, value: str) -> bool:
    """Whether a parameter takes this value: one that lists its values takes no other."""
    parameter = next(each for each in spec.parameters if each.name == variable)
    try:
        read_variable(parameter, value)
    except ValueError:
        return False
    return True

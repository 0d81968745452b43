"""Requirements of the options `restart`, `record` and `on_disconnect` of a method.

They are checked at registration, like all of a method; see `plexus.registry.signature`.
"""

from __future__ import annotations

import typing
from typing import TYPE_CHECKING, Any, Final

from plexus.activation import OnDisconnect, Record, Restart
from plexus.errors import RegistrationError

if TYPE_CHECKING:  # imported for annotations only: signature imports this module
    from plexus.registry.signature import MethodSpec

__all__ = ("check_run_options",)

#: The allowed values of each option. None stands for the operator's setting.
_ALLOWED: Final[dict[str, tuple[Any, ...]]] = {
    "restart": typing.get_args(Restart),
    "record": (*typing.get_args(Record), None),
    "on_disconnect": (*typing.get_args(OnDisconnect), None),
}


def check_run_options(spec: MethodSpec, where: str) -> None:
    """Raise RegistrationError if an option has a wrong value or does not fit the method."""
    for name, allowed in _ALLOWED.items():
        value = getattr(spec, name)
        if value not in allowed:
            listed = ", ".join(map(repr, allowed))
            raise RegistrationError(f"{where}: {name} is {value!r}; it must be one of {listed}")
    if spec.restart != "never":
        _check_restart(spec, where)


def _check_restart(spec: MethodSpec, where: str) -> None:
    subject = f"{where}: restart={spec.restart!r}"
    if spec.kind == "follow":
        raise RegistrationError(f"{subject}: follows=True starts no run; remove one of them")
    if spec.control:
        raise RegistrationError(f"{subject}: a control method is short; remove restart or control")
    if spec.record == "off":
        raise RegistrationError(
            f'{subject}: a run that is not recorded cannot be restarted; remove record="off"'
        )
    if spec.secret_names:
        raise RegistrationError(
            f"{subject}: the secret argument {min(spec.secret_names)!r} is not stored, so a "
            "restart could not pass it; read it from the environment, or remove restart"
        )

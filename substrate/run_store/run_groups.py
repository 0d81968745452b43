"""Groups of recorded runs: what the runs of one method and one caller have in common."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from plexus.events import Complete, Result, outcome_of
from plexus.registry.plain_types import is_immutable
from plexus.registry.signature import MethodSpec
from plexus.runtime.hub import Plexus
from plexus.runtime.run import LocalRun, Run
from substrate.run_store.policy import RecordPolicy, RetentionPolicy
from substrate.run_store.redaction import describe_call
from substrate.run_store.schema import STATE_NUMBERS, storable_text

__all__ = ("Group", "GroupKey", "Groups")

#: Events that end a run successfully and have no exit code.
SUCCESSES: Final = (Result, Complete)
#: Maximum number of groups: clients may have endless names.
MAX_GROUPS: Final = 20_000

#: The method, the principal, the client and the agent session of a run.
GroupKey: TypeAlias = tuple[str, str, str | None, str]


class Group:
    """What the runs of one method, principal, client and agent session have in common."""

    __slots__ = (
        "_retention",
        "_success",
        "has_short_runs",
        "hidden",
        "method",
        "mode",
        "number",
        "restart",
        "row",
        "secret_names",
    )

    def __init__(
        self,
        number: int,
        spec: MethodSpec | None,
        run: Run,
        mode: str,
        retention: RetentionPolicy,
        *,
        may_restart: bool = False,
    ) -> None:
        self.number = number
        self.method = run.method
        self.mode = mode
        self.secret_names: frozenset[str] = frozenset() if spec is None else spec.secret_names
        #: The arguments that the hub adds, which are not the caller's.
        added = () if spec is None else (spec.principal_name, spec.context_name)
        self.hidden = frozenset(name for name in added if name is not None)
        scope = run.method.partition(".")[0] if spec is None else spec.scope
        #: Whether its runs can be restarted, as the method declares it.
        self.restart = "never" if spec is None or mode != "all" else spec.restart
        #: Whether its runs need no cursor while they are short.
        self.has_short_runs = mode == "all" and self.restart == "never"
        self._retention = retention
        #: How the end of a run that succeeds is recorded.
        kept_ms = retention.kept_ms(run.method, "succeeded")
        self._success = (STATE_NUMBERS[Complete.type], "succeeded", None, kept_ms)
        scopes, credential = run.principal.scopes, run.principal.credential
        self.row = [
            number,
            run.method,
            scope,
            run.principal.name,
            storable_text(run.client or ""),
            mode,
            self.restart if may_restart else "never",
            None if scopes is None or not may_restart else " ".join(sorted(scopes)),
            storable_text(run.agent_session),
            None if credential is None or not may_restart else credential.hex(),
        ]

    def own_arguments(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the arguments that are the caller's."""
        if not self.hidden:
            return arguments
        return {name: value for name, value in arguments.items() if name not in self.hidden}

    def describe(self, arguments: Mapping[str, Any]) -> tuple[str, str]:
        """Return the redacted arguments of a call and its summary, or empty texts for metadata."""
        if self.mode == "metadata":
            return "", ""
        return describe_call(self.method, self.own_arguments(arguments), self.secret_names)

    def ending(self, run: Run) -> tuple[int, str, int | None, int]:
        """Return the last state of a run, its outcome, its exit code, and how long it is kept."""
        terminal = run.terminal
        assert terminal is not None, "a run that has ended has a terminal"
        if terminal.__class__ in SUCCESSES:
            return self._success
        found = outcome_of(terminal)
        outcome = found["outcome"]
        kept_ms = self._retention.kept_ms(self.method, outcome)
        return STATE_NUMBERS[terminal.type], outcome, found.get("exit_code"), kept_ms


class Groups:
    """The groups of the runs of a hub."""

    def __init__(self, hub: Plexus, record: RecordPolicy, retention: RetentionPolicy) -> None:
        self._hub = hub
        self._record = record
        self._retention = retention
        self._numbers = itertools.count()
        #: Methods that are known to be recorded completely, not to be restarted, and to have
        #: arguments that cannot change: their runs need nothing but a reference while they are
        #: short.
        self.simple: set[str] = set()
        #: The known groups; None for one whose runs are not recorded.
        self.known: dict[GroupKey, Group | None] = {}
        #: Groups of runs that can be restarted: these keep the scopes and the credentials of their
        #: callers too.
        self._restartable: dict[tuple[int, frozenset[str] | None, bytes | None], Group] = {}

    def of(self, run: Run) -> Group | None:
        """Return the group of a run; None if it is not recorded."""
        if run.purpose != "work":
            return None
        key = (run.method, run.principal.name, run.client, run.agent_session)
        if key in self.known:
            return self.known[key]
        if len(self.known) + len(self._restartable) > MAX_GROUPS:
            self.known.clear()
            self._restartable.clear()
        spec = self._hub.find_method(run.method)
        mode = self._record.mode(run.method, None if spec is None else spec.record)
        group = None
        if mode != "off":
            group = Group(next(self._numbers), spec, run, mode, self._retention)
            if group.has_short_runs and spec is not None and _has_immutable_arguments(spec):
                self.simple.add(run.method)
        self.known[key] = group
        return group

    def sort(self, runs: Sequence[LocalRun]) -> list[tuple[Group, list[LocalRun]]]:
        """Return runs that are recorded by their groups."""
        members: dict[int, tuple[Group, list[LocalRun]]] = {}
        found: list[LocalRun] = []
        last: LocalRun | None = None
        for run in runs:
            # Consecutive runs mostly have the same group, which is seen without looking it up.
            if (
                last is None
                or run.method is not last.method
                or run.principal is not last.principal
                or run.client is not last.client
                or run.agent_session is not last.agent_session
            ):
                last = run
                group = self.of(run)
                found = [] if group is None else members.setdefault(group.number, (group, []))[1]
            found.append(run)
        return list(members.values())

    def clear(self) -> None:
        """Forget all groups, because methods have changed."""
        self.known.clear()
        self._restartable.clear()
        self.simple.clear()

    def find_restartable(self, group: Group, run: Run) -> Group:
        """Return the group of those runs of a group that can be restarted for this caller."""
        key = (group.number, run.principal.scopes, run.principal.credential)
        found = self._restartable.get(key)
        if found is None:
            spec = self._hub.find_method(run.method)
            number = next(self._numbers)
            found = Group(number, spec, run, group.mode, self._retention, may_restart=True)
            self._restartable[key] = found
        return found


def _has_immutable_arguments(spec: MethodSpec) -> bool:
    """Return whether the arguments of a method can be described as well after its run."""
    return not spec.is_open and all(
        each.factory is None and is_immutable(each.hint) for each in spec.parameters
    )

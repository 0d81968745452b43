"""The hub: registers activations, resolves their methods, and starts calls.

Views use the core only through the hub. The hub knows no view and no transport.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final

from plexus.activation import Activation, PromptInfo, ResourceInfo
from plexus.caller_connection import CallerConnection
from plexus.caller_environment import CallerEnvironment
from plexus.context import Context, RestartedContext, Stores
from plexus.errors import (
    Busy,
    Denied,
    NotFound,
    RegistrationError,
    UnknownMethod,
    Unsupported,
)
from plexus.events import Restarted
from plexus.limits import Limits
from plexus.principal import LOCAL, Principal
from plexus.registry import schema
from plexus.registry.activation_tree import (
    NAME_LENGTH,
    Node,
    check_node,
    describe,
    filter_scopes,
    methods_of,
    read_activation,
    walk,
    warn_undescribed,
)
from plexus.registry.catalogue import Prompts, Resources
from plexus.registry.lazy import resolve
from plexus.registry.selection import ALL, OFF, Selection
from plexus.registry.signature import MethodSpec
from plexus.registry.validation import nearest
from plexus.runtime.calls import Call, read_arguments
from plexus.runtime.changes import LISTS, Change, Notice, lists_of
from plexus.runtime.coarse_timers import CoarseTimers
from plexus.runtime.lifespans import Lifespans, close_activations
from plexus.runtime.pump import Pump
from plexus.runtime.question_feed import Questions
from plexus.runtime.run import LocalRun, Run
from plexus.runtime.runs import NotLoaded, Runs, random_numbers, unknown_run
from plexus.runtime.threads import WorkerThreads
from plexus.runtime.watched_resources import WatchedResources
from plexus.text import shorten
from plexus.version import __version__

if TYPE_CHECKING:  # imported by the processes that measure their load
    from plexus.runtime.load_history import LoadHistory

__all__ = ("Plexus",)

logger = logging.getLogger("plexus.runtime.hub")

#: Reason for callers and runs during shutdown.
STOPPING = "the server is stopping"
#: Maximum number of scope sets for which the schema is cached. Tokens may have any scopes.
MAX_SCHEMAS = 64
LOAD_HISTORY: Final = "plexus.runtime.load_history:LoadHistory"


class Plexus:
    """The activations and runs of a server."""

    def __init__(
        self,
        *,
        name: str = "substrate",
        limits: Limits | None = None,
        new_id: Callable[[], int] | None = None,
        selection: Selection = ALL,
    ) -> None:
        self.name = name
        self.version = __version__
        self.limits = limits or Limits()
        self.new_id = new_id or partial(next, random_numbers())
        self.runs = Runs(self.limits, self.new_id)
        self.pump = Pump()
        #: Timers of seconds, for whatever serves runs.
        self.timers = CoarseTimers()
        #: Worker threads of methods that block.
        self.threads = WorkerThreads(self.limits.worker_threads)
        #: Durable storage for activations; None if the program offers none.
        self.storage: Stores | None = None
        #: Returns the URL of a page that shows the runs of this hub, or None.
        self.find_page: Callable[[], str | None] = _no_page
        #: Parts of the program that activations use, by name.
        self.services: dict[str, Any] = {}
        self._lifespans = Lifespans()
        #: The operator's selection of methods.
        self.selection = selection
        #: Whether the hub serves clients. A hub of one command does not log what fails in the
        #: background, since the command may not use it.
        self.serves = True
        #: The feed of all questions of all runs.
        self.questions = Questions()
        #: Notices for clients about how this hub was set up.
        self.notices: list[Notice] = []
        self._nodes: dict[str, Node] = {}
        #: Replaced activations: their runs may continue, so they are closed with the hub.
        self._retired: list[Node] = []
        #: Reasons why namespaces are switched off.
        self.switched_off: dict[str, str] = {}
        #: Namespaces whose methods are not known yet: lists do not have them, but soon may.
        self.pending: set[str] = set()
        #: Reasons why plugins were not loaded, by their files or names.
        self.skipped: dict[str, str] = {}
        #: Returns what the program reports about its server: address, process, run store.
        self.describe_server: Callable[[], dict[str, Any]] = dict
        self._methods: dict[str, MethodSpec] = {}
        self._legacy: dict[str, str] = {}
        #: The scopes of all methods.
        self._scopes: frozenset[str] = frozenset()
        #: The schema, by the reader's scopes.
        self._schemas: dict[frozenset[str], dict[str, Any]] = {}
        #: Refuse new calls from outside; and, while closing, all calls.
        self.draining = False
        self._closing = False
        self._resources = Resources(())
        self._prompts = Prompts(())
        self._on_change: list[Callable[[Change], None]] = []
        #: The resources whose changes clients wait for.
        self.watched_resources = WatchedResources()

    @property
    def page_url(self) -> str | None:
        """URL of a page that shows the runs of this hub; None without one."""
        return self.find_page()

    @cached_property
    def load_history(self) -> LoadHistory:
        """The load of this process over time; created at its first use."""
        history: LoadHistory = resolve(LOAD_HISTORY)(self.runs)
        return history

    # --- activations --------------------------------------------------------------------------

    def register(
        self, activation: Activation | type[Activation] | Node, *, checked: bool = False
    ) -> None:
        """Register an activation and its children. Raises RegistrationError and changes nothing.

        It replaces an activation with the same namespace, whose runs continue. Types, defaults and
        texts are checked, unless the activation is already `checked`.
        """
        node = activation if isinstance(activation, Node) else read_activation(activation)
        if not checked:
            check_node(node)
            warn_undescribed(node)
        if not node.select(self.selection.allows):
            self.switched_off[node.path] = OFF
            return
        old = self._nodes.get(node.path)
        self._replace(old, node)
        for inner in walk(node):
            inner.attach(self)
        self._nodes[node.path] = node
        self.switched_off.pop(node.path, None)
        self._changed(node, old)

    def unregister(self, namespace: str) -> None:
        """Unregister an activation and its children. Runs in progress continue. Raises NotFound."""
        old = self._nodes.pop(namespace, None)
        if old is None:
            raise NotFound(f"Unknown activation {namespace!r}.")
        self._replace(old, None)
        self._changed(None, old)

    def _replace(self, old: Node | None, new: Node | None) -> None:
        """Replace the methods of one activation by those of another.

        Raises RegistrationError and changes nothing.
        """
        gone = set() if old is None else {spec.name for spec in methods_of(old)}
        methods = {name: spec for name, spec in self._methods.items() if name not in gone}
        legacy = {flat: name for flat, name in self._legacy.items() if name not in gone}
        added = {} if new is None else {spec.name: spec for spec in methods_of(new)}
        for name in added:
            flat = name.replace(".", "_")
            if flat in legacy:
                raise RegistrationError(
                    f"{name} and {legacy[flat]} differ only in dots and underscores, "
                    "which many clients do not distinguish; rename one of them"
                )
            legacy[flat] = name
        for name, spec in added.items():
            if spec.alias is None:
                continue
            other = legacy.setdefault(spec.alias, name)
            if other != name:
                raise RegistrationError(
                    f"{name}: the alias {spec.alias!r} is taken by {other}; choose another"
                )
        methods |= added
        resources, prompts = Resources(methods.values()), Prompts(methods.values())
        self._methods, self._legacy = methods, legacy
        self._resources, self._prompts = resources, prompts
        self._scopes = frozenset(spec.scope for spec in methods.values())

    def switch_off(self, namespace: str, reason: str) -> None:
        """Unregister an activation that must not be used until it is replaced. Raises NotFound."""
        self.unregister(namespace)
        self.switched_off[namespace] = reason

    def _changed(self, new: Node | None, old: Node | None) -> None:
        """Notify listeners of an activation that was added, removed or replaced."""
        if old is not None and not _is_same(old, new):
            self._retired.append(old)
        self._schemas.clear()
        touched = {change for node in (new, old) if node is not None for change in lists_of(node)}
        for change in LISTS.values():
            if change in touched:
                self.notify(change)

    def on_change(self, listener: Callable[[Change], None]) -> Callable[[], None]:
        """Subscribe to changes. Returns a function that unsubscribes."""
        self._on_change.append(listener)
        return partial(self._on_change.remove, listener)

    def notify(self, change: Change) -> None:
        """Notify all listeners of a change.

        Registration does this automatically. An activation calls this when one of its resources has
        changed, and when a resource or a prompt was added or removed.
        """
        for listener in self._on_change.copy():
            listener(change)

    def nodes(self) -> Iterator[Node]:
        """Yield every activation as a node, children after their parents."""
        return (node for root in self._nodes.values() for node in walk(root))

    def activations(self) -> Iterator[tuple[str, Activation]]:
        """Yield every activation with its path, children after their parents.

        Imports those that were not used yet; `nodes` imports nothing.
        """
        return ((node.path, node.activation) for node in self.nodes())

    def methods(self, principal: Principal = LOCAL) -> list[MethodSpec]:
        """Return the methods that this principal may call, sorted by name."""
        specs = (self._methods[name] for name in sorted(self._methods))
        return [spec for spec in specs if principal.may(spec.scope)]

    def scopes(self, principal: Principal = LOCAL) -> frozenset[str]:
        """Return the scopes of methods that this principal has.

        Two principals with the same result see the same methods.
        """
        if principal.scopes is None:
            return self._scopes
        return frozenset(filter(principal.may, self._scopes))

    def check_scope(self, spec: MethodSpec, principal: Principal) -> None:
        """Raise Denied if this principal may not call this method."""
        _check_scope(spec.name, spec.scope, principal)

    def resolve(self, name: str, principal: Principal = LOCAL) -> MethodSpec:
        """Return the method with this name, dotted or in the legacy spelling.

        Raises UnknownMethod, which names only methods that this principal may call.
        """
        spec = self.find_method(name)
        if spec is None:
            if not self.selection.allows(name):
                name = shorten(name, 2 * NAME_LENGTH)
                raise UnknownMethod(f"{name} is {OFF}.", data={"nearest": []})
            off = (each for each in self.switched_off if name.startswith((f"{each}.", f"{each}_")))
            namespace = next(off, None)
            if namespace is not None:
                reason = self.switched_off[namespace]
                raise UnknownMethod(
                    f"{namespace} is switched off: {reason}. Call health.check for details.",
                    data={"nearest": []},
                )
            near = nearest(name, [each.name for each in self.methods(principal)])
            hint = f" Did you mean {near[0]}?" if near else ""
            name = shorten(name, 2 * NAME_LENGTH)
            raise UnknownMethod(f"Unknown method {name!r}.{hint}", data={"nearest": near})
        return spec

    def find_method(self, name: str) -> MethodSpec | None:
        """Return the method with this name, dotted or in the legacy spelling, or None."""
        return self._methods.get(name) or self._methods.get(self._legacy.get(name, ""))

    def find_resource(self, uri: str) -> tuple[MethodSpec, dict[str, Any]]:
        """Return the method that reads this URI, and its arguments. Raises NotFound."""
        return self._resources.find(uri)

    async def list_resources(
        self, principal: Principal = LOCAL, after: str | None = None, limit: int = 100
    ) -> list[ResourceInfo]:
        """Return the first `limit` resources after this URI that the principal may read, sorted."""
        activations = [node.activation for node in self.nodes() if "resources" in node.hooks]
        return await self._resources.page(activations, principal, after, limit)

    def find_prompt(self, name: str) -> tuple[MethodSpec, dict[str, Any]]:
        """Return the method that renders this prompt, and the arguments that the name contains.

        Raises NotFound.
        """
        return self._prompts.find(name)

    async def list_prompts(
        self, principal: Principal = LOCAL, after: str | None = None, limit: int = 100
    ) -> list[PromptInfo]:
        """Return the first `limit` prompts after this name that the principal may use, sorted."""
        activations = [node.activation for node in self.nodes() if "prompts" in node.hooks]
        return await self._prompts.page(activations, principal, after, limit)

    def has_dynamic_prompts(self) -> bool:
        """Return whether an activation may list more prompts than it has methods."""
        return any("prompts" in node.hooks for node in self.nodes())

    # --- calls --------------------------------------------------------------------------------

    def call(
        self,
        method: str | MethodSpec,
        params: dict[str, Any] | list[Any] | None = None,
        principal: Principal = LOCAL,
        *,
        parent: Context | None = None,
        question_kinds: frozenset[str] | None = None,
        trace: Mapping[str, str] | None = None,
        client: str | None = None,
        caller: CallerEnvironment | None = None,
        connection: CallerConnection | None = None,
        lookups: bool = False,
    ) -> Call:
        """Start a run, or find an existing one; raises before any effect.

        `method` is a name or a resolved method; `parent` is the call that makes this one;
        `question_kinds` are those that the caller can answer, None for all; `trace` is the trace
        context that it sent; `client` is its name and version; `caller` is its environment, None
        for that of the server; `connection` is the one that it came from, if its end is known;
        `lookups` is whether it may be one that is not recorded. A call that another call makes has
        the client and the environment of that one.

        Raises NotLoaded if the call follows a run that must be loaded from the run store first: see
        `call_loaded`.
        """
        if self.draining and (parent is None or self._closing):
            raise Busy(STOPPING, code="stopping")
        if isinstance(method, str):
            spec = self._methods.get(method) or self.resolve(method, principal)
        else:
            spec = method
        if principal.scopes is not None:
            self.check_scope(spec, principal)
        arguments, options = read_arguments(spec, params, self.limits.errors_listed)
        if spec.principal_name is not None:
            arguments[spec.principal_name] = principal
        if spec.kind == "follow":
            run, after = spec.function(**arguments)
            return Call(run, after, False, False)
        key = options.key
        if key is not None:
            existing = self.runs.find_by_key(principal, key, spec.name)
            if existing is not None:
                existing.question_kinds = question_kinds  # another client may have resumed the run
                existing.on_disconnect = options.on_disconnect or existing.on_disconnect
                return Call(existing, options.after, True, False)
            if options.after:  # the run was evicted; resuming must not run it again
                raise NotFound(f"No run has the key {key!r}. Omit _after to start one.")
        deadline_s = self.limits.run_s if spec.deadline_s == "default" else spec.deadline_s
        parent_id = None if parent is None else parent.run_id
        purpose = spec.purpose
        if options.lookup and lookups and purpose == "work" and spec.hints.read_only:
            purpose = "control"
        run = self.runs.start(spec.name, principal, parent_id, deadline_s, key, purpose)
        run.question_kinds = question_kinds
        if parent is not None:
            client, caller = parent.client, parent.caller
        run.client = client
        run.caller = caller
        run.connection = connection
        run.on_disconnect = options.on_disconnect
        run.agent_session = self.runs.agent_session if caller is None else caller.agent_session
        if self.runs.is_observed:
            self.runs.notify_started(run, arguments, trace)
        if spec.context_name is not None:
            arguments[spec.context_name] = Context(self, run, parent)
        if spec.start is None or not self.pump.start_directly(run, spec.start, arguments):
            yields = spec.yields if spec.kind == "stream" else None
            self.pump.submit((run, spec.function, arguments, yields))
        return Call(run, 0, True, True)

    async def call_loaded(
        self, method: str, params: dict[str, Any] | None, principal: Principal, parent: Context
    ) -> Call:
        """Make a nested call; a run that it follows is loaded from the run store if necessary."""
        try:
            return self.call(method, params, principal, parent=parent)
        except NotLoaded as missing:
            await self.runs.load(missing.run_id, principal)
        return self.call(method, params, principal, parent=parent)

    async def fetch_run_to_control(self, run_id: int, principal: Principal) -> Run:
        """Return what `find_run_to_control` returns, from memory or from the run store."""
        run = await self.runs.fetch(run_id, principal)
        self.check_control(run, principal)
        return run

    def restart(
        self,
        method: str | MethodSpec,
        *,
        run_id: int,
        principal: Principal,
        arguments: dict[str, Any],
        epoch: int,
        checkpoint: bytes | None,
        first_seq: int,
        started_at: float,
        parent: int | None,
        key: str | None,
    ) -> LocalRun:
        """Start a method again under the number of a run whose process was lost.

        `arguments` are those of the call, as JSON values; `checkpoint` is the last one, as JSON;
        `first_seq` is the number of the first item, which is `Restarted`; `started_at` is when the
        run first started, on the monotonic clock of this process (see `monotonic_at`). The timeout
        of the run starts again.

        Raises, before any effect, UnknownMethod, Unsupported if the method does not declare a
        restart, Denied, InvalidParams, and Busy, also if the run is in progress here.
        """
        if self.draining:
            raise Busy(STOPPING, code="stopping")
        spec = self.resolve(method, principal) if isinstance(method, str) else method
        if spec.restart == "never":
            raise Unsupported(
                f'{spec.name} cannot be restarted. Declare @method(restart="from_start") or '
                'restart="from_checkpoint".'
            )
        self.check_scope(spec, principal)
        valid, _ = read_arguments(spec, arguments, self.limits.errors_listed)
        if spec.principal_name is not None:
            valid[spec.principal_name] = principal
        deadline_s = self.limits.run_s if spec.deadline_s == "default" else spec.deadline_s
        run = self.runs.start(spec.name, principal, parent, deadline_s, key, spec.purpose, run_id)
        run.started_at = started_at
        run.epoch = epoch
        run.checkpoint = checkpoint if spec.restart == "from_checkpoint" else None
        run.log.first = first_seq
        run.append(Restarted(epoch))
        if self.runs.is_observed:
            self.runs.notify_started(run, valid, None)
        if spec.context_name is not None:
            valid[spec.context_name] = RestartedContext(self, run)
        yields = spec.yields if spec.kind == "stream" else None
        self.pump.submit((run, spec.function, valid, yields))
        return run

    def find_run_to_control(self, run_id: int, principal: Principal) -> Run:
        """Return a run to cancel, to answer or to become the owner of.

        Raises NotFound if it is missing or belongs to another principal, and Denied without the
        scope of its method.
        """
        run = self.runs.find(run_id, principal)
        self.check_control(run, principal)
        return run

    def check_control(self, run: Run, principal: Principal) -> None:
        """Raise Denied if this principal may not cancel, answer or own one of its runs.

        All paths to a run use this check: another token of the same principal may have fewer scopes
        than the run was started with, and following a run needs none.
        """
        if run.principal != principal:
            raise unknown_run(run.id)
        if principal.scopes is None:
            return
        scope = run.find_scope(self._methods)
        if scope is None:
            # Its activation was unregistered, so its scope is unknown: fail closed.
            raise Denied(f"{run.method} is no longer registered, so its scope is unknown.")
        _check_scope(run.method, scope, principal)

    def may_control(self, run: Run, principal: Principal) -> bool:
        """Return whether `check_control` passes."""
        try:
            self.check_control(run, principal)
        except (Denied, NotFound):
            return False
        return True

    # --- schema and shutdown ------------------------------------------------------------------

    def schema(self, principal: Principal = LOCAL) -> dict[str, Any]:
        """Return the schema of all that this principal may call, with its hash.

        It is the same at every start of the same code.
        """
        scopes = self.scopes(principal)
        if scopes not in self._schemas:
            if len(self._schemas) >= MAX_SCHEMAS:
                self._schemas.clear()
            if scopes == self._scopes:
                roots = [describe(self._nodes[path]) for path in sorted(self._nodes)]
            else:
                roots = filter_scopes(self.schema()["activations"], scopes)
            body = {"name": self.name, "version": self.version, "activations": roots}
            self._schemas[scopes] = body | {"hash": schema.digest(body)}
        return self._schemas[scopes]

    @property
    def hash(self) -> str:
        """SHA-256 of the whole schema."""
        return str(self.schema()["hash"])

    async def open(self) -> list[tuple[str, str]]:
        """Start the lifespans of activations that were registered since the last time.

        An activation that fails to start is switched off. Returns their paths, with the reasons.
        """
        failed = await self._lifespans.start(self.nodes())
        for path, reason in failed:
            root = path.partition(".")[0]
            if root in self._nodes:
                self.switch_off(root, reason)
        return failed

    def while_open(
        self, name: str, make: Callable[[], AbstractAsyncContextManager[object]]
    ) -> None:
        """Enter a context when the hub opens, and leave it when the hub closes."""
        self._lifespans.add(name, make)

    async def drain(self, within_s: float) -> bool:
        """Refuse new calls from outside, and wait for the runs in progress.

        Returns False if some are still in progress after that time. Calls that those runs make are
        accepted.
        """
        self.draining = True
        for run in self.runs.running():
            # A standing watch never ends by waiting, and its reader loses nothing.
            if run.purpose == "watch":
                run.cancel(STOPPING)
        return await self.runs.wait_idle(within_s)

    async def close(self, *, reason: str = STOPPING) -> None:
        """Cancel every run, wait for their terminals, and close the activations."""
        self.draining = self._closing = True
        self.runs.cancel_all(reason)
        if self.runs.stored is not None:
            self.runs.stored.close_runs()
        await self.runs.wait_idle(self.limits.cancel_s + 1.0)
        if self.runs.stored is not None:
            await self.runs.stored.close()
        roots = [*self._nodes.values(), *self._retired]
        self._retired = []
        await self._lifespans.stop()
        await close_activations(node for root in roots for node in walk(root) if node.is_loaded)
        if self.storage is not None:
            await self.storage.close()


def _is_same(old: Node, new: Node | None) -> bool:
    """Whether an activation was registered again, with other methods."""
    if new is None or not old.is_loaded or not new.is_loaded:
        return False
    return old.activation is new.activation


def _no_page() -> None:
    return None


def _check_scope(method: str, scope: str, principal: Principal) -> None:
    if not principal.may(scope):
        raise Denied(
            f"{method} needs the scope {scope!r}, which {principal.name} does not have",
            data={"scope": scope},
        )

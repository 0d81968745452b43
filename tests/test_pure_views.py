"""Views only read runs, the table of runs and the hub; they return changes as effects.

The source of both views is analysed, not run. On objects reached from a run or from the hub, by a
parameter, an attribute, a call or a variable, a view may use only the names listed here as reading,
and must not assign attributes.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

from plexus.runtime.hub import Plexus
from plexus.runtime.log import Reader, RunLog
from plexus.runtime.question_feed import OpenQuestions
from plexus.runtime.run import LocalRun, Run
from plexus.runtime.runs import Runs

ROOT = Path(__file__).parents[1]
VIEWS = [
    *sorted((ROOT / "mcp_view").rglob("*.py")),
    *sorted((ROOT / "native_rpc").glob("*.py")),
]

#: The methods of live objects that change nothing, by class.
READING: dict[type, set[str]] = {
    Run: {"abandoned", "describe", "find_scope", "fingerprint", "open_question", "owned_by"},
    RunLog: {"check_size", "numbered", "read", "size_after", "time_of"},
    Reader: set(),
    OpenQuestions: {"find", "get", "items", "keys", "values"},
    Runs: {
        "count_work",
        "counts",
        "credentials",
        "fetch",
        "find",
        "find_by_key",
        "find_running",
        "list_active",
        "list_for",
        "list_kept",
        "peek",
        "running",
        "started_after",
    },
    Plexus: {
        "activations",
        "check_control",
        "check_scope",
        "find_method",
        "find_prompt",
        "find_resource",
        "find_run_to_control",
        "may_control",
        "methods",
        "nodes",
        "has_dynamic_prompts",
        "resolve",
        "schema",
        "scopes",
    },
}
#: The methods of live objects that change something, by class.
MUTATING: dict[type, set[str]] = {
    Run: {
        "abandon",
        "answer",
        "append",
        "ask",
        "available",
        "batches",
        "cancel",
        "detach",
        "expire",
        "expire_question",
        "finish",
        "forget_question",
        "leave",
        "move",
        "reader",
        "release_owner",
        "refuse",
        "respond",
        "stop",
        "watch",
    },
    RunLog: {
        "append",
        "check_newest",
        "close",
        "end",
        "leave",
        "mark",
        "release",
        "set_owner",
        "stop_waiting",
        "trim",
        "trim_read",
        "wait_for_capacity",
        "wake_readers",
    },
    Reader: {"poll", "stop_loading", "take"},
    OpenQuestions: {
        "ask",
        "clear",
        "close",
        "close_all",
        "copy",
        "fromkeys",
        "pop",
        "popitem",
        "setdefault",
        "set_answer",
        "update",
    },
    Runs: {
        "start",
        "cancel_all",
        "describe_call",
        "forget",
        "forget_moved",
        "keep",
        "load",
        "notify_refused",
        "notify_started",
        "on_start",
        "on_end",
        "on_refused",
        "record_with",
        "revoke",
        "wait_idle",
    },
    Plexus: {
        "call",
        "call_loaded",
        "close",
        "drain",
        "fetch_run_to_control",
        "list_prompts",
        "list_resources",
        "notify",
        "on_change",
        "open",
        "register",
        "restart",
        "switch_off",
        "unregister",
        "while_open",
    },
}
#: The attributes that views read.
ATTRIBUTES = {
    "cancel_reason",
    "ended_at",
    "event",
    "events",
    "expired_after",
    "first",
    "id",
    "key",
    "last",
    "limits",
    "log",
    "method",
    "name",
    "page_url",
    "payloads",
    "pending",
    "questions",
    "retention_s",
    "runs",
    "started_at",
    "terminal",
    "version",
    "watched_resources",  # a register of what clients wait for, kept by their subscriptions
}
READABLE = ATTRIBUTES.union(*READING.values())
#: Names of live objects, as variables and as attributes.
LIVE_NAMES = {"hub", "log", "plexus", "pump", "reader", "run", "runs"}
LIVE_TYPES = {"LocalRun", "Plexus", "Reader", "Run", "RunLog", "Runs"}
#: Attributes and methods of live objects that return live objects.
LIVE_PARTS = LIVE_NAMES | {
    "find",
    "find_run_to_control",
    "find_running",
    "list_active",
    "list_for",
    "list_kept",
    "questions",
    "running",
    "started_after",
}


def is_live(node: ast.expr, live: set[str]) -> bool:
    """Return whether an expression is a live object, or a collection of them."""
    if isinstance(node, ast.Name):
        return node.id in live
    if isinstance(node, ast.Attribute):
        return node.attr in LIVE_NAMES or (node.attr in LIVE_PARTS and is_live(node.value, live))
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Name):
            # A collection contains live objects if its source does.
            made = node.func.id in ("list", "sorted") and any(is_live(a, live) for a in node.args)
            return made or node.func.id in live
        return is_live(node.func, live)
    if isinstance(node, ast.IfExp):
        return is_live(node.body, live) or is_live(node.orelse, live)
    if isinstance(node, ast.BoolOp):
        return any(is_live(value, live) for value in node.values)
    if isinstance(node, ast.NamedExpr | ast.Await | ast.Subscript | ast.Starred):
        return is_live(node.value, live)
    return False


def bindings(function: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield the target and the value of each assignment in a function."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                pairs = (
                    zip(target.elts, node.value.elts, strict=False)
                    if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
                    else [(target, node.value)]
                )
                yield from pairs
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            yield node.target, node.value
        elif isinstance(node, ast.For | ast.comprehension):
            yield node.target, node.iter


def live_names(function: ast.AST) -> set[str]:
    """Return the parameters and variables of a function that are live objects."""
    live = set(LIVE_NAMES)
    for node in ast.walk(function):
        if isinstance(node, ast.arg) and node.annotation is not None:
            words = {name.id for name in ast.walk(node.annotation) if isinstance(name, ast.Name)}
            if words & LIVE_TYPES:
                live.add(node.arg)
    before = 0
    while len(live) != before:
        before = len(live)
        for target, value in bindings(function):
            if isinstance(target, ast.Name) and is_live(value, live):
                live.add(target.id)
    return live


def faults_in(source: str) -> list[str]:
    """Return the forbidden uses of live objects in a source text."""
    tree = ast.parse(source)
    faults: list[str] = []
    functions: list[ast.AST] = [
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    for scope in functions or [tree]:
        live = live_names(scope)
        for node in ast.walk(scope):
            if isinstance(node, ast.Attribute) and is_live(node.value, live):
                text = ast.unparse(node)
                if not isinstance(node.ctx, ast.Load):
                    faults.append(f"{node.lineno}: {text} is assigned")
                elif node.attr not in READABLE:
                    faults.append(f"{node.lineno}: {text} is used")
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                changes = node.func.id in ("delattr", "getattr", "setattr")
                if changes and is_live(node.args[0], live):
                    faults.append(f"{node.lineno}: {ast.unparse(node)}")
    return sorted(set(faults))


# --- ours ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", VIEWS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_view_only_reads_runs_and_the_hub(path: Path) -> None:
    assert faults_in(path.read_text()) == []


def test_all_modules_of_the_views_are_read() -> None:
    names = {str(path.relative_to(ROOT)) for path in VIEWS}
    assert {"mcp_view/protocol.py", "mcp_view/calls/task.py", "native_rpc/protocol.py"} <= names


@pytest.mark.parametrize("owner", READING, ids=lambda owner: owner.__name__)
def test_every_method_of_a_live_object_reads_or_changes(owner: type) -> None:
    classes = [owner, LocalRun] if owner is Run else [owner]
    public = {
        name
        for each in classes
        for name, _ in inspect.getmembers(each, callable)
        if not name.startswith("_")
    }
    assert public == READING[owner] | MUTATING[owner]
    assert not READING[owner] & MUTATING[owner]


def test_no_name_that_changes_something_is_readable_by_another_class() -> None:
    changing = set().union(*MUTATING.values())
    assert changing & READABLE == set()


# --- the checker ---------------------------------------------------------------------------------

PLANTED = {
    "a run that is cancelled": "def f(self):\n    self.run.cancel('why')",
    "a parameter": "def f(anything: Run):\n    anything.cancel('why')",
    "an optional parameter": "def f(anything: Run | None):\n    anything.refuse('1', error)",
    "a question": "def f(run):\n    run.answer('1', True)",
    "a run that is kept": "def f(server, run):\n    server.hub.runs.keep(run, 1)",
    "a reader": "def f(reader):\n    return reader.take()",
    "a reader that is made": "def f(run):\n    found = run.reader(0, wake, owner=False)",
    "a subscription to the hub": "def f(hub):\n    hub.on_change(print)",
    "a bound method": "def f(self):\n    stop = self.run.cancel\n    stop('why')",
    "a variable": "def f(hub):\n    found = hub.runs.find(1, LOCAL)\n    found.cancel('why')",
    "a variable of a variable": "def f(run):\n    a = run\n    b = a\n    b.finish(x)",
    "one of several": "def f(hub):\n    for e in hub.runs.list_kept(X):\n      e.cancel('why')",
    "one of a sorted list": "def f(hub):\n  [e.cancel('') for e in sorted(hub.runs.list_kept(X))]",
    "a call of a call": "def f(hub):\n    hub.find_run_to_control(1, LOCAL).cancel('why')",
    "a choice": "def f(hub):\n    find = hub.runs.find if X else Y\n    find(1, X).stop('why')",
    "a tuple": "def f(self, x):\n    run, y = self.run, x\n    run.leave(y)",
    "an assignment": "def f(run):\n    run.asks = None",
    "a deletion": "def f(run):\n    del run.questions",
    "getattr": "def f(run):\n    getattr(run, 'cancel')('why')",
    "the log": "def f(run):\n    run.log.trim(None)",
    "the questions": "def f(run):\n    run.questions.pop('1')",
    "a nested function": "def f(run):\n    def g():\n        run.cancel('why')",
    "the module": "hub.register(X)",
}


@pytest.mark.parametrize("kind", PLANTED)
def test_the_checker_finds_what_is_planted(kind: str) -> None:
    assert faults_in(PLANTED[kind]) != []


@pytest.mark.parametrize(
    "source",
    [
        "def f(self):\n    return CancelRun(self.run.id, 'why')",
        "def f(call):\n    return call.cancel()",
        "def f(self, hub):\n    return hub.find_run_to_control(1, LOCAL).questions",
        "def f(run):\n    return [each.event for each in (run.questions or {}).values()]",
        "def f(frames):\n    frames.append(b'')",
    ],
)
def test_the_checker_accepts_reading(source: str) -> None:
    assert faults_in(source) == []

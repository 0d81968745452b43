"""Symbols, calls, imports, base classes, debt comments and foreign interfaces of a file.

One pass over the tree of tree-sitter. Calls and base classes are names: no types are inferred.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

from activations.analysis.worker.debt import find_debt
from activations.analysis.worker.source_file import Skipped, SourceFile
from activations.analysis.worker.syntax_tables import GRAMMARS, load_language

__all__ = ("measure_syntax",)

#: Maximum entries of each kind for one file. Past it they are counted in `truncated`.
MAX_ENTRIES: Final = 5000
NAME_CHARACTERS: Final = 200
#: The last name in the expression that is called.
LAST_NAME: Final = re.compile(r"([A-Za-z_$][\w$]*)\s*(?:<[^<>()]*>|::<[^()]*>)?!?\s*$")
WORD: Final = re.compile(r"[A-Za-z_$][\w$.:]*")
#: Words in a list of base classes that are no class.
NO_BASES: Final = frozenset({"extends", "implements", "public", "private", "protected", "virtual"})
#: What code of another language can call, or is called by, with the name of the interface.
FOREIGN: Final[dict[str, tuple[tuple[str, re.Pattern[str]], ...]]] = {
    "python": (
        ("ctypes", re.compile(r"\b(?:CDLL|WinDLL|PyDLL|LoadLibrary)\(\s*[\"']?([^\"')\s]*)")),
        ("cffi", re.compile(r"\bcffi\.FFI\(()")),
    ),
    "rust": (
        ("C function", re.compile(r"extern\s+\"C\"\s+fn\s+(\w+)")),
        ("C declarations", re.compile(r"extern\s+\"C\"\s*\{()")),
        ("Python extension", re.compile(r"#\[(py(?:function|module|class))")),
        ("WebAssembly", re.compile(r"#\[(wasm_bindgen)")),
        ("Node extension", re.compile(r"#\[(napi)\b")),
    ),
    "c": (
        ("Python extension", re.compile(r"\bPyMODINIT_FUNC\s+(\w+)")),
        ("Java native method", re.compile(r"\bJNIEXPORT\b[^;{(]*?\b(Java_\w+)")),
        ("WebAssembly", re.compile(r"\bEMSCRIPTEN_KEEPALIVE\b\s*(\w*)")),
        ("C declarations", re.compile(r"extern\s+\"C\"()")),
    ),
    "go": (
        ("C code", re.compile(r"^\s*import\s+\"(C)\"", re.MULTILINE)),
        ("C function", re.compile(r"^//export\s+(\w+)", re.MULTILINE)),
    ),
    "javascript": (
        ("WebAssembly", re.compile(r"\bWebAssembly\.(instantiate\w*|compile\w*|Module)\b")),
        ("Node extension", re.compile(r"\brequire\(\s*[\"']([^\"']+\.node)[\"']")),
    ),
    "java": (
        ("native library", re.compile(r"\bSystem\.load(?:Library)?\(\s*\"([^\"]*)")),
        ("Java native method", re.compile(r"\bnative\s+[\w<>\[\]]+\s+(\w+)\s*\(")),
    ),
}
_SAME: Final = {"cpp": "c", "typescript": "javascript", "tsx": "javascript"}


@cache
def _parser(language: str) -> Any:
    import tree_sitter

    return tree_sitter.Parser(load_language(language))


def measure_syntax(source: SourceFile) -> dict[str, Any]:
    """Return what a file defines and uses. Raises Skipped if it cannot be parsed."""
    content = source.text.encode()
    tree = _parser(source.language).parse(content)
    if tree is None:
        raise Skipped("tree-sitter returned no tree")
    found = _Collector(source.language, content)
    found.walk(tree.root_node)
    result = found.result()
    result["foreign"] = list(_foreign(source, tree.root_node))
    if tree.root_node.has_error:
        result["syntax_errors"] = True
    return result


class _Collector:
    """What the nodes of one file mean."""

    def __init__(self, language: str, content: bytes) -> None:
        self._grammar = GRAMMARS[language]
        self._language = language
        self._content = content
        self._symbols: list[dict[str, Any]] = []
        self._calls: Counter[tuple[str, str]] = Counter()
        self._imports: list[tuple[str, int]] = []
        self._bases: list[tuple[str, str, int]] = []
        self._debt: list[dict[str, Any]] = []
        self._comment_lines: set[int] = set()
        self._truncated = 0

    def walk(self, root: Any) -> None:
        """Visit all nodes without recursion, so that deep code cannot overflow the stack."""
        grammar = self._grammar
        interesting = grammar.functions | grammar.classes | grammar.calls
        interesting |= grammar.imports | grammar.comments | {"variable_declarator"}
        cursor = root.walk()
        scopes: list[tuple[str, int]] = []
        depth = 0
        while True:
            node = cursor.node
            if node.type in interesting:
                name = self._visit(node, ".".join(each for each, _ in scopes))
                if name:
                    scopes.append((name, depth))
            if cursor.goto_first_child():
                depth += 1
                continue
            while True:
                if scopes and scopes[-1][1] == depth:
                    scopes.pop()
                if cursor.goto_next_sibling():
                    break
                if not cursor.goto_parent():
                    return
                depth -= 1

    def _visit(self, node: Any, scope: str) -> str:
        """Collect a node. Returns the name of the scope that it opens, if it opens one."""
        kind, grammar = node.type, self._grammar
        line = node.start_point.row + 1
        if kind in grammar.comments:
            self._comment(node, line)
        elif kind in grammar.calls:
            callee = self._callee(node)
            if callee and self._fits(self._calls):
                self._calls[scope, callee] += 1
            if callee in ("require", "import") and self._language in _SAME | {"javascript": ""}:
                self._imports += [(target, line) for target in self._required(node)]
        elif kind in grammar.imports:
            if self._fits(self._imports):
                self._imports += [(target, line) for target in self._targets(node)]
        elif kind in grammar.classes:
            return self._class(node, scope, line)
        elif kind in grammar.functions or _is_arrow(node):
            name = self._name(node)
            return self._symbol("function", name, scope, node) if name else ""
        return ""

    def _class(self, node: Any, scope: str, line: int) -> str:
        name = self._name(node)
        if not name:
            return ""
        bases = [each for each in node.children if each.type in self._grammar.bases]
        trait = node.child_by_field_name("trait") if node.type == "impl_item" else None
        names = [self._text(trait)] if trait is not None else []
        for each in bases:
            names += [
                word
                for word in WORD.findall(re.sub(r"<[^<>]*>|\w+\s*=[^,)]*", "", self._text(each)))
                if word not in NO_BASES
            ]
        if self._language == "go":
            names += self._embedded(node)
        if self._fits(self._bases):
            self._bases += [(name, base, line) for base in names]
        if node.type == "impl_item":
            return name
        is_c = self._language in ("c", "cpp")
        if is_c and node.child_by_field_name("body") is None:
            return ""  # a use of the type, not its definition
        return self._symbol("class", name, scope, node)

    def _embedded(self, node: Any) -> list[str]:
        """Return the types that a Go struct embeds: fields without a name."""
        body = node.child_by_field_name("type")
        if body is None or body.type != "struct_type":
            return []
        fields = [each for part in body.children for each in part.children]
        return [
            self._text(each.child_by_field_name("type")).lstrip("*")
            for each in fields
            if each.type == "field_declaration" and each.child_by_field_name("name") is None
        ]

    def _symbol(self, kind: str, name: str, scope: str, node: Any) -> str:
        if self._fits(self._symbols):
            symbol = {"kind": kind, "name": f"{scope}.{name}" if scope else name}
            lines = {"line": node.start_point.row + 1, "end_line": node.end_point.row + 1}
            self._symbols.append(symbol | lines)
        return name

    def _name(self, node: Any) -> str:
        field = "type" if node.type == "impl_item" else "name"
        named = node.child_by_field_name(field)
        if named is None:  # in C the name is inside nested declarators
            named = node.child_by_field_name("declarator")
            while named is not None and (inner := named.child_by_field_name("declarator")):
                named = inner
        if named is None:
            return ""
        text = self._text(named).partition("<")[0].rpartition("::")[2]
        return text.strip().lstrip("*&")

    def _callee(self, node: Any) -> str:
        for field in ("function", "name", "macro", "constructor", "type"):
            named = node.child_by_field_name(field)
            if named is not None:
                match = LAST_NAME.search(self._text(named, last=True))
                return match[1] if match else ""
        return ""

    def _required(self, node: Any) -> Iterator[str]:
        """Yield the module that `require("...")` or `import("...")` names."""
        arguments = node.child_by_field_name("arguments")
        if arguments is not None and arguments.named_child_count == 1:
            [argument] = arguments.named_children
            if argument.type == "string":
                yield self._text(argument).strip("\"'")

    def _targets(self, node: Any) -> Iterator[str]:
        """Yield the modules that an import names, as the language writes them."""
        if self._language == "python":
            yield from self._python_targets(node)
            return
        if node.type == "mod_item":
            if node.child_by_field_name("body") is None:
                yield "mod " + self._name(node)
            return
        for field in ("source", "path", "argument", "name"):
            named = node.child_by_field_name(field)
            if named is not None:
                yield self._text(named).strip("\"'`<>") if field != "path" else self._text(named)
                return
        if node.type == "import_declaration":
            words = self._text(node).removesuffix(";").split()
            yield words[-1]

    def _python_targets(self, node: Any) -> Iterator[str]:
        module = node.child_by_field_name("module_name")
        base = "" if module is None else self._text(module)
        for each in node.children_by_field_name("name"):
            name = self._text(each).partition(" as ")[0].strip()
            if module is None:
                yield name
            else:  # `from a import b`: b may be a module
                yield f"{base}{name}" if base.endswith(".") else f"{base}.{name}"
        if module is not None and not node.children_by_field_name("name"):
            yield base

    def _comment(self, node: Any, line: int) -> None:
        last = node.end_point.row + (node.end_point.column > 0)
        self._comment_lines.update(range(line, min(last, line + MAX_ENTRIES) + 1))
        for debt in find_debt(self._content[node.start_byte : node.end_byte].decode(), line):
            if self._fits(self._debt):
                self._debt.append(debt)

    def _fits(self, entries: Any) -> bool:
        if len(entries) < MAX_ENTRIES:
            return True
        self._truncated += 1
        return False

    def _text(self, node: Any, *, last: bool = False) -> str:
        start, end = node.start_byte, node.end_byte
        if last:
            start = max(start, end - NAME_CHARACTERS)
        cut = self._content[start : min(end, start + 4 * NAME_CHARACTERS)]
        return (
            cut.decode(errors="replace")[-NAME_CHARACTERS:]
            if last
            else cut.decode(errors="replace")
        )

    def result(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "symbols": self._symbols,
            "calls": [[caller, callee, n] for (caller, callee), n in self._calls.items()],
            "imports": self._imports,
            "bases": self._bases,
            "debt": self._debt,
            "comment_lines": len(self._comment_lines),
        }
        return found | {"truncated": self._truncated} if self._truncated else found


def _is_arrow(node: Any) -> bool:
    """Return whether a variable is a function of JavaScript."""
    if node.type != "variable_declarator":
        return False
    value = node.child_by_field_name("value")
    return value is not None and value.type in ("arrow_function", "function_expression")


def _foreign(source: SourceFile, root: Any) -> Iterator[dict[str, Any]]:
    """Yield the interfaces to other languages. Comments and strings are no code."""
    no_code = GRAMMARS[source.language].comments | GRAMMARS[source.language].strings
    for kind, pattern in FOREIGN.get(_SAME.get(source.language, source.language), ()):
        for number, match in enumerate(pattern.finditer(source.text)):
            if number >= MAX_ENTRIES:
                return
            at = len(source.text[: match.start()].encode())
            node = root.descendant_for_byte_range(at, at + 1)
            is_export = match[0].startswith("//export")  # of Go, which is a comment
            if node is not None and not is_export and node.type in no_code:
                continue
            line = source.text.count("\n", 0, match.start(1) if match[1] else match.start()) + 1
            found = {"kind": kind, "line": line}
            yield (found | {"name": match[1][:NAME_CHARACTERS]}) if match[1] else found

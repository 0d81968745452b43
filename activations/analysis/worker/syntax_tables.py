"""The nodes of each tree-sitter grammar that functions, classes, calls and imports consist of."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final, NamedTuple

__all__ = ("GRAMMARS", "Grammar", "load_language")


class Grammar(NamedTuple):
    """Where a grammar comes from, and what its nodes mean."""

    module: str
    functions: frozenset[str]
    classes: frozenset[str]
    calls: frozenset[str]
    imports: frozenset[str]
    comments: frozenset[str]
    strings: frozenset[str]
    #: Children of a class, by the type of the node, that name what it inherits from.
    bases: frozenset[str]
    #: The name of the function in the module that returns the grammar.
    entry: str = "language"


def _grammar(module: str, *words: str, entry: str = "language") -> Grammar:
    functions, classes, calls, imports, comments, strings, bases = map(_set, words)
    return Grammar(module, functions, classes, calls, imports, comments, strings, bases, entry)


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_JS: Final = (
    "function_declaration generator_function_declaration method_definition",
    "class_declaration interface_declaration abstract_class_declaration",
    "call_expression new_expression",
    "import_statement export_statement",
    "comment",
    "string template_string",
    "class_heritage extends_type_clause",
)
_C: Final = (
    "function_definition",
    "struct_specifier class_specifier",
    "call_expression",
    "preproc_include",
    "comment",
    "string_literal raw_string_literal",
    "base_class_clause",
)
GRAMMARS: Final[dict[str, Grammar]] = {
    "python": _grammar(
        "tree_sitter_python",
        "function_definition",
        "class_definition",
        "call",
        "import_statement import_from_statement",
        "comment",
        "string",
        "argument_list",
    ),
    "rust": _grammar(
        "tree_sitter_rust",
        "function_item",
        "struct_item enum_item trait_item impl_item",
        "call_expression macro_invocation",
        "use_declaration mod_item extern_crate_declaration",
        "line_comment block_comment",
        "string_literal raw_string_literal",
        "trait_bounds",
    ),
    "typescript": _grammar("tree_sitter_typescript", *_JS, entry="language_typescript"),
    "tsx": _grammar("tree_sitter_typescript", *_JS, entry="language_tsx"),
    "javascript": _grammar("tree_sitter_javascript", *_JS),
    "go": _grammar(
        "tree_sitter_go",
        "function_declaration method_declaration",
        "type_spec",
        "call_expression",
        "import_spec",
        "comment",
        "interpreted_string_literal raw_string_literal",
        "",
    ),
    "c": _grammar("tree_sitter_c", *_C),
    "cpp": _grammar("tree_sitter_cpp", *_C),
    "java": _grammar(
        "tree_sitter_java",
        "method_declaration constructor_declaration",
        "class_declaration interface_declaration enum_declaration record_declaration",
        "method_invocation object_creation_expression",
        "import_declaration",
        "line_comment block_comment",
        "string_literal",
        "superclass super_interfaces extends_interfaces",
    ),
}


def load_language(language: str) -> Any:
    """Return the tree-sitter grammar of a language. Raises ImportError."""
    import tree_sitter

    grammar = GRAMMARS[language]
    module = import_module(grammar.module)
    return tree_sitter.Language(getattr(module, grammar.entry)())

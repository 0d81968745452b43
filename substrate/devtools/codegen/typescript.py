"""The client in TypeScript: one file that needs nothing but `fetch`.

It is written so that it can also be run as it is: types can be taken out of it without making
anything of them (no enums, no parameter properties), which is what Node does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from importlib.resources import files

from native_rpc.errors import CODES
from plexus.rpc import wire
from substrate.devtools.codegen.interface import Interface, Method, Namespace, read_interface
from substrate.devtools.codegen.text import NameAllocator, escaped, lines_of
from substrate.devtools.codegen.types import (
    ANY,
    Alias,
    Array,
    Constant,
    Declaration,
    Field,
    Mapping,
    Named,
    Scalar,
    Struct,
    Tuple,
    Type,
    Union,
)

__all__ = ("write_typescript",)

RUNTIME = files("substrate.devtools.codegen").joinpath("runtime.ts").read_text(encoding="utf-8")
#: Everything that the parts of the file that do not depend on the schema speak of.
RESERVED = frozenset(re.findall(r"\w+", RUNTIME)) | {"Plexus", "Record", "SCHEMA_HASH", "connect"}
#: What an object of JavaScript has already, or what would make a promise of it.
NOT_MEMBERS = frozenset({"constructor", "prototype", "then", "toString", "valueOf", "toJSON"})
IDENTIFIER = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")
KEYWORDS = {
    "any": "unknown",
    "boolean": "boolean",
    "integer": "number",
    "never": "never",
    "null": "null",
    "number": "number",
    "string": "string",
}


def write_typescript(
    described: dict[str, object], namespaces: Sequence[str], command: Sequence[str]
) -> str:
    """The text of the client of this schema, or of these namespaces in it; raises
    UnknownNamespace. `command` is what makes it again."""
    interface = read_interface(described, namespaces, RESERVED)
    parts = [
        *_header(interface, command),
        *_root(interface),
        *(line for namespace in interface.roots for line in _namespace(namespace)),
        "// --- Types ".ljust(100, "-"),
        "",
        *(line for each in interface.declarations for line in _declaration(each)),
        *(line for method in interface.methods() for line in _events(method)),
    ]
    return "\n".join(parts) + "\n" + RUNTIME


def _header(interface: Interface, command: Sequence[str]) -> Iterator[str]:
    yield f"// Written by `{' '.join(command)}`; changes are lost when it is written again."
    yield ""
    yield "/** Of the schema that this file was written from. */"
    yield f'export const SCHEMA_HASH = "{interface.hash}";'
    yield ""
    yield "const CODES: Readonly<Record<number, string>> = {"
    yield from (f"  [{number}]: {_string(word)}," for word, number in CODES.items())
    yield "};"
    yield ""


def _root(interface: Interface) -> Iterator[str]:
    names = NameAllocator(NOT_MEMBERS | {"call"})
    members = [(_member(root.path, names), root) for root in interface.roots]
    yield "/** What the server offers. */"
    yield "export class Plexus {"
    for member, root in members:
        yield from _comment(root.description, "  ")
        yield f"  readonly {member}: {root.name};"
    yield "  readonly #connection: Connection;"
    yield ""
    yield "  constructor(connection: Connection) {"
    yield "    this.#connection = connection;"
    yield from (f"    this.{member} = new {root.name}(connection);" for member, root in members)
    yield "  }"
    yield ""
    yield "  /** Call a method by its name, also one that this file does not know. */"
    yield "  call("
    yield "    method: string,"
    yield "    params: object = {},"
    yield "    options: CallOptions = {},"
    yield "  ): Call<AnyEvent, unknown> {"
    yield "    return new Call(this.#connection, method, params, options);"
    yield "  }"
    yield "}"
    yield ""
    yield "/** A client of the server at this address: ws://, wss://, http:// or https://. Nothing"
    yield " * is sent before the first call. */"
    yield "export function connect(url: string, options: ConnectOptions = {}): Plexus {"
    yield "  return new Plexus(new Connection(url, options));"
    yield "}"
    yield ""


def _namespace(namespace: Namespace) -> Iterator[str]:
    names = NameAllocator(NOT_MEMBERS)
    children = [(_member(child.own_name, names), child) for child in namespace.children]
    yield from _comment(namespace.description, "")
    yield f"export class {namespace.name} {{"
    yield from (f"  readonly {member}: {child.name};" for member, child in children)
    yield "  readonly #connection: Connection;"
    yield ""
    yield "  constructor(connection: Connection) {"
    yield "    this.#connection = connection;"
    yield from (f"    this.{member} = new {child.name}(connection);" for member, child in children)
    yield "  }"
    for method in namespace.methods:
        yield ""
        yield from _method(method, _member(method.own_name, names))
    yield "}"
    yield ""
    for child in namespace.children:
        yield from _namespace(child)


def _method(method: Method, member: str) -> Iterator[str]:
    params = method.params
    optional = " = {}" if not any(field.required for field in params.fields) else ""
    result = "AnyEvent" if method.result == ANY else _type(method.result)
    returns, ends = f"Call<{method.event or 'AnyEvent'}, {result}>", ', "event"'
    if not method.streaming:
        returns, ends = f"ValueCall<{_type(method.result)}>", ""
    yield from _comment(_with_scope(method), "  ")
    yield f"  {member}(params: {params.name}{optional}, options: CallOptions = {{}}): {returns} {{"
    name = _string(method.name)
    yield f"    return new Call(this.#connection, {name}, params, options{ends});"
    yield "  }"


def _events(method: Method) -> Iterator[str]:
    """The union of what a method says."""
    if method.event:
        yield f"/** What `{method.name}` says. */"
        yield f"export type {method.event} ="
        *others, last = method.events
        yield from (f"  | {_type(each)}" for each in others)
        yield f"  | {_type(last)};"
        yield ""


def _declaration(declaration: Declaration) -> Iterator[str]:
    yield from _comment(declaration.description, "")
    if isinstance(declaration, Alias):
        yield f"export type {declaration.name} = {_type(declaration.type)};"
    elif not declaration.fields:
        value = "never" if declaration.others is None else _type(declaration.others)
        yield f"export type {declaration.name} = {{ [key: string]: {value} }};"
    else:
        yield from _interface(declaration)
    yield ""


def _interface(struct: Struct) -> Iterator[str]:
    yield f"export interface {struct.name} {{"
    for field in struct.fields:
        yield from _comment(_field_text(field), "  ")
        # Somebody who has `undefined` in hand may pass it on: it is not sent.
        mark, absent = ("", "") if field.required else ("?", " | undefined")
        yield f"  {_key(field.name)}{mark}: {_type(field.type)}{absent};"
    if struct.others is not None:
        # No narrower: the properties that are named must fit it too.
        yield "  [key: string]: unknown;"
    yield "}"


# --- parts ----------------------------------------------------------------------------------------


def _type(kind: Type) -> str:
    match kind:
        case Scalar(kind=word):
            return KEYWORDS[word]
        case Constant(value=value):
            return _string(value) if isinstance(value, str) else wire.encode(value).decode()
        case Array(item=item):
            inner = _type(item)
            return f"({inner})[]" if isinstance(item, Union) else f"{inner}[]"
        case Tuple(items=items):
            return f"[{', '.join(map(_type, items))}]"
        case Mapping(value=value_type):
            # Not a Record, in which a type could not speak of itself.
            return f"{{ [key: string]: {_type(value_type)} }}"
        case Union(members=members):
            return " | ".join(map(_type, members))
        case Named(name=name):
            return name


def _field_text(field: Field) -> str:
    if isinstance(field.type, Constant) or not field.default or field.default == (None,):
        return field.text
    return f"{field.text}\n\nDefault: {wire.encode(field.default[0]).decode()}".lstrip()


def _with_scope(method: Method) -> str:
    return f"{method.description}\n\nScope: {method.scope}" if method.scope else method.description


def _comment(text: str, indent: str) -> Iterator[str]:
    lines = [line.replace("*/", "*\\/") for line in lines_of(text)]
    if len(lines) == 1:
        yield f"{indent}/** {lines[0]} */"
    elif lines:
        yield f"{indent}/**"
        yield from (f"{indent} * {line}".rstrip() for line in lines)
        yield f"{indent} */"


def _string(text: str) -> str:
    return escaped(text, "\\u{{{:x}}}")


def _key(name: str) -> str:
    return name if IDENTIFIER.fullmatch(name) else _string(name)


def _member(name: str, names: NameAllocator) -> str:
    return names.take(name, f"{name}_")

"""The client in Python: one module of types over `native_rpc.client`."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator, Sequence
from importlib.resources import files

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

__all__ = ("write_python",)

LINE = "# --- "
RUNTIME = (
    LINE
    + (
        files("substrate.devtools.codegen")
        .joinpath("python_runtime.py")
        .read_text(encoding="utf-8")
        .partition(LINE)[2]
    )
)
IMPORTS = """from __future__ import annotations

import builtins
from collections.abc import Generator, Sequence
from types import TracebackType
from typing import (
    Any,
    Generic,
    Literal,
    Never,
    NotRequired,
    Self,
    TypeAlias,
    TypedDict,
    TypeVar,
    cast,
)

from native_rpc import client as native"""
CONNECT = '''
def connect(
    target: str | Sequence[str], *, token: str | None = None, reconnect_s: float | None = None
) -> Plexus:
    """A client to be entered with `async with`.

    The target is an address (ws://, wss://, http://, https://) or a command that speaks on its
    stdin and stdout. `token` is what the server showed at its start.
    """
    return Plexus(native.connect(target, token=token, reconnect_s=reconnect_s))
'''
#: Everything that the parts of the module that do not depend on the schema speak of.
RESERVED = frozenset(re.findall(r"\w+", RUNTIME + IMPORTS + CONNECT)) | {"SCHEMA_HASH"}
WORDS = {
    "any": "Any",
    "boolean": "bool",
    "integer": "int",
    "never": "Never",
    "null": "None",
    "number": "float",
    "string": "str",
}
#: Types that something in a class may be called like, and so hide them from what stands beside it.
HIDEABLE = frozenset({"bool", "dict", "float", "int", "list", "str", "tuple"})
#: What the body of a method speaks of, so that no argument can be called so.
SPOKEN_OF = frozenset({"Call", "ValueCall", "only_given", "self"})
PLAIN_NAME = re.compile(r"[a-z][a-z0-9_]*")


def write_python(
    described: dict[str, object], namespaces: Sequence[str], command: Sequence[str]
) -> str:
    """The text of the client of this schema, or of these namespaces in it; raises
    UnknownNamespace. `command` is what makes it again."""
    interface = read_interface(described, namespaces, RESERVED)
    methods = interface.methods()
    # Parameters are arguments here.
    unused = {method.params.name for method in methods}
    parts = [
        f'"""Written by `{" ".join(command)}`; changes are lost when it is written again."""',
        "",
        "# ruff: noqa",
        "",
        IMPORTS,
        "",
        "#: Of the schema that this module was written from.",
        f'SCHEMA_HASH = "{interface.hash}"',
        "",
        RUNTIME,
        *_root(interface),
        CONNECT,
        *(line for namespace in interface.roots for line in _namespace(namespace)),
        "",
        "# --- Types ".ljust(100, "-"),
        "",
        *(
            line
            for declaration in interface.declarations
            if declaration.name not in unused
            for line in _declaration(declaration)
        ),
        *(line for method in methods for line in _events(method)),
    ]
    return "\n".join(parts).rstrip("\n") + "\n"


def _root(interface: Interface) -> Iterator[str]:
    names = NameAllocator({"client"})
    yield ""
    yield "class Plexus(Connected):"
    yield '    """What the server offers."""'
    yield ""
    yield "    def __init__(self, client: native.Client) -> None:"
    yield "        super().__init__(client)"
    for root in interface.roots:
        yield from _remark(root.description, "        ")
        yield f"        self.{_member(root.path, names)} = {root.name}(client)"
    yield ""


def _namespace(namespace: Namespace) -> Iterator[str]:
    names = NameAllocator()
    children = [(_member(child.own_name, names), child) for child in namespace.children]
    members = [(_member(each.own_name, names), each) for each in namespace.methods]
    hidden = HIDEABLE & {member for member, _ in members}
    yield ""
    yield f"class {namespace.name}:"
    yield from _docstring(namespace.description, "    ")
    yield ""
    yield "    def __init__(self, client: native.Client) -> None:"
    yield "        self._client = client"
    yield from (f"        self.{member} = {child.name}(client)" for member, child in children)
    for member, method in members:
        yield ""
        yield from _method(method, member, hidden)
    yield ""
    for child in namespace.children:
        yield from _namespace(child)


def _method(method: Method, member: str, hidden: frozenset[str]) -> Iterator[str]:
    names = NameAllocator(SPOKEN_OF)
    fields = [(_argument(field.name, names), field) for field in method.params.fields]
    others = method.params.others
    further = names.take("others")
    if not method.streaming:
        made, returns = "ValueCall", f"ValueCall[{_type(method.result, hidden)}]"
    else:
        event = method.event or f"{_name('dict', hidden)}[{_name('str', hidden)}, Any]"
        result = event if method.result == ANY else _type(method.result, hidden)
        made, returns = "Call", f"Call[{event}, {result}]"
    if not fields and others is None:
        yield f"    def {member}(self) -> {returns}:"
    else:
        yield f"    def {member}("
        yield "        self,"
        yield from ["        *,"] if fields else []
        for argument, field in fields:
            default = "" if field.required else " = OMITTED"
            yield f"        {argument}: {_type(field.type, hidden)}{default},"
        if others is not None:
            yield f"        **{further}: {_type(others, hidden)},"
        yield f"    ) -> {returns}:"
    yield from _docstring(_with_arguments(method, fields), "        ")
    entries = [f"{_string(field.name)}: {argument}" for argument, field in fields]
    entries += [f"**{further}"] if others is not None else []
    name = _string(method.name)
    if not entries:
        yield f"        return {made}(self._client, {name}, {{}})"
        return
    yield f"        return {made}("
    yield "            self._client,"
    yield f"            {name},"
    yield "            only_given("
    yield "                {"
    yield from (f"                    {entry}," for entry in entries)
    yield "                }"
    yield "            ),"
    yield "        )"


def _events(method: Method) -> Iterator[str]:
    """The union of what a method says."""
    if method.event:
        members = " | ".join(map(_type, method.events))
        yield f"#: What `{method.name}` says."
        yield f"{method.event}: TypeAlias = {members!r}"
        yield ""


def _declaration(declaration: Declaration) -> Iterator[str]:
    if isinstance(declaration, Alias):
        yield from _remark(declaration.description, "")
        yield f"{declaration.name}: TypeAlias = {_type(declaration.type)!r}"
    elif not declaration.fields and declaration.others is not None:
        yield from _remark(declaration.description, "")
        yield f"{declaration.name}: TypeAlias = {_type(Mapping(declaration.others))!r}"
    elif all(_is_plain(field.name) for field in declaration.fields):
        yield from _class(declaration)
    else:
        yield from _call_of_typed_dict(declaration)
    yield ""


def _class(struct: Struct) -> Iterator[str]:
    yield ""
    yield f"class {struct.name}(TypedDict):"
    text = lines_of(struct.description)
    yield from _docstring(struct.description, "    ")
    if text and struct.fields:
        yield ""
    elif not text and not struct.fields:
        yield "    pass"
    for field in struct.fields:
        yield from _remark(field.text, "    ")
        yield f"    {field.name}: {_member_type(field)}"
    if struct.others is not None:
        yield "    # Others may be there, which a TypedDict cannot say."


def _call_of_typed_dict(struct: Struct) -> Iterator[str]:
    """The same where a class cannot have these names in it."""
    yield from _remark(struct.description, "")
    yield f"{struct.name} = TypedDict("
    yield f"    {_string(struct.name)},"
    yield "    {"
    for field in struct.fields:
        yield from _remark(field.text, "        ")
        yield f"        {_string(field.name)}: {_member_type(field)!r},"
    yield "    },"
    yield ")"


# --- parts ----------------------------------------------------------------------------------------


def _type(kind: Type, hidden: frozenset[str] = frozenset()) -> str:
    """A type; one that is hidden where this stands is named in full."""
    match kind:
        case Scalar(kind=word):
            return _name(WORDS[word], hidden)
        case Constant(value=float()):
            return _name("float", hidden)  # a Literal of it is not allowed
        case Constant(value=value):
            return f"Literal[{_literal(value)}]"
        case Array(item=item):
            return f"{_name('list', hidden)}[{_type(item, hidden)}]"
        case Tuple(items=items):
            inner = ", ".join(_type(item, hidden) for item in items)
            return f"{_name('tuple', hidden)}[{inner or '()'}]"
        case Mapping(value=value_type):
            key = _name("str", hidden)
            return f"{_name('dict', hidden)}[{key}, {_type(value_type, hidden)}]"
        case Union(members=members):
            return _union(members, hidden)
        case Named(name=name):
            return name


def _union(members: Sequence[Type], hidden: frozenset[str]) -> str:
    literals = [
        _literal(member.value)
        for member in members
        if isinstance(member, Constant) and not isinstance(member.value, float)
    ]
    words: dict[str, None] = {}
    for member in members:
        is_literal = isinstance(member, Constant) and not isinstance(member.value, float)
        words[f"Literal[{', '.join(literals)}]" if is_literal else _type(member, hidden)] = None
    return " | ".join(words)


def _name(word: str, hidden: frozenset[str]) -> str:
    return f"builtins.{word}" if word in hidden else word


def _literal(value: str | float) -> str:
    return _string(value) if isinstance(value, str) else repr(value)


def _member_type(field: Field) -> str:
    return _type(field.type) if field.required else f"NotRequired[{_type(field.type)}]"


def _with_arguments(method: Method, fields: Sequence[tuple[str, Field]]) -> str:
    text = [method.description]
    if method.scope:
        text += ["", f"Scope: {method.scope}"]
    listed = []
    for argument, field in fields:
        said = " ".join(lines_of(field.text))
        if field.default and field.default != (None,):
            said += f" Default: {wire.encode(field.default[0]).decode()}"
        if said:
            listed.append(f"    {argument}: {said.strip()}")
    return "\n".join([*text, "", "Args:", *listed] if listed else text)


def _docstring(text: str, indent: str) -> Iterator[str]:
    lines = [line.replace("\\", "\\\\").replace('"""', '\\"\\"\\"') for line in lines_of(text)]
    if not lines:
        return
    if lines[-1].endswith('"'):
        lines[-1] = f'{lines[-1][:-1]}\\"'
    if len(lines) == 1:
        yield f'{indent}"""{lines[0]}"""'
        return
    yield f'{indent}"""{lines[0]}'
    yield from (f"{indent}{line}".rstrip() for line in lines[1:])
    yield f'{indent}"""'


def _remark(text: str, indent: str) -> Iterator[str]:
    return (f"{indent}#: {line}".rstrip() for line in lines_of(text))


def _string(text: str) -> str:
    return escaped(text, "\\U{:08x}")


def _is_plain(name: str) -> bool:
    """Whether a class can have this in it, and still mean what it says beside it."""
    return bool(PLAIN_NAME.fullmatch(name)) and not keyword.iskeyword(name) and name not in HIDEABLE


def _member(name: str, names: NameAllocator) -> str:
    return names.take(f"{name}_" if keyword.iskeyword(name) else name, f"{name}_")


def _argument(name: str, names: NameAllocator) -> str:
    """A name that an argument can have, like that of a parameter."""
    argument = re.sub(r"\W", "_", name, flags=re.ASCII)
    if not argument or argument[0].isdigit() or argument.startswith("__"):
        argument = f"p_{argument.lstrip('_')}"
    return _member(argument, names)

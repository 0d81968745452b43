"""Addresses and names with variables in them, and how their values are found.

In an address, `arbor://tree/{tree}` or `run://{run}{?after}`, this knows of RFC 6570 plain
variables and one list of query variables at the end, which may all be left out. In a name,
`notes.note.{name}`, there is one variable, which is its end. It goes from an address or a name to
the values of the variables only, never back.
"""

from __future__ import annotations

import re

__all__ = ("NameTemplate", "Template")


class Template:
    """An address, taken apart. `required` are the variables of its path, `optional` the others."""

    def __init__(self, uri: str) -> None:
        """Raises ValueError if this is no address, or one that is not understood."""
        path, opening, query = uri.partition("{?")
        self.uri = uri
        #: Literal text and names in turn; the names are at the odd places.
        self._parts = re.split(r"\{(\w+)\}", path)
        self.required = tuple(self._parts[1::2])
        self.optional = tuple(query.removesuffix("}").split(",")) if opening else ()
        names = (*self.required, *self.optional)
        literal = "".join(self._parts[::2])
        unclosed = opening and not query.endswith("}")
        if unclosed or {"{", "}"} & {*literal} or not all(map(str.isidentifier, names)):
            raise ValueError(
                f"the uri {uri!r} may have variables like {{name}} in it, and one list of them "
                "like {?first,second} at its end"
            )
        scheme, colon, _ = literal.partition(":")
        if not colon or not scheme.replace("-", "").replace("+", "").isalnum():
            raise ValueError(f"the uri {uri!r} must begin with a scheme, as in 'notes://'")
        if len(set(names)) < len(names):
            raise ValueError(f"the uri {uri!r} has a variable twice")
        if any(not text for text in self._parts[2:-1:2]):
            raise ValueError(f"the uri {uri!r} has two variables with nothing between them")
        #: The same for two addresses that differ only in the names of their variables.
        self.shape = "{}".join(self._parts[::2])
        #: How much of it is given: where two fit, the one that says more is meant.
        self.weight = len(literal)

    @property
    def fixed(self) -> bool:
        """Whether there is nothing to fill in."""
        return not self.required and not self.optional

    def match(self, uri: str) -> dict[str, str] | None:
        """Return the values of the variables in this address; None if it is another one.

        A value is at least one character and none of "/?#". Where a literal occurs more than once,
        the earlier variable gets the longer value. Literals are sought from the end, once each, so
        that the time is linear: a pattern that backtracks would take the square of the length.
        """
        path, query = uri, ""
        if self.optional:
            path, _, query = uri.partition("?")
            if "#" in query:
                return None
        first, *rest = self._parts
        if not path.startswith(first):
            return None
        found: dict[str, str] = {}
        end = len(path)
        for index in range(len(rest) - 2, -1, -2):
            literal = rest[index + 1]
            # After the last variable the literal ends the address; the others leave room for the
            # value that follows them.
            is_last = index == len(rest) - 2
            at = end - len(literal) if is_last else path.rfind(literal, 0, end - 1)
            if at < 0 or not path.startswith(literal, at):
                return None
            if not is_last:
                found[rest[index + 2]] = path[at + len(literal) : end]
            end = at
        if rest:
            found[rest[0]] = path[len(first) : end]
        elif end != len(first):
            return None
        if end < len(first) or not all(map(_is_value, found.values())):
            return None
        return self._read(found, query)

    def _read(self, found: dict[str, str], query: str) -> dict[str, str] | None:
        """Return the values, decoded, with those of the query; None if that has any other."""
        from urllib.parse import unquote  # here: most servers never read an address

        values = {name: unquote(found[name]) for name in self.required}
        for pair in query.split("&") if query else ():
            name, equals, value = pair.partition("=")
            if not equals or name not in self.optional or name in values:
                return None
            values[name] = unquote(value)
        return values


def _is_value(text: str) -> bool:
    """Whether a variable of a path may have this value."""
    return bool(text) and not {"/", "?", "#"} & {*text}


class NameTemplate:
    """A name with an open end, taken apart."""

    def __init__(self, text: str) -> None:
        """Raises ValueError unless there is one variable, and that at the end."""
        self.text = text
        self.prefix, opening, rest = text.partition("{")
        self.variable = rest.removesuffix("}")
        closed = opening and rest.endswith("}") and "}" not in self.prefix
        if not closed or not self.variable.isidentifier():
            raise ValueError(
                f"the template {text!r} must end with its one variable, as in {{name}}"
            )

    def match(self, name: str) -> str | None:
        """The value of the variable in this name, as it is; None if it is another name."""
        value = name[len(self.prefix) :]
        return value if value and name.startswith(self.prefix) else None

"""URI templates and name templates: extract the values of their variables.

A URI template, such as `arbor://tree/{tree}` or `run://{run}{?after}`, supports the plain variables
of RFC 6570 and one list of query variables at the end, which are all optional. A name template,
such as `notes.note.{name}`, has one variable at its end. Templates are only matched, never
expanded.
"""

from __future__ import annotations

import re

__all__ = ("NameTemplate", "Template")


class Template:
    """A URI template. `required` are the variables of its path, `optional` those of its query."""

    def __init__(self, uri: str) -> None:
        """Parse a template. Raises ValueError if it is invalid or not supported."""
        path, opening, query = uri.partition("{?")
        self.uri = uri
        #: Literal text and names alternate; the names have odd indexes.
        self._parts = re.split(r"\{(\w+)\}", path)
        self.required = tuple(self._parts[1::2])
        self.optional = tuple(query.removesuffix("}").split(",")) if opening else ()
        names = (*self.required, *self.optional)
        literal = "".join(self._parts[::2])
        unclosed = opening and not query.endswith("}")
        if unclosed or {"{", "}"} & {*literal} or not all(map(str.isidentifier, names)):
            raise ValueError(
                f"the uri {uri!r} may contain variables such as {{name}}, and one list of them "
                "such as {?first,second} at its end"
            )
        scheme, colon, _ = literal.partition(":")
        if not colon or not scheme.replace("-", "").replace("+", "").isalnum():
            raise ValueError(f"the uri {uri!r} must begin with a scheme, such as 'notes://'")
        if len(set(names)) < len(names):
            raise ValueError(f"the uri {uri!r} contains a variable twice")
        if any(not text for text in self._parts[2:-1:2]):
            raise ValueError(f"the uri {uri!r} needs text between its variables")
        #: Equal for two templates that differ only in the names of their variables.
        self.shape = "{}".join(self._parts[::2])
        #: Length of the literal text: of two matching templates, the more specific wins.
        self.weight = len(literal)

    @property
    def fixed(self) -> bool:
        """Whether it has no variables."""
        return not self.required and not self.optional

    def match(self, uri: str) -> dict[str, str] | None:
        """Return the values of the variables in this URI; None if it does not match.

        A value has at least one character and none of "/?#". Where a literal occurs more than once,
        the earlier variable gets the longer value. Literals are searched from the end, once each,
        so that the time is linear: a backtracking pattern would take quadratic time.
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
            # The literal after the last variable ends the URI; all others are followed by a
            # value of at least one character.
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
        """Return the decoded values with those of the query; None for an unknown variable."""
        from urllib.parse import unquote  # most servers never read a URI

        values = {name: unquote(found[name]) for name in self.required}
        for pair in query.split("&") if query else ():
            name, equals, value = pair.partition("=")
            if not equals or name not in self.optional or name in values:
                return None
            values[name] = unquote(value)
        return values


def _is_value(text: str) -> bool:
    """Return whether a variable of a path may have this value."""
    return bool(text) and not {"/", "?", "#"} & {*text}


class NameTemplate:
    """A name with a variable at its end."""

    def __init__(self, text: str) -> None:
        """Parse a template. Raises ValueError unless its only variable is at the end."""
        self.text = text
        self.prefix, opening, rest = text.partition("{")
        self.variable = rest.removesuffix("}")
        closed = opening and rest.endswith("}") and "}" not in self.prefix
        if not closed or not self.variable.isidentifier():
            raise ValueError(
                f"the template {text!r} must end with its only variable, such as {{name}}"
            )

    def match(self, name: str) -> str | None:
        """Return the value of the variable in this name, unchanged; None if it does not match."""
        value = name[len(self.prefix) :]
        return value if value and name.startswith(self.prefix) else None

"""Pure: the grammar of a tool's input, which is a text, as one regular expression.

A call carries the input as a JSON string. Engines hold such a string to a regular expression (`pattern` of a
JSON schema) and write its escapes themselves; they cannot hold it to a Lark grammar.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

MAX_PATTERN_CHARS = 1 << 15
_MAX_DEPTH = 100

_TOKEN = re.compile(
    r"""
    (?P<space>\s+|(?://|\#)[^\n]*)
    |(?P<range>"(?:\\.|[^"\\])"\s*\.\.\s*"(?:\\.|[^"\\])")
    |(?P<string>"(?:\\.|[^"\\\n])*"i?)
    |(?P<regex>/(?:\\.|[^/\\\n])+/[imsux]*)
    |(?P<repeat>~\s*\d+(?:\s*\.\.\s*\d+)?)
    |(?P<alias>->\s*\w+)
    |(?P<head>[?!]*\w+(?:\.-?\d+)?\s*:)
    |(?P<name>\w+)
    |(?P<import>%import\s+common\s*\.\s*\w+)
    |(?P<directive>%\w+)
    |(?P<operator>[|()\[\]?*+])
    """,
    re.VERBOSE,
)
_OPERATORS = {"(": "(?:", "[": "(?:", "]": ")?"}
_SPECIAL = re.compile(r"[][.^$*+?(){}|\\-]")
_COMMON = {
    "DIGIT": "[0-9]",
    "INT": "[0-9]+",
    "LETTER": "[a-zA-Z]",
    "WORD": "[a-zA-Z]+",
    "CNAME": "[_a-zA-Z][_a-zA-Z0-9]*",
    "CR": r"\r",
    "LF": r"\n",
    "NEWLINE": r"(\r?\n)+",
    "WS": r"[ \t\f\r\n]+",
    "WS_INLINE": r"[ \t]+",
}
"""What `%import common.NAME` means, of what Lark has."""


class Inexpressible(ValueError):
    """A grammar that is none of a regular language, or says so in a way that is not understood."""


@lru_cache(maxsize=64)
def input_pattern(syntax: str, definition: str) -> str:
    """Matches the whole input. `syntax`: `lark`, or `regex`, whose errors the engine tells.

    Raises Inexpressible, and ValueError where no grammar can be meant.
    """
    return f"^(?:{definition if syntax == 'regex' else _expanded('start', _read(definition), ())})$"


def _expanded(name: str, bodies: Mapping[str, Sequence[tuple[str, str]]], within: tuple[str, ...]) -> str:
    """A rule or terminal with all that it names."""
    if name not in bodies:
        raise ValueError(f"`{name}` is not defined")
    if name in within or len(within) > _MAX_DEPTH:
        raise Inexpressible(f"`{name}` holds itself, or too many others")
    pattern = ""
    for kind, text in bodies[name]:
        is_name = kind == "name"
        pattern += f"(?:{_expanded(text, bodies, (*within, name))})" if is_name else _element(kind, text)
        if len(pattern) > MAX_PATTERN_CHARS:
            raise Inexpressible(f"`{name}` is over {MAX_PATTERN_CHARS} characters when written out")
    return pattern


def _read(grammar: str) -> Mapping[str, Sequence[tuple[str, str]]]:
    """The bodies of rules and terminals: kinds of `_TOKEN` with their texts."""
    bodies: dict[str, list[tuple[str, str]]] = {}
    at, body = 0, None
    while at < len(grammar):
        found = _TOKEN.match(grammar, at)
        line = f"line {grammar.count(chr(10), 0, at) + 1}"
        if found is None:
            raise ValueError(f"{line} cannot be read from `{grammar[at : at + 20].splitlines()[0]}` on")
        at, kind, text = found.end(), found.lastgroup or "", found[0]
        match kind:
            case "import":
                name = text.rpartition(".")[2].strip()
                if name not in _COMMON:
                    raise Inexpressible(f"{line}: `{name}` of `common` is not known")
                bodies[name], body = [("regex", f"/{_COMMON[name]}/")], None
            case "directive":
                raise Inexpressible(f"{line}: `{text}` is not supported")
            case "head":
                body = bodies.setdefault(text.lstrip("?!").partition(":")[0].partition(".")[0].strip(), [])
            case "space" | "alias":
                pass
            case _ if body is None:
                raise ValueError(f"{line}: `{text}` stands in no rule")
            case _:
                body.append((kind, text))
    return bodies


def _element(kind: str, text: str) -> str:
    match kind:
        case "string":
            flags = "i" if text.endswith("i") else ""
            return f"(?{flags}:{_escaped(text.removesuffix('i'))})"
        case "regex":
            pattern, _, flags = text[1:].rpartition("/")
            return f"(?{flags}:{pattern.replace(chr(92) + '/', '/')})"
        case "range":
            first, last = re.findall(r'"(?:\\.|[^"\\])"', text)
            return f"[{_escaped(first)}-{_escaped(last)}]"
        case "repeat":
            return "{" + ",".join(re.findall(r"\d+", text)) + "}"
    return _OPERATORS.get(text, text)


def _escaped(literal: str) -> str:
    try:
        return _SPECIAL.sub(r"\\\g<0>", str(ast.literal_eval(literal)))
    except (ValueError, SyntaxError) as error:
        raise ValueError(f"{literal} is no string") from error

r"""Pure: what a mathematical answer is made of, and whether two of them are alike part by part.

shape_of("(2, 5]")       # Shape("interval", ("2", "5"), mark="(]")
shape_of("x = \\pm 3")   # Shape("list", ("3", "-3"), names=("x", "x"))
shape_of("\\sqrt{2}")    # Shape("one", ("\\sqrt{2}",))
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from envsdk.rewards.notation import closing, number, without_braces

Kind = Literal["one", "list", "set", "tuple", "interval", "union", "matrix", "base", "remainder", "ratio"]

VARIABLE = re.compile(r"\\?[A-Za-z]+(?:_\{?\w+\}?)?'?(?:\([\w, ]*\))?")
_MEMBER = re.compile(
    r"(?:\\?[A-Za-z]+(?:_\{?\w+\}?)?|\([\w\\, ]+\))\s*(?:=|\\in\b)\s*(?=\(|\[|\\\{|\\emptyset|\{)"
)
_NAMED = re.compile(rf"({VARIABLE.pattern})\s*=\s*([^=]+)")
_ORDER = re.compile(r"(\\[lg]e(?![A-Za-z])|[<>])")
_UNION = re.compile(r"\\cup(?![A-Za-z])")
_MATRIX = re.compile(
    r"(?:[A-Za-z]\s*=\s*)?\(?\s*\\begin\{([bp]?matrix|array)\}(?:\{[lcr| ]*\})?(.*)\\end\{\1\}\s*\)?",
    re.DOTALL,
)
_BASE = re.compile(r"([0-9A-Z]+)_(?:\{\(?(\w+)\)?\}|(\d+))")
_REMAINDER = re.compile(
    r"(?:[A-Za-z]+\s*\\equiv\s*)?(-?\d+)\s*"
    r"(?:\\p?mod\s*\{?(\d+)\}?|\(\s*(?:\\mod|\\text\{mod\s*\}|mod)\s*\{?(\d+)\}?\s*\))"
)
_RATIO = re.compile(r"[^:,=<>]+(?::[^:,=<>]+)+")
_SIGNS = re.compile(r"\\(?:pm|mp)(?![A-Za-z])")
_BASES = {
    "two": "2", "three": "3", "four": "4", "five": "5", "six": "6", "seven": "7", "eight": "8", "nine": "9",
    "ten": "10", "twelve": "12", "sixteen": "16",
}  # fmt: skip
_GROUPED = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])")
_REALS = re.compile(r"\\mathbb\s*\{?R\}?|\\R|(?:\\text\{\s*)?all reals?(?: numbers?)?(?:\s*\})?")
_MOST_PARTS = 100

Same = Callable[[str, str], bool]


@dataclass(frozen=True, slots=True)
class Shape:
    """An answer by its parts."""

    kind: Kind
    parts: tuple[str, ...]
    """The elements as they are written; of a matrix its cells, of an interval its ends."""
    mark: str = ""
    """Brackets of a tuple or interval, rows and columns of a matrix, the base or the modulus of a number."""
    names: tuple[str, ...] = ()
    """The variables that the parts are values of; empty when they are not named."""


@lru_cache(maxsize=512)
def shape_of(text: str) -> Shape:
    """The shape of an expression in the notation of `notation.expression`."""
    text = without_braces(text)
    if (special := _special(text)) is not None:
        return special
    text = without_braces(_MEMBER.sub("", text, count=1)) if _MEMBER.match(text) else text
    if _SIGNS.search(text):
        either = [
            re.sub(r"\\pm(?![A-Za-z])\s*", upper, re.sub(r"\\mp(?![A-Za-z])\s*", lower, text))
            for upper, lower in (("+", "-"), ("-", "+"))
        ]
        parts = [part for each in either for part in _split(_tidied(each), ",")]
        return _named_list(list(dict.fromkeys(parts)))
    parts = _split(text, ",")
    if len(parts) == 1:
        parts = _split(text, ";")
    if len(parts) > 1:
        return Shape("union", tuple(parts)) if all(map(_range, parts)) else _named_list(parts)
    pieces = [part.strip() for part in _UNION.split(text)]
    if len(pieces) > 1:
        return Shape("union", tuple(pieces))
    if _REALS.fullmatch(text):
        return Shape("interval", ("-\\infty", "\\infty"), mark="()")
    return _enclosed(text) or _range(text) or Shape("one", (text,))


def leaves(text: str) -> Iterator[str]:
    """The parts that are no collections themselves."""
    shape = shape_of(text)
    for part in shape.parts:
        if shape.kind == "one" or part == text:
            yield part
        else:
            yield from leaves(part)


def alike(answer: Shape, truth: Shape, same: Same) -> bool:
    """Whether an answer has the parts of the ground truth; `same` compares two parts."""
    if len(answer.parts) > _MOST_PARTS:
        return False
    if truth.kind in ("list", "set"):
        return answer.kind in ("list", "set", "one") and _as_set(answer, truth, same)
    if truth.kind == "union":
        if answer.kind == "list":
            answer = Shape("union", answer.parts)
        return answer.kind == "union" and _matches(answer.parts, truth.parts, same)
    if truth.kind == "tuple" and answer.kind == "list" and len(answer.parts) == len(truth.parts):
        return _in_order(answer.parts, truth.parts, same)
    if truth.kind == "interval" or answer.kind == "interval":
        names = {*truth.names, *answer.names}
        return (
            _ends(answer) == _ends(truth) and len(names) <= 1 and _in_order(answer.parts, truth.parts, same)
        )
    if truth.kind == "one" and answer.kind in ("list", "set"):
        return all(same(part, truth.parts[0]) for part in answer.parts)
    if truth.kind == "base" and answer.kind == "one":
        return answer.parts == truth.parts
    if truth.kind == "ratio" and len(truth.parts) == 2 and answer.kind == "one":
        return same(answer.parts[0], f"\\frac{{{truth.parts[0]}}}{{{truth.parts[1]}}}")
    return (answer.kind, answer.mark) == (truth.kind, truth.mark) and _in_order(
        answer.parts, truth.parts, same
    )


def _as_set(answer: Shape, truth: Shape, same: Same) -> bool:
    names = [name.split("_")[0] for name in truth.names]
    if len(set(names)) > 1 and len(answer.names) == len(names):
        said = dict(zip(answer.names, answer.parts, strict=True))
        return said.keys() == set(truth.names) and all(
            same(said[name], part) for name, part in zip(truth.names, truth.parts, strict=True)
        )
    return _matches(answer.parts, truth.parts, same)


def _matches(answer: Sequence[str], truth: Sequence[str], same: Same) -> bool:
    """Each part has a partner, in any order; a part that is said twice counts once."""
    left = list(truth)
    for part in answer:
        partners = [other for other in truth if same(part, other)]
        if not partners:
            return False
        left = [other for other in left if other not in partners]
    return not left


def _in_order(answer: Sequence[str], truth: Sequence[str], same: Same) -> bool:
    return len(answer) == len(truth) and all(
        same(part, other) for part, other in zip(answer, truth, strict=True)
    )


def _ends(shape: Shape) -> str:
    return shape.mark if shape.kind in ("interval", "tuple") and len(shape.parts) == 2 else shape.kind


def _special(text: str) -> Shape | None:
    if (matrix := _MATRIX.fullmatch(text)) is not None:
        rows = [row.split("&") for row in matrix[2].split("\\\\") if row.strip()]
        if rows and len({len(row) for row in rows}) == 1:
            cells = tuple(cell.strip() for row in rows for cell in row)
            return Shape("matrix", cells, mark=f"{len(rows)}x{len(rows[0])}")
    if "_" in text and (based := _BASE.fullmatch(re.sub(r"\\text\s*\{(\w+)\}", r"\1", text))):
        base = based[2] or based[3]
        return Shape("base", (based[1],), mark=_BASES.get(base.lower(), base))
    if "mod" in text and (remainder := _REMAINDER.fullmatch(text)):
        modulus = int(remainder[2] or remainder[3])
        return Shape(
            "remainder", (str(int(remainder[1]) % modulus if modulus else remainder[1]),), mark=str(modulus)
        )
    if ":" in text and _RATIO.fullmatch(text) and "\\{" not in text:
        return Shape("ratio", tuple(part.strip() for part in text.split(":")))
    return None


def _named_list(parts: Sequence[str]) -> Shape:
    named = [_NAMED.fullmatch(part) for part in parts]
    if (
        named
        and named[0]
        and not any(name is None and "=" in part for name, part in zip(named, parts, strict=True))
    ):
        names = tuple(name[1] if name else named[0][1] for name in named)
        values = tuple(name[2].strip() if name else part for name, part in zip(named, parts, strict=True))
        return Shape("list", values, names=names)
    return Shape("list", tuple(parts))


def _enclosed(text: str) -> Shape | None:
    if text.startswith("\\{") and text.endswith("\\}"):
        inside = text[2:-2].strip()
        if _split(inside, "|")[1:] or _split(inside, ":")[1:] or "\\{" in inside:
            return None
        parts = tuple(_split(inside, ",", keeps_groups=", " in inside))
        return Shape("set", parts) if inside else Shape("one", ("\\emptyset",))
    if len(text) > 2 and text[0] in "([" and text[-1] in ")]" and closing(text, 0) == len(text) - 1:
        parts = tuple(_split(text[1:-1], ",", keeps_groups=", " in text))
        mark = text[0] + text[-1]
        if len(parts) == 2 and mark != "()":
            return Shape("interval", parts, mark=mark)
        if len(parts) > 1:
            return Shape("tuple", parts, mark=mark)
    return None


def _range(text: str) -> Shape | None:
    """`2 < x \\le 5` as the interval (2, 5]."""
    sides = [side.strip() for side in _ORDER.split(text)]
    if len(sides) == 3:
        left, sign, right = sides
        if re.fullmatch(r"\|\s*\w+\s*\|", left) and number(right) is not None and sign in ("<", "\\le"):
            mark = "()" if sign == "<" else "[]"
            return Shape("interval", (f"-{right}", right), mark=mark, names=(left.strip("| "),))
        if VARIABLE.fullmatch(right) and not VARIABLE.fullmatch(left):
            left, right, sign = right, left, {"<": ">", ">": "<", "\\le": "\\ge", "\\ge": "\\le"}[sign]
        if left and not VARIABLE.fullmatch(left):
            return None
        names = (left,) if left else ()
        if sign in (">", "\\ge"):
            return Shape("interval", (right, "\\infty"), mark="()" if sign == ">" else "[)", names=names)
        return Shape("interval", ("-\\infty", right), mark="()" if sign == "<" else "(]", names=names)
    if len(sides) != 5 or not VARIABLE.fullmatch(sides[2]):
        return None
    low, first, name, second, high = sides
    if first in (">", "\\ge") and second in (">", "\\ge"):
        low, first, second, high = high, second, first, low
    elif first not in ("<", "\\le") or second not in ("<", "\\le"):
        return None
    mark = ("[" if "e" in first else "(") + ("]" if "e" in second else ")")
    return Shape("interval", (low, high), mark=mark, names=(name,))


def _tidied(text: str) -> str:
    """Without a plus sign that stands before all."""
    return re.sub(r"(^|[=,({]\s*)\+\s*", r"\1", text)


def _split(text: str, separator: str, *, keeps_groups: bool = True) -> list[str]:
    """The parts between separators outside all brackets; the comma of 1,234 is none when groups are kept."""
    inside = {at for match in _GROUPED.finditer(text) for at in range(*match.span())} if keeps_groups else ()
    parts, depth, start = [], 0, 0
    for at, character in enumerate(text):
        depth += (character in "({[") - (character in ")}]")
        if character == separator and depth == 0 and not (separator == "," and at in inside):
            parts.append(text[start:at])
            start = at + 1
    parts.append(text[start:])
    return [part.strip() for part in parts if part.strip()]

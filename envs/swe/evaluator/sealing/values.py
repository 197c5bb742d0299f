"""Values as `kit/probes.py` sends them, and what Python's operators say of them.

Everything here reads what an untrusted process wrote: it makes no object of a class of the repository, hashes
nothing that the process chose, and a malformed value equals nothing.

    none  bool  str             as JSON has them
    int  fraction  bytes        hexadecimal
    float  complex  decimal     as Python prints them
    range                       start, stop and step, hexadecimal
    list  tuple  set            of values
    dict  ordered  counter      of pairs of values
    dataclass                   class, pairs of a name and a value
    enum                        class, name
    printed                     a date, path or UUID: class, text
    approx                      `pytest.approx`: the value, `rel`, `abs`
    digest                      of a value that is too large
    opaque                      anything else: its class
"""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

Value = Sequence[Any]
"""`[tag, *content]`."""

_MAX_EXPONENT = 5000
"""Exponent of a Decimal that takes part in arithmetic: the rest equals only itself."""
_MAX_DIGITS = 6000
"""Digits of such a Decimal."""
_MAX_SEARCHED = 2000
"""Characters of a text through which a pattern with one quantifier goes at once."""
_SEARCH_TIMEOUT_S = 5.0
_SEARCH = "import json, re, sys; sys.exit(not re.search(*json.load(sys.stdin)))"
_REL, _ABS = 1e-6, 1e-12
"""Defaults of `pytest.approx`."""


class NotComparable(ValueError):
    """Python itself would raise, or the value is malformed."""


def is_opaque(value: Value) -> bool:
    """Whether any part of it has no canonical form, or it is too large to be sent."""
    return any(part[0] in {"opaque", "digest"} for part in _parts(value))


def _parts(value: Value) -> Iterator[Value]:
    yield value
    match value:
        case ["tuple" | "list" | "set", items]:
            for item in items:
                yield from _parts(item)
        case ["dict" | "ordered" | "counter", pairs]:
            for key, item in pairs:
                yield from _parts(key)
                yield from _parts(item)
        case ["dataclass", _, fields]:
            for _, item in fields:
                yield from _parts(item)
        case ["approx", expected, *_]:
            yield from _parts(expected)


def is_approximate(value: Value) -> bool:
    """Whether any part of it stands for many values."""
    return any(part[0] == "approx" for part in _parts(value))


def fields_of(value: Value) -> dict[str, list[str]]:
    """The fields of the data classes in it, by class."""
    return {part[1]: [name for name, _ in part[2]] for part in _parts(value) if part[0] == "dataclass"}


def with_fields(value: Value, fields: Mapping[str, Sequence[str]]) -> Value:
    """`value` without what its data classes have besides `fields`, those by class: a patch may add fields."""
    match value:
        case ["tuple" | "list" | "set" as tag, list(items)]:
            return [tag, [with_fields(item, fields) for item in items]]
        case ["dict" | "ordered" | "counter" as tag, list(pairs)]:
            return [tag, [[with_fields(part, fields) for part in pair] for pair in pairs]]
        case ["dataclass", str(cls), list(found)]:
            kept = fields.get(cls, [name for name, _ in found])
            by_name = {name: with_fields(item, fields) for name, item in found}
            return ["dataclass", cls, [[name, by_name[name]] for name in kept if name in by_name]]
    return value


def key(value: Value) -> str:
    """Text that is the same for values that `==` holds to be the same.

    Raises NotComparable: it is opaque, malformed, NaN, or stands for many values (`approx`).
    """
    match value:
        case ["none"]:
            return "none"
        case ["bool" | "int" | "float" | "fraction" | "decimal" | "complex", *_]:
            return _number_key(value)
        case ["str", str(text)]:
            return f"s{len(text)}:{text}"
        case ["bytes", str(text)]:
            return f"y{len(text)}:{text}"
        case ["tuple" | "list" as tag, list(items)]:
            return f"{tag}({','.join(key(item) for item in items)})"
        case ["set", list(items)]:
            return f"S({','.join(sorted(_members(items)))})"
        case ["dict" | "ordered" | "counter", list(pairs)]:
            return f"d({','.join(sorted(f'{name}={key(item)}' for name, item in _entries(pairs).items()))})"
        case ["range", str(start), str(stop), str(step)]:
            same = range(int(start, 16), int(stop, 16), int(step, 16))
            return f"r({same.start if same else 0},{len(same)},{same.step if len(same) > 1 else 0})"
        case ["printed", str(cls), str(text)]:
            return f"k{cls}:{len(text)}:{text}"
        case ["enum", str(cls), str(name)]:
            return f"e{cls}:{name}"
        case ["dataclass", str(cls), list(fields)]:
            return f"C{cls}({','.join(f'{name}={key(item)}' for name, item in fields)})"
        case ["digest", str(digest)]:
            return f"#{digest}"
    raise NotComparable("no canonical form")


def _number_key(value: Value) -> str:
    if value[0] == "complex":
        real, imaginary = float(value[1]), float(value[2])
        if imaginary:
            return f"c{real!r},{imaginary!r}"
        value = ["float", value[1]]
    if value[0] == "decimal" and (number := Decimal(value[1])).is_finite():
        exponent = number.as_tuple().exponent
        assert isinstance(exponent, int)
        if abs(exponent) > _MAX_EXPONENT:
            return f"D{number.normalize()}"
    number_or_infinity = _number(value)
    if isinstance(number_or_infinity, float):
        return f"f{number_or_infinity!r}"
    if number_or_infinity.denominator == 1:
        return f"i{number_or_infinity.numerator:x}"
    return f"q{number_or_infinity.numerator:x}/{number_or_infinity.denominator:x}"


def _number(value: Value) -> Fraction | float:
    """Exactly; infinities as floats.

    Raises NotComparable: it is no real number, or NaN.
    """
    match value:
        case ["bool", bool(truth)]:
            return Fraction(truth)
        case ["int", str(digits)]:
            return Fraction(int(digits, 16))
        case ["fraction", str(numerator), str(denominator)]:
            return Fraction(int(numerator, 16), int(denominator, 16))
        case ["float", str(text)]:
            number = float(text)
        case ["decimal", str(text)] if len(text) <= _MAX_DIGITS:
            decimal = Decimal(text)
            exponent = decimal.as_tuple().exponent
            if isinstance(exponent, int):
                if abs(exponent) > _MAX_EXPONENT:
                    raise NotComparable("a number too long to be compared")
                return Fraction(decimal)
            number = float(decimal)
        case _:
            raise NotComparable("no number")
    if math.isnan(number):
        raise NotComparable("NaN equals nothing")
    return number if math.isinf(number) else Fraction(number)


def same(left: Value, right: Value) -> bool:
    """`left == right`."""
    if "approx" in (left[0], right[0]):
        approximate, other = (left, right) if left[0] == "approx" else (right, left)
        return _near(other, *approximate[1:])
    match left, right:
        case (["tuple" | "list" as one, list(mine)], ["tuple" | "list" as other, list(theirs)]):
            return one == other and len(mine) == len(theirs) and all(map(same, mine, theirs))
        case (
            ["dict" | "ordered" | "counter" as one, list(mine)],
            ["dict" | "ordered" | "counter" as other, list(theirs)],
        ):
            if one == other == "counter":
                return _same_entries(_counted(mine), _counted(theirs))
            ordered = one == other == "ordered"
            return _same_entries(_entries(mine), _entries(theirs), ordered=ordered)
    return key(left) == key(right)


def _same_entries(mine: Mapping[str, Value], theirs: Mapping[str, Value], *, ordered: bool = False) -> bool:
    if mine.keys() != theirs.keys() or (ordered and list(mine) != list(theirs)):
        return False
    return all(same(item, theirs[name]) for name, item in mine.items())


def _entries(pairs: Sequence[Value]) -> dict[str, Value]:
    """The items of a dictionary by the texts of their keys. NotComparable: a key is there twice."""
    found = {key(name): item for name, item in pairs}
    if len(found) != len(pairs):
        raise NotComparable("a key is repeated")
    return found


def _members(items: Sequence[Value]) -> set[str]:
    """The texts of the elements of a set. NotComparable: one is there twice."""
    found = {key(item) for item in items}
    if len(found) != len(items):
        raise NotComparable("an element is repeated")
    return found


def _counted(pairs: Sequence[Value]) -> dict[str, Value]:
    """The entries of a Counter, without what it counts 0 of."""
    return {name: number for name, number in _entries(pairs).items() if not same(number, ["int", "0"])}


def _near(value: Value, expected: Value, rel: Value, absolute: Value) -> bool:
    """`value == pytest.approx(expected, rel, abs)`."""
    match expected, value:
        case (["tuple" | "list", list(wanted)], ["tuple" | "list", list(seen)]):
            return len(wanted) == len(seen) and all(
                _near(item, target, rel, absolute) for item, target in zip(seen, wanted, strict=True)
            )
        case (["dict" | "ordered" | "counter", list(wanted)], ["dict" | "ordered" | "counter", list(seen)]):
            found, targets = _entries(seen), _entries(wanted)
            return found.keys() == targets.keys() and all(
                _near(found[name], target, rel, absolute) for name, target in targets.items()
            )
    try:
        number, target = _number(value), _number(expected)
    except NotComparable:
        return same(value, expected)
    if isinstance(number, float) or isinstance(target, float):
        return number == target
    limit = _ABS if absolute == ["none"] else float(_number(absolute))
    if rel != ["none"] or absolute == ["none"]:
        limit = max(limit, (_REL if rel == ["none"] else float(_number(rel))) * float(abs(target)))
    if value[0] == "float" or expected[0] == "float":
        return abs(float(number) - float(target)) <= limit  # rounded as pytest rounds
    return bool(abs(number - target) <= limit)


def holds(operator: str, left: Value, right: Value) -> bool:
    """Whether `left OPERATOR right`; False where Python would raise or nothing can be said.

    Operators are Python's, and `count` (`assertCountEqual`), `search` (the pattern `right` is found in the
    text `left`) and `almost:N` (equal when rounded to N places).
    """
    try:
        return _OPERATORS[operator.partition(":")[0]](operator, left, right)
    except (ValueError, TypeError, ArithmeticError, LookupError, AttributeError, RecursionError):
        return False


def _is(_: str, left: Value, right: Value) -> bool:
    return left[0] == right[0] and key(left) == key(right)


def _differs(_: str, left: Value, right: Value) -> bool:
    try:
        return not same(left, right)
    except NotComparable:
        # NaN differs from everything; of what is opaque nothing is known.
        return not (is_opaque(left) or is_opaque(right))


def range_length(value: Value) -> int:
    """How many numbers a range has; 0 for anything else."""
    match value:
        case ["range", str(start), str(stop), str(step)]:
            first, end, by = int(start, 16), int(stop, 16), int(step, 16)
            return max(0, -((first - end) // by)) if by > 0 else max(0, -((end - first) // -by))
    return 0


def _in(_: str, left: Value, right: Value) -> bool:
    match right:
        case ["str" | "bytes" as tag, str(text)]:
            if tag == "bytes":
                needle = bytes.fromhex(left[1]) if left[0] == "bytes" else bytes([int(left[1], 16)])
                return needle in bytes.fromhex(text)
            return left[0] == "str" and left[1] in text
        case ["tuple" | "list" | "set", list(items)]:
            return any(_equals(left, item) for item in items)
        case ["dict" | "ordered" | "counter", list(pairs)]:
            return any(_equals(left, name) for name, _ in pairs)
        case ["range", str(start), str(stop), str(step)]:
            # A range goes through all that it holds where it is asked for anything but a whole number.
            number = _number(left)
            is_whole = isinstance(number, Fraction) and number.denominator == 1
            return is_whole and int(number) in range(int(start, 16), int(stop, 16), int(step, 16))
    raise NotComparable("not a container")


def _not_in(operator: str, left: Value, right: Value) -> bool:
    if is_opaque(right):
        raise NotComparable("an element without a canonical form")
    return not _in(operator, left, right)


def _equals(left: Value, right: Value) -> bool:
    try:
        return same(left, right)
    except NotComparable:
        return False


def _ordered(operator: str, left: Value, right: Value) -> bool:
    compare = _ORDER[operator]
    match left, right:
        case (["str", str(one)], ["str", str(other)]):
            return compare(one, other)
        case (["bytes", str(one)], ["bytes", str(other)]):
            return compare(bytes.fromhex(one), bytes.fromhex(other))
        case (["tuple" | "list" as one, list(mine)], ["tuple" | "list" as other, list(theirs)]) if (
            one == other
        ):
            for pair in zip(mine, theirs, strict=False):
                if not _equals(*pair):
                    return _ordered(operator, *pair)
            return compare(len(mine), len(theirs))
        case (["set", list(mine)], ["set", list(theirs)]):
            return compare(_members(mine), _members(theirs))
    return compare(_number(left), _number(right))


def _count(_: str, left: Value, right: Value) -> bool:
    return sorted(map(key, items_of(left))) == sorted(map(key, items_of(right)))


def items_of(value: Value) -> Sequence[Value]:
    """What iterating over it gives. Raises NotComparable: nothing does, or the value is malformed."""
    match value:
        case ["tuple" | "list" | "set", list(items)]:
            return items
        case ["dict" | "ordered" | "counter", list(pairs)]:
            return [name for name, _ in pairs]
        case ["str", str(text)]:
            return [["str", character] for character in text]
    raise NotComparable("not a collection")


def _almost(operator: str, left: Value, right: Value) -> bool:
    one, other = _number(left), _number(right)
    if isinstance(one, float) or isinstance(other, float):
        return one == other
    return one == other or round(abs(one - other), int(operator.partition(":")[2])) == 0


def _search(_: str, left: Value, right: Value) -> bool:
    return left[0] == right[0] == "str" and search(right[1], left[1])


_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "<": lambda one, other: bool(one < other),
    "<=": lambda one, other: bool(one <= other),
    ">": lambda one, other: bool(one > other),
    ">=": lambda one, other: bool(one >= other),
}
_OPERATORS: dict[str, Callable[[str, Value, Value], bool]] = {
    "==": lambda _, left, right: same(left, right),
    "!=": _differs,
    "is": _is,
    "is not": lambda *compared: not _is(*compared),
    "in": _in,
    "not in": _not_in,
    **dict.fromkeys(_ORDER, _ordered),
    "count": _count,
    "almost": _almost,
    "search": _search,
}


def search(pattern: str, text: str) -> bool:
    """Whether `re.search(pattern, text)` finds something. A pattern that may take exponential time on a text
    which an untrusted process chose is tried in a process of its own, for a few seconds."""
    quantifiers = len(re.findall(r"(?<!\\)[*+?{]", pattern))
    is_quick = not quantifiers or (quantifiers == 1 and len(text) <= _MAX_SEARCHED)
    if is_quick and not re.search(r"(?<!\\)\(|\\\d", pattern):
        return re.search(pattern, text) is not None
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _SEARCH],
            input=json.dumps([pattern, text]),
            text=True,
            capture_output=True,
            timeout=_SEARCH_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0

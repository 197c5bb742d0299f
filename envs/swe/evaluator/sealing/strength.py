"""How many bits a patch that solves nothing has to guess to be paid. An estimate that is rather too low: it
decides which tasks are weak.

Counted are the claims of FAIL_TO_PASS that the base tree does not meet. Of several ways to say what is
expected, the cheapest counts: by itself, or by how it differs from what the base tree sent.

    expected [3, 1, 2], base sent [1, 2, 3]     the order alone
    expected False, base sent True              the opposite
    expected 5, base sent 4                     one more
    expected "1:01", which is an input of another test in the file     nothing

What holds for several claims is guessed once, and then which claim it holds for. Exceptions count nothing, as
inputs and names mostly tell which is raised and where; their texts count.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import pairwise
from typing import Any, Self

from envsdk.envs.swe.evaluator.sealing.claims import Claim, probed
from envsdk.envs.swe.evaluator.sealing.values import NotComparable, Value, items_of, key

ENOUGH_BITS = 8.0
"""One guess in 256."""
_MAX_BITS = 64.0
"""Bits of one value, at most."""
_MAX_HITS = 200
"""Values of one claim that are looked at."""
_DIGIT, _OTHER = 3.3, 1.5
"""Bits of a character: a digit, another one."""
_IN_SIGHT_FROM = 4
"""Characters of a text that is nothing usual; of numbers, digits less two."""
_MAX_COMPARED = 1 << 22
"""Products of lengths of two values whose difference is looked for."""


@dataclass(frozen=True, slots=True)
class Sight:
    """Constants that the process of the tests has before it."""

    numbers: frozenset[str] = frozenset()
    texts: tuple[str, ...] = ()

    @classmethod
    def of(cls, sealed: Iterable[str]) -> Self:
        """Those in the sealed files, other than in variants of what is hidden."""
        found = [value for text in sealed for value in _constants(ast.parse(text))]
        numbers = [repr(value) for value in found if isinstance(value, int | float)]
        texts = dict.fromkeys(value for value in found if isinstance(value, str))
        return cls(frozenset(numbers), tuple(text for text in texts if len(text) >= _IN_SIGHT_FROM))

    def has(self, value: Any) -> bool:
        """Whether a number or a text that is nothing usual is among them."""
        if isinstance(value, str):
            return value in self.texts
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and len(repr(value).strip("-")) >= 2 and repr(value) in self.numbers

    def cut_bits(self, text: str) -> float:
        """Bits of saying from where to where in one of the texts `text` stands; not which one that is."""
        least = math.inf
        for known in self.texts if len(text) >= _IN_SIGHT_FROM else ():
            if text in known:
                ends = 2 - known.startswith(text) - known.endswith(text)
                least = min(least, max(0, ends) * math.log2(len(known) + 1))
        return least


def _constants(node: ast.AST) -> Iterator[Any]:
    if probed(node, "truths") and isinstance(node, ast.Call):
        node = node.args[1]
    if isinstance(node, ast.Constant):
        yield node.value
    for child in ast.iter_child_nodes(node):
        yield from _constants(child)


@dataclass(frozen=True, slots=True)
class Unmet:
    """A claim of one test that the base tree does not meet."""

    claim: Claim
    hits: Sequence[Any]
    """What is expected, each time or once, as `judge.Expected` has it."""
    allowed: int
    """Characters of a value in which something is looked for."""
    base: Sequence[Any] = ()
    """What the base tree sent each time."""


def hidden_bits(unmet: Iterable[Unmet], sight: Sight) -> float:
    """Bits of all these claims together."""
    kinds: defaultdict[str, list[tuple[str, float]]] = defaultdict(list)
    for one in unmet:
        for explanation, bits in _explanations(one, sight):
            if bits > 0:
                kinds[one.claim.kind].append((explanation, bits))
    return sum(_together(found) for found in kinds.values())


def _together(explained: Sequence[tuple[str, float]]) -> float:
    """Each by itself; or what there is, each once, and which of it is where."""
    once: dict[str, float] = {}
    for explanation, bits in explained:
        once[explanation] = max(bits, once.get(explanation, 0.0))
    counts = Counter(explanation for explanation, _ in explained)
    where = _log2_factorial(len(explained)) - sum(map(_log2_factorial, counts.values()))
    return min(sum(bits for _, bits in explained), sum(once.values()) + where)


def _explanations(one: Unmet, sight: Sight) -> Iterator[tuple[str, float]]:
    """The cheapest explanation of each thing that is expected, and its bits."""
    claim = one.claim
    if claim.optional or not claim.wanted:
        return
    for number, hit in enumerate(one.hits[:_MAX_HITS]):
        base = one.base[number] if number < len(one.base) else None
        if claim.kind == "raised":
            if hit[1] is not None:
                yield f"text {hit[1]}", _searched(_pattern_bits(hit[1], sight), one.allowed)
        elif claim.kind == "values":
            if any(claim.cut):
                yield _compared(claim, hit, base, one.allowed, sight)
        elif len(claim.order) > 1:
            # Words of one kind are not equally usual.
            is_word = isinstance(claim.hidden, str) and not re.search(r"\d", claim.hidden)
            bits = 1.0 if is_word else math.log2(len(claim.order))
            yield f"variants {id(claim)}", 0.0 if sight.has(claim.hidden) else bits
        else:
            yield ("not" if base is not None else f"truth {hit}"), 1.0


def _compared(
    claim: Claim, hit: Sequence[Value | None], base: Sequence[Value] | None, allowed: int, sight: Sight
) -> tuple[str, float]:
    cut = next(operand for operand in hit if operand is not None)
    operator = claim.operators[0].partition(":")[0]
    if claim.negated or operator in {"!=", "is not", "not in"}:
        return "another", 0.0
    if len(claim.operators) > 1 or operator in {"<", "<=", ">", ">="}:
        return f"{claim.operators} {claim.cut}", 1.0
    if operator == "search":
        return f"text {cut[1]}", _searched(_pattern_bits(cut[1], sight), allowed)
    if operator == "in":
        if claim.cut[0]:
            return f"in {_told(cut)}", _searched(_bits(cut, sight), allowed)
        least = min((_bits(item, sight) for item in items_of(cut)), default=1.0)
        return f"in {_told(cut)}", _searched(least, len(items_of(cut)))
    plain = cut[1] if cut[0] == "approx" else cut
    return _cheapest(base[0], plain, sight) if base else (_told(plain), _bits(plain, sight))


def _searched(bits: float, allowed: int) -> float:
    """Bits of what may be anywhere in a value of `allowed` places."""
    return max(0.0, bits - math.log2(max(1, allowed)))


def _difference(base: Value, expected: Value, sight: Sight) -> tuple[str, float]:
    """How to make `expected` of `base`, and the bits of that."""
    unknown = "", math.inf
    try:
        match base, expected:
            case ([one, str(mine)], [other, str(theirs)]) if {one, other} <= {"int", "float"}:
                step = _number(theirs, other) - _number(mine, one)
                if not math.isfinite(step):
                    return unknown
                return f"add {step}", 1.0 + _number_bits(step)
            case (["bool", bool()], ["bool", bool()]):
                return "not", 1.0
            case (["str", str(mine)], ["str", str(theirs)]):
                return _edited(list(mine), list(theirs), lambda part: _text_bits("".join(part), sight))
            case (
                ["tuple" | "list" | "set" as one, list(mine)],
                ["tuple" | "list" | "set" as other, list(theirs)],
            ):
                told, bits = _rearranged(mine, theirs, sight)
                return (told, bits) if one == other else (f"{other} of {told}", 1.0 + bits)
            case (
                ["dict" | "ordered" | "counter", list(mine)],
                ["dict" | "ordered" | "counter", list(theirs)],
            ):
                return _reassigned(mine, theirs, sight)
            case (["dataclass", str(one), list(mine)], ["dataclass", str(other), list(theirs)]) if (
                one == other
            ):
                return _reassigned(_named(mine), _named(theirs), sight)
            case ([_, list(items)], _) if any(_told(item) == _told(expected) for item in items):
                return "an item", 1.0 + math.log2(len(items) + 1)
            case (_, [_, [item]]) if _told(item) == _told(base):
                return f"in a {expected[0]}", 2.0
    except (ValueError, TypeError, LookupError, OverflowError):
        pass
    return unknown


def _named(fields: Sequence[Sequence[Any]]) -> list[list[Value]]:
    return [[["str", name], item] for name, item in fields]


def _rearranged(mine: Sequence[Value], theirs: Sequence[Value], sight: Sight) -> tuple[str, float]:
    old, new = [_told(item) for item in mine], [_told(item) for item in theirs]
    if Counter(old) == Counter(new):
        return ("reversed", 2.0) if new == old[::-1] else (f"order {new}", _log2_factorial(len(new)))
    if len(mine) == len(theirs):
        changes = [_cheapest(*pair, sight) for pair in zip(mine, theirs, strict=True) if pair[0] != pair[1]]
        return _joined(changes, len(mine))
    by_text = dict(zip(new, theirs, strict=True))
    return _edited(old, new, lambda part: sum(_bits(by_text[text], sight) for text in part))


def _reassigned(
    mine: Sequence[Sequence[Value]], theirs: Sequence[Sequence[Value]], sight: Sight
) -> tuple[str, float]:
    old = {_told(name): item for name, item in mine}
    changes = []
    for name, item in theirs:
        known = old.pop(_told(name), None)
        if known is None:
            changes.append((f"{_told(name)}={_told(item)}", _bits(name, sight) + _bits(item, sight)))
        elif known != item:
            changes.append(_cheapest(known, item, sight))
    changes += [(f"without {name}", 1.0) for name in old]
    return _joined(changes, len(theirs))


def _cheapest(base: Value, expected: Value, sight: Sight) -> tuple[str, float]:
    if _told(base) == _told(expected):
        return "the same", 0.0
    literal = _told(expected), _bits(expected, sight)
    return min(literal, _difference(base, expected, sight), key=lambda pair: pair[1])


def _joined(changes: Sequence[tuple[str, float]], among: int) -> tuple[str, float]:
    """Several changes: each once, and where they are."""
    once = dict(changes)
    where = math.log2(math.comb(max(among, len(changes)), len(changes)))
    return " ".join(sorted(once)), sum(once.values()) + where


def _edited(
    old: Sequence[str], new: Sequence[str], bits: Callable[[Sequence[str]], float]
) -> tuple[str, float]:
    """Pieces that are taken out, and others put in: which, each once. The rule by which may tell the rest."""
    if len(old) * len(new) > _MAX_COMPARED:
        return "", math.inf
    where, changes = math.log2(len(old) + 1), dict[str, float]()
    for kind, start, end, low, high in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind != "equal":
            added = bits(new[low:high]) if high > low else 0.0
            changes[f"{old[start:end]}>{new[low:high]}"] = 1.0 + where + math.log2(end - start + 1) + added
    return " ".join(sorted(changes)), sum(changes.values())


def _told(value: Value) -> str:
    """Text that is the same for the same value."""
    try:
        return key(value)
    except (NotComparable, ValueError, TypeError, ArithmeticError):
        return json.dumps(value)


def _bits(value: Value, sight: Sight) -> float:
    """Bits of a value by itself."""
    match value:
        case ["none"] | ["bool", _]:
            found = 1.0
        case ["int" | "float" as tag, str(text)]:
            number = _number(text, tag)
            found = 0.0 if sight.has(number) else _number_bits(number)
        case ["fraction" | "decimal" | "complex" | "range" | "printed", *texts]:
            found = 1.0 + sum(_text_bits(text, Sight()) for text in texts)
        case ["str" | "bytes", str(text)]:
            found = _text_bits(text, sight)
        case ["tuple" | "list" | "set", list(items)]:
            found = 2.0 + _items_bits(items, sight, is_ordered=value[0] != "set")
        case ["dict" | "ordered" | "counter", list(pairs)]:
            found = 2.0 + _items_bits([item for pair in pairs for item in pair], sight)
        case ["dataclass", _, list(fields)]:
            found = 2.0 + _items_bits([item for _, item in fields], sight)
        case ["enum", *_]:
            found = 2.0
        case ["digest", _]:
            found = _MAX_BITS
        case _:
            found = 0.0
    return min(found, _MAX_BITS)


def _items_bits(items: Sequence[Value], sight: Sight, *, is_ordered: bool = True) -> float:
    numbers = [_number(item[1], item[0]) for item in items if item[0] in ("int", "float")]
    steps = {round(after - before, 9) for before, after in pairwise(numbers)}
    if len(numbers) == len(items) > 2 and len(steps) == 1:
        return sum(map(_number_bits, (numbers[0], *steps, len(items))))
    found = [(_told(item), _bits(item, sight)) for item in items]
    if not is_ordered:
        return sum(dict(found).values())
    return _together(found)


def _number(text: str, tag: str) -> float:
    return int(text, 16) if tag == "int" else float(text)


def _number_bits(number: float) -> float:
    """Bits of one among the numbers that are no larger, with no more digits behind the point."""
    if not math.isfinite(number):
        return 2.0
    digits = repr(number).partition("e")[0].partition(".")[2].rstrip("0")
    return 1.0 + (number < 0) + math.log2(abs(number) + 1) + _DIGIT * min(len(digits), 9)


def _text_bits(text: str, sight: Sight) -> float:
    own = 1.0 + sum(_DIGIT if c.isdigit() else _OTHER for c in text[:100])
    return min(own, sight.cut_bits(text), _MAX_BITS)


def _pattern_bits(pattern: str, sight: Sight) -> float:
    return _text_bits(re.sub(r"\\[a-zA-Z]|[\\.*+?^$()\[\]{}|]", "", pattern), sight)


def _log2_factorial(number: int) -> float:
    return math.lgamma(number + 1) / math.log(2)

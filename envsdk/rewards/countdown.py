"""The `countdown` reward: reach a target with given numbers, each used once, by + - * / and parentheses."""

from __future__ import annotations

import ast
import json
import operator
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from envsdk.rewards.answers import Extraction, Way, find_answer, short
from envsdk.rewards.reward import InlineReward, Reward, RewardError, Sample

_OPERATORS: Mapping[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_SIGNS = {operator.add: "+", operator.sub: "-", operator.mul: "*", operator.truediv: "/"}
_MOST_NUMBERS = 4
"""With more, no solution is searched for."""


class CountdownArgs(Extraction):
    """The settings of `countdown`."""

    extract: tuple[Way, ...] = ("tag", "boxed")
    """Ways of finding the equation in the response, as in `math`."""
    max_answer_chars: int = 200
    """A longer answer is wrong."""
    format_score: float = 0.1
    """For an equation that breaks the rules or misses the target."""


class CountdownReward(InlineReward[CountdownArgs]):
    """1 for an equation that reaches the row's target with each of its numbers once.

    A row has `target` and `numbers` (or `nums`), or both in its `ground_truth`, as an object or as JSON.
    """

    Args = CountdownArgs

    def score(self, sample: Sample) -> Reward:
        """Raises RewardError when the row has no target."""
        if (task := _task(sample.row)) is None:
            raise RewardError("its row has no target and numbers")
        target, numbers = task
        found = find_answer(sample.response, self.args)
        if found.answer is None:
            return Reward(value=0.0, verdict=found.problem, correct=False)
        problem = _problem(found.answer, target, numbers)
        value = self.args.format_score if problem else 1.0
        verdict = f"{short(found.answer)} {problem or 'is right'}"
        return Reward(value=value, verdict=verdict, correct=not problem)

    def reference(self, sample: Sample) -> str | None:
        """A solution, where there are few numbers."""
        task = _task(sample.row)
        if task is None or len(task[1]) > _MOST_NUMBERS:
            return None
        found = _solved([(Fraction(number), str(number)) for number in task[1]], Fraction(task[0]))
        return found and f"<answer>{found}</answer>"

    def problem(self, row: Mapping[str, Any]) -> str | None:
        return None if _task(row) else "it has no target and numbers"


def _task(row: Mapping[str, Any]) -> tuple[int, list[int]] | None:
    truth = row.get("ground_truth")
    try:
        inside = json.loads(truth) if isinstance(truth, str) else truth
    except ValueError:
        inside = None
    of = inside if isinstance(inside, Mapping) else row
    target, numbers = of.get("target"), of.get("numbers", of.get("nums"))
    if not isinstance(target, int) or not isinstance(numbers, list) or not numbers:
        return None
    return (target, numbers) if all(isinstance(each, int) for each in numbers) else None


def _problem(equation: str, target: int, numbers: Sequence[int]) -> str:
    """What is wrong with it; empty when nothing is."""
    try:
        tree = ast.parse(equation.strip(), mode="eval").body
        value = _value(tree)
    except (ValueError, SyntaxError, RecursionError, MemoryError, ZeroDivisionError):
        return "cannot be computed"
    # Read off the tree: `1_2` and `0x10` are one number each.
    constants = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    if sorted(each for each in constants if isinstance(each, int)) != sorted(numbers):
        return f"does not use {', '.join(map(str, numbers))} once each"
    return "" if value == target else f"is {value}, not {target}"


def _value(node: ast.AST) -> Fraction:
    match node:
        case ast.Constant(value=int(number)) if not isinstance(number, bool):
            return Fraction(number)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return Fraction(_OPERATORS[type(op)](_value(left), _value(right)))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
    raise ValueError("no arithmetic")


def _solved(terms: Sequence[tuple[Fraction, str]], target: Fraction) -> str | None:
    """An equation that joins all terms to the target, or None."""
    if len(terms) == 1:
        return terms[0][1] if terms[0][0] == target else None
    for i, (left, shown) in enumerate(terms):
        for j, (right, other) in enumerate(terms):
            if i == j:
                continue
            rest = [term for k, term in enumerate(terms) if k not in (i, j)]
            for joined, sign in _SIGNS.items():
                if (sign in "+*" and i > j) or (sign == "/" and right == 0):
                    continue
                term = (Fraction(joined(left, right)), f"({shown} {sign} {other})")
                if found := _solved([term, *rest], target):
                    return found
    return None

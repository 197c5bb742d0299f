r"""The `math` reward: is the answer the same number, set, interval or formula as the row's `ground_truth`?

Plain numbers are compared as fractions within microseconds; math-verify parses and compares everything else,
without its time limits, which need signals: the worker's deadline stands for them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any

from envsdk.base.settings.extras import require
from envsdk.rewards.answers import Extraction, boxed_content, find_answer, short
from envsdk.rewards.notation import expression, number, percentage, quantity
from envsdk.rewards.reward import Reward, RewardError, RewardFunction, Sample, stated_truth, unusable
from envsdk.rewards.shapes import VARIABLE, alike, leaves, shape_of

_MAX_DEPTH = 30
"""Depth of brackets in an answer: more overflow the parser's stack."""
_CLEARLY_DIFFERENT = Fraction(1, 10_000)
"""Numbers further apart than this, or than this share of the larger one, differ also when rounded; closer
ones are left to math-verify."""

_NO_VALUE = re.compile(
    r"\\(?:neq?|geq?|leq?|ll|gg|vee|lor|wedge|land|[bp]?mod|equiv|in)(?![A-Za-z])|[<>?]|\\\\|(?<=\d)_"
    r"|(?:[-+*/:^=]|\\(?:times|cdot|div))\s*$"
)
"""What makes a condition, a disjunction, a half of a formula or nothing of a number."""
_APPROXIMATELY = re.compile(r"\\(?:approx|simeq|sim|doteq)(?![A-Za-z])")
_NAMES_A_VALUE = re.compile(
    r"[A-Za-z]\w*\s*\(|\||\\(?:text|angle|triangle|lim|int|sum|prod|det|overline|operatorname|gcd|max|min|Pr)"
)
"""In the left side of an equation: its right side is what is asked for."""
_WORDS = re.compile(
    r"\\text\{([^{}]*)\}"
    r"|((?i:yes|no|true|false|none)|[A-Za-z][a-z]{3,}(?: [A-Za-z]+)*|[A-Za-z]+(?: [A-Za-z]+)+)"
)
_LETTER = re.compile(r"\(?(?:\\text\s*\{\s*)?\(?([A-J])\)?[.:)]?\s*\}?\)?")
_CHOSEN = re.compile(r"(?:\\text\s*\{\s*)?(?:\(([A-J])\)|([A-J])[.):])\s*\}?\s*.*", re.DOTALL)
_LAST_SIDE = re.compile(r"=|\\approx|≈")


class MathArgs(Extraction):
    """The settings of `math`."""

    float_rounding: int = 6
    """Decimals to which math-verify rounds a decimal number before it compares."""
    strict: bool = True
    """math-verify compares the names of variables too. A set is never a tuple."""
    evaluated: bool = False
    """Where the ground truth is a number, the answer must end in that number: `28 + 6` is not 34. For prompts
    that state what is to be computed, which a policy learns to repeat."""


class MathReward(RewardFunction):
    """1 when the answer in the response equals the row's `ground_truth`, otherwise 0."""

    Args = MathArgs

    def __init__(self, args: MathArgs) -> None:
        """Raises ConfigurationError where math-verify is not installed."""
        require("the reward 'math'", "math_verify")
        self.args = args

    @classmethod
    def preload(cls) -> None:
        """Import math-verify, which takes a second or two, and parse once."""
        _parsed("\\frac{1}{2}")

    def score(self, sample: Sample) -> Reward:
        """Raises RewardError when the row's `ground_truth` does not parse."""
        truth = expected_answer(sample.known_truth)
        if number(truth) is None and (problem := self.problem(sample.row)):
            raise RewardError(problem)
        found = find_answer(sample.response, self.args)
        answer = None if found.answer is None else expression(found.answer)
        if not answer:
            return Reward(value=0.0, verdict=found.problem or "no answer found", correct=False)
        if answer != truth and _depth(answer) > _MAX_DEPTH:
            return Reward(value=0.0, verdict="the answer is nested too deeply", correct=False)
        if self.args.evaluated and number(truth) is not None and not self._ends_in(answer, truth):
            return Reward(value=0.0, verdict=f"{short(answer)} does not end in {short(truth)}", correct=False)
        if self._is_same(answer, truth):
            return Reward(value=1.0, verdict=f"{short(answer)} is right", correct=True)
        return Reward(value=0.0, verdict=f"{short(answer)} is not {short(truth)}", correct=False)

    def reference(self, sample: Sample) -> str | None:
        r"""The row's `ground_truth` as `\boxed{}`."""
        truth = expected_answer(sample.known_truth)
        ways = {
            "boxed": f"\\boxed{{{truth}}}",
            "tag": f"<answer>${truth}$</answer>",
            "hash": f"#### ${truth}$",
        }
        return ways.get(self.args.extract[0], f"The answer is ${truth}$") if truth else None

    def problem(self, row: Mapping[str, Any]) -> str | None:
        """Why the row's `ground_truth` cannot be compared with."""
        if problem := unusable(given := stated_truth(row)):
            return problem
        return _problem_of(str(given), self.args.max_answer_chars)

    @staticmethod
    def _ends_in(answer: str, truth: str) -> bool:
        last = _LAST_SIDE.split(answer)[-1].strip()
        return number(quantity(last).value) == number(truth)

    def _is_same(self, answer: str, truth: str) -> bool:
        if answer == truth:
            return True
        if (is_same := same_number(answer, truth)) is not None:
            return is_same
        if (is_same := same_words(answer, truth)) is not None:
            return is_same
        said, expected = quantity(answer), quantity(truth)
        if said.is_denied or (said.unit and expected.unit and said.unit != expected.unit):
            return False
        return self._is_alike(value_of(said.value), value_of(expected.value))

    def _is_alike(self, answer: str, truth: str) -> bool:
        """Whether two values are the same, part by part."""
        if _flat(answer) == _flat(truth):
            return True
        if (is_same := same_number(answer, truth)) is not None:
            return is_same
        said, expected = shape_of(answer), shape_of(truth)
        if said.kind == expected.kind == "one":
            return self._is_equal(answer, truth)
        return alike(said, expected, lambda one, other: self._is_alike(value_of(one), value_of(other)))

    def _is_equal(self, answer: str, truth: str) -> bool:
        """Whether two single values are equal, one of which may be an equation that states it."""
        name, expected = _named(truth)
        if "=" in answer and ("=" not in truth or name):
            said_name, said = _named(answer)
            if name and said_name and name != said_name:
                return number(expected) is None and self._verify(answer, truth)
            *sides, said = (side.strip() for side in answer.split("="))
            if all(self._may_state(side, said) for side in sides):
                return self._is_alike(said, expected)
            if len(sides) == 1 and VARIABLE.fullmatch(said) and number(sides[0]) is not None:
                return self._is_alike(sides[0], expected)
            return bool(name) and self._verify(answer, truth)
        if name and "=" not in answer:
            return self._is_alike(answer, expected)
        if number(truth) is not None and _NO_VALUE.search(answer):
            return False
        return self._verify(answer, truth)

    def _may_state(self, side: str, value: str) -> bool:
        """Whether `side = value` says what is asked for: `x`, `a + b` and `5!` may stand there, `2x` not."""
        if not side:
            return True
        if VARIABLE.fullmatch(side) or _NAMES_A_VALUE.search(side):
            return not _NO_VALUE.search(side)
        letters = set(re.findall(r"(?<![\\A-Za-z])[A-Za-z](?![A-Za-z])", side))
        if letters - {"e", "i"}:
            return len(letters) > 1 and not _NO_VALUE.search(side)
        return self._is_alike(side, value)

    def _verify(self, answer: str, truth: str) -> bool:
        from math_verify import verify

        return bool(
            verify(
                list(_parsed(truth)),
                list(_parsed(answer)),
                float_rounding=self.args.float_rounding,
                strict=self.args.strict,
                timeout_seconds=None,
            )
        )


@lru_cache(maxsize=1024)
def expected_answer(ground_truth: str) -> str:
    r"""The expression that a `ground_truth` states, which may be a solution with `####` or `\boxed{}`."""
    truth = ground_truth.rpartition("####")[2]
    if (start := truth.rfind("\\boxed")) >= 0 and (box := boxed_content(truth, start, len(truth))):
        truth = box[0]
    return expression(truth)


@lru_cache(maxsize=1024)
def _problem_of(given: str, max_chars: int) -> str | None:
    truth = expected_answer(given)
    if not truth:
        return "it has no ground_truth"
    if len(truth) > max_chars or _depth(truth) > _MAX_DEPTH:
        return f"its ground_truth is too long for a mathematical answer: {short(given)}"
    if number(truth) is not None or _words(truth) is not None:
        return None
    value = quantity(truth).value
    is_read = all(
        leaf == "\\dots" or number(leaf) is not None or _words(leaf) is not None or _parsed(leaf)
        for leaf in leaves(value)
    )
    if truth.count("{") != truth.count("}") or not is_read:
        return f"its ground_truth is no number and no formula that math-verify can parse: {short(given)}"
    return None


def value_of(text: str) -> str:
    r"""What `\sqrt{5} \approx 2.24` and `x \approx 2.24` say."""
    exact, *rounded = (side.strip() for side in _APPROXIMATELY.split(text))
    if not rounded:
        return text
    last = exact.rpartition("=")[2].strip()
    return rounded[0] if not last or VARIABLE.fullmatch(last) else exact


def same_number(answer: str, truth: str) -> bool | None:
    """Whether two plain numbers or percentages are equal; None when math-verify has to decide.

    A percentage is also the number before its sign where that is no fraction of 1: `40\\%` is 40 and 0.4.
    """
    one, other = number(answer), number(truth)
    if one is None or other is None:
        return _same_percentage(answer, truth)
    if one == other:
        return True
    apart, both_whole = abs(one - other), one.denominator == other.denominator == 1
    if both_whole or apart > _CLEARLY_DIFFERENT * min(Fraction(1), max(abs(one), abs(other))):
        return False
    return None


def _same_percentage(answer: str, truth: str) -> bool | None:
    said, expected = percentage(answer), percentage(truth)
    one, other = number(answer), number(truth)
    if said is not None and expected is not None:
        return said == expected
    if said is not None and other is not None:
        return said / 100 == other or (said == other and abs(other) >= 1)
    if expected is not None and one is not None:
        return expected / 100 == one or (expected == one and abs(one) >= 1)
    return None


def same_words(answer: str, truth: str) -> bool | None:
    """Whether an answer says the words or the letter of the ground truth; None when that is mathematics."""
    said = _LETTER.fullmatch(answer) or _CHOSEN.fullmatch(answer)
    if said and (letter := _LETTER.fullmatch(truth)):
        return letter[1] in said.groups()
    if (expected := _words(truth)) is None:
        return None
    return (_words(answer) or answer.lower()) == expected


def _words(text: str) -> str | None:
    match = _WORDS.fullmatch(text)
    if match is None:
        return None
    words = " ".join((match.group(1) or match.group(2) or "").lower().split())
    return (
        None if re.search(r"\d", words) else words.removeprefix("an ").removeprefix("a ").removeprefix("the ")
    )


def _named(text: str) -> tuple[str, str]:
    """The variable of `x = 5` and its value; no name for another text."""
    name, equals, value = text.partition("=")
    if equals and "=" not in value and VARIABLE.fullmatch(name.strip()):
        return name.strip(), value.strip()
    return "", text


def _flat(text: str) -> str:
    """Without space, points of abbreviations and case, as far as it is in words."""
    flat = text.replace(" ", "")
    if "\\text" not in flat:
        return flat.lower() if re.search(r"\d[apAP]\.?[mM]\b", flat) else flat
    return re.sub(r"\\text\{([^{}]*)\}", r"\1", flat).replace(".", "").lower()


def _depth(text: str) -> int:
    depth = deepest = 0
    for character in text:
        depth += (character in "({[") - (character in ")}]")
        deepest = max(deepest, depth)
    return deepest


@lru_cache(maxsize=256)
def _parsed(text: str) -> tuple[Any, ...]:
    """What math-verify reads in a text, which is one expression; empty when it cannot."""
    from math_verify import parse

    for name in ("math_verify", "latex2sympy2_extended"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return tuple(parse(f"${text}$", fallback_mode="no_fallback", parsing_timeout=None))

r"""The `math` reward: is the answer the same number, set, interval or formula as the row's `ground_truth`?

Plain numbers are compared as fractions within microseconds; math-verify parses and compares everything else,
without its time limits, which need signals: the worker's deadline stands for them.
"""

from __future__ import annotations

import logging
import re
import unicodedata
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any

from envsdk.rewards.answers import NUMBER, Extraction, boxed_content, find_answer, short
from envsdk.rewards.reward import Reward, RewardError, RewardFunction, Sample
from envsdk.settings.extras import require

_MAX_DEPTH = 30
"""Of brackets in an answer: more overflow the parser's stack."""
_MAX_DIGITS = 60
_CLEARLY_DIFFERENT = Fraction(1, 10_000)
"""Numbers further apart than this, or than this share of the larger one, differ also when rounded; closer
ones are left to math-verify."""

_PLAIN = re.compile(NUMBER)
_SCIENTIFIC = re.compile(r"(-?\d[\d,]*(?:\.\d+)?)\\times10\^\{?([-+]?\d{1,3})\}?")
_FRACTION = re.compile(r"(-?)\\[dt]?frac\{(\d+)\}\{(\d+)\}")
_VARIABLE = re.compile(r"\\?[A-Za-z]+(?:_\{?\w+\}?)?(?:\([\w, ]*\))?")
_RELATION = re.compile(
    r"\\(?:neq?|geq?|leq?|geqslant|leqslant|ll|gg|vee|lor|wedge|land|[bp]?mod)(?![A-Za-z])|[<>?]|\\\\|(?<=\d)_"
)
"""What makes a condition, a disjunction or nothing of a number."""
_DIGITS = re.compile(r"-?\d+(?:\.\d+)?")
_WORDS = re.compile(
    r"\\(?:text|mathrm|textbf|mathbf)\{([^{}]*)\}"
    r"|((?i:yes|no|true|false|none)|[A-Za-z][a-z]{3,}(?: [A-Za-z]+)*|[A-Za-z]+(?: [A-Za-z]+)+)"
)
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ", "0123456789-+n")
_SUPERSCRIPT = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ]+")
_SYMBOLS = {
    "−": "-", "–": "-", "⁄": "/", "∕": "/", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "÷": r"\div ",
    "π": r"\pi ", "∞": r"\infty ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "∪": r"\cup ", "∩": r"\cap ",
    "∅": r"\emptyset ", "∈": r"\in ", "°": r"^\circ ", "’": "'", "￥": "", "$": "",
}  # fmt: skip
_REWRITES = [
    (re.compile(r"√\s*\(([^()]*)\)|(?<!\\)\bsqrt\s*\(([^()]*)\)|√\s*(\d+|[A-Za-z])"), r"\\sqrt{\1\2\3}"),
    # 1.5e3, 1e-3, 2e5 and 2e-10 are powers of ten; 2e-1 and 2e+1 have Euler's number.
    (re.compile(r"(\.\d+|(?<![\d.,])1)[eE]([-+]?)0*(\d{1,4})(?![\w.])"), r"\1\\times 10^{\g<2>\3}"),
    (re.compile(r"(\d)[eE]([-+](?=\d\d)|)0*(\d{1,4})(?![\w.])"), r"\1\\times 10^{\g<2>\3}"),
    (re.compile(r"\*\*"), "^"),
    (re.compile(r"\*"), r"\\times "),
    (re.compile(r"(?<!\\)\b(pi|sin|cos|tan|cot|sec|csc|log|ln|exp|infty)\b"), r"\\\1 "),
    (re.compile(r"<="), r"\\le "),
    (re.compile(r">="), r"\\ge "),
    (re.compile(r" ?(?:\\text\{ ?(?:or|and) ?\}|\\(?:lor|land)\b|(?<![\\\w])(?:or|and)(?!\w)) ?"), ", "),
    (re.compile(r"(\d)\{,\}(?=\d{3})"), r"\1,"),
]  # fmt: skip


class MathArgs(Extraction):
    """The settings of `math`."""

    float_rounding: int = 6
    """Decimals to which math-verify rounds a decimal number before it compares."""
    strict: bool = True
    """Names of variables count, and a set is no tuple."""


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
        is_right = True if answer == truth else same_number(answer, truth)
        if is_right is None and (is_right := same_words(answer, truth)) is None:
            if _depth(answer) > _MAX_DEPTH:
                return Reward(value=0.0, verdict="the answer is nested too deeply", correct=False)
            if number(truth) is not None and (problem := no_number(answer)):
                return Reward(value=0.0, verdict=problem, correct=False)
            is_right = self._verify(answer, truth)
        if is_right:
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
        given = Sample(response="", row=row).known_truth
        truth = expected_answer(given)
        if not truth:
            return "it has no ground_truth"
        if len(truth) > self.args.max_answer_chars or _depth(truth) > _MAX_DEPTH:
            return f"its ground_truth is too long for a mathematical answer: {short(given)}"
        if number(truth) is not None or _words(truth) is not None:
            return None
        if truth.count("{") != truth.count("}") or not _parsed(truth):
            return f"its ground_truth is no number and no formula that math-verify can parse: {short(given)}"
        return None

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


def expression(answer: str) -> str:
    """An answer in one notation: ASCII digits and signs, LaTeX's names, alternatives as a list."""
    if answer.isascii() and _DIGITS.fullmatch(answer):
        return answer
    text = answer.replace("\\$", "")
    text = _SUPERSCRIPT.sub(lambda match: f"^{{{match.group().translate(_SUPERSCRIPTS)}}}", text)
    text = "".join(_SYMBOLS.get(character, character) for character in unicodedata.normalize("NFKC", text))
    text = "".join(_plain(character) for character in text if unicodedata.category(character) != "Cf")
    text = " ".join(text.split()).replace("\\(", "").replace("\\)", "").replace("\\[", "").replace("\\]", "")
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    return text.strip().rstrip(".,;:").strip()


def number(text: str) -> Fraction | None:
    """A plain number; None for everything else, percentages included: math-verify has rules for them."""
    text = text.replace(" ", "").replace("\\!", "").lstrip("+")
    if len(text) > _MAX_DIGITS or text.endswith("%"):
        return None
    if (scientific := _SCIENTIFIC.fullmatch(text)) is not None:
        return Fraction(scientific[1].replace(",", "")) * Fraction(10) ** int(scientific[2])
    if (fraction := _FRACTION.fullmatch(text)) is not None:
        text = f"{fraction[1]}{fraction[2]}/{fraction[3]}"
    if not _PLAIN.fullmatch(text):
        return None
    numerator, _, denominator = text.replace(",", "").partition("/")
    if "e" in numerator.lower():
        return None
    if not denominator:
        return Fraction(numerator)
    return Fraction(numerator) / Fraction(denominator) if Fraction(denominator) else None


def no_number(answer: str) -> str | None:
    """Why an expression is no value: it is a condition, or a chain of numbers; None where it may be one."""
    sides = answer.split("=")
    if len(sides) > 1 and not _VARIABLE.fullmatch(sides[0].strip()):
        return f"{short(answer)} is an equation, and not a number"
    return f"{short(answer)} is a condition, and not a number" if _RELATION.search(sides[-1]) else None


def same_number(answer: str, truth: str) -> bool | None:
    """Whether two plain numbers are equal; None when math-verify has to decide."""
    one, other = number(answer), number(truth)
    if one is None or other is None:
        return None
    if one == other:
        return True
    apart, both_whole = abs(one - other), one.denominator == other.denominator == 1
    if both_whole or apart > _CLEARLY_DIFFERENT * min(Fraction(1), max(abs(one), abs(other))):
        return False
    return None


def same_words(answer: str, truth: str) -> bool | None:
    """Whether an answer says the words of the ground truth; None when that is no words, but mathematics."""
    expected = _words(truth)
    if expected is None:
        return None
    return (_words(answer) or answer.lower()) == expected


def _words(text: str) -> str | None:
    match = _WORDS.fullmatch(text)
    return " ".join((match.group(1) or match.group(2) or "").lower().split()) if match else None


def _plain(character: str) -> str:
    """Decimal digits of any script as ASCII."""
    return character if character.isascii() else str(unicodedata.decimal(character, character))


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

"""Programs, instructions and questions that the tiny policy can learn, as rows in ROLL's format.

    programs        f(x) = x*7               def f(x): return x*7         tested by assertions
    instructions    3 words, begin with cat  cat sun tree                 checked by `validate_...` functions
    questions       After 41?                42

No prompt is in both splits.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

from envsdk.rewards.prompt_data.generated_rows import generated_row, is_held_out

_HELD_OUT = 8
"""One prompt in so many belongs to the validation rows."""
_LARGEST, _LARGEST_ANSWER = 60, 200
_WORDS = (
    *("cat", "sun", "tree", "river", "stone", "bird", "lamp", "road"),
    *("snow", "wind", "fire", "leaf", "boat", "moon", "star"),
)
_MOST_WORDS = 8
_VARIANTS = 12
"""Prompts that differ in the word they begin with, for each number of words."""


def program_rows(split: str) -> Iterator[dict[str, Any]]:
    """Functions of one line, for `train` or `val`."""
    drawn = [(sign, number) for sign in "+-*" for number in range(2, _LARGEST)]
    random.Random("programs").shuffle(drawn)
    for sign, number in drawn:
        prompt = f"Python: f(x) = x{sign}{number}"
        if is_held_out(prompt, _HELD_OUT) != (split == "val"):
            continue
        right = _program(sign, number)
        cases = [{"assert_code": f"assert f({x}) == {x} {sign} {number}"} for x in (1, 5, 12)]
        yield generated_row(
            tag="programs",
            prompt=prompt,
            solution=_fenced(right),
            mistakes=[_fenced(_program(other, number)) for other in "+-*" if other != sign],
            case_type="pytest",
            test_cases=json.dumps(cases),
        )


def instruction_rows(split: str) -> Iterator[dict[str, Any]]:
    """Lines of a few words, for `train` or `val`: how many there must be is what is checked."""
    rng = random.Random("instructions")
    for num_words in range(2, _MOST_WORDS + 1):
        for first in rng.sample(_WORDS, _VARIANTS):
            prompt = f"{num_words} words or more, begin with {first}"
            if is_held_out(prompt, _HELD_OUT) != (split == "val"):
                continue
            others = rng.sample([word for word in _WORDS if word != first], _MOST_WORDS)
            checked = {"func_name": "validate_word_constraint", "N": num_words, "quantifier": "at least"}
            yield generated_row(
                tag="instructions",
                prompt=prompt,
                solution=" ".join([first, *others[: num_words - 1]]),
                mistakes=[" ".join([first, *others[: num_words - 2]])],
                ground_truth=json.dumps(checked),
            )


def question_rows(split: str) -> Iterator[dict[str, Any]]:
    """Questions whose answer is the entire response, for `train` or `val`."""
    for number in random.Random("questions").sample(range(_LARGEST_ANSWER), _LARGEST_ANSWER):
        prompt = f"After {number}?"
        if is_held_out(prompt, _HELD_OUT) == (split == "val"):
            yield generated_row(
                tag="questions",
                prompt=prompt,
                ground_truth=str(number + 1),
                solution=str(number + 1),
                mistakes=[str(number), str(number + 2)],
            )


def _program(sign: str, number: int) -> str:
    return f"def f(x): return x{sign}{number}"


def _fenced(program: str) -> str:
    return f"```python\n{program}\n```"

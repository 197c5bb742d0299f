"""The rows of generated prompts, in ROLL's format. No prompt is in both splits.

    arithmetic      sums          3+8+4=                     3+8=11 11+4=15 \\boxed{15}
                    comparisons   Largest? A 37 B 52 C 12    \\boxed{B}
    word problems   sums          What is 47 - 19? Answer with one number.
                    stories       Mia has 15 shells. Mia gives 4 to Leo. How many shells does she have now?
    short tasks     programs      f(x) = x*7               def f(x): return x*7     tested by assertions
                    instructions  3 words, begin with cat  cat sun tree             checked by `validate_...`
                    questions     After 41?                42

Word problems are for a small pretrained model, the others for the tiny policy. Word problems of difficulty 1
and 2 have one operation, on numbers up to 20 and up to 60; those of 3 have two, up to 20.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any


def is_held_out(prompt: str, one_in: int) -> bool:
    """Whether the prompt belongs to the validation rows; one in so many does."""
    return hashlib.sha256(prompt.encode()).digest()[0] % one_in == 0


def generated_row(*, tag: str, prompt: str, **fields: Any) -> dict[str, Any]:
    """A row with the columns of ROLL's, those that are not given empty."""
    return {
        "id": f"{tag}-{prompt}",
        "source": "generated",
        "difficulty": 1,
        "prompt": prompt,
        "messages": json.dumps([{"role": "user", "content": prompt}]),
        "ground_truth": "",
        "case_type": "",
        "test_case_function": "",
        "test_cases": "",
        "tag": tag,
        **fields,
    }


def drawn_rows(
    name: str,
    kinds: Mapping[str, Callable[[random.Random, int], dict[str, Any]]],
    split: str,
    num_rows: int,
    *,
    held_out: int = 16,
) -> Iterator[dict[str, Any]]:
    """Rows of `train` or `val`: tags take turns, and so do difficulties, as long as there are prompts left.

    `kinds` has a function for each tag, which draws a row of a difficulty from 1 to 3. One prompt in
    `held_out` is of `val`.
    """
    rng = random.Random(f"{name} {split}")
    seen: set[str] = set()
    for number in range(num_rows):
        tag = list(kinds)[number % len(kinds)]
        difficulty = 1 + number // len(kinds) % 3
        while True:
            row = kinds[tag](rng, difficulty)
            if row["prompt"] not in seen and is_held_out(row["prompt"], held_out) == (split == "val"):
                break
            # Easy prompts are few: a harder one takes the place of one that was drawn before.
            difficulty = rng.randint(1, 3)
        seen.add(row["prompt"])
        yield generated_row(tag=tag, id=f"{name}-{split}-{number}", difficulty=difficulty, **row)


def arithmetic_rows(split: str, num_rows: int) -> Iterator[dict[str, Any]]:
    """Rows of `train` or `val`."""
    return drawn_rows("arithmetic", _ARITHMETIC, split, num_rows)


def _sum(rng: random.Random, difficulty: int) -> dict[str, Any]:
    """Three to five numbers, added one after the other."""
    terms = [rng.randint(1, 9) for _ in range(difficulty + 2)]
    solution = _worked_sum(terms)
    slips = (_worked_sum(terms, slip_at=i, slip=by) for i in range(1, len(terms)) for by in (-2, -1, 1, 2))
    return {
        "prompt": "+".join(map(str, terms)) + "=",
        "ground_truth": str(sum(terms)),
        "solution": solution,
        "mistakes": [text for text in dict.fromkeys(slips) if text != solution],
    }


def _worked_sum(terms: list[int], *, slip_at: int = 0, slip: int = 0) -> str:
    total, steps = terms[0], []
    for index, term in enumerate(terms[1:], start=1):
        after = total + term + (slip if index == slip_at else 0)
        steps.append(f"{total}+{term}={after}")
        total = after
    return " ".join([*steps, _boxed(total)])


def _comparison(rng: random.Random, difficulty: int) -> dict[str, Any]:
    """The largest of two to four numbers of two digits."""
    numbers = rng.sample(range(10, 100), difficulty + 1)
    letters = "ABCD"[: len(numbers)]
    largest = letters[numbers.index(max(numbers))]
    choices = " ".join(f"{letter} {number}" for letter, number in zip(letters, numbers, strict=True))
    return {
        "prompt": f"Largest? {choices}",
        "ground_truth": largest,
        "solution": _boxed(largest),
        "mistakes": [_boxed(letter) for letter in letters if letter != largest],
    }


def _boxed(answer: object) -> str:
    return f"\\boxed{{{answer}}}"


_ARITHMETIC = {"sums": _sum, "comparisons": _comparison}


_NAMES = ("Mia", "Leo", "Anna", "Tom", "Sara", "Ben", "Nina", "Paul", "Ella", "Max")
_THINGS = (
    "apples",
    "marbles",
    "stickers",
    "books",
    "coins",
    "shells",
    "pencils",
    "cards",
    "buttons",
    "stamps",
)
_HOLDERS = ("bags", "boxes", "baskets", "jars")
_GAINS = ("{other} gives {name} {n} more.", "{name} finds {n} more.", "{name} buys {n} more.")
_LOSSES = ("{name} gives {n} to {other}.", "{name} loses {n}.", "{name} sells {n}.")
_LEVELS = ((1, 20), (1, 60), (2, 20))
"""Operations, and the largest number on the way to an answer."""


def word_problem_rows(split: str, num_rows: int) -> Iterator[dict[str, Any]]:
    """Rows of `train` or `val`."""
    return drawn_rows("word problems", _WORD_PROBLEMS, split, num_rows)


def _long_sum(rng: random.Random, difficulty: int) -> dict[str, Any]:
    """Numbers added and subtracted."""
    num_changes, largest = _LEVELS[difficulty - 1]
    total = rng.randint(2, largest)
    text = str(total)
    for _ in range(num_changes):
        change = _change(rng, total, largest)
        total += change
        text += f" {'+' if change > 0 else '-'} {abs(change)}"
    return {"prompt": f"What is {text}? Answer with one number.", "ground_truth": str(total)}


def _story(rng: random.Random, difficulty: int) -> dict[str, Any]:
    """Somebody has things, in a few holders or loose, and gains and loses some."""
    num_changes, largest = _LEVELS[difficulty - 1]
    name, other = rng.sample(_NAMES, 2)
    things = rng.choice(_THINGS)
    if rng.random() < 0.5:
        num_holders = rng.randint(2, 5)
        each = rng.randint(2, min(9, largest // num_holders))
        total, num_changes = num_holders * each, num_changes - 1
        sentences = [f"{name} has {num_holders} {rng.choice(_HOLDERS)} with {each} {things} in each."]
    else:
        total = rng.randint(2, largest)
        sentences = [f"{name} has {total} {things}."]
    for _ in range(num_changes):
        change = _change(rng, total, largest)
        total += change
        said = rng.choice(_GAINS if change > 0 else _LOSSES)
        sentences.append(said.format(name=name, other=other, n=abs(change)))
    question = f"How many {things} does {name} have now? Answer with one number."
    return {"prompt": " ".join([*sentences, question]), "ground_truth": str(total)}


def _change(rng: random.Random, total: int, largest: int) -> int:
    """A gain or a loss, never 0, that leaves of `total` a number from 1 to `largest`."""
    change = rng.randint(1 - total, largest - total - 1)
    return change if change < 0 else change + 1


_WORD_PROBLEMS = {"sums": _long_sum, "stories": _story}


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

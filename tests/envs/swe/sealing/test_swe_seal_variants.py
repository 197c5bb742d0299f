"""Constants that hide among others."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from envsdk.envs.swe.evaluator.sealing.variants import alternatives

NUM_SEALS = 400
FIXED = [17, 42, 1.5, 2.25, "2020-10-05", "100.00", "hammer"]


def shown(value: Any, seed: int) -> list[Any]:
    """What a process sees: `value` among the others, in any order."""
    source = random.Random(f"seal {seed} {value!r}")
    found = [value, *alternatives(value, source)]
    source.shuffle(found)
    return found


def number(value: Any) -> float:
    return float(next(iter(re.findall(r"[\d.]+", str(value).replace("-", ""))), "0").rstrip("."))


FAMILIAR = set(
    re.findall(
        r"\w+",
        """
        hammer nail saw screw drill red green blue yellow black white apple banana cherry lemon
        orange pear cat dog bird fish horse cow alice bob carol dave john jane mary peter paris
        london berlin rome monday tuesday friday sunday one two three four five first second last
        hello world hi bye yes no get post put delete name key value title type size user admin open
        closed new done error warning info book pen car bus train house tree water
        """,
    )
)
WORDS = ("hammer", "nail", "red", "alice", "bob", "apple", "cat", "dog", "paris", "monday", "get", "post")
GUESSES: dict[str, Callable[[Sequence[Any]], Any]] = {
    "the larger number": lambda seen: max(seen, key=number),
    "the smaller number": lambda seen: min(seen, key=number),
    "the one with zeros": lambda seen: max(seen, key=lambda value: str(value).count("0")),
    "the one without": lambda seen: min(seen, key=lambda value: str(value).count("0")),
    "the first": lambda seen: seen[0],
    "a familiar word": lambda seen: max(seen, key=lambda value: str(value).lower() in FAMILIAR),
    "the shortest": lambda seen: min(seen, key=lambda value: len(str(value))),
    "the longest": lambda seen: max(seen, key=lambda value: len(str(value))),
    "the most even": lambda seen: max(seen, key=lambda value: len(set(str(value))) - len(str(value))),
    "the middle": lambda seen: sorted(seen, key=str)[len(seen) // 2],
    "the one nearest to the others": lambda seen: min(
        seen, key=lambda value: sum(abs(number(value) - number(other)) for other in seen)
    ),
}


def drawn(seed: int) -> list[Any]:
    """Constants as tests have them."""
    source = random.Random(f"constants {seed}")
    digits = source.choice([1, 1, 2, 2, 3, 4])
    whole = source.randrange(10 ** (digits - 1) - (digits == 1), 10**digits)
    date = f"20{source.randrange(10, 30)}-{source.randrange(1, 13):02}-{source.randrange(1, 29):02}"
    fraction = round(source.uniform(0, 20), source.choice([1, 2]))
    return [whole, -whole - 1, fraction, source.choice(WORDS), f"item {whole}", date, f"{whole}.00"]


@pytest.mark.parametrize("guess", GUESSES)
def test_a_guess_by_what_a_constant_looks_like_is_right_as_often_as_any(guess: str) -> None:
    right = expected = 0.0
    for seed in range(NUM_SEALS):
        for value in drawn(seed):
            seen = shown(value, seed)
            right += GUESSES[guess](seen) == value
            expected += 1 / len(seen)
    assert right < 1.15 * expected


@pytest.mark.parametrize("value", FIXED, ids=str)
def test_no_guess_finds_a_constant_that_is_nothing_special(value: Any) -> None:
    seen = [shown(value, seed) for seed in range(NUM_SEALS)]
    assert all(len(one) == 4 for one in seen)
    for guess in ("the larger number", "the one with zeros", "the first", "a familiar word", "the middle"):
        right = sum(GUESSES[guess](one) == value for one in seen)
        assert right < 0.5 * NUM_SEALS, (guess, right)


@pytest.mark.parametrize("value", [0, 7, 12, 15, 40, 404, 64, "c", "red", "v1.2"], ids=str)
def test_each_constant_of_a_window_could_have_been_the_original_with_the_same_chance(value: Any) -> None:
    def windows(value: Any) -> Counter[frozenset[Any]]:
        return Counter(frozenset([value, *alternatives(value, random.Random(seed))]) for seed in range(4_000))

    mine = windows(value)
    window, count = mine.most_common(1)[0]
    for other in window:
        assert windows(other)[window] == pytest.approx(count, rel=0.35)


@pytest.mark.parametrize(
    "value", ["", "->", "frobnicate", "hello world", 1e-9, float("inf"), float("nan")], ids=str
)
def test_what_nothing_hides_is_not_varied(value: Any) -> None:
    assert not any(alternatives(value, random.Random(seed)) for seed in range(20))

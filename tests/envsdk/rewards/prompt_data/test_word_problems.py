"""The generated word problems: the answers follow from the sentences; nothing is in both splits."""

from __future__ import annotations

import re

import pytest

from envsdk.rewards.mathematics import MathArgs, MathReward
from envsdk.rewards.prompt_data.generated_rows import word_problem_rows
from envsdk.rewards.reward import Sample

LOSSES = re.compile(r"loses|sells|gives (\d+) to")


def answer(prompt: str) -> int:
    """Worked out from the words, sentence by sentence."""
    if found := re.match(r"What is (.*)\? Answer", prompt):
        return sum(int(term) for term in re.findall(r"[+-]?\d+", found[1].replace(" ", "")))
    first, *changes, _, _ = re.split(r"(?<=[.?]) ", prompt)
    total = 1
    for number in re.findall(r"\d+", first):
        total *= int(number)
    for sentence in changes:
        [number] = re.findall(r"\d+", sentence)
        total += -int(number) if LOSSES.search(sentence) else int(number)
    return total


def test_the_ground_truth_follows_from_the_words() -> None:
    for row in word_problem_rows("train", 2000):
        assert answer(row["prompt"]) == int(row["ground_truth"]) > 0
        assert max(map(int, re.findall(r"\d+", row["prompt"]))) <= 60


def test_rows_have_every_tag_and_difficulty_and_no_prompt_comes_twice_or_in_both_splits() -> None:
    train, val = list(word_problem_rows("train", 2000)), list(word_problem_rows("val", 256))
    for rows in (train, val):
        kinds = {(row["tag"], row["difficulty"]) for row in rows}
        assert kinds == {(tag, level) for tag in ("sums", "stories") for level in (1, 2, 3)}
    prompts = [row["prompt"] for row in [*train, *val]]
    assert len(set(prompts)) == len(prompts)
    assert train[:50] == list(word_problem_rows("train", 50))


@pytest.mark.parametrize("said", ["{}", "{}.", "The answer is {}."])
def test_the_reward_reads_the_answer_as_a_language_model_says_it(said: str) -> None:
    reward = MathReward(MathArgs())
    for row in word_problem_rows("val", 40):
        assert reward.score(Sample(response=said.format(row["ground_truth"]), row=row)).correct
        assert not reward.score(Sample(response=said.format(int(row["ground_truth"]) + 1), row=row)).correct

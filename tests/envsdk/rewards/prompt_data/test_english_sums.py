"""Arithmetic in English: the answers are right, and no prompt is in both splits."""

from __future__ import annotations

from collections import Counter

from envsdk.rewards.prompt_data.english_sums import LEVELS, english_sum_rows
from envsdk.rewards.prompt_data.generated import generated_file
from envsdk.rewards.prompt_data.opening import open_prompts
from envsdk.rewards.prompt_data.prompts import PromptSource

OPERATORS = {"plus": "+", "minus": "-", "times": "*"}


def test_each_answer_is_that_of_its_term_and_no_prompt_is_in_both_splits() -> None:
    splits = {split: list(english_sum_rows(split, 60)) for split in ("train", "val")}
    for rows in splits.values():
        for row in rows:
            words = row["prompt"].removeprefix("What is ").removesuffix("?").split()
            term = " ".join(OPERATORS.get(word, word) for word in words)
            assert str(eval(term)) == row["ground_truth"]
            assert int(row["ground_truth"]) >= 0
        assert Counter(row["tag"] for row in rows) == dict.fromkeys(LEVELS, 60)
    prompts = [{row["prompt"] for row in rows} for rows in splits.values()]
    assert not set.intersection(*prompts)
    assert list(english_sum_rows("val", 60)) == splits["val"]


def test_a_difficulty_is_read_by_its_tag() -> None:
    assert generated_file("generated:english_sums_val").is_file()
    prompts = open_prompts(PromptSource(files=["generated:english_sums_val"], tags=["hard"]))
    assert len(prompts) == 100
    assert "times" in prompts[0].messages[-1]["content"]

"""Generated programs and instructions: solutions pass their checks, mistakes do not, splits share nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from envsdk.rewards.loading import load_reward
from envsdk.rewards.prompt_data.generated_rows import instruction_rows, program_rows, question_rows
from envsdk.rewards.prompt_data.opening import open_prompts
from envsdk.rewards.prompt_data.prompts import PromptSource
from envsdk.rewards.reward import Sample


def value(row: dict[str, Any], response: str) -> float:
    return load_reward("ifeval", {}).score(Sample(response=response, row=row)).value


def test_a_solution_follows_its_instruction_and_a_mistake_does_not() -> None:
    for row in [*instruction_rows("train"), *instruction_rows("val")]:
        assert value(row, row["solution"]) == 1
        assert [value(row, text) for text in row["mistakes"]] == [0]


def test_a_solution_passes_its_test_cases_and_a_mistake_does_not() -> None:
    async def scores(rows: list[dict[str, Any]]) -> list[list[float]]:
        reward = load_reward("code", {})
        texts = [[row["solution"], *row["mistakes"]] for row in rows]
        return [
            [(await reward.score_async(Sample(response=text, row=row))).value for text in each]
            for row, each in zip(rows, texts, strict=True)
        ]

    for right, *wrong in asyncio.run(scores([*program_rows("val")][:4])):
        assert right == 1
        assert max(wrong) < 1


def test_a_solution_is_the_answer_to_its_question_and_a_mistake_is_not() -> None:
    exact = load_reward("exact", {})
    for row in [*question_rows("train"), *question_rows("val")]:
        responses = [row["solution"], *row["mistakes"]]
        assert [exact.score(Sample(response=text, row=row)).value for text in responses] == [1, 0, 0]


@pytest.mark.parametrize("rows", [program_rows, instruction_rows, question_rows])
def test_no_prompt_comes_twice_or_in_both_splits(rows: Any) -> None:
    train, val = [row["prompt"] for row in rows("train")], [row["prompt"] for row in rows("val")]
    assert len({*train, *val}) == len(train) + len(val)
    assert len(val) >= 8
    assert list(rows("val")) == list(rows("val"))


@pytest.mark.parametrize("name", ["programs_train", "programs_val", "instructions_train", "instructions_val"])
def test_generated_rows_open_like_a_file(name: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVSDK_CACHE", str(tmp_path))
    prompts = open_prompts(PromptSource(files=[f"generated:{name}"]))
    assert prompts.num_unusable == 0
    assert [*prompts.counts] == [name.partition("_")[0]]

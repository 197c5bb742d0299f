"""Frames and data sets of the packages that read them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from envsdk.contracts.prompts import AgentPrompts, TagPrompts
from envsdk.contracts.trajectory import Outcome
from envsdk.rollouts.results.trajectories import Trajectories
from tests.envsdk.rollouts.data_sets.episodes import episode

pytest.importorskip("datasets", reason="needs Hugging Face datasets: make test-datasets")

pytestmark = [pytest.mark.system, pytest.mark.datasets]

SHOWN = TagPrompts(prompts=AgentPrompts(system="Walk."), max_turns=5)
EPISODES = [
    replace(episode("a", "b"), shown=SHOWN),
    replace(episode("a", outcome=Outcome.FAILED, index=1), shown=SHOWN),
]


def test_pandas_leaves_failed_episodes_out_of_means_by_itself() -> None:
    frame = Trajectories(EPISODES).to_frame()
    assert frame["total_reward"].mean() == 1.0
    assert frame["success"].mean() == 1.0
    assert frame["failure"].notna().tolist() == [False, True]
    turns = Trajectories(EPISODES).to_frame(per="turn")
    assert turns.groupby("trajectory_id")["turn"].max().tolist() == [1, 0]


def test_a_dataset_has_the_columns_that_trl_reads() -> None:
    dataset = Trajectories(EPISODES).to_dataset()
    assert dataset.num_rows == 1
    assert {"prompt", "completion", "messages", "reward"} <= set(dataset.column_names)
    row = dataset[0]
    assert row["prompt"] == [{"role": "system", "content": "Walk."}, {"role": "user", "content": "start"}]
    assert row["completion"][0] == {"role": "assistant", "content": "a"}
    assert row["messages"] == row["prompt"] + row["completion"]


def test_no_episodes_are_a_dataset_with_the_same_columns() -> None:
    assert Trajectories().to_dataset().column_names == Trajectories(EPISODES).to_dataset().column_names

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk.contracts.failures import ConfigurationError
from envsdk.contracts.trajectory import Trajectory
from envsdk.rollouts.results.trajectories import Trajectories
from tests.envsdk.rollouts.data_sets.episodes import episode
from tests.envsdk.rollouts.results.sampled import sampled, sampled_episodes

torch = pytest.importorskip("torch")

LONG = sampled([((1, 2), (3, 4), 0.5), ((5,), (6,), 1.0)], version=2)
SHORT = sampled([((1,), (7,), 0.0)], member=1, success=False)


def test_a_batch_of_two_episodes_as_documented() -> None:
    batch = Trajectories([LONG, sampled(failed=True, member=2), SHORT]).to_verl(pad_id=9)
    tensors = {name: tensor.tolist() for name, tensor in batch["tensors"].items()}
    assert tensors == {
        "prompts": [[1, 2], [9, 1]],
        "responses": [[3, 4, 5, 6], [7, 9, 9, 9]],
        "response_mask": [[1, 1, 0, 1], [1, 0, 0, 0]],
        "input_ids": [[1, 2, 3, 4, 5, 6], [9, 1, 7, 9, 9, 9]],
        "attention_mask": [[1, 1, 1, 1, 1, 1], [0, 1, 1, 0, 0, 0]],
        "position_ids": [[0, 1, 2, 3, 4, 5], [0, 0, 1, 1, 1, 1]],
        "rollout_log_probs": [[-1, -2, 0, -1], [-1, 0, 0, 0]],
        "rm_scores": [[0, 0, 0, 1.5], [0, 0, 0, 0]],
    }
    others = {name: array.tolist() for name, array in batch["non_tensors"].items()}
    assert others["uid"] == ["train/Lake/0/0", "train/Lake/0/0"]
    assert others["min_global_steps"] == [2, 0]
    assert others["__num_turns__"] == [4, 2]
    assert batch["meta_info"] == {"reward_extra_keys": ["success"]}


@given(st.lists(sampled_episodes, min_size=1, max_size=5), st.integers(1, 6))
def test_every_array_keeps_its_shape_whatever_is_cut(episodes: list[Trajectory], width: int) -> None:
    kept = [each for each in episodes if each.failure is None and each.oldest_version is not None]
    if not kept:
        with pytest.raises(ConfigurationError, match="can be learned from"):
            Trajectories(episodes).to_verl()
        return
    batch = Trajectories(episodes).to_verl(prompt_length=12, response_length=width)
    for name, tensor in batch["tensors"].items():
        columns = 12 if name == "prompts" else width
        columns += 12 * (name in ("input_ids", "attention_mask", "position_ids"))
        assert tensor.shape == (len(kept), columns), name
    assert all(len(array) == len(kept) for array in batch["non_tensors"].values())
    rewards = torch.tensor([each.total_reward for each in kept])
    torch.testing.assert_close(batch["tensors"]["rm_scores"].sum(dim=1), rewards)


def test_a_prompt_that_does_not_fit_and_episodes_of_text_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="a prompt has 2 tokens, and prompt_length is 1"):
        Trajectories([LONG]).to_verl(prompt_length=1)
    with pytest.raises(ConfigurationError, match="none of the 1 episodes"):
        Trajectories([episode("a")]).to_verl()

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

import envsdk
from envsdk.base.store.trajectories import write_trajectories
from envsdk.config import load_config
from envsdk.contracts.failures import ConfigurationError
from envsdk.contracts.prompts import AgentPrompts, TagPrompts
from envsdk.contracts.trajectory import Outcome
from envsdk.rollouts.results.trajectories import Batch, Trajectories
from tests.envsdk.rollouts.data_sets.episodes import episode


def member(group: int, *, index: int = 0, **settings: object) -> envsdk.Trajectory:
    return replace(episode("a", "b", index=index, **settings), group_id=group)  # type: ignore[arg-type]


def test_a_slice_is_trajectories_and_an_index_is_an_episode() -> None:
    episodes = [member(0), member(0), member(1, index=1)]
    trajectories = envsdk.Trajectories(episodes)
    assert trajectories[1] is episodes[1]
    assert list(trajectories[1:]) == episodes[1:]
    assert isinstance(trajectories[1:], Trajectories)
    assert len(trajectories) == 3
    assert episodes[2] in trajectories


def test_groups_are_what_shares_task_and_number_in_the_order_they_appear() -> None:
    first, other, again = member(3), member(3, index=1), member(3)
    trajectories = Trajectories([first, other, again])
    assert [list(group) for group in trajectories.groups] == [[first, again], [other]]
    assert list(trajectories.group_indices) == [0, 1, 0]


def test_rates_and_means_leave_failed_episodes_out() -> None:
    solved, lost = member(0), member(0, success=False, rewards=(0.5, 0.0))
    broken = member(0, outcome=Outcome.FAILED)
    trajectories = Trajectories([solved, broken, lost])
    assert trajectories.success_rate == 0.5
    assert trajectories.mean_reward == 0.75
    assert list(trajectories.failed) == [broken]


@pytest.mark.parametrize("episodes", [[], [member(0, outcome=Outcome.FAILED)]])
def test_without_an_outcome_there_is_no_rate(episodes: list[envsdk.Trajectory]) -> None:
    assert Trajectories(episodes).success_rate is None
    assert Trajectories(episodes).mean_reward is None
    assert "success" not in repr(Trajectories(episodes))


def test_repr_says_what_a_person_asks_first() -> None:
    trajectories = Trajectories([member(0), member(0, outcome=Outcome.FAILED)])
    assert repr(trajectories) == (
        "<Trajectories: episodes 2, groups 1, of Lake, success 100.0% of 1, mean reward 1.000, "
        "failed 1 (environment/raised: no)>"
    )
    assert "<td>Lake</td>" in trajectories._repr_html_()


def test_a_batch_knows_its_version_and_its_slices_are_plain() -> None:
    batch = Batch([member(0), member(0)], version=3, step=4, metrics={"rollout/a": 1.0})
    assert (batch.version, batch.step, batch.metrics["rollout/a"]) == (3, 4, 1.0)
    assert type(batch[:1]) is Trajectories
    assert repr(batch).startswith("<Batch: step 4, version 3, episodes 2")


def test_a_batch_travels_to_other_processes() -> None:
    batch = Batch([member(0), member(1)], version=3, step=4, metrics={"rollout/a": 1.0})
    again = pickle.loads(pickle.dumps(batch))
    assert list(again) == list(batch)
    assert (again.version, again.step, again.metrics) == (3, 4, {"rollout/a": 1.0})


def test_an_episode_writes_its_messages_with_what_it_was_shown() -> None:
    shown = TagPrompts(
        prompts=AgentPrompts(system="Walk.", template="{actions_left}: {observation}"), max_turns=5
    )
    messages = replace(member(0), shown=shown).to_messages()
    assert messages[:3] == [
        {"role": "system", "content": "Walk."},
        {"role": "user", "content": "5: start"},
        {"role": "assistant", "content": "a"},
    ]


def test_an_episode_of_unknown_prompts_says_where_to_get_them() -> None:
    with pytest.raises(ConfigurationError, match=r"prompts of 'Lake'.*from_folder"):
        member(0).to_messages()


def test_a_run_gives_what_was_used_and_what_was_not_if_asked(tmp_path: Path) -> None:
    config = load_config("agentic_async.yaml").config
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json")))
    files = tmp_path / "trajectories"
    files.mkdir()
    used, wasted = (replace(episode("a"), trajectory_id=name) for name in ("used", "wasted"))
    write_trajectories(files / "step_000000.parquet", [used])
    write_trajectories(files / "discarded_step_000001.parquet", [wasted])
    assert [each.trajectory_id for each in Trajectories.from_folder(tmp_path)] == ["used"]
    both = Trajectories.from_folder(tmp_path, discarded=True)
    assert {each.trajectory_id for each in both} == {"used", "wasted"}

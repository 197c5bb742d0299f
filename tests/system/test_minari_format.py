"""The format `minari`, read by Minari itself."""

from __future__ import annotations

import re
from pathlib import Path

import gymnasium
import minari
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from minari.dataset.minari_dataset import DATASET_ID_RE

from envsdk.base.store.trajectories import read_trajectories
from envsdk.collect import collect, main
from envsdk.contracts.prompts import AgentPrompts
from envsdk.rollouts.datasets.minari_format import GYMNASIUM, dataset_names
from envsdk.rollouts.datasets.reading import TagRecord

pytestmark = pytest.mark.system


def load(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> minari.MinariDataset:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(folder / "minari"))
    assert name in minari.list_local_datasets()
    return minari.load_dataset(name)


def test_texts_are_in_spaces_that_hold_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    collect("envsdk/FrozenLake-v1", tmp_path, num_episodes=20, epsilon=0.5, formats=["minari"])
    dataset = load(tmp_path, "FrozenLake-v1-v0", monkeypatch)
    recorded = read_trajectories(tmp_path / "part-00000.parquet")
    assert dataset.total_episodes == len(recorded) == 20
    assert dataset.total_steps == sum(len(t.turns) for t in recorded)
    for trajectory, episode in zip(recorded, dataset, strict=True):
        seen = [*(turn.observation for turn in trajectory.turns), trajectory.final_observation]
        assert list(episode.observations) == seen
        assert list(episode.actions) == [turn.reply for turn in trajectory.turns]
        assert episode.rewards.tolist() == [turn.reward for turn in trajectory.turns]
        assert bool(episode.terminations[-1]) is (trajectory.outcome.value == "terminated")
        assert bool(episode.truncations[-1]) is (trajectory.outcome.value == "truncated")
        assert all(text in dataset.observation_space for text in episode.observations)
        assert all(text in dataset.action_space for text in episode.actions)


@pytest.mark.parametrize("id", ["CartPole-v1", "Blackjack-v1"])
def test_an_environment_of_gymnasium_has_its_own_spaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, id: str
) -> None:
    collect(GYMNASIUM, tmp_path, num_episodes=12, policy="random", formats=["minari"], overrides=[f"id={id}"])
    dataset = load(tmp_path, f"{id}-v0", monkeypatch)
    env = gymnasium.make(id)
    assert dataset.observation_space == env.observation_space
    assert dataset.action_space == env.action_space
    assert dataset.recover_environment().spec.id == id
    for trajectory, episode in zip(read_trajectories(tmp_path / "part-00000.parquet"), dataset, strict=True):
        # Their own environment, played with the actions that were written, says the same.
        observation, _ = env.reset(seed=trajectory.seed)
        for step, action in enumerate(episode.actions):
            assert same(at(episode.observations, step), observation)
            observation, reward, terminated, _, _ = env.step(action)
            assert reward == episode.rewards[step]
            assert bool(episode.terminations[step]) is terminated
        assert same(at(episode.observations, len(episode.actions)), observation)


def at(observations: object, step: int) -> object:
    if isinstance(observations, tuple):
        return tuple(at(part, step) for part in observations)
    return observations[step]  # type: ignore[index]


def same(one: object, other: object) -> bool:
    if isinstance(one, tuple) and isinstance(other, tuple):
        return all(map(same, one, other))
    return bool(np.array_equal(one, other))  # type: ignore[arg-type]


def test_an_environment_that_has_changed_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from gymnasium.envs.classic_control.cartpole import CartPoleEnv

    arguments = [GYMNASIUM, "--out", str(tmp_path), "-n", "5", "--policy", "random", "id=CartPole-v1"]
    assert main(arguments) == 0
    step = CartPoleEnv.step

    def heavier(self: CartPoleEnv, action: int) -> object:
        self.force_mag = 20.0
        return step(self, action)

    monkeypatch.setattr(CartPoleEnv, "step", heavier)
    assert main([*arguments, "--format", "minari"]) == 1
    assert "takes another course when it is played again" in capsys.readouterr().err
    assert not (tmp_path / "minari").exists()


def record(tag: str, **env_config: object) -> TagRecord:
    return TagRecord(
        tag=tag,
        env_type=GYMNASIUM if env_config else tag,
        env_config=env_config,
        prompts=AgentPrompts(),
        max_turns=1,
        max_new_tokens=0,
    )


@given(st.lists(st.text(max_size=12), unique=True, max_size=8))
def test_every_tag_has_a_name_of_its_own_that_minari_takes(tags: list[str]) -> None:
    names = dataset_names({tag: record(tag) for tag in tags})
    assert list(names) == tags
    assert len(set(names.values())) == len(tags)
    assert all(DATASET_ID_RE.fullmatch(name) and re.fullmatch(r"[\w-]+-v0", name) for name in names.values())


def test_a_tag_of_gymnasium_is_called_by_its_id() -> None:
    assert dataset_names({"a": record("a", id="my_module:mine/Cart-v3")}) == {"a": "Cart-v3-v0"}


def test_the_smallest_space_holds_what_was_said() -> None:
    from envsdk.rollouts.datasets.minari_format import _TextExtent

    extent = _TextExtent()
    assert isinstance(extent.space(), spaces.Text)
    extent.add("bab")
    assert (extent.space().max_length, extent.space().characters) == (3, "ab")

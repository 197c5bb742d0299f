"""What `--explain` says of a run with prompts: how much a step samples, and who scores it where."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from envsdk.config import load_config
from envsdk.config.explanation import derived
from envsdk.rewards.reward import AsyncRewardFunction, Reward, RewardFunction, Runs, Sample

HERE = "tests.envsdk.config.test_prompts_explained"


class InProcess(RewardFunction):
    def score(self, sample: Sample) -> Reward:
        return Reward(value=1.0)


class InLoop(InProcess):
    runs = Runs.INLINE


class Awaited(AsyncRewardFunction):
    async def score_async(self, sample: Sample) -> Reward:
        return Reward(value=1.0)


def explained(tmp_path: Path, **changes: object) -> dict[str, str]:
    rows = [{"prompt": "2+2=", "ground_truth": "4", "tag": tag} for tag in ("a", "a", "b", "c")]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = {
        "exp_name": "explained",
        "async_generation_ratio": 1,
        "rollout_batch_size": 8,
        "num_return_sequences_in_group": 4,
        "prompt_length": 10,
        "response_length": 20,
        "max_steps": 1,
        "rewards": {
            "a": {"worker_cls": f"{HERE}:InProcess", "world_size": 2, "timeout_s": 5},
            "b": {"worker_cls": f"{HERE}:InLoop"},
            "c": {"worker_cls": f"{HERE}:Awaited"},
        },
        "actor_train": {"data_args": {"file_name": str(tmp_path / "rows.jsonl")}},
    } | changes
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config))
    return dict(derived(load_config(tmp_path / "run.yaml").config))


def test_a_step_is_so_many_prompts_and_responses(tmp_path: Path) -> None:
    found = explained(tmp_path)
    assert found["each step"] == "8 prompts x 4 responses = 32 responses"
    assert found["requests at once"] == (
        "up to 64, every response a request that shares the prompt of its group; "
        "1 engine answers 128 at a time"
    )


def test_each_domain_says_who_scores_it_where_and_how_many_rows_it_has(tmp_path: Path) -> None:
    found = explained(tmp_path)
    assert found["reward of a"] == (
        f"{HERE}:InProcess in 2 worker processes per environment worker, 5 s for each response; rows: 2"
    )
    assert found["reward of b"] == f"{HERE}:InLoop in the event loops of the environment workers; rows: 1"
    assert found["reward of c"].startswith(f"{HERE}:Awaited awaited by the environment workers")


def test_a_reward_with_a_queue_of_its_own_says_its_limit(tmp_path: Path) -> None:
    judge = {"worker_cls": "judge", "base_url": "run", "world_size": 3}
    for given, most in (({}, 16), ({"max_concurrent": 5}, 5)):
        found = explained(tmp_path, rewards={"a": {**judge, **given}})
        assert (
            found["reward of a"]
            == f"judge awaited by the environment workers, {most} at a time each; rows: 4"
        )


def test_files_that_are_not_here_are_said_to_be_unread(tmp_path: Path) -> None:
    found = explained(tmp_path, actor_train={"data_args": {"file_name": "elsewhere.jsonl"}})
    assert found["reward of a"].endswith("rows: not read, the files are not here")

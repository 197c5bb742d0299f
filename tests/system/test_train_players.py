"""A real run of a game: against itself, a past version and a frozen model, and after a resume."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from envsdk.base.store.trajectories import read_trajectories
from envsdk.tracking import read_metrics
from tests.system.jobs import Job
from tests.tiny_policies import write_tiny_policy

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(600)]

CONFIG = """
exp_name: run
seed: 3
async_generation_ratio: {alpha}
rollout_batch_size: 24
val_batch_size: 8
sequence_length: 512
max_steps: {max_steps}
eval_steps: 0
save_steps: 2
entropy_loss_coef: 0.01
pretrain: {model}
custom_envs:
  Self: &game
    env_type: envsdk/TicTacToe-v1
    env_config: {{max_steps: 12}}
    agent_system_template: {system}
  Past: {{<<: *game, players: [policy, past]}}
  Champion: {{<<: *game, players: {{X: policy, O: champion}}}}
opponents:
  past: {{refresh_steps: 2}}
  champion: {{pretrain: {champion}}}
train_env_manager: {{tags: [Self, Past, Champion], num_env_groups: 6, group_size: 4}}
val_env_manager: {{tags: [Past, Champion], num_env_groups: 8}}
actor_train: {{training_args: {{learning_rate: 1.0e-3}}}}
actor_infer: {{generating_args: {{max_new_tokens: 3}}}}
"""
TEXTS = ["X 2 3\n4 O 6\n7 8 9", "<answer>5</answer>", "You are X. You are O."]


def test_a_run_learns_from_its_own_roles_alone_and_continues_bit_for_bit(tmp_path: Path) -> None:
    model = write_tiny_policy(tmp_path / "model", TEXTS, sequence_length=512)
    # Another tokenizer: its tokens mean nothing to the policy.
    champion = write_tiny_policy(tmp_path / "champion", [*TEXTS, "abc"], sequence_length=512, seed=1)
    config = CONFIG.replace("{champion}", str(champion))

    def job_in(name: str) -> Job:
        (tmp_path / name).mkdir()
        return Job(tmp_path / name, model, max_steps=5, alpha=0, system="You are {role}.", config=config)

    job = job_in("first")
    code, output = job.finish()
    assert code == 0, output
    kinds = set()
    for step in range(5):
        for episode in read_trajectories(job.batch(step)):
            assert episode.failure is None
            kinds |= {(episode.task.tag, role, seat.player) for role, seat in episode.seats.items()}
            own = [turn for turn in episode.turns if episode.is_own(turn.role)]
            if not own:  # the policy is O, and X found no free square in all its turns
                assert episode.oldest_version is None
                continue
            assert episode.tokens is not None
            assert episode.oldest_version == step
            sampled = sum(turn.response_end - turn.response_start for turn in own)
            assert sampled == int(episode.tokens.response_mask.sum()) > 0
            others = [turn for turn in episode.turns if not episode.is_own(turn.role)]
            has_tokens = any(turn.response_end > turn.response_start for turn in others)
            assert has_tokens == (episode.task.tag == "Past" and bool(others))
    assert kinds == {
        *(("Self", role, "policy") for role in "XO"),
        *(("Past", role, player) for role in "XO" for player in ("policy", "past")),
        *(("Champion", "X", "policy"), ("Champion", "O", "champion")),
    }
    for row in read_metrics(job.run / "metrics.jsonl"):
        if "actor/loss" in row:
            assert row["actor/logprob_gap_max"] < 1e-4
            assert {f"players/win/{tag}/X" for tag in ("Self", "Past", "Champion")} <= row.keys()
            assert "players/win/Champion/O" not in row

    # From the checkpoint of step 4: the past version of step 4 is found again.
    again = job_in("again")
    shutil.copytree(job.run, again.run)
    shutil.rmtree(again.checkpoint(5))
    for batch in again.run.glob("trajectories/step_000004*"):
        batch.unlink()
    code, output = again.finish()
    assert code == 0, output
    assert again.weights(5) == job.weights(5)

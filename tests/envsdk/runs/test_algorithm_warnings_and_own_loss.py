"""What a run says of its policy loss, and a loss of the user's own, from the YAML file to the gradient."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from envsdk.algorithms.args import AlgorithmArgs
from envsdk.config import explain, load_config
from envsdk.config.advantage_checks import algorithm_notes
from envsdk.contracts.failures import ConfigurationError
from envsdk.contracts.trainer import TrainSequence
from envsdk.trainers.objective import Objective, TokenOutputs, TrainRow
from envsdk.trainers.packing import make_row
from envsdk.trainers.step_metrics import StepMetrics

RUN = """\
exp_name: small
rollout_batch_size: 16
val_batch_size: 8
sequence_length: 256
max_steps: 2
custom_envs:
  Lake: {env_type: envsdk/FrozenLake-v1}
train_env_manager: &manager {tags: [Lake], num_env_groups: 4, group_size: 4}
val_env_manager: *manager
actor_infer:
  strategy_args: {strategy_name: mock}
"""

OWN_LOSS = """\
import torch
from pydantic import Field

from envsdk.algorithms.losses import PolicyLoss, policy_loss
from envsdk.algorithms.policy_loss_args import OverBehavior
from envsdk.algorithms.ratios import bounded_exp, log_ratio


class RootArgs(OverBehavior):
    power: float = Field(default=1.0, gt=0.0)


@policy_loss(RootArgs)
def root(tokens, args, own):
    ratio = bounded_exp(log_ratio(tokens.frozen_logprobs, tokens.base_logprobs(own.ratio_over)))
    weight = ratio**own.power
    loss = -weight * tokens.advantages * tokens.logprobs
    return PolicyLoss(loss=loss, ratio=ratio, clipped=torch.zeros_like(ratio), weight=weight)


undecorated = print
"""


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(RUN)
    return path


def test_explain_tells_what_the_run_would_tell(run_file: Path) -> None:
    for parameter, whole in {"top_k=3": "top_k=0", "top_p=0.9": "top_p=1", "min_p=0.1": "min_p=0"}.items():
        truncated = load_config(run_file, [f"actor_infer.generating_args.{parameter}"])
        (note,) = [note for note in algorithm_notes(truncated.config) if "leaves out tokens" in note]
        assert note.startswith(parameter)
        assert f"; set {whole})" in note
        assert len(note) < 2 * 110
        assert note in " ".join(explain(truncated).split())
    silent = load_config(run_file, ["ppo_epochs=2"])
    assert algorithm_notes(silent.config) == []
    assert "Notes" not in explain(silent)


def test_raw_logprobs_at_another_temperature_are_told(run_file: Path) -> None:
    engine = "actor_infer.strategy_args={strategy_name: vllm, strategy_config: {logprobs: raw}}"
    cool = "actor_infer.generating_args.temperature=0.7"
    told = [
        any("raw log-probabilities" in note for note in algorithm_notes(load_config(run_file, given).config))
        for given in ([engine, cool], [engine], [cool])
    ]
    assert told == [True, False, False]


@pytest.fixture
def with_own_loss(run_file: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file again, with `own_loss.py` beside it and its folder on the path."""
    (run_file.parent / "own_loss.py").write_text(OWN_LOSS)
    monkeypatch.syspath_prepend(run_file.parent)
    return run_file


@pytest.mark.parametrize(
    ("overrides", "one_step"),
    [
        ([], True),
        (["ppo_mini_batch_size=16"], True),
        (["ppo_mini_batch_size=8"], False),
        (["ppo_epochs=2"], False),
        (["ppo_epochs=2", "ppo_mini_batch_size=16"], False),
    ],
)
def test_a_unit_ratio_is_said_where_a_batch_makes_one_optimizer_step(run_file, overrides, one_step) -> None:
    notes = "\n".join(algorithm_notes(load_config(run_file, overrides).config))
    assert notes.count("1 by construction") == int(one_step)
    at_start = algorithm_notes(load_config(run_file, overrides).config, at_start=True)
    assert not any("1 by construction" in note for note in at_start)


def test_a_loss_named_by_its_module_learns_under_the_settings_of_the_file(with_own_loss: Path) -> None:
    config = load_config(with_own_loss, ["pg_variant=own_loss:root", "pg_args.power=0.5"]).config
    assert algorithm_notes(config) == []
    # As it reaches a trainer: plain values, over a process boundary.
    args = AlgorithmArgs.model_validate(config.algorithm.model_dump())
    sequence = TrainSequence(
        ids=np.arange(4, dtype=np.int32),
        response_mask=np.array([0, 1, 1, 1], np.int8),
        behavior_logprobs=np.array([0.0, -1.0, -2.0, -0.5], np.float32),
        advantages=np.array([0.0, 1.0, -1.0, 2.0], np.float32),
    )
    row = make_row(sequence.ids, sequence.response_mask)
    assert row is not None
    current = torch.tensor([-1.5, -1.0, -0.5], requires_grad=True)
    tally = StepMetrics()
    Objective(args)(
        [TrainRow(sequence=sequence, row=row, weight=1.0)],
        TokenOutputs(logprobs_N=current, entropy_N=torch.zeros(3)),
        tally,
    ).backward()
    weight = np.exp(current.detach().numpy() - sequence.behavior_logprobs[1:]) ** 0.5
    assert current.grad is not None
    np.testing.assert_allclose(current.grad.numpy(), -weight * sequence.advantages[1:], rtol=1e-6)
    assert tally.metrics()["actor/is_weight_mean"] == pytest.approx(weight.mean())


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["pg_variant=own_loss:root", "pg_args.powr=0.5"], r"powr(.|\n)*`power`"),
        (["pg_variant=own_loss:root", "pg_args.power=-1"], "greater than 0"),
        (["pg_variant=own_loss:undecorated"], "decorate the function with @policy_loss"),
        (
            ["pg_variant=own_loss:root", "train_infer_correction.is_weight.enabled=true"],
            "would correct twice",
        ),
    ],
)
def test_what_is_wrong_with_an_own_loss_is_said_when_the_trainer_starts(
    with_own_loss: Path, overrides: list[str], message: str
) -> None:
    args = load_config(with_own_loss, overrides).config.algorithm
    with pytest.raises(ConfigurationError, match=message):
        Objective(args)


def test_an_own_loss_whose_folder_is_not_on_the_path_is_refused_with_the_file(run_file: Path) -> None:
    with pytest.raises(ConfigurationError, match="no module for `absent_loss:root`"):
        load_config(run_file, ["pg_variant=absent_loss:root"])


@pytest.mark.parametrize(("longest", "is_told"), [(64, True), (128, False)])
def test_a_run_says_where_replies_end_before_the_limit_of_their_tag(longest: int, is_told: bool) -> None:
    overrides = [
        "custom_envs.FrozenLake.max_tokens_per_step=128",
        f"actor_infer.generating_args.max_new_tokens={longest}",
    ]
    notes = algorithm_notes(load_config("agentic_async.yaml", overrides).config, at_start=True)
    assert any("max_new_tokens=64, before max_tokens_per_step=128" in note for note in notes) is is_told

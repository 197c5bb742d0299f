"""Advantages and losses against ROLL's own functions, for every combination of keys in its example files.

A combination is written as a file of ROLL's, loaded as users load theirs, and computed by both.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

if not (Path(os.environ.get("ENVSDK_ROLL", "-")) / "examples").is_dir():
    pytest.skip("needs a clone of ROLL, with its examples: ENVSDK_ROLL=FOLDER", allow_module_level=True)
pytest.importorskip("tensordict", reason="needs what ROLL imports: make test-peers")
pytestmark = pytest.mark.peers

import numpy as np  # noqa: E402
import roll_code as roll  # noqa: E402
import torch  # noqa: E402
from peer_batches import PaddedBatch, padded_batch  # noqa: E402
from peer_batches import ours as our_loss  # noqa: E402
from torch import Tensor  # noqa: E402

from envsdk.algorithms.advantage_sample import AdvantageSample  # noqa: E402
from envsdk.algorithms.args import AlgorithmArgs  # noqa: E402
from envsdk.algorithms.batches import token_advantages  # noqa: E402
from envsdk.algorithms.masks import masked  # noqa: E402
from envsdk.config import load_config  # noqa: E402
from envsdk.contracts.trajectory import FinishReason, Turn  # noqa: E402

KEYS = {
    "adv_estimator",
    "reward_clip",
    "advantage_clip",
    "whiten_advantages",
    "norm_mean_type",
    "norm_std_type",
    "reward_normalization",
    "gamma",
    "lambd",
    "add_token_level_kl",
    "init_kl_coef",
    "step_reward_gamma",
    "step_reward_weight",
    "episode_reward_weight",
    "difficulty_mask",
    "difficulty_low_threshold",
    "difficulty_high_threshold",
    "max_len_mask",
    "error_max_len_clip",
    "error_max_len_threshold",
    "difficulty_loss_weight",
    "length_loss_weight",
    "use_kl_loss",
    "kl_loss_coef",
    "dual_clip_loss",
    "pg_clip",
    "use_pg_clip_range",
    "pg_clip_low",
    "pg_clip_high",
    "loss_agg_mode",
    "importance_sampling",
    "ratio_type",
    "train_infer_correction",
}
GROUP_SIZE, NUM_GROUPS, LENGTH = 5, 6, 36
Samples = list[AdvantageSample]


def combinations() -> Iterator[Any]:
    """The keys of rewards, advantages and losses in ROLL's examples; each combination once."""
    examples, seen = Path(roll.ROLL) / "examples", set()
    for path in sorted(examples.rglob("*.yaml")):
        data = yaml.safe_load(path.read_text()) or {}
        if "actor_train" not in data or {"chosen_key", "student_train", "student"} & data.keys():
            continue
        kind = "agentic" if "train_env_manager" in data else "rlvr"
        keys = {name: value for name, value in data.items() if name in KEYS}
        role = data["actor_train"]
        if "pg_variant" in role:
            keys["actor_train"] = {"pg_variant": role["pg_variant"]}
        found = json.dumps([kind, keys], sort_keys=True)
        if found not in seen:
            seen.add(found)
            yield pytest.param(kind, keys, id=str(path.relative_to(examples)))


COMBINATIONS = list(combinations())


def ours(kind: str, keys: dict[str, Any], folder: Path) -> AlgorithmArgs:
    """The keys in a file of ROLL's, as they are loaded."""
    data: dict[str, Any] = {"reward_pretrain": "a/model", "max_steps": 10, **keys, "pretrain": "a/model"}
    if kind == "rlvr":
        data |= {
            "rollout_batch_size": NUM_GROUPS,
            "num_return_sequences_in_group": GROUP_SIZE,
            "prompt_length": 64,
            "response_length": 64,
            "rewards": {
                name: {"worker_cls": "math", "tag_included": [name]} for name in ("math_rule", "other")
            },
        }
        data["actor_train"] = {**data.get("actor_train", {}), "data_args": {"file_name": "absent.jsonl"}}
    else:
        manager = {
            "num_env_groups": NUM_GROUPS,
            "group_size": GROUP_SIZE,
            "tags": ["FrozenLake", "SimpleSokoban"],
        }
        data |= {
            "rollout_batch_size": NUM_GROUPS * GROUP_SIZE,
            "val_batch_size": 0,
            "sequence_length": 512,
            "train_env_manager": manager,
            "val_env_manager": manager,
        }
    path = folder / "combination.yaml"
    path.write_text(yaml.safe_dump(data))
    return load_config(path, to_explain=True).config.algorithm


def turn(reward: float, start: int, end: int) -> Turn:
    """A reply as long as there is room ended at its limit."""
    return Turn(
        observation="",
        reply="",
        reward=reward,
        response_start=start,
        response_end=end,
        finish_reason=FinishReason.LENGTH if end - start == LENGTH else FinishReason.STOP,
    )


def played(kind: str, *, most_turns: int = 5, seed: int = 3) -> Samples:
    """Groups of both tags: up to `most_turns` with a reward each, or one response whose reward is 0 or 1."""
    rng = np.random.default_rng(seed)
    found = []
    for group in range(NUM_GROUPS):
        for _ in range(GROUP_SIZE):
            mask, spans = np.zeros(LENGTH, np.int8), []
            if kind == "rlvr":
                spans = [(0, LENGTH if rng.random() < 0.15 else int(rng.integers(4, LENGTH)))]
                rewards = np.array([float(rng.random() < (group + 1) / NUM_GROUPS)])
            else:
                start, num_turns = 0, int(rng.integers(1, most_turns + 1))
                while len(spans) < num_turns and start < LENGTH - 6:
                    spans.append((start, start + int(rng.integers(1, 6))))
                    start = spans[-1][1] + int(rng.integers(1, 4))
                rewards = rng.normal(size=len(spans)) * 3
            for start, end in spans:
                mask[start:end] = 1
            values = rng.normal(size=LENGTH).astype(np.float32) * mask
            found.append(
                AdvantageSample(
                    group_id=group,
                    tag=("FrozenLake", "SimpleSokoban")[group % 2],
                    response_mask=mask,
                    turn_rewards=rewards.tolist(),
                    turn_spans=spans,
                    turns=[turn(reward, *span) for reward, span in zip(rewards, spans, strict=True)],
                    state_hashes=[f"{group}/{rng.integers(0, 3)}" for _ in spans],
                    values=values,
                )
            )
    return found


def rows_of(
    samples: Samples, *, by_step: bool
) -> tuple[dict[str, Tensor], dict[str, Any], list[tuple[int, Any]]]:
    """ROLL's batch: a row for each trajectory, or for each of its turns, which then ends it. And where each
    row's tokens are: the sample's number and its mask."""
    masks, scores, places, labels = [], [], [], []
    for number, sample in enumerate(samples):
        turns = list(enumerate(zip(sample.turn_spans, sample.turn_rewards, strict=True)))
        for step, ((start, end), reward) in turns if by_step else [(0, ((0, 0), 0.0))]:
            mask = sample.response_mask.copy()
            if by_step:
                mask[:start] = mask[end:] = 0
            masks.append(mask)
            last = int(np.flatnonzero(mask)[-1])
            scores.append((last, reward if by_step else sum(sample.turn_rewards)))
            places.append((number, mask == 1))
            labels.append(
                {
                    "traj_group_id": sample.group_id,
                    "tags": sample.tag,
                    "traj_id": number,
                    "step": step,
                    "step_scores": reward,
                    "episode_scores": sum(sample.turn_rewards),
                    "state_hash": sample.state_hashes[step] if sample.state_hashes else "",
                }
            )
    mask_BT = torch.tensor(np.stack(masks))
    num_rows, length = mask_BT.shape
    first_B1 = torch.zeros(num_rows, 1)
    lasts_B = torch.tensor([last for last, _ in scores])
    totals_B = torch.tensor([float(total) for _, total in scores])
    scores_BT = torch.zeros(num_rows, length + 1)
    scores_BT[torch.arange(num_rows), lasts_B + 1] = totals_B
    positions_BT = torch.arange(length + 1).expand(num_rows, -1)
    tensors = {
        "response_mask": torch.cat([first_B1, mask_BT], 1),
        "attention_mask": (positions_BT <= lasts_B[:, None] + 1).long(),
        "position_ids": positions_BT.clone(),
        "scores": scores_BT,
        "response_level_rewards": totals_B,
        "responses": torch.zeros(num_rows, length),
        "old_log_probs": torch.zeros(num_rows, length),
        "ref_log_probs": torch.zeros(num_rows, length),
        "values": torch.tensor(np.stack([samples[number].values for number, _ in places])),
    }
    columns = {name: np.array([each[name] for each in labels], dtype=object) for name in labels[0]}
    return tensors, columns, places


def rolls_advantages(kind: str, settings: Any, samples: Samples) -> Tensor:
    """`[B, T]` by trajectory."""
    found = torch.zeros(len(samples), LENGTH)
    tags = list(dict.fromkeys(sample.tag for sample in samples)) if kind == "rlvr" else [None]
    for tag in tags:
        numbers = [number for number, sample in enumerate(samples) if tag in (None, sample.tag)]
        by_step = settings.adv_estimator in ("gigpo", "step_reinforce")
        tensors, columns, places = rows_of([samples[number] for number in numbers], by_step=by_step)
        if kind == "rlvr":
            tensors["scores"] = tensors["response_level_rewards"]
        batch = (roll.rlvr_advantages if kind == "rlvr" else roll.agentic_advantages)(
            settings, tensors, columns
        )
        for row, (number, mask_T) in enumerate(places):
            found[numbers[number], mask_T] = batch.batch["advantages"][row][mask_T].float()
    return found


@pytest.mark.parametrize(("kind", "keys"), COMBINATIONS)
def test_advantages_are_rolls(
    kind: str, keys: dict[str, Any], tmp_path: Path, write_down: Callable[..., None]
) -> None:
    args = ours(kind, keys, tmp_path)
    # ROLL compares episodes row by row under gigpo, so that those of more turns count more often.
    samples = played(kind, most_turns=1 if args.adv_estimator == "gigpo" else 5)
    theirs_BT = rolls_advantages(
        kind, roll.config({"adv_estimator": "gae"} | keys, kind, GROUP_SIZE), samples
    )
    learning, _ = masked(args, samples)
    ours_BT = torch.tensor(np.stack([each.advantages for each in token_advantages(args, learning)]))
    assert ours_BT.any()
    difference = float((ours_BT - theirs_BT).abs().max())
    # ROLL whitens by the standard deviation of a sample, here it is that of the population.
    tags = [sample.tag for sample in samples]
    num_tokens = min(int((theirs_BT[[each == tag for each in tags]] != 0).sum()) for tag in set(tags))
    tolerance = float(ours_BT.abs().max()) / num_tokens if args.whiten_advantages else 1e-5
    write_down(
        f"{kind}: {args.adv_estimator} {args.reward_level}", "ROLL", f"{difference:.0e}", f"{tolerance:.0e}"
    )
    assert difference <= tolerance


PG = [
    {"pg_variant": "topr", "topr_positive_weight": 0.5, "topr_negative_weight": 2.0},
    {"pg_variant": "cispo"},
    {
        "pg_variant": "cispo",
        "cispo_epsilon_low": 0.2,
        "cispo_epsilon_high": 0.3,
        "cispo_use_unified_mask": True,
    },
    {"pg_variant": "tis"},
    {"pg_variant": "tis", "tis_lower_bound": 0.8, "tis_upper_bound": 1.2},
    {"pg_variant": "kimi15", "kimi15_tau": 0.3},
    {"pg_variant": "vanilla"},
]
"""What ROLL's page about off-policy algorithms names and its example files do not have."""


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        *COMBINATIONS,
        *(
            pytest.param(kind, {"actor_train": each}, id=f"{kind} {each}")
            for each in PG
            for kind in ("agentic", "rlvr")
        ),
        pytest.param("agentic", {"ratio_type": "segment", "dual_clip_loss": True}, id="ratio_type segment"),
    ],
)
def test_losses_and_gradients_are_rolls(
    kind: str, keys: dict[str, Any], tmp_path: Path, write_down: Callable[..., None]
) -> None:
    if "train_infer_correction" in keys:
        # Here stale tokens are weighted unless a file says otherwise, and those that a filter leaves out stay
        # in the mean over a sequence.
        section = {**keys["train_infer_correction"], "is_weight": {"enabled": False}}
        keys = keys | {"loss_agg_mode": "seq-mean-token-sum", "train_infer_correction": section}
    settings, args = roll.config(keys, kind, GROUP_SIZE), ours(kind, keys, tmp_path)
    batch = padded_batch(one_reply=kind == "rlvr").without_row(3)
    if not args.train_infer_correction.active_filters:
        batch = replace(batch, behavior_BT=batch.proximal_BT)
    batch = replace(batch, advantages_BT=batch.advantages_BT * batch.mask_BT)
    difference = difference_of_losses(kind, settings, args, batch)
    write_down(
        f"{kind}: {args.pg_variant}, {args.loss_agg_mode}", "ROLL's worker", f"{difference:.0e}", "1e-6"
    )
    assert difference <= 1e-6


def difference_of_losses(kind: str, settings: Any, args: AlgorithmArgs, batch: PaddedBatch) -> float:
    """Largest one of loss and gradient."""
    current_BT = batch.current_BT.clone().requires_grad_()
    first_B1 = torch.zeros(len(batch.mask_BT), 1, dtype=torch.float64)
    tensors = {
        "response_mask": torch.cat([first_B1, batch.mask_BT], 1),
        "attention_mask": torch.ones(len(first_B1), batch.mask_BT.shape[1] + 1),
        "ref_log_probs": batch.reference_BT,
        "advantages": batch.advantages_BT,
        "old_log_probs": batch.proximal_BT,
        "infer_logprobs": batch.behavior_BT,
    }
    # The sign of an outcome is that of its advantage.
    tensors["scores"] = batch.advantages_BT.sum(1)
    columns = {
        "traj_id": np.arange(len(first_B1)).astype(object),
        "episode_scores": tensors["scores"].numpy().astype(object),
    }
    theirs = roll.loss(settings, kind, tensors, columns, current_BT)
    [gradient_BT] = torch.autograd.grad(theirs, current_BT)
    found = our_loss(batch, **args.model_dump(exclude={"temperature"}))
    return max(abs(found.loss - float(theirs.detach())), float((found.gradient_BT - gradient_BT).abs().max()))

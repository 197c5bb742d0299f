"""Other packages' own functions and classes, imported and called, behind one signature each.

A policy loss here is `loss_of(batch, current_BT) -> scalar`. TRL's is a method of its trainer: it is called
with a stand-in that has the attributes it reads. Nothing of these packages is copied or patched.
"""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import torch
import verl.trainer.ppo.core_algos as verl
from peer_batches import PaddedBatch
from torch import Tensor
from trl.trainer.grpo_trainer import GRPOTrainer
from verl.trainer.ppo.rollout_corr_helper import (
    compute_rollout_correction_weights,
    compute_rollout_rejection_mask,
)
from verl.workers.config import ActorConfig


def verl_loss(
    name: str,
    batch: PaddedBatch,
    current_BT: Tensor,
    *,
    over: str = "proximal",
    mode: str = "token-mean",
    low: float = 0.2,
    high: float = 0.2,
    weights_BT: Tensor | None = None,
    mask_BT: Tensor | None = None,
) -> Tensor:
    """A policy loss of verl's registry. `vanilla` has a dual clip of 3, which cannot be turned off."""
    config = ActorConfig(
        strategy="fsdp", rollout_n=1, use_dynamic_bsz=True, clip_ratio_low=low, clip_ratio_high=high
    )
    function = verl.compute_policy_loss_reinforce if name == "reinforce" else verl.POLICY_LOSS_REGISTRY[name]
    loss, _ = function(
        getattr(batch, f"{over}_BT"),
        current_BT,
        batch.advantages_BT,
        batch.mask_BT if mask_BT is None else mask_BT,
        mode,
        config,
        weights_BT,
    )
    return loss


def verl_weights(log_ratio_BT: Tensor, mask_BT: Tensor, level: str, threshold: float | str) -> Tensor:
    """A float truncates, `low_high` masks (IcePop)."""
    return compute_rollout_correction_weights(log_ratio_BT.detach(), mask_BT, level, threshold)[0]


def verl_kept(log_ratio_BT: Tensor, mask_BT: Tensor, option: str, threshold: str) -> Tensor:
    """The mask that is left after a rejection."""
    return compute_rollout_rejection_mask(log_ratio_BT.detach(), mask_BT, option, threshold)[0]


class _OneProcess:
    num_processes = 1

    def gather(self, values: Any) -> Any:
        return values

    gather_for_metrics = gather

    def reduce(self, values: Any, reduction: str) -> Any:
        return values


def trl_loss(
    name: str,
    batch: PaddedBatch,
    current_BT: Tensor,
    *,
    low: float = 0.2,
    high: float = 0.2,
    level: str = "token",
    max_length: int = 0,
    beta: float = 0.0,
) -> Tensor:
    """`loss_type` of TRL's GRPOTrainer; each row has one advantage, that of its first position."""
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (current_BT, torch.zeros_like(current_BT), None),
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        importance_sampling_level=level,
        beta=beta,
        args=SimpleNamespace(use_bias_correction_kl=False, delta=None, steps_per_generation=1),
        loss_type=name,
        epsilon_low=low,
        epsilon_high=high,
        use_vllm=False,
        model=SimpleNamespace(training=True),
        current_gradient_accumulation_steps=1,
        max_completion_length=max_length,
        accelerator=_OneProcess(),
        use_adaptive_entropy=False,
        _entropy_bonus_enabled=False,
        _metrics={"train": defaultdict(list)},
    )
    ids_BT = torch.zeros_like(batch.mask_BT, dtype=torch.long)
    inputs = {
        "prompt_ids": ids_BT[:, :1],
        "prompt_mask": torch.ones_like(ids_BT[:, :1]),
        "completion_ids": ids_BT,
        "completion_mask": batch.mask_BT,
        "advantages": batch.advantages_BT[:, 0],
        "old_per_token_logps": batch.proximal_BT,
        "ref_per_token_logps": batch.reference_BT,
        "num_items_in_batch": batch.mask_BT.sum(),
    }
    return GRPOTrainer._compute_loss(trainer, None, inputs)


def trinity_loss(function: Any, batch: PaddedBatch, current_BT: Tensor, *, over: str = "proximal") -> Tensor:
    """An instance of one of Trinity-RFT's policy losses."""
    loss, _ = function(
        logprob=current_BT,
        old_logprob=getattr(batch, f"{over}_BT"),
        action_mask=batch.mask_BT,
        advantages=batch.advantages_BT,
    )
    return loss

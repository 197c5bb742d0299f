"""Policy losses, aggregation and corrections against verl, TRL and Trinity-RFT: loss and gradient."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

for package in ("verl", "trl", "trinity"):
    pytest.importorskip(package, reason="needs verl, TRL and Trinity-RFT: make test-peers")
pytestmark = pytest.mark.peers

import numpy as np  # noqa: E402
import torch  # noqa: E402
import verl.trainer.ppo.core_algos as verl  # noqa: E402
from peer_batches import EMPTY_ROW, PaddedBatch, ours, packed, padded_batch, theirs  # noqa: E402
from peer_code import trinity_loss, trl_loss, verl_kept, verl_loss, verl_weights  # noqa: E402
from torch import Tensor  # noqa: E402
from trinity.algorithm.policy_loss_fn.cispo_policy_loss import CISPOPolicyLossFn  # noqa: E402
from trinity.algorithm.policy_loss_fn.gspo_policy_loss import GSPOLossFn  # noqa: E402
from trinity.algorithm.policy_loss_fn.opmd_policy_loss import OPMDPolicyLossFn  # noqa: E402
from trinity.algorithm.policy_loss_fn.ppo_policy_loss import PPOPolicyLossFn  # noqa: E402
from trinity.algorithm.policy_loss_fn.rec_policy_loss import RECPolicyLossFn  # noqa: E402
from trinity.algorithm.policy_loss_fn.topr_policy_loss import TOPRPolicyLossFn  # noqa: E402
from trinity.algorithm.utils import aggregate_loss  # noqa: E402

from envsdk.algorithms.aggregation import sequence_weights  # noqa: E402
from envsdk.algorithms.args import AlgorithmArgs  # noqa: E402
from envsdk.contracts.trainer import TrainSequence  # noqa: E402
from envsdk.trainers.objective import Objective, TokenOutputs, TrainRow  # noqa: E402
from envsdk.trainers.packing import make_row  # noqa: E402
from envsdk.trainers.step_metrics import StepMetrics  # noqa: E402

DUAL = {"dual_clip": 3.0}
"""What verl's and Trinity-RFT's PPO always has."""
CISPO = {"clip_low": 0.2, "clip_high": 0.28, "ratio_over": "proximal"}
GSPO = {"clip_low": 0.05, "clip_high": 0.06}
MODES = ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean"]


@dataclass(frozen=True, kw_only=True)
class Case:
    """The same loss here and there."""

    keys: dict[str, Any]
    peer: str
    loss_of: Callable[[PaddedBatch, Tensor], Tensor]
    acts: bool = True
    """Something is clipped, bounded or filtered, and something is not."""
    advantage_per: tuple[str, ...] = ("row", "token")
    spreads: tuple[float, ...] = (0.3, 2.0)
    with_empty_row: bool = True
    one_reply: bool = False
    tolerance: float = 1e-8

    @property
    def name(self) -> str:
        keys = {"pg_variant": "ppo"} | self.keys
        shown = [keys.pop("pg_variant")]
        for key, value in keys.items():
            inner = value if isinstance(value, dict) else {key: value}
            shown += [f"{k}={v}" for k, v in inner.items()]
        return " ".join(shown).replace("'", "")


def correcting(**section: Any) -> dict[str, Any]:
    return {**DUAL, "train_infer_correction": section}


def with_weights(level: str, threshold: float | str) -> Callable[[PaddedBatch, Tensor], Tensor]:
    """verl's PPO under its importance weights."""

    def loss_of(batch: PaddedBatch, current_BT: Tensor) -> Tensor:
        gap_BT = batch.proximal_BT - batch.behavior_BT
        weights_BT = verl_weights(gap_BT, batch.mask_BT, level, threshold)
        return verl_loss("vanilla", batch, current_BT, weights_BT=weights_BT)

    return loss_of


def truncated_over_behavior(batch: PaddedBatch, current_BT: Tensor) -> Tensor:
    weights_BT = verl_weights(current_BT - batch.behavior_BT, batch.mask_BT, "token", 1.0)
    return verl_loss("reinforce", batch, current_BT, over="behavior", weights_BT=weights_BT)


CASES = [
    *(
        Case(
            keys={**DUAL, "pg_clip_high": 0.28, "loss_agg_mode": mode},
            peer="verl vanilla",
            loss_of=lambda batch, current, mode=mode: verl_loss(
                "vanilla", batch, current, mode=mode, high=0.28
            ),
        )
        for mode in MODES
    ),
    Case(
        keys={**DUAL, "pg_clip_high": 0.28},
        peer="Trinity PPOPolicyLossFn",
        loss_of=lambda batch, current: trinity_loss(
            PPOPolicyLossFn(clip_range_low=0.2, clip_range_high=0.28), batch, current
        ),
    ),
    *(
        Case(
            keys={"pg_variant": "dapo", "loss_agg_mode": mode, "loss_agg_length": 40},
            peer=f"TRL {name}",
            loss_of=lambda batch, current, name=name: trl_loss(
                name, batch, current, high=0.28, max_length=40
            ),
            advantage_per=("row",),
            with_empty_row=False,
        )
        for name, mode in [
            ("bnpo", "token-mean"),
            ("dapo", "token-mean"),
            ("grpo", "seq-mean-token-mean"),
            ("dr_grpo", "seq-mean-token-sum-norm"),
        ]
    ),
    Case(
        keys={"pg_variant": "dapo", "loss_agg_mode": "seq-mean-token-mean", "kl_loss_coef": 0.04},
        peer="TRL grpo, beta 0.04",
        loss_of=lambda batch, current: trl_loss("grpo", batch, current, high=0.28, beta=0.04),
        advantage_per=("row",),
        spreads=(0.3,),  # farther from the reference k3 is bounded here and not in TRL
        with_empty_row=False,
    ),
    *(
        Case(
            keys={"pg_variant": "gspo", "pg_args": GSPO, "loss_agg_mode": mode},
            peer="verl gspo",
            loss_of=lambda batch, current, mode=mode: verl_loss(
                "gspo", batch, current, mode=mode, low=0.05, high=0.06
            ),
        )
        for mode in ("token-mean", "seq-mean-token-mean")
    ),
    Case(
        keys={"pg_variant": "gspo", "pg_args": GSPO},
        peer="Trinity GSPOLossFn",
        loss_of=lambda batch, current: trinity_loss(
            GSPOLossFn(clip_range_low=0.05, clip_range_high=0.06, loss_agg_mode="token-mean"),
            batch,
            current,
        ),
    ),
    Case(
        keys={"pg_variant": "gspo", "pg_args": GSPO, "loss_agg_mode": "seq-mean-token-mean"},
        peer="TRL grpo, sequence level",
        loss_of=lambda batch, current: trl_loss(
            "grpo", batch, current, low=0.05, high=0.06, level="sequence"
        ),
        advantage_per=("row",),
        with_empty_row=False,
    ),
    Case(
        keys={"pg_variant": "segment_ppo"},
        peer="verl gspo, one reply per row",
        loss_of=lambda batch, current: verl_loss("gspo", batch, current),
        spreads=(0.6, 2.0),
        one_reply=True,
    ),
    Case(
        keys={"pg_variant": "cispo", "pg_args": CISPO},
        peer="verl cispo",
        loss_of=lambda batch, current: verl_loss("cispo", batch, current, high=0.28),
    ),
    Case(
        keys={"pg_variant": "cispo"},
        peer="Trinity CISPOPolicyLossFn, 1 and 1",
        loss_of=lambda batch, current: trinity_loss(
            CISPOPolicyLossFn(clip_range_low=1.0, clip_range_high=1.0), batch, current, over="behavior"
        ),
    ),
    Case(
        keys={"pg_variant": "cispo", "pg_args": {"ratio_over": "proximal"}},
        peer="TRL cispo, epsilon_high 2",
        loss_of=lambda batch, current: trl_loss("cispo", batch, current, high=2.0),
        advantage_per=("row",),
        with_empty_row=False,
    ),
    Case(
        keys={"pg_variant": "tis"},
        peer="verl reinforce, rollout_is token 1.0",
        loss_of=truncated_over_behavior,
    ),
    Case(
        keys={"pg_variant": "vanilla"},
        peer="verl reinforce",
        loss_of=lambda batch, current: verl_loss("reinforce", batch, current),
        acts=False,
    ),
    Case(
        keys={"pg_variant": "vanilla"},
        peer="verl gpg",
        loss_of=lambda batch, current: verl_loss("gpg", batch, current),
        acts=False,
    ),
    Case(
        keys={"pg_variant": "topr", "pg_args": {"level": "token"}},
        peer="Trinity TOPRPolicyLossFn",
        loss_of=lambda batch, current: trinity_loss(TOPRPolicyLossFn(), batch, current, over="behavior"),
    ),
    Case(
        keys={"pg_variant": "kimi15", "pg_args": {"level": "token", "tau": 0.2}},
        peer="Trinity RECPolicyLossFn, k2 0.1",
        loss_of=lambda batch, current: trinity_loss(
            RECPolicyLossFn(regularizer="k2", regularizer_coef=0.1), batch, current
        ),
        acts=False,
    ),
    Case(
        keys={"pg_variant": "opmd", "pg_args": {"tau": 0.5}},
        peer="Trinity OPMDPolicyLossFn",
        loss_of=lambda batch, current: trinity_loss(OPMDPolicyLossFn(tau=0.5), batch, current),
        acts=False,
    ),
    *(
        Case(
            keys={"pg_variant": "rec", "pg_args": {"clip_low": 0.2, "clip_high": 0.3, "sides": sides}},
            peer=f"Trinity RECPolicyLossFn, {mode}",
            loss_of=lambda batch, current, mode=mode: trinity_loss(
                RECPolicyLossFn(clip_mode=mode, epsilon_low=0.2, epsilon_high=0.3),
                batch,
                current,
                over="behavior",
            ),
        )
        for sides, mode in [("one", "one-side"), ("two", "two-side")]
    ),
    *(
        Case(
            keys={
                "pg_variant": "decoupled_ppo",
                **DUAL,
                "pg_args": {"weight_cap": 1.5, "beyond_cap": beyond},
            },
            peer=f"verl vanilla, rollout_is token {threshold}",
            loss_of=with_weights("token", threshold),
        )
        for beyond, threshold in [("truncate", 1.5), ("mask", "1e-9_1.5")]
    ),
    *(
        Case(
            keys=correcting(is_weight={"weight_type": level}),
            peer=f"verl vanilla, rollout_is {level} 2.0",
            loss_of=with_weights(level, 2.0),
        )
        for level in ("token", "sequence")
    ),
    *(
        Case(
            keys=correcting(is_weight={"weight_type": level, "lower_bound": 0.5, "beyond_bounds": "mask"}),
            peer=f"verl vanilla, rollout_is {level} 0.5_2.0",
            loss_of=with_weights(level, "0.5_2.0"),
        )
        for level in ("token", "sequence")
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.name}, {case.peer}")
def test_loss_and_gradient_are_the_peers(case: Case, write_down: Callable[..., None]) -> None:
    largest = 0.0
    for advantage_per in case.advantage_per:
        for spread in case.spreads:
            batch = padded_batch(spread=spread, advantage_per=advantage_per, one_reply=case.one_reply)
            batch = batch if case.with_empty_row else batch.without_row(EMPTY_ROW)
            mine, peers = ours(batch, **case.keys), theirs(batch, case.loss_of)
            assert (0.02 < mine.acted < 0.98) == case.acts
            assert peers.gradient_BT.abs().max() > 1e-3
            difference = float((mine.gradient_BT - peers.gradient_BT).abs().max())
            largest = max(largest, difference, abs(mine.loss - peers.loss))
    write_down(case.name, case.peer, f"{largest:.0e}", f"{case.tolerance:.0e}")
    assert largest <= case.tolerance


@pytest.mark.parametrize(
    ("level", "option"), [("token", "token_k1"), ("geometric", "seq_mean_k1"), ("sequence", "seq_sum_k1")]
)
def test_filters_leave_what_verls_rejection_leaves_and_keep_its_denominator(
    level: str, option: str, write_down: Callable[..., None]
) -> None:
    """verl takes rejected tokens out of the mask, so that the rest weighs more; here the step gets smaller.
    Its k1 is behavior / proximal, so that its bounds are one over ours."""
    batch = padded_batch(spread=0.15)
    gap_BT = batch.proximal_BT - batch.behavior_BT
    kept_BT = verl_kept(gap_BT, batch.mask_BT, option, "0.95_1.05")
    rule = {"agg_type": level, "ratio_low": 1 / 1.05, "ratio_high": 1 / 0.95}
    mine = ours(batch, **correcting(is_weight={"enabled": False}, filters=[rule]))
    peers = theirs(batch, lambda batch, current: verl_loss("vanilla", batch, current, mask_BT=kept_BT))
    num_kept, num_all = float(kept_BT.sum()), float(batch.mask_BT.sum())
    assert 0.05 < num_kept / num_all < 0.95
    difference = float((mine.gradient_BT - peers.gradient_BT * num_kept / num_all).abs().max())
    write_down(
        f"ppo, filter {level} 1/1.05 to 1/0.95", f"verl rollout_rs {option}", f"{difference:.0e}", "1e-08"
    )
    assert difference <= 1e-8
    assert mine.loss == pytest.approx(peers.loss * num_kept / num_all, abs=1e-8)
    assert float((mine.gradient_BT - peers.gradient_BT).abs().max()) > 1e-3


def test_the_whole_loss_is_that_of_verl(write_down: Callable[..., None]) -> None:
    """Policy loss, KL and entropy through the trainers' own `Objective`, in float32."""
    batch = padded_batch()
    mask_BT, mode = batch.mask_BT, "seq-mean-token-mean"
    args = AlgorithmArgs(
        **DUAL,
        loss_agg_mode=mode,
        kl_loss_coef=0.2,
        entropy_loss_coef=0.05,
        train_infer_correction={"is_weight": {"upper_bound": 1.1}},
    )
    tokens = packed(batch)
    current_N = tokens.logprobs.float().requires_grad_()
    entropy_N = -0.5 * current_N  # any function of the current log-probabilities
    fields = {
        "advantages": batch.advantages_BT,
        "behavior_logprobs": batch.behavior_BT,
        "proximal_logprobs": batch.proximal_BT,
        "reference_logprobs": batch.reference_BT,
    }
    weights_B = sequence_weights(mode, mask_BT.sum(1).tolist())
    rows = []
    for number, mask_T in enumerate(mask_BT.numpy().astype(np.int8)):
        # Inputs predict the next token: position t of the batch is token t + 1 of the sequence.
        own = {name: np.append(0.0, values[number].numpy()) for name, values in fields.items()}
        mask = np.append(0, mask_T).astype(np.int8)
        sequence = TrainSequence(ids=np.zeros(len(mask), np.int32), response_mask=mask, **own)
        if (row := make_row(sequence.ids, mask)) is not None:
            rows.append(TrainRow(sequence=sequence, row=row, weight=float(weights_B[number])))
    tally = StepMetrics()
    outputs = TokenOutputs(logprobs_N=current_N, entropy_N=entropy_N)
    loss = Objective(args)(rows, outputs, tally)
    [gradient_N] = torch.autograd.grad(loss, current_N)

    def whole_loss(batch: PaddedBatch, current_BT: Tensor) -> Tensor:
        weights_BT = verl_weights(batch.proximal_BT - batch.behavior_BT, mask_BT, "token", 1.1)
        policy = verl_loss("vanilla", batch, current_BT, mode=mode, weights_BT=weights_BT)
        kl = verl.agg_loss(verl.kl_penalty(current_BT, batch.reference_BT, "k3"), mask_BT, mode)
        entropy = verl.agg_loss(-0.5 * current_BT, mask_BT, mode)
        terms.update(policy=policy.item(), kl=kl.item(), entropy=entropy.item())
        return policy + 0.2 * kl - 0.05 * entropy

    terms: dict[str, float] = {}
    peers = theirs(batch, whole_loss)
    difference = float((gradient_N - peers.gradient_BT[batch.is_sampled_BT]).abs().max())
    write_down(
        "ppo + is_weight + kl_loss k3 + entropy, float32", "verl, the same", f"{difference:.0e}", "1e-06"
    )
    assert difference <= 1e-6
    assert float(loss.detach()) == pytest.approx(peers.loss, abs=1e-6)
    metrics = tally.metrics()
    assert metrics["actor/pg_loss"] == pytest.approx(terms["policy"], abs=1e-6)
    assert metrics["actor/kl_loss"] == pytest.approx(0.2 * terms["kl"], abs=1e-6)
    assert metrics["actor/entropy_loss"] == pytest.approx(-0.05 * terms["entropy"], abs=1e-6)


@pytest.mark.parametrize("mode", [*MODES, "seq-mean-token-sum-norm"])
def test_aggregation_is_verls_and_rows_without_tokens_count_nowhere(
    mode: str, write_down: Callable[..., None]
) -> None:
    """Trinity-RFT counts them, and its constant norm has no mean over rows."""
    batch = padded_batch()
    loss_BT = batch.current_BT
    weights_B = torch.tensor(sequence_weights(mode, batch.mask_BT.sum(1).tolist(), length=40))
    mine = float((weights_B[:, None] * loss_BT * batch.mask_BT).sum())
    difference = abs(mine - float(verl.agg_loss(loss_BT, batch.mask_BT, mode)))
    write_down(f"loss_agg_mode {mode}", "verl agg_loss", f"{difference:.0e}", "1e-08")
    assert difference <= 1e-8
    num_rows = len(batch.mask_BT)
    of_trinity = float(aggregate_loss(loss_BT, batch.mask_BT, mode))
    factor = {"token-mean": 1.0, "seq-mean-token-sum-norm": 1 / (num_rows - 1)}
    assert mine == pytest.approx(of_trinity * factor.get(mode, num_rows / (num_rows - 1)), rel=1e-6)


def test_a_batch_without_tokens_is_nothing_here_and_nan_in_verl() -> None:
    batch = padded_batch()
    nothing_BT = torch.zeros_like(batch.mask_BT)
    assert not sequence_weights("seq-mean-token-mean", nothing_BT.sum(1).tolist()).any()
    assert torch.isnan(verl.agg_loss(batch.current_BT, nothing_BT, "seq-mean-token-mean"))


def test_trl_divides_by_rows_without_tokens_too() -> None:
    batch = padded_batch()
    num_rows = len(batch.mask_BT)
    mine = ours(batch, pg_variant="dapo", loss_agg_mode="seq-mean-token-mean")
    peers = theirs(batch, lambda batch, current: trl_loss("grpo", batch, current, high=0.28))
    assert mine.loss == pytest.approx(peers.loss * num_rows / (num_rows - 1), rel=1e-9)


def test_far_from_everything_gspo_bounds_each_token_before_the_mean_and_verl_the_mean() -> None:
    batch = padded_batch(spread=60.0)
    mine = ours(batch, pg_variant="gspo")
    peers = theirs(batch, lambda batch, current: verl_loss("gspo", batch, current, low=3e-4, high=4e-4))
    assert np.isfinite(mine.loss)
    assert torch.isfinite(mine.gradient_BT).all()
    assert abs(mine.loss - peers.loss) > 1e-3
    near = replace(batch, current_BT=batch.proximal_BT + 1e-4)
    peers = theirs(near, lambda batch, current: verl_loss("gspo", batch, current, low=3e-4, high=4e-4))
    assert ours(near, pg_variant="gspo").loss == pytest.approx(peers.loss, abs=1e-8)

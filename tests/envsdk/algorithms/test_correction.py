"""Weights and filters against loops in NumPy, their statistics, and how they meet the objective."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from envsdk.algorithms.args import AlgorithmArgs, TrainInferCorrection
from envsdk.algorithms.correction import correction
from envsdk.algorithms.loss_settings import uses_proximal
from envsdk.algorithms.losses import PolicyTokens
from envsdk.contracts.failures import ConfigurationError
from envsdk.contracts.trainer import TrainSequence
from envsdk.testing.losses import random_tokens, seeds, taken
from envsdk.trainers.objective import Objective, TokenOutputs, TrainRow
from envsdk.trainers.packing import make_row
from envsdk.trainers.step_metrics import StepMetrics

LEVELS = ("token", "segment", "geometric", "sequence")
levels = st.sampled_from(LEVELS)
bounds = st.none() | st.floats(0.3, 0.95), st.none() | st.floats(1.05, 3)


def expected_at(tokens: PolicyTokens, level: str) -> tuple[np.ndarray, np.ndarray]:
    """Ratio and difference of each token, group by group."""
    proximal, behavior = np.exp(tokens.proximal_logprobs.numpy()), np.exp(tokens.behavior_logprobs.numpy())
    ids = (tokens.segment_ids if level == "segment" else tokens.sequence_ids).numpy()
    ratios, differences = [], []
    for t in range(len(ids)):
        group = [t] if level == "token" else np.flatnonzero(ids == ids[t])
        ratio = np.prod(proximal[group] / behavior[group])
        total = np.sum(proximal[group] - behavior[group])
        if level in ("segment", "geometric"):
            ratio, total = ratio ** (1 / len(group)), total / len(group)
        ratios.append(ratio)
        differences.append(total)
    return np.array(ratios), np.array(differences)


@given(seeds, levels, *bounds, st.sampled_from(["truncate", "mask"]))
@settings(max_examples=60, deadline=None)
def test_weights_agree_with_a_loop_over_groups(seed, level, low, high, beyond) -> None:
    tokens = random_tokens(seed, spread=0.6)
    args = TrainInferCorrection.model_validate(
        {
            "is_weight": {
                "weight_type": level, "lower_bound": low, "upper_bound": high, "beyond_bounds": beyond
            }
        }
    )  # fmt: skip
    ratio, _ = expected_at(tokens, level)
    outside = (ratio < (0 if low is None else low)) | (ratio > (np.inf if high is None else high))
    if beyond == "mask":
        expected = np.where(outside, 0, ratio)
    else:
        expected = np.minimum(np.maximum(ratio, low or 0), high or np.inf)
    got = correction(tokens, args, weighted=True)
    np.testing.assert_allclose(got.factor.numpy(), expected, rtol=1e-9)
    [share] = got.shares.values()
    np.testing.assert_array_equal(share.numpy(), outside)


@given(seeds, levels, st.booleans(), st.floats(0.3, 1), st.floats(0.01, 0.2))
@settings(max_examples=60, deadline=None)
def test_filters_agree_with_a_loop_over_groups(seed, level, by_difference, low, gap) -> None:
    tokens = random_tokens(seed, spread=0.6)
    rule = (
        {"ratio_enabled": False, "diff_enabled": True, "diff_low": -gap, "diff_high": gap}
        if by_difference
        else {"ratio_low": low, "ratio_high": low + 0.6}
    )
    args = TrainInferCorrection.model_validate({"filters": [{"agg_type": level} | rule]})
    ratio, difference = expected_at(tokens, level)
    stays = (np.abs(difference) <= gap) if by_difference else (ratio >= low) & (ratio <= low + 0.6)
    got = correction(tokens, args, weighted=False)
    np.testing.assert_array_equal(got.factor.numpy(), stays)
    assert got.weight is None
    np.testing.assert_array_equal(got.shares[f"filter_0_{level}_masked"].numpy(), ~stays)


@given(seeds)
@settings(max_examples=20, deadline=None)
def test_filters_add_up_and_one_that_is_off_does_nothing(seed: int) -> None:
    tokens = random_tokens(seed, spread=0.6)
    rules = [
        {"agg_type": "token", "ratio_high": 1.5},
        {"enabled": False, "ratio_low": 0.99, "ratio_high": 1.01},
        {"agg_type": "sequence", "ratio_low": 0.5, "ratio_high": 2.0},
    ]
    both = correction(tokens, TrainInferCorrection.model_validate({"filters": rules}), weighted=False)
    alone = [
        correction(tokens, TrainInferCorrection.model_validate({"filters": [rule]}), weighted=False).factor
        for rule in (rules[0], rules[2])
    ]
    torch.testing.assert_close(both.factor, alone[0] * alone[1])
    torch.testing.assert_close(both.shares["filters_masked"], 1 - both.factor)
    assert set(both.shares) == {"filter_0_token_masked", "filter_2_sequence_masked", "filters_masked"}


@given(seeds, levels, st.permutations(range(4)), st.integers(1, 3))
@settings(max_examples=30, deadline=None)
def test_order_and_micro_batches_change_nothing(seed, level, order, first) -> None:
    tokens = random_tokens(seed)
    args = TrainInferCorrection.model_validate(
        {"is_weight": {"weight_type": level}, "filters": [{"agg_type": level}]}
    )
    whole = correction(tokens, args, weighted=True).factor
    where = torch.cat([torch.nonzero(tokens.sequence_ids == each)[:, 0] for each in order])
    torch.testing.assert_close(correction(taken(tokens, order), args, weighted=True).factor, whole[where])
    parts = [
        correction(taken(tokens, members), args, weighted=True).factor
        for members in (range(first), range(first, 4))
    ]
    torch.testing.assert_close(torch.cat(parts), whole)


@given(seeds, levels)
@settings(max_examples=20, deadline=None)
def test_fresh_samples_are_left_alone_at_every_level(seed: int, level: str) -> None:
    tokens = random_tokens(seed)
    fresh = PolicyTokens(
        logprobs=tokens.logprobs,
        proximal_logprobs=tokens.behavior_logprobs,
        behavior_logprobs=tokens.behavior_logprobs,
        advantages=tokens.advantages,
        sequence_ids=tokens.sequence_ids,
        segment_ids=tokens.segment_ids,
    )
    args = TrainInferCorrection.model_validate(
        {"is_weight": {"weight_type": level}, "filters": [{"agg_type": level}]}
    )
    torch.testing.assert_close(
        correction(fresh, args, weighted=True).factor, torch.ones_like(tokens.logprobs)
    )


FIELDS = ("advantages", "behavior_logprobs", "proximal_logprobs")


def rows_of(tokens: PolicyTokens) -> list[TrainRow]:
    """Each sequence as a row; a prompt token stands before each reply."""
    rows = []
    for sequence in range(int(tokens.sequence_ids[-1]) + 1):
        of = tokens.sequence_ids == sequence
        segments = tokens.segment_ids[of].numpy()
        new_reply = np.diff(segments, prepend=-1) > 0
        mask = np.concatenate([[0, 1] if begins else [1] for begins in new_reply]).astype(np.int8)
        ids = np.arange(len(mask), dtype=np.int32)
        row = make_row(ids, mask)
        assert row is not None
        fields = {name: np.zeros(len(mask), np.float32) for name in FIELDS}
        for name, array in fields.items():
            array[mask == 1] = getattr(tokens, name)[of].numpy()
        learned = TrainSequence(ids=ids, response_mask=mask, **fields)
        rows.append(TrainRow(sequence=learned, row=row, weight=1 / len(tokens.logprobs)))
    return rows


def objective(tokens: PolicyTokens, **keys: Any) -> tuple[float, torch.Tensor, dict[str, float]]:
    """Loss, gradient and metrics of the objective."""
    current = tokens.logprobs.float().requires_grad_()
    tally = StepMetrics()
    outputs = TokenOutputs(logprobs_N=current, entropy_N=torch.zeros_like(current))
    loss = Objective(AlgorithmArgs(**keys))(rows_of(tokens), outputs, tally)
    [gradient] = torch.autograd.grad(loss, current)
    return loss.item(), gradient, tally.metrics()


@pytest.mark.parametrize("variant", ["ppo", "vanilla", "gspo", "kimi15", "opmd"])
def test_the_objective_multiplies_any_loss_and_keeps_masked_tokens_in_the_denominator(variant: str) -> None:
    tokens = random_tokens(8, spread=0.6)
    section = {"is_weight": {"upper_bound": 1.1}, "filters": [{"agg_type": "segment"}]}
    off = {"is_weight": {"enabled": False}}
    _, plain, _ = objective(tokens, pg_variant=variant, train_infer_correction=off)
    _, corrected, metrics = objective(tokens, pg_variant=variant, train_infer_correction=section)
    args = TrainInferCorrection.model_validate(section)
    done = correction(tokens, args, weighted=True)
    assert 0 < done.shares["filters_masked"].sum() < len(tokens.logprobs)
    # Token by token, also where the loss is of whole sequences: what is masked does not move.
    torch.testing.assert_close(corrected, plain * done.factor.float(), rtol=1e-4, atol=1e-7)
    weight = done.weight.numpy()
    assert metrics["actor/is_weight_mean"] == pytest.approx(weight.mean(), rel=1e-5)
    assert metrics["actor/is_weight_min"] == pytest.approx(weight.min(), rel=1e-5)
    assert metrics["actor/is_weight_max"] == pytest.approx(weight.max(), rel=1e-5)
    effective = weight.sum() ** 2 / (weight**2).sum()
    assert metrics["actor/is_weight_ess"] == pytest.approx(effective / len(weight), rel=1e-5)
    truncated = done.shares["is_weight_truncated"].mean().item()
    assert metrics["actor/is_weight_truncated"] == pytest.approx(truncated)
    assert metrics["actor/filters_masked"] == pytest.approx(done.shares["filters_masked"].mean().item())


def test_rows_without_proximal_log_probabilities_take_the_current_ones_and_leave_the_others_theirs() -> None:
    tokens = random_tokens(13, spread=0.6)
    rows = rows_of(tokens)
    without = [replace(each, sequence=replace(each.sequence, proximal_logprobs=None)) for each in rows]
    is_known = tokens.sequence_ids % 2 == 0
    proximal = torch.where(is_known, tokens.proximal_logprobs, tokens.logprobs)
    mixed = [rows[i] if i % 2 == 0 else without[i] for i in range(len(rows))]
    given = rows_of(replace(tokens, proximal_logprobs=proximal))
    results = []
    for each in (mixed, given):
        current = tokens.logprobs.float().requires_grad_()
        outputs = TokenOutputs(logprobs_N=current, entropy_N=torch.zeros_like(current))
        tally = StepMetrics()
        loss = Objective(AlgorithmArgs())(each, outputs, tally)
        results.append((torch.autograd.grad(loss, current)[0], tally.metrics()))
    torch.testing.assert_close(results[0][0], results[1][0])
    assert results[0][1] == results[1][1]


def test_a_loss_that_corrects_itself_is_not_weighed_again_and_asking_for_it_is_refused() -> None:
    tokens = random_tokens(9, spread=0.6)
    off = {"is_weight": {"enabled": False}}
    for variant in ("cispo", "tis", "topr", "decoupled_ppo"):
        silent = objective(tokens, pg_variant=variant)
        assert silent[0] == objective(tokens, pg_variant=variant, train_infer_correction=off)[0]
        with pytest.raises(ConfigurationError, match="correct twice"):
            objective(tokens, pg_variant=variant, train_infer_correction={"is_weight": {"enabled": True}})
    over = {"pg_args": {"ratio_over": "proximal"}}
    weighed = objective(tokens, pg_variant="cispo", **over)
    assert weighed[0] != objective(tokens, pg_variant="cispo", train_infer_correction=off, **over)[0]


@pytest.mark.parametrize(
    ("variant", "base"),
    [("ppo", "proximal"), ("gspo", "proximal"), ("vanilla", "proximal"), ("topr", "behavior")],
)
def test_the_divergence_that_is_reported_is_per_token_whatever_the_ratio_is_of(variant, base) -> None:
    tokens = random_tokens(11, spread=1.0)
    _, _, metrics = objective(tokens, pg_variant=variant)
    d = (tokens.logprobs - getattr(tokens, f"{base}_logprobs")).numpy()
    assert metrics["actor/approx_kl"] == pytest.approx((np.exp(d) - 1 - d).mean(), rel=1e-4)


def test_the_importance_weight_that_is_reported_is_all_that_stands_before_a_token() -> None:
    tokens = random_tokens(12, spread=0.6)
    _, _, metrics = objective(tokens, pg_variant="tis", pg_args={"ratio_over": "proximal"})
    current, proximal, behavior = (
        np.exp(each.numpy()) for each in (tokens.logprobs, tokens.proximal_logprobs, tokens.behavior_logprobs)
    )
    weight = np.minimum(current / proximal, 1) * np.minimum(proximal / behavior, 2)
    assert metrics["actor/is_weight_mean"] == pytest.approx(weight.mean(), rel=1e-5)
    assert metrics["actor/is_weight_min"] == pytest.approx(weight.min(), rel=1e-5)


def test_the_metrics_of_ranks_and_steps_add_up_to_those_of_all_tokens() -> None:
    weights = torch.tensor([0.5, 2.0, 1.0, 0.25])
    whole, parts = StepMetrics(), [StepMetrics(), StepMetrics()]
    whole.add_weight("is_weight", weights)
    parts[0].add_weight("is_weight", weights[:1])
    parts[1].add_weight("is_weight", weights[1:])
    assert StepMetrics.merge(parts).metrics() == whole.metrics()


@pytest.mark.parametrize(
    ("keys", "reads"),
    [
        ({}, True),
        ({"pg_args": {"ratio_over": "behavior"}}, False),
        ({"pg_variant": "vanilla"}, True),
        ({"pg_variant": "vanilla", "train_infer_correction": {"is_weight": {"enabled": False}}}, False),
        ({"pg_variant": "cispo"}, False),
        ({"pg_variant": "cispo", "train_infer_correction": {"filters": [{}]}}, True),
        ({"pg_variant": "cispo", "train_infer_correction": {"filters": [{"enabled": False}]}}, False),
        ({"pg_variant": "decoupled_ppo"}, True),
    ],
)
def test_proximal_log_probabilities_are_asked_for_only_where_they_are_read(keys: dict, reads: bool) -> None:
    assert uses_proximal(AlgorithmArgs(**keys)) is reads

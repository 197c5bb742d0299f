"""Losses against independent NumPy computations, their gradients, and their limits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from envsdk.algorithms.args import AlgorithmArgs
from envsdk.algorithms.kl import kl_estimate
from envsdk.algorithms.logits import token_logprobs_and_entropy
from envsdk.algorithms.losses import PolicyTokens, policy_loss, register_policy_loss, value_loss

logprobs = st.floats(-6, -0.01)
tokens = st.lists(st.tuples(logprobs, logprobs, logprobs, st.floats(-3, 3)), min_size=1, max_size=12)
clips = st.floats(0.05, 0.5)
algorithms = st.builds(
    AlgorithmArgs,
    pg_variant=st.sampled_from(["ppo", "vanilla"]),
    pg_ratio=st.sampled_from(["proximal", "behavior"]),
    pg_clip_low=clips,
    pg_clip_high=clips,
    dual_clip=st.none() | st.floats(1.1, 4),
    behavior_weight=st.sampled_from(["truncate", "none"]),
    behavior_weight_cap=st.none() | st.floats(0.5, 5),
)


def evaluate(args: AlgorithmArgs, data: np.ndarray):
    current, proximal, behavior, advantages = (torch.tensor(column, dtype=torch.float64) for column in data.T)
    current.requires_grad_(True)
    tokens = PolicyTokens(
        logprobs=current,
        proximal_logprobs=proximal,
        behavior_logprobs=behavior,
        advantages=advantages,
        sequence_ids=torch.zeros(len(data), dtype=torch.int64),
        segment_ids=torch.zeros(len(data), dtype=torch.int64),
    )
    result = policy_loss(args.pg_variant)(tokens, args)
    [gradient] = torch.autograd.grad(result.loss.sum(), current)
    return result, gradient.numpy()


def expected_token_loss(
    args: AlgorithmArgs, current: float, proximal: float, behavior: float, advantage: float
) -> float:
    """One token, case by case, as the papers' figures draw it."""
    decoupled = args.pg_variant == "vanilla" or args.pg_ratio == "proximal"
    weight = 1.0
    if decoupled and args.behavior_weight == "truncate":
        weight = np.exp(proximal - behavior)
        if args.behavior_weight_cap is not None and weight > args.behavior_weight_cap:
            weight = args.behavior_weight_cap
    if args.pg_variant == "vanilla":
        return float(-weight * advantage * current)
    ratio = np.exp(current - (proximal if args.pg_ratio == "proximal" else behavior))
    if advantage >= 0:
        effective = min(ratio, 1 + args.pg_clip_high)
    else:
        effective = max(ratio, 1 - args.pg_clip_low)
        if args.dual_clip is not None:
            effective = min(effective, args.dual_clip)
    return float(-weight * effective * advantage)


@given(algorithms, tokens)
def test_policy_losses_agree_with_a_case_by_case_computation(args: AlgorithmArgs, rows: list) -> None:
    result, _ = evaluate(args, np.array(rows))
    expected = [expected_token_loss(args, *row) for row in rows]
    np.testing.assert_allclose(result.loss.detach().numpy(), expected, rtol=1e-9, atol=1e-12)


@given(algorithms, tokens)
def test_gradients_agree_with_finite_differences(args: AlgorithmArgs, rows: list) -> None:
    data, step = np.array(rows), 1e-5
    _, gradient = evaluate(args, data)
    shift = np.array([step, 0, 0, 0])
    above, below = (evaluate(args, data + sign * shift)[0].loss.detach().numpy() for sign in (1, -1))
    difference = (above - below) / (2 * step)
    here = evaluate(args, data)[0].loss.detach().numpy()
    # At a corner of the clip the two one-sided slopes differ and there is no gradient to compare.
    smooth = np.abs(above - 2 * here + below) < 1e-3 * step
    np.testing.assert_allclose(gradient[smooth], difference[smooth], rtol=1e-4, atol=1e-6)


@given(algorithms, tokens)
def test_clipped_tokens_are_those_without_gradient(args: AlgorithmArgs, rows: list) -> None:
    data = np.array(rows)
    result, gradient = evaluate(args, data)
    matters = np.abs(data[:, 3]) > 1e-6
    clipped = result.clipped.numpy() == 1
    assert not gradient[clipped].any()
    assert (gradient[matters & ~clipped] != 0).all()


@given(algorithms, tokens, st.randoms(use_true_random=False))
def test_the_order_of_tokens_changes_nothing(args: AlgorithmArgs, rows: list, random) -> None:
    order = list(range(len(rows)))
    random.shuffle(order)
    straight, shuffled = evaluate(args, np.array(rows))[0], evaluate(args, np.array(rows)[order])[0]
    np.testing.assert_array_equal(shuffled.loss.detach().numpy(), straight.loss.detach().numpy()[order])


@given(tokens, clips, clips)
def test_a_huge_dual_clip_is_no_dual_clip(rows: list, low: float, high: float) -> None:
    plain = AlgorithmArgs(pg_clip_low=low, pg_clip_high=high)
    dual = plain.model_copy(update={"dual_clip": 1e12})
    np.testing.assert_array_equal(
        evaluate(dual, np.array(rows))[0].loss.detach().numpy(),
        evaluate(plain, np.array(rows))[0].loss.detach().numpy(),
    )


@given(tokens)
def test_at_the_first_step_ppo_and_vanilla_have_the_same_weighted_gradient(rows: list) -> None:
    data = np.array(rows)
    data[:, 0] = data[:, 1]  # current = proximal
    result, ppo = evaluate(AlgorithmArgs(pg_variant="ppo"), data)
    _, vanilla = evaluate(AlgorithmArgs(pg_variant="vanilla"), data)
    np.testing.assert_allclose(ppo, vanilla, rtol=1e-9, atol=1e-12)
    weight = np.minimum(np.exp(data[:, 1] - data[:, 2]), 2.0)
    np.testing.assert_allclose(ppo, -weight * data[:, 3], rtol=1e-9, atol=1e-12)
    assert not result.clipped.any()


@given(tokens)
def test_on_fresh_tokens_all_ways_of_treating_staleness_agree(rows: list) -> None:
    data = np.array(rows)
    data[:, 2] = data[:, 1]  # behavior = proximal
    losses = [
        evaluate(AlgorithmArgs(pg_ratio=ratio, behavior_weight=weight), data)[0].loss.detach().numpy()
        for ratio, weight in [("proximal", "truncate"), ("proximal", "none"), ("behavior", "truncate")]
    ]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-9)
    np.testing.assert_allclose(losses[2], losses[0], rtol=1e-9)


def test_clipping_against_the_behavior_policy_acts_on_staleness_and_against_the_proximal_does_not() -> None:
    stale = np.array([[-1.0, -1.0, -2.0, 1.0]])  # one step per batch: current = proximal
    assert evaluate(AlgorithmArgs(pg_ratio="behavior"), stale)[1] == 0
    assert evaluate(AlgorithmArgs(pg_ratio="proximal"), stale)[1] == pytest.approx(-2.0)


def test_extreme_log_ratios_stay_finite() -> None:
    rows = np.array([[-1e4, -1.0, -1.0, -1.0], [-0.1, -1e4, -1.0, -1.0], [-0.1, -1.0, -np.inf, 1.0]])
    for name in ("ppo", "vanilla"):
        for cap in (2.0, None):
            result, gradient = evaluate(AlgorithmArgs(pg_variant=name, behavior_weight_cap=cap), rows)
            assert torch.isfinite(result.loss).all()
            assert np.isfinite(gradient).all()


def test_a_registered_loss_is_found_by_name_and_an_unknown_one_is_refused() -> None:
    with pytest.raises(KeyError, match=r"unknown pg_variant 'pppo'; known are ppo, vanilla"):
        policy_loss("pppo")
    with pytest.raises(ValueError, match="registered already"):
        register_policy_loss("ppo")(policy_loss("vanilla"))


values = st.floats(-5, 5)


@given(st.lists(st.tuples(values, values, values), min_size=1, max_size=8), st.none() | st.floats(0.05, 2))
def test_the_value_loss_is_the_larger_of_plain_and_clipped_error(rows, clip) -> None:
    predicted, old, target = np.array(rows).T
    plain = (predicted - target) ** 2 / 2
    expected = plain
    if clip is not None:
        near = np.minimum(np.maximum(predicted, old - clip), old + clip)
        expected = np.maximum(plain, (near - target) ** 2 / 2)
    got = value_loss(
        values=torch.tensor(predicted), old_values=torch.tensor(old), returns=torch.tensor(target), clip=clip
    )
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-6, atol=1e-9)
    unclipped = value_loss(
        values=torch.tensor(predicted), old_values=None, returns=torch.tensor(target), clip=clip
    )
    np.testing.assert_allclose(unclipped.numpy(), plain, rtol=1e-6, atol=1e-9)


@given(st.integers(2, 9), st.integers(1, 6), st.floats(0.2, 3), st.integers(0, 2**16))
@settings(max_examples=50)
def test_logprobs_and_entropy_agree_with_the_softmax_written_out(vocab, count, temperature, seed) -> None:
    rng = np.random.default_rng(seed)
    logits, ids = rng.normal(0, 5, (count, vocab)), rng.integers(0, vocab, count)
    weights = np.exp(logits / temperature - (logits / temperature).max(-1, keepdims=True))
    probabilities = weights / weights.sum(-1, keepdims=True)
    got_logprobs, got_entropy = token_logprobs_and_entropy(
        torch.tensor(logits), torch.tensor(ids), temperature=temperature
    )
    np.testing.assert_allclose(
        got_logprobs.numpy(), np.log(probabilities[np.arange(count), ids] + 1e-300), rtol=1e-4, atol=1e-4
    )
    entropy = -(probabilities * np.log(probabilities + 1e-300)).sum(-1)
    np.testing.assert_allclose(got_entropy.numpy(), entropy, rtol=1e-4, atol=1e-4)


def test_entropy_has_a_gradient_only_when_asked_for() -> None:
    logits = torch.randn(3, 5, generator=torch.Generator().manual_seed(0), requires_grad=True)
    ids = torch.zeros(3, dtype=torch.int64)
    assert not token_logprobs_and_entropy(logits, ids)[1].requires_grad
    entropy = token_logprobs_and_entropy(logits, ids, entropy_gradient=True)[1]
    [gradient] = torch.autograd.grad(entropy.sum(), logits)
    probabilities = torch.softmax(logits.detach(), -1)
    expected = -probabilities * (probabilities.log() + entropy.detach()[:, None])
    torch.testing.assert_close(gradient, expected)


@given(st.lists(st.tuples(logprobs, logprobs), min_size=1, max_size=8))
def test_kl_estimators_agree_with_their_formulas_in_numpy_and_torch(rows) -> None:
    policy, reference = np.array(rows).T
    formulas: dict[str, Callable[[float, float], float]] = {
        "k1": lambda p, q: np.log(p / q),
        "k2": lambda p, q: 0.5 * np.log(p / q) ** 2,
        "k3": lambda p, q: q / p - 1 - np.log(q / p),
    }
    for kind, formula in formulas.items():
        expected = [formula(np.exp(p), np.exp(q)) for p, q in rows]
        np.testing.assert_allclose(kl_estimate(policy, reference, kind), expected, rtol=1e-7, atol=1e-9)
        torched = kl_estimate(torch.tensor(policy), torch.tensor(reference), kind)
        np.testing.assert_allclose(torched.numpy(), expected, rtol=1e-7, atol=1e-9)


@given(st.integers(0, 2**16))
@settings(max_examples=25)
def test_k1_and_k3_average_to_the_exact_divergence_and_k2_has_its_gradient(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(6, generator=generator, dtype=torch.float64, requires_grad=True)
    policy = torch.log_softmax(logits, -1)
    reference = torch.log_softmax(torch.randn(6, generator=generator, dtype=torch.float64), -1)
    exact = (policy.exp() * (policy - reference)).sum()
    for kind in ("k1", "k3"):
        average = (policy.exp() * kl_estimate(policy, reference, kind)).sum()
        torch.testing.assert_close(average, exact)
    [true_gradient] = torch.autograd.grad(exact, logits, retain_graph=True)
    sampled = (policy.detach().exp() * kl_estimate(policy, reference, "k2")).sum()
    [gradient] = torch.autograd.grad(sampled, logits)
    torch.testing.assert_close(gradient, true_gradient)

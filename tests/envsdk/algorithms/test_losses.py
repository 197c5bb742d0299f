"""Value loss, entropy and KL against independent NumPy computations."""

from __future__ import annotations

import math
from collections.abc import Callable
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from envsdk.algorithms.kl import K3_MAX_WEIGHT, kl_estimate
from envsdk.algorithms.logits import LogitTransform, projected_tokens, token_logprobs_and_entropy
from envsdk.algorithms.losses import value_loss
from envsdk.contracts.support import Support

logprobs = st.floats(-2.9, -0.01)
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


def k3_and_its_derivative(differences: list[float], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    policy = torch.tensor(differences, dtype=dtype, requires_grad=True)
    estimate = kl_estimate(policy, torch.zeros_like(policy), "k3")
    [derivative] = torch.autograd.grad(estimate.sum(), policy)
    return estimate.detach(), derivative


@given(st.lists(st.floats(-1e4, 20.0), min_size=1, max_size=8))
def test_k3_is_its_formula_up_to_the_bound_of_its_weight_and_its_tangent_beyond(differences) -> None:
    d = np.array(differences)
    bound = np.log(K3_MAX_WEIGHT)
    near = np.maximum(d, -bound)
    expected = np.expm1(-near) + near + (K3_MAX_WEIGHT - 1) * (near - d)
    np.testing.assert_allclose(kl_estimate(d, np.zeros_like(d), "k3"), expected, rtol=1e-9, atol=1e-12)
    estimate, derivative = k3_and_its_derivative(differences, torch.float64)
    np.testing.assert_allclose(estimate.numpy(), expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(
        derivative.numpy(), 1 - np.minimum(np.exp(-near), K3_MAX_WEIGHT), rtol=1e-9, atol=1e-12
    )
    assert (estimate.numpy() >= -1e-12).all()


@given(
    st.lists(st.floats(-1e4, 1e4), min_size=2, max_size=8),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_a_penalty_on_k3_pulls_towards_the_reference_never_less_from_farther_and_never_without_limit(
    differences, dtype
) -> None:
    differences = sorted(differences)
    estimate, derivative = k3_and_its_derivative(differences, dtype)
    assert torch.isfinite(estimate).all()
    assert (derivative >= 1 - K3_MAX_WEIGHT - 1e-4).all()
    assert (derivative <= 1).all()
    assert (derivative.diff() >= -1e-4).all()
    for difference, slope in zip(differences, derivative.tolist(), strict=True):
        if abs(difference) > 1e-3:
            assert slope * difference > 0


@given(st.integers(0, 2**16))
@settings(max_examples=25)
def test_k1_and_k3_average_to_the_exact_divergence_and_k2_has_its_gradient(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(6, generator=generator, dtype=torch.float64).requires_grad_()
    policy = torch.log_softmax(logits, -1)
    reference = torch.log_softmax(torch.randn(6, generator=generator, dtype=torch.float64), -1)
    assume(float((reference - policy.detach()).max()) < math.log(K3_MAX_WEIGHT))
    exact = (policy.exp() * (policy - reference)).sum()
    for kind in ("k1", "k3"):
        average = (policy.exp() * kl_estimate(policy, reference, kind)).sum()
        torch.testing.assert_close(average, exact)
    [true_gradient] = torch.autograd.grad(exact, logits, retain_graph=True)
    sampled = (policy.detach().exp() * kl_estimate(policy, reference, "k2")).sum()
    [gradient] = torch.autograd.grad(sampled, logits)
    torch.testing.assert_close(gradient, true_gradient)


@pytest.mark.parametrize("entropy_gradient", [True, False])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize(("scale", "softcap"), [(1.0, None), (0.25, None), (1.0, 2.0), (1.5, 3.0)])
def test_scores_and_gradients_without_logits_are_those_of_logits(
    entropy_gradient, temperature, scale, softcap, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("envsdk.algorithms.logits.LOGITS_AT_ONCE", 60)  # three tokens
    torch.manual_seed(0)
    hidden = (0.3 * torch.randn(13, 8)).requires_grad_()
    weight = torch.randn(20, 8, requires_grad=True)
    ids, by_logprob, by_entropy = torch.randint(0, 20, (13,)), torch.randn(13), torch.randn(13)
    logits = scale * (hidden @ weight.t())
    logits = logits if softcap is None else softcap * torch.tanh(logits / softcap)
    settings = {"temperature": temperature, "entropy_gradient": entropy_gradient}
    expected = token_logprobs_and_entropy(logits, ids, **settings)
    transform = LogitTransform(scale, softcap)
    found = projected_tokens(hidden, weight, ids, dtype=torch.float32, transform=transform, **settings)
    tops = torch.log_softmax(logits / temperature, -1).amax(-1)
    torch.testing.assert_close(tuple(found[:3]), (*expected, tops.detach()), rtol=1e-6, atol=1e-6)
    assert found.entropy_N.requires_grad == entropy_gradient

    def gradients(logprobs: torch.Tensor, entropy: torch.Tensor) -> tuple[torch.Tensor, ...]:
        loss = (by_logprob * logprobs).sum()
        if entropy_gradient:
            loss = loss + (by_entropy * entropy).sum()
        return torch.autograd.grad(loss, (hidden, weight))

    torch.testing.assert_close(gradients(*found[:2]), gradients(*expected), rtol=0, atol=1e-5)


@given(st.integers(0, 2**16), st.sampled_from([1.0, 0.6]))
@settings(max_examples=30, deadline=None)
def test_truncated_scores_are_those_of_the_tokens_that_could_be_drawn(seed: int, temperature: float) -> None:
    """Against autograd over the few logits: with logits and without, with two more tokens at each place."""
    generator = np.random.default_rng(seed)
    hidden = torch.tensor(generator.normal(size=(7, 5)), dtype=torch.float32, requires_grad=True)
    weight = torch.tensor(generator.normal(size=(11, 5)), dtype=torch.float32, requires_grad=True)
    sets = [generator.permutation(11)[: generator.integers(0, 6)].tolist() for _ in range(7)]
    ids = torch.tensor([each[0] if each else 3 for each in sets])
    further = torch.tensor([[each[-1] if each else 4, each[0] if each else 3] for each in sets])
    kept = {"temperature": temperature, "entropy_gradient": True, "support": Support.of(sets)}
    with patch("envsdk.algorithms.logits.LOGITS_AT_ONCE", 33):  # three tokens
        found = projected_tokens(hidden, weight, ids, dtype=torch.float32, further_NK=further, **kept)
    logits = hidden @ weight.t()
    all_ids = torch.cat([ids[:, None], further], -1)
    plain, entropy = token_logprobs_and_entropy(logits, all_ids, **kept)
    scores = torch.cat([found.logprobs_N[:, None], found.further_NK], -1)
    brute, brute_entropy = [], []
    for row, each, asked in zip(logits, sets, all_ids, strict=True):
        z = row / temperature
        own = z[each] if each else z
        brute.append(z[asked] - own.logsumexp(0))
        p = torch.softmax(own, 0)
        brute_entropy.append(-(p * p.log()).sum())
    for one, other in ((scores, found.entropy_N), (plain, entropy)):
        torch.testing.assert_close(one, torch.stack(brute), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(other, torch.stack(brute_entropy), atol=1e-5, rtol=1e-5)
    factors = torch.tensor(generator.normal(size=(7, 4)), dtype=torch.float32)

    def gradients(of_ids: torch.Tensor, of_entropy: torch.Tensor) -> tuple[torch.Tensor, ...]:
        loss = (factors[:, :3] * of_ids).sum() + (factors[:, 3] * of_entropy).sum()
        return torch.autograd.grad(loss, (hidden, weight), retain_graph=True)

    expected = gradients(torch.stack(brute), torch.stack(brute_entropy))
    torch.testing.assert_close(gradients(scores, found.entropy_N), expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(gradients(plain, entropy), expected, atol=1e-4, rtol=1e-4)

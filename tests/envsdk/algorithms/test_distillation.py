"""What is learned from a teacher, against NumPy over a small vocabulary."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from envsdk.algorithms.distillation import coarse_reverse_kl, distilled_advantages

SEEDS, VOCAB = st.integers(0, 2**16), 9


def two_policies(seed: int, spread: float = 2.0) -> tuple[np.ndarray, np.ndarray]:
    """Log-probabilities of a policy and a teacher."""
    drawn = np.random.default_rng(seed).normal(scale=spread, size=(2, VOCAB))
    policy, teacher = drawn - np.log(np.exp(drawn).sum(-1, keepdims=True))
    return policy, teacher


def reverse_kl(policy: np.ndarray, teacher: np.ndarray) -> float:
    return float((np.exp(policy) * (policy - teacher)).sum())


def coarse(policy: np.ndarray, teacher: np.ndarray, ids: np.ndarray) -> float:
    found = coarse_reverse_kl(*(torch.tensor(each[ids])[None].double() for each in (policy, teacher)))
    return float(found)


@given(SEEDS, st.integers(1, VOCAB - 1), st.integers(0, VOCAB - 1))
@settings(deadline=None)
def test_a_divergence_of_some_tokens_lies_between_0_and_that_of_all(seed: int, few: int, more: int) -> None:
    policy, teacher = two_policies(seed)
    ids = np.argsort(-teacher)
    whole = reverse_kl(policy, teacher)
    less = coarse(policy, teacher, ids[:few])
    finer = coarse(policy, teacher, ids[: min(VOCAB, few + more)])
    assert -1e-9 <= less <= finer + 1e-6 <= whole + 1e-5
    np.testing.assert_allclose(coarse(policy, teacher, ids), whole, atol=1e-5)
    assert abs(coarse(policy, policy, ids[:few])) < 1e-9


@given(SEEDS, st.integers(1, VOCAB - 1))
@settings(deadline=None)
def test_it_is_that_of_the_tokens_and_the_rest_by_brute_force(seed: int, count: int) -> None:
    policy, teacher = two_policies(seed)
    ids = np.argsort(-teacher)[:count]
    rest = np.setdiff1d(np.arange(VOCAB), ids)
    p, t = (np.append(np.exp(each[ids]), np.exp(each[rest]).sum()) for each in (policy, teacher))
    np.testing.assert_allclose(coarse(policy, teacher, ids), (p * np.log(p / t)).sum(), atol=1e-5)


@given(SEEDS, st.floats(0.1, 3))
@settings(deadline=None)
def test_advantages_of_a_teacher_have_the_gradient_of_the_divergence_whatever_the_support(
    seed: int, coef: float
) -> None:
    """By brute force over what is drawn: from all tokens, and from those that truncation leaves."""
    policy, teacher = two_policies(seed)
    for kept in (np.arange(VOCAB), np.argsort(-policy)[:4]):
        logits = torch.tensor(policy[kept], requires_grad=True)
        own = torch.log_softmax(logits, -1)
        of_teacher = torch.tensor(teacher[kept])
        divergence = (own.exp() * (own - torch.log_softmax(of_teacher, -1))).sum()
        [expected] = torch.autograd.grad(-coef * divergence, logits, retain_graph=True)
        advantages = distilled_advantages(
            np.zeros(len(kept), np.float32),
            np.ones(len(kept), np.int8),
            own.detach().numpy(),
            of_teacher.numpy(),
            coef=coef,
            reward_coef=0.0,
        )
        objective = (own.detach().exp() * torch.tensor(advantages) * own).sum()
        [found] = torch.autograd.grad(objective, logits)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def test_rewards_and_a_teacher_are_mixed_at_sampled_tokens_alone() -> None:
    rewards, mask = np.array([0, 2, 0, -1], np.float32), np.array([0, 1, 0, 1], np.int8)
    policy, teacher = np.array([9, -1, 9, -2], np.float32), np.array([9, -3, 0, -1], np.float32)
    mixed = distilled_advantages(rewards, mask, policy, teacher, coef=0.5, reward_coef=2.0)
    assert mixed.tolist() == [0.0, 3.0, 0.0, -1.5]
    assert mixed.dtype == np.float32

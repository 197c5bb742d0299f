"""Every policy loss that ships: the conformance suite, independent NumPy formulas, reductions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from envsdk.algorithms.args import AlgorithmArgs
from envsdk.algorithms.correction import correction
from envsdk.algorithms.loss_settings import POLICY_LOSSES, own_args, settings_of, weighs
from envsdk.algorithms.losses import (
    PolicyLoss,
    PolicyLossPlugin,
    PolicyTokens,
    load_policy_loss,
    policy_loss,
)
from envsdk.algorithms.policy_loss_args import OverBehavior, OverProximal, PolicyLossArgs
from envsdk.base.plugins import load_plugin, plugin_names
from envsdk.contracts.failures import ConfigurationError
from envsdk.testing.losses import PolicyLossSuite, check_policy_loss, loss_and_gradient, random_tokens, seeds

SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("ppo", {}),
    ("ppo", {"pg_clip_high": 0.5, "dual_clip": 1.5, "pg_args": {"ratio_over": "behavior"}}),
    ("vanilla", {}),
    ("dapo", {}),
    ("dapo", {"pg_args": {"ratio_over": "behavior", "clip_low": 0.1}}),
    ("decoupled_ppo", {"pg_args": {"weight_cap": 1.2}}),
    ("decoupled_ppo", {"dual_clip": 2.0, "pg_args": {"weight_cap": 1.5, "beyond_cap": "truncate"}}),
    ("decoupled_ppo", {"pg_args": {"weight_cap": None}}),
    ("gspo", {}),
    ("gspo", {"pg_args": {"clip_low": 0.1, "clip_high": 0.2, "ratio_over": "behavior"}}),
    ("segment_ppo", {}),
    ("segment_ppo", {"dual_clip": 1.1, "pg_args": {"ratio_over": "behavior"}}),
    ("tis", {}),
    ("tis", {"pg_args": {"ratio_over": "proximal", "lower_bound": 0.9, "upper_bound": 2.0}}),
    ("cispo", {}),
    ("cispo", {"pg_args": {"ratio_over": "proximal", "clip_low": 0.1, "clip_high": 0.1}}),
    ("cispo", {"pg_args": {"clip_low": 0.1, "clip_high": 0.1, "masks_clipped": True}}),
    ("topr", {}),
    ("topr", {"pg_args": {"ratio_over": "proximal", "level": "token"}}),
    ("topr", {"pg_args": {"positive_weight": 0.5, "negative_weight": 2.0}}),
    ("kimi15", {}),
    ("kimi15", {"pg_args": {"ratio_over": "behavior", "level": "token", "tau": 1.0}}),
    ("opmd", {}),
    ("rec", {"pg_args": {"clip_low": 0.02, "clip_high": 0.02}}),
    ("rec", {"pg_args": {"ratio_over": "proximal", "sides": "two", "clip_low": 0.1, "clip_high": 0.1}}),
]


def _suite(number: int, variant: str, values: dict[str, Any]) -> type[PolicyLossSuite]:
    return type(
        f"Test{number}_{variant}",
        (PolicyLossSuite,),
        {"loss": load_plugin(POLICY_LOSSES, variant), "keys": values},
    )


globals().update({suite.__name__: suite for suite in (_suite(i, *each) for i, each in enumerate(SETTINGS))})


def test_every_loss_that_ships_is_tested_here() -> None:
    assert {variant for variant, _ in SETTINGS} == set(plugin_names(POLICY_LOSSES))


def make(variant: str = "ppo", **keys: Any) -> AlgorithmArgs:
    return AlgorithmArgs(pg_variant=variant, **keys)


def evaluate(args: AlgorithmArgs, tokens: PolicyTokens) -> tuple[np.ndarray, np.ndarray]:
    """Loss and gradient per token, without the correction."""
    result, gradient = loss_and_gradient(load_policy_loss(args), tokens, args)
    return result.loss.detach().numpy(), gradient.numpy()


class Loop:
    """The formulas again, from the papers: sequence by sequence, token by token, with NumPy alone.

    Value of the loss, and its gradient as somebody would derive it by hand.
    """

    def __init__(self, args: AlgorithmArgs, tokens: PolicyTokens) -> None:
        self.args, self.own = args, own_args(args).model_dump()
        self.now, self.proximal, self.behavior, self.advantages, self.sequences, self.segments = (
            each.numpy()
            for each in (
                tokens.logprobs,
                tokens.proximal_logprobs,
                tokens.behavior_logprobs,
                tokens.advantages,
                tokens.sequence_ids,
                tokens.segment_ids,
            )
        )
        self.base = self.proximal if self.own.get("ratio_over", "proximal") == "proximal" else self.behavior

    def __call__(self) -> tuple[np.ndarray, np.ndarray]:
        pairs = [getattr(self, self.args.pg_variant)(t) for t in range(len(self.now))]
        return np.array([loss for loss, _ in pairs]), np.array([slope for _, slope in pairs])

    def surrogate(self, ratio: float, a: float, low: float, high: float, dual: float | None):
        """Value and slope in log pi."""
        if a >= 0:
            return (-ratio * a, -ratio * a) if ratio < 1 + high else (-(1 + high) * a, 0.0)
        if dual is not None and max(ratio, 1 - low) > dual:
            return -dual * a, 0.0
        return (-ratio * a, -ratio * a) if ratio > 1 - low else (-(1 - low) * a, 0.0)

    def members(self, t: int, ids: np.ndarray) -> np.ndarray:
        return np.flatnonzero(ids == ids[t])

    def ppo(self, t: int):
        args = self.args
        ratio = np.exp(self.now[t]) / np.exp(self.base[t])
        return self.surrogate(ratio, self.advantages[t], args.pg_clip_low, args.pg_clip_high, args.dual_clip)

    def dapo(self, t: int):
        ratio = np.exp(self.now[t]) / np.exp(self.base[t])
        return self.surrogate(ratio, self.advantages[t], self.own["clip_low"], self.own["clip_high"], None)

    def decoupled_ppo(self, t: int):
        weight, cap = np.exp(self.proximal[t]) / np.exp(self.behavior[t]), self.own["weight_cap"]
        if cap is not None and weight > cap:
            weight = 0.0 if self.own["beyond_cap"] == "mask" else cap
        loss, slope = self.ppo(t)
        return weight * loss, weight * slope

    def group_ratio(self, t: int, ids: np.ndarray) -> float:
        group = self.members(t, ids)
        return (np.exp(self.now[group].sum()) / np.exp(self.base[group].sum())) ** (1 / len(group))

    def gspo(self, t: int):
        ratio = self.group_ratio(t, self.sequences)
        return self.surrogate(ratio, self.advantages[t], self.own["clip_low"], self.own["clip_high"], None)

    def segment_ppo(self, t: int):
        args, ratio = self.args, self.group_ratio(t, self.segments)
        return self.surrogate(ratio, self.advantages[t], args.pg_clip_low, args.pg_clip_high, args.dual_clip)

    def weighted(self, t: int, weight: float):
        return -weight * self.advantages[t] * self.now[t], -weight * self.advantages[t]

    def vanilla(self, t: int):
        return self.weighted(t, 1.0)

    def opmd(self, t: int):
        return self.weighted(t, 1 / (1 + self.own["tau"]))

    def tis(self, t: int):
        ratio = np.exp(self.now[t] - self.base[t])
        return self.weighted(t, max(self.own["lower_bound"], min(ratio, self.own["upper_bound"])))

    def cispo(self, t: int):
        weight = min(np.exp(self.now[t] - self.base[t]), 1 + self.own["clip_high"])
        if self.own["clip_low"] is not None:
            weight = max(weight, 1 - self.own["clip_low"])
        is_in_range = weight == np.exp(self.now[t] - self.base[t])
        if self.own["masks_clipped"] and not is_in_range and (weight > 1) == (self.advantages[t] > 0):
            weight = 0.0
        return self.weighted(t, weight)

    def topr(self, t: int):
        if self.advantages[t] >= 0:
            return self.weighted(t, self.own["positive_weight"])
        group = self.members(t, self.sequences) if self.own["level"] == "sequence" else np.array([t])
        ratio = np.prod(np.exp(self.now[group]) / np.exp(self.base[group]))
        return self.weighted(t, self.own["negative_weight"] * min(1.0, ratio))

    def rec(self, t: int):
        own, ratio = self.own, np.exp(self.now[t] - self.base[t])
        high, low = ratio > 1 + own["clip_high"], ratio < 1 - own["clip_low"]
        if own["sides"] == "one":
            high, low = high and self.advantages[t] > 0, low and self.advantages[t] < 0
        return self.weighted(t, float(not (high or low)))

    def kimi15(self, t: int):
        tau, group = self.own["tau"], self.members(t, self.sequences)
        d = self.now[t] - self.base[t]
        whole = (self.now[group] - self.base[group]).sum() if self.own["level"] == "sequence" else d
        loss, slope = self.weighted(t, 1.0)
        return loss + tau / 2 * whole * d, slope + tau * whole


@pytest.mark.parametrize(("variant", "values"), SETTINGS, ids=str)
@given(seed=seeds)
@settings(max_examples=15, deadline=None)
def test_value_and_gradient_agree_with_the_formula_in_numpy(variant: str, values: dict, seed: int) -> None:
    args, tokens = make(variant, **values), random_tokens(seed)
    loss, gradient = evaluate(args, tokens)
    expected_loss, expected_gradient = Loop(args, tokens)()
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-9, atol=1e-12)


def first_step(tokens: PolicyTokens) -> PolicyTokens:
    return replace(tokens, proximal_logprobs=tokens.logprobs)


def fresh(tokens: PolicyTokens) -> PolicyTokens:
    return replace(first_step(tokens), behavior_logprobs=tokens.logprobs)


def one_reply_per_sequence(tokens: PolicyTokens) -> PolicyTokens:
    return replace(tokens, segment_ids=tokens.sequence_ids)


def one_token_per_sequence(tokens: PolicyTokens) -> PolicyTokens:
    ids = torch.arange(len(tokens.logprobs))
    return replace(tokens, sequence_ids=ids, segment_ids=ids)


def all_good(tokens: PolicyTokens) -> PolicyTokens:
    return replace(tokens, advantages=tokens.advantages.abs())


def as_they_are(tokens: PolicyTokens) -> PolicyTokens:
    return tokens


WIDE = {"clip_low": 1.0, "clip_high": 1e6}
REDUCTIONS = [
    ("dapo", {"clip_low": 0.2, "clip_high": 0.2}, "ppo", {}, as_they_are),
    ("decoupled_ppo", {"weight_cap": None}, "ppo", {}, lambda tokens: replace(
        tokens, behavior_logprobs=tokens.proximal_logprobs)),
    ("gspo", {"clip_low": 0.2, "clip_high": 0.2}, "ppo", {}, one_token_per_sequence),
    ("gspo", {"clip_low": 0.2, "clip_high": 0.2}, "segment_ppo", {}, one_reply_per_sequence),
    ("segment_ppo", {}, "ppo", {}, one_token_per_sequence),
    ("cispo", {"clip_high": 0.0}, "tis", {"upper_bound": 1.0}, as_they_are),
    ("topr", {"level": "sequence"}, "topr", {"level": "token"}, one_token_per_sequence),
    ("topr", {}, "vanilla", {}, all_good),
    ("tis", {"upper_bound": 1.0}, "vanilla", {}, fresh),
    ("kimi15", {"tau": 0.0}, "vanilla", {}, as_they_are),
    ("kimi15", {"level": "sequence"}, "kimi15", {"level": "token"}, one_token_per_sequence),
    ("opmd", {"tau": 0.0}, "vanilla", {}, as_they_are),
    ("rec", {}, "vanilla", {}, fresh),
    ("rec", {"sides": "two", **WIDE}, "vanilla", {}, as_they_are),
]  # fmt: skip


@pytest.mark.parametrize(
    ("variant", "own", "other", "other_own", "where"),
    REDUCTIONS,
    ids=[f"{each[0]}-{each[2]}-{i}" for i, each in enumerate(REDUCTIONS)],
)
@given(seed=seeds)
@settings(max_examples=15, deadline=None)
def test_a_loss_reduces_to_another_at_the_stated_setting(variant, own, other, other_own, where, seed) -> None:
    tokens = where(random_tokens(seed))
    for one, two in zip(
        evaluate(make(variant, pg_args=own), tokens), evaluate(make(other, pg_args=other_own), tokens),
        strict=True,
    ):  # fmt: skip
        np.testing.assert_allclose(one, two, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("variant", ["ppo", "dapo", "gspo", "segment_ppo", "kimi15"])
@given(seed=seeds)
@settings(max_examples=15, deadline=None)
def test_over_the_proximal_policy_the_first_step_is_that_of_vanilla(variant: str, seed: int) -> None:
    tokens = first_step(random_tokens(seed))
    gradient = evaluate(make(variant), tokens)[1]
    np.testing.assert_allclose(gradient, evaluate(make("vanilla"), tokens)[1], rtol=1e-9, atol=1e-12)


@given(seeds)
@settings(max_examples=20, deadline=None)
def test_decoupled_ppo_that_truncates_is_ppo_under_the_correction(seed: int) -> None:
    tokens = random_tokens(seed, spread=1.0)
    args = make("ppo")
    decoupled = make("decoupled_ppo", pg_args={"weight_cap": 2.0, "beyond_cap": "truncate"})
    factor = correction(tokens, args.train_infer_correction, weighted=weighs(args, own_args(args))).factor
    for one, two in zip(evaluate(decoupled, tokens), evaluate(args, tokens), strict=True):
        np.testing.assert_allclose(one, factor.numpy() * two, rtol=1e-9, atol=1e-12)


def through_the_mean(tokens: PolicyTokens, ids: torch.Tensor) -> tuple[float, np.ndarray]:
    """Value and gradient of the form whose ratio, with its gradient, is the geometric mean over equal `ids`:
    GSPO eq. 5, and ROLL's segment ratio. Clipped at 0.9 and 1.1."""
    current = tokens.logprobs.clone().requires_grad_()
    total = torch.zeros((), dtype=torch.float64)
    for each in range(int(ids.max()) + 1):
        of = ids == each
        ratio = (current[of] - tokens.proximal_logprobs[of]).mean().exp()
        advantages = tokens.advantages[of]
        total = total - torch.minimum(ratio * advantages, ratio.clamp(0.9, 1.1) * advantages).sum()
    [gradient] = torch.autograd.grad(total, current)
    return total.item(), gradient.numpy()


GROUPED = {
    "gspo": ("sequence_ids", make("gspo", pg_args={"clip_low": 0.1, "clip_high": 0.1})),
    "segment_ppo": ("segment_ids", make("segment_ppo", pg_clip_low=0.1, pg_clip_high=0.1)),
}


@pytest.mark.parametrize("variant", GROUPED)
@given(seed=seeds)
@settings(max_examples=20, deadline=None)
def test_the_token_form_is_the_form_through_the_mean_where_a_group_has_one_advantage(
    variant: str, seed: int
) -> None:
    name, args = GROUPED[variant]
    tokens = random_tokens(seed)
    ids = getattr(tokens, name)
    tokens = replace(tokens, advantages=tokens.advantages[ids])
    loss, gradient = evaluate(args, tokens)
    expected_loss, expected_gradient = through_the_mean(tokens, ids)
    np.testing.assert_allclose(loss.sum(), expected_loss, rtol=1e-9)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("variant", GROUPED)
def test_tokens_of_one_reply_learn_by_their_own_advantages_and_not_by_their_mean(variant: str) -> None:
    name, args = GROUPED[variant]
    base, ids = torch.full((2,), -1.0, dtype=torch.float64), torch.zeros(2, dtype=torch.int64)
    tokens = PolicyTokens(
        logprobs=base,
        proximal_logprobs=base,
        behavior_logprobs=base,
        advantages=torch.tensor([1.0, -1.0], dtype=torch.float64),
        sequence_ids=ids,
        segment_ids=ids,
    )
    assert evaluate(args, tokens)[1].tolist() == [-1.0, 1.0]
    assert through_the_mean(tokens, getattr(tokens, name))[1].tolist() == [0.0, 0.0]


def test_kimi15_sums_to_the_papers_squared_log_ratio_of_each_sequence() -> None:
    tokens = random_tokens(3)
    args, plain = make("kimi15", pg_args={"tau": 0.5}), make("vanilla")
    penalty = evaluate(args, tokens)[0] - evaluate(plain, tokens)[0]
    d = (tokens.logprobs - tokens.proximal_logprobs).numpy()
    ids = tokens.sequence_ids.numpy()
    for sequence in range(4):
        whole = d[ids == sequence].sum()
        assert penalty[ids == sequence].sum() == pytest.approx(0.25 * whole**2, rel=1e-9)


@pytest.mark.parametrize("level", ["sequence", "token"])
def test_kimi15_pulls_back_a_token_however_far_it_went(level: str) -> None:
    tokens = replace(random_tokens(3), proximal_logprobs=random_tokens(3).logprobs + 50.0)
    args = make("kimi15", pg_args={"tau": 0.5, "level": level})
    pull = evaluate(args, tokens)[1] - evaluate(make("vanilla"), tokens)[1]
    assert (pull <= 0.5 * -50.0 + 1e-9).all()


@given(seeds, st.floats(0.05, 0.5))
@settings(max_examples=20, deadline=None)
def test_a_huge_dual_clip_is_no_dual_clip(seed: int, low: float) -> None:
    tokens = random_tokens(seed, spread=1.0)
    plain = evaluate(make(pg_clip_low=low), tokens)[0]
    np.testing.assert_array_equal(evaluate(make(pg_clip_low=low, dual_clip=1e12), tokens)[0], plain)


def test_clipping_against_the_behavior_policy_acts_on_staleness_and_against_the_proximal_does_not() -> None:
    stale = PolicyTokens(
        logprobs=torch.tensor([-1.0]),
        proximal_logprobs=torch.tensor([-1.0]),
        behavior_logprobs=torch.tensor([-2.0]),
        advantages=torch.tensor([1.0]),
        sequence_ids=torch.tensor([0]),
        segment_ids=torch.tensor([0]),
    )
    assert evaluate(make(pg_args={"ratio_over": "behavior"}), stale)[1] == 0
    assert evaluate(make(), stale)[1] == pytest.approx(-1.0)
    assert evaluate(make("decoupled_ppo", pg_args={"weight_cap": None}), stale)[1] == pytest.approx(-np.e)


@pytest.mark.parametrize("variant", plugin_names(POLICY_LOSSES))
def test_a_registration_and_its_declared_settings_are_the_same_model(variant: str) -> None:
    plugin = load_plugin(POLICY_LOSSES, variant)
    assert isinstance(plugin, PolicyLossPlugin)
    assert plugin.settings is settings_of(variant)
    assert "Compares" in plugin.function.__doc__
    assert "Source" in plugin.function.__doc__


@pytest.mark.parametrize(
    ("variant", "ratio"),
    [("ppo", "proximal"), ("vanilla", None), ("decoupled_ppo", "proximal"),
     ("cispo", "behavior"), ("opmd", None), ("rec", "behavior")],
)  # fmt: skip
def test_a_loss_states_the_policy_below_its_ratio(variant: str, ratio: str | None) -> None:
    assert own_args(make(variant)).ratio == ratio


@pytest.mark.parametrize(("variant", "values"), SETTINGS, ids=str)
def test_the_stated_ratio_is_the_one_that_the_loss_reports_and_reads(variant: str, values: dict) -> None:
    args, tokens = make(variant, **values), random_tokens(5)
    own = own_args(args)
    before = evaluate(args, tokens)[1]
    reads = {
        name: not np.array_equal(
            before, evaluate(args, replace(tokens, **{f"{name}_logprobs": tokens.logprobs - 0.05}))[1]
        )
        for name in ("proximal", "behavior")
    }
    assert reads["proximal"] == (own.ratio == "proximal")
    assert reads["behavior"] == (own.ratio == "behavior" or variant == "decoupled_ppo")


def test_an_unknown_name_a_wrong_setting_and_a_plain_function_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="did you mean `ppo`"):
        load_policy_loss(make("pppo"))
    with pytest.raises(ConfigurationError, match=r"pg_args(.|\n)*clip_hi(.|\n)*`clip_high`"):
        load_policy_loss(make("cispo", pg_args={"clip_hi": 1.0}))
    with pytest.raises(ConfigurationError, match="decorate the function with @policy_loss"):
        load_policy_loss(make("numpy:zeros"))


def _result(loss: torch.Tensor) -> PolicyLoss:
    return PolicyLoss(
        loss=loss, ratio=torch.ones_like(loss.detach()), clipped=torch.zeros_like(loss.detach())
    )


@policy_loss(OverProximal)
def detaches(tokens: PolicyTokens, args: AlgorithmArgs, own: OverProximal) -> PolicyLoss:
    ratio = (tokens.logprobs - tokens.proximal_logprobs).clamp(-20, 20).exp()
    return _result(-ratio.detach() * tokens.advantages * ratio)


@policy_loss(OverProximal)
def normalizes_by_the_micro_batch(tokens: PolicyTokens, args: AlgorithmArgs, own: OverProximal) -> PolicyLoss:
    return _result(-(tokens.advantages - tokens.advantages.mean()) * tokens.logprobs)


@policy_loss(OverProximal)
def overflows(tokens: PolicyTokens, args: AlgorithmArgs, own: OverProximal) -> PolicyLoss:
    return _result(-(tokens.logprobs - tokens.proximal_logprobs).exp() * tokens.advantages)


@policy_loss(OverProximal)
def depends_on_the_neighbor(tokens: PolicyTokens, args: AlgorithmArgs, own: OverProximal) -> PolicyLoss:
    return _result(-tokens.advantages.roll(1) * tokens.logprobs)


@policy_loss(OverProximal)
def pulls_without_saying_so(tokens: PolicyTokens, args: AlgorithmArgs, own: OverProximal) -> PolicyLoss:
    return _result(
        (tokens.logprobs - tokens.proximal_logprobs).square() - tokens.advantages * tokens.logprobs
    )


@policy_loss(OverBehavior)
def reads_the_proximal_policy_too(tokens: PolicyTokens, args: AlgorithmArgs, own: OverBehavior) -> PolicyLoss:
    weight = (tokens.proximal_logprobs - tokens.behavior_logprobs).clamp(-20, 20).exp()
    return _result(-weight * tokens.advantages * tokens.logprobs)


@policy_loss(PolicyLossArgs)
def corrects_without_saying_so(tokens: PolicyTokens, args: AlgorithmArgs, own: PolicyLossArgs) -> PolicyLoss:
    weight = (tokens.frozen_logprobs - tokens.behavior_logprobs).clamp(-20, 20).exp()
    return _result(-weight * tokens.advantages * tokens.logprobs)


@pytest.mark.parametrize(
    "wrong",
    [
        detaches,
        normalizes_by_the_micro_batch,
        overflows,
        depends_on_the_neighbor,
        pulls_without_saying_so,
        reads_the_proximal_policy_too,
        corrects_without_saying_so,
    ],
)
def test_the_suite_finds_what_is_wrong_with_a_loss(wrong: PolicyLossPlugin[Any]) -> None:
    with pytest.raises(AssertionError):
        check_policy_loss(wrong)

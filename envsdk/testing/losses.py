"""`PolicyLossSuite`: what any policy loss should do, as tests that pytest collects.

Needs the extra `envsdk[testing]` and torch. Shapes: N tokens of several sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from envsdk.algorithms.args import AlgorithmArgs
from envsdk.algorithms.losses import PolicyLoss, PolicyLossFunction, PolicyLossPlugin, PolicyTokens
from envsdk.algorithms.policy_loss_args import PolicyLossArgs

seeds = st.integers(min_value=0, max_value=2**31 - 1)
_NUM_SEQUENCES = 4


def random_tokens(seed: int, *, spread: float = 0.3) -> PolicyTokens:
    """Sequences of one to three replies of one to five tokens, float64, the same for the same seed.

    `spread` is the standard deviation of a token's log-ratio between any two of the policies.
    """
    rng = np.random.default_rng(seed)
    replies = [rng.integers(1, 6, size=rng.integers(1, 4)) for _ in range(_NUM_SEQUENCES)]
    sequence_ids = np.repeat(np.arange(_NUM_SEQUENCES), [each.sum() for each in replies])
    lengths = np.concatenate(replies)
    segment_ids = np.repeat(np.arange(len(lengths)), lengths)
    current, proximal, behavior = (
        torch.from_numpy(each)
        for each in rng.uniform(-4, -1.5, len(sequence_ids))
        + rng.normal(0, spread / np.sqrt(2), (3, len(sequence_ids)))
    )
    return PolicyTokens(
        logprobs=current,
        proximal_logprobs=proximal,
        behavior_logprobs=behavior,
        advantages=torch.from_numpy(rng.normal(size=len(sequence_ids))),
        sequence_ids=torch.from_numpy(sequence_ids),
        segment_ids=torch.from_numpy(segment_ids),
    )


def taken(tokens: PolicyTokens, sequences: Sequence[int]) -> PolicyTokens:
    """These sequences, in this order, as a batch of their own: ids count from 0 again."""
    where = torch.cat([torch.nonzero(tokens.sequence_ids == each)[:, 0] for each in sequences])
    picked = {field.name: getattr(tokens, field.name)[where] for field in fields(tokens)}
    for name in ("sequence_ids", "segment_ids"):
        ids = picked[name]
        picked[name] = torch.cat([torch.zeros(1, dtype=torch.int64), ids.diff().ne(0).cumsum(0)])
    return PolicyTokens(**picked)


def loss_and_gradient(
    function: PolicyLossFunction, tokens: PolicyTokens, args: AlgorithmArgs
) -> tuple[PolicyLoss, Tensor]:
    """What the loss returns, and the gradient `[N]` of its sum in the current log-probabilities."""
    current = tokens.logprobs.detach().clone().requires_grad_()
    result = function(replace(tokens, logprobs=current), args)
    [gradient] = torch.autograd.grad(result.loss.sum(), current)
    return result, gradient


@dataclass(frozen=True, slots=True, kw_only=True)
class _HeldTokens(PolicyTokens):
    """Coefficients stay as they are while `logprobs` is moved."""

    held_logprobs: Tensor

    @property
    def frozen_logprobs(self) -> Tensor:
        return self.held_logprobs


def finite_difference(
    function: PolicyLossFunction, tokens: PolicyTokens, args: AlgorithmArgs, *, step: float = 1e-5
) -> tuple[Tensor, Tensor]:
    """Slope `[N]` of the summed loss in each current log-probability, coefficients held still, and where
    the loss has a corner, so that there is no slope."""
    arrays = {field.name: getattr(tokens, field.name) for field in fields(tokens)}
    held = _HeldTokens(**arrays, held_logprobs=tokens.logprobs)

    def total(token: int, shift: float) -> float:
        moved = tokens.logprobs.clone()
        moved[token] += shift
        return float(function(replace(held, logprobs=moved), args).loss.sum())

    here = total(0, 0.0)
    slopes, corners = [], []
    for token in range(len(tokens.logprobs)):
        above, below = total(token, step), total(token, -step)
        slopes.append((above - below) / (2 * step))
        corners.append(abs(above - 2 * here + below) > 1e-2 * step)
    return torch.tensor(slopes, dtype=torch.float64), torch.tensor(corners)


def _drawn(**strategies: st.SearchStrategy[Any]) -> Callable[[Callable[..., None]], Callable[[Any], None]]:
    """Makes a test of a method that holds for all that is drawn."""

    def decorate(holds: Callable[..., None]) -> Callable[[Any], None]:
        def run(self: PolicyLossSuite) -> None:
            @settings(max_examples=self.max_examples, deadline=None)
            @given(**strategies)
            def check(**drawn: Any) -> None:
                holds(self, **drawn)

            check()

        run.__name__, run.__qualname__, run.__doc__ = holds.__name__, holds.__qualname__, holds.__doc__
        return run

    return decorate


class PolicyLossSuite:
    """Tests for one policy loss under one setting. In a test file:

        class TestMyLoss(PolicyLossSuite):
            loss = my_loss
            keys = {"pg_args": {"strength": 0.5}}

    A subclass adds what its formula says, against an independent computation.
    """

    loss: ClassVar[PolicyLossPlugin[Any]]
    """What `@policy_loss` made."""
    keys: ClassVar[Mapping[str, Any]] = {}
    """Other keys of the algorithm."""
    max_examples: ClassVar[int] = 20
    """Examples per property."""

    @property
    def args(self) -> AlgorithmArgs:
        """The algorithm's settings."""
        return AlgorithmArgs(**self.keys)

    @property
    def function(self) -> PolicyLossFunction:
        """The loss."""
        return self.loss.bound(self.own)

    @property
    def own(self) -> PolicyLossArgs:
        """Its own settings."""
        own: PolicyLossArgs = self.loss.settings.model_validate(self.args.pg_args)
        return own

    @_drawn(seed=seeds)
    def test_gives_one_finite_number_per_token(self, seed: int) -> None:
        tokens = random_tokens(seed)
        result, gradient = loss_and_gradient(self.function, tokens, self.args)
        for values in (result.loss, result.ratio, result.clipped, gradient):
            assert values.shape == tokens.logprobs.shape
            assert torch.isfinite(values).all()
        for frozen in (result.ratio, result.clipped, result.weight):
            assert frozen is None or not frozen.requires_grad

    @_drawn(seed=seeds)
    def test_its_gradient_is_that_of_finite_differences(self, seed: int) -> None:
        tokens = random_tokens(seed)
        _, gradient = loss_and_gradient(self.function, tokens, self.args)
        slopes, corners = finite_difference(self.function, tokens, self.args)
        assert not corners.all(), "the loss has a corner everywhere"
        torch.testing.assert_close(
            gradient[~corners],
            slopes[~corners],
            rtol=1e-4,
            atol=1e-6,
            msg=lambda text: (
                f"{text}\nCoefficients must come from tokens.frozen_logprobs, not from detach()."
            ),
        )

    @_drawn(seed=seeds, order=st.permutations(range(_NUM_SEQUENCES)))
    def test_the_order_of_sequences_changes_nothing(self, seed: int, order: list[int]) -> None:
        tokens = random_tokens(seed)
        straight, gradient = loss_and_gradient(self.function, tokens, self.args)
        shuffled, shuffled_gradient = loss_and_gradient(self.function, taken(tokens, order), self.args)
        where = torch.cat([torch.nonzero(tokens.sequence_ids == each)[:, 0] for each in order])
        torch.testing.assert_close(shuffled.loss, straight.loss[where])
        torch.testing.assert_close(shuffled_gradient, gradient[where])

    @_drawn(seed=seeds, first=st.integers(1, _NUM_SEQUENCES - 1))
    def test_a_split_into_micro_batches_changes_nothing(self, seed: int, first: int) -> None:
        tokens = random_tokens(seed)
        whole, gradient = loss_and_gradient(self.function, tokens, self.args)
        parts = [
            loss_and_gradient(self.function, taken(tokens, members), self.args)
            for members in (range(first), range(first, 4))
        ]
        torch.testing.assert_close(torch.cat([result.loss for result, _ in parts]), whole.loss)
        torch.testing.assert_close(torch.cat([each for _, each in parts]), gradient)

    @_drawn(seed=seeds)
    def test_clipped_tokens_have_no_gradient(self, seed: int) -> None:
        result, gradient = loss_and_gradient(self.function, random_tokens(seed, spread=1.0), self.args)
        assert not gradient[result.clipped == 1].any()

    @_drawn(seed=seeds)
    def test_stays_finite_on_policies_that_have_nothing_in_common(self, seed: int) -> None:
        tokens = random_tokens(seed)
        rng = np.random.default_rng(seed)
        awkward = torch.tensor([-1e4, -50.0, -1.0, -1e-9, 0.0], dtype=torch.float32)
        extreme = [awkward[rng.integers(0, len(awkward), len(tokens.logprobs))] for _ in range(3)]
        result, gradient = loss_and_gradient(
            self.function,
            replace(
                tokens,
                logprobs=extreme[0],
                proximal_logprobs=extreme[1],
                behavior_logprobs=extreme[2],
                advantages=tokens.advantages.float(),
            ),
            self.args,
        )
        assert torch.isfinite(result.loss).all()
        assert torch.isfinite(gradient).all()

    @_drawn(seed=seeds)
    def test_without_an_advantage_and_with_equal_policies_nothing_moves(self, seed: int) -> None:
        tokens = random_tokens(seed)
        agreeing = replace(
            tokens,
            proximal_logprobs=tokens.logprobs,
            behavior_logprobs=tokens.logprobs,
            advantages=torch.zeros_like(tokens.advantages),
        )
        _, gradient = loss_and_gradient(self.function, agreeing, self.args)
        torch.testing.assert_close(gradient, torch.zeros_like(gradient))

    @_drawn(seed=seeds)
    def test_without_an_advantage_nothing_moves_unless_its_settings_say_so(self, seed: int) -> None:
        tokens = random_tokens(seed)
        tokens = replace(tokens, advantages=torch.zeros_like(tokens.advantages))
        _, gradient = loss_and_gradient(self.function, tokens, self.args)
        assert self.own.moves_without_advantage or not gradient.any(), (
            "settings must override moves_without_advantage: sequences whose advantages are all 0 are "
            "not computed otherwise"
        )

    @_drawn(seed=seeds)
    def test_reads_no_policy_that_its_settings_do_not_name(self, seed: int) -> None:
        tokens, other = random_tokens(seed), random_tokens(seed).logprobs - 0.1
        _, slope = loss_and_gradient(self.function, tokens, self.args)
        own = self.own
        if own.ratio != "proximal":
            moved = replace(tokens, proximal_logprobs=other)
            assert torch.equal(loss_and_gradient(self.function, moved, self.args)[1], slope), (
                "settings must say ratio `proximal`: where a batch makes several steps that policy is not "
                "computed otherwise"
            )
        if own.ratio != "behavior" and not own.corrects_staleness:
            moved = replace(tokens, behavior_logprobs=other)
            assert torch.equal(loss_and_gradient(self.function, moved, self.args)[1], slope), (
                "settings must say corrects_staleness, or ratio `behavior`: it would be corrected twice"
            )


def check_policy_loss(policy_loss: PolicyLossPlugin[Any], **keys: Any) -> None:
    """All tests of `PolicyLossSuite` at once, for a script; AssertionError at the first that fails."""
    suite = type("Suite", (PolicyLossSuite,), {"loss": policy_loss, "keys": keys})()
    for name in dir(suite):
        if name.startswith("test_"):
            getattr(suite, name)()

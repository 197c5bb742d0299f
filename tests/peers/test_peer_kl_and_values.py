"""KL estimators, the adaptive coefficient and the value loss against verl, TRL and Trinity-RFT."""

from __future__ import annotations

from collections.abc import Callable

import pytest

for package in ("verl", "trl", "trinity"):
    pytest.importorskip(package, reason="needs verl, TRL and Trinity-RFT: make test-peers")
pytestmark = pytest.mark.peers

import torch  # noqa: E402
import verl.trainer.ppo.core_algos as verl  # noqa: E402
from torch import Tensor  # noqa: E402
from trinity.algorithm.kl_fn.kl_fn import K1Fn, K2Fn, K3Fn, LowVarKLFn  # noqa: E402

from envsdk.algorithms.kl import K3_MAX_WEIGHT, adapted_kl_coef, kl_estimate  # noqa: E402
from envsdk.algorithms.losses import value_loss  # noqa: E402

Estimator = Callable[[Tensor, Tensor], Tensor]


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def value_and_slope(function: Estimator, d_N: Tensor) -> tuple[Tensor, Tensor]:
    """At log-ratios d to the reference."""
    policy_N = (d_N - 1.0).requires_grad_()
    value_N = function(policy_N, torch.full_like(d_N, -1.0))
    [slope_N] = torch.autograd.grad(value_N.sum(), policy_N)
    return value_N.detach(), slope_N


ESTIMATORS: list[tuple[str, str, Estimator, float, float]] = [
    ("k1", "verl kl_penalty k1", lambda p, r: verl.kl_penalty(p, r, "k1"), -30.0, 30.0),
    ("k2", "verl kl_penalty k2", lambda p, r: verl.kl_penalty(p, r, "k2"), -30.0, 30.0),
    ("k3", "verl kl_penalty k3, below 10", lambda p, r: verl.kl_penalty(p, r, "k3"), -2.6, 10.9),
    ("k1", "Trinity K1Fn", K1Fn().calculate_kl, -30.0, 30.0),
    ("k2", "Trinity K2Fn", K2Fn().calculate_kl, -30.0, 30.0),
    ("k3", "Trinity K3Fn, weight below 20", K3Fn().calculate_kl, -2.99, 30.0),
    ("k3", "Trinity LowVarKLFn, below 10", LowVarKLFn().calculate_kl, -2.6, 10.9),
]


@pytest.mark.parametrize(("kind", "peer", "function", "low", "high"), ESTIMATORS, ids=lambda v: str(v)[:30])
def test_estimates_and_gradients_are_the_peers(
    kind: str, peer: str, function: Estimator, low: float, high: float, write_down: Callable[..., None]
) -> None:
    d_N = torch.linspace(low, high, 1001, dtype=torch.float64)
    value_N, slope_N = value_and_slope(lambda p, r: kl_estimate(p, r, kind), d_N)
    peers_value_N, peers_slope_N = value_and_slope(function, d_N)
    difference = float(torch.maximum((value_N - peers_value_N).abs(), (slope_N - peers_slope_N).abs()).max())
    write_down(f"{kind}, d from {low} to {high}", peer, f"{difference:.0e}", "1e-12")
    assert difference <= 1e-12


def test_far_below_the_reference_k3_pulls_on_where_verl_stops_and_trinity_has_no_bound() -> None:
    far = torch.tensor([-3.5, -8.0, -15.0], dtype=torch.float64)
    value, slope = value_and_slope(lambda p, r: kl_estimate(p, r, "k3"), far)
    assert slope.tolist() == pytest.approx([1 - K3_MAX_WEIGHT] * 3)
    clamped, no_slope = value_and_slope(lambda p, r: verl.kl_penalty(p, r, "k3"), far)
    assert clamped.tolist() == [10.0] * 3
    assert no_slope.tolist() == [0.0] * 3
    _, steep = value_and_slope(K3Fn().calculate_kl, far)
    assert (steep < 1 - K3_MAX_WEIGHT).all()
    assert (value > clamped).all()


def test_the_adapted_coefficient_is_verls(write_down: Callable[..., None]) -> None:
    largest = 0.0
    for mean_kl, num_trajectories in [(0.17, 64), (0.05, 64), (0.11, 512), (5.0, 10_000)]:
        controller = verl.AdaptiveKLController(0.1, 0.1, 10_000)
        controller.update(mean_kl, num_trajectories)
        mine = adapted_kl_coef(0.1, mean_kl, target=0.1, horizon=10_000, num_trajectories=num_trajectories)
        assert mine != 0.1
        largest = max(largest, abs(mine - controller.value))
    write_down("target_kl", "verl AdaptiveKLController", f"{largest:.0e}", "1e-12")
    assert largest <= 1e-12
    controller = verl.AdaptiveKLController(0.1, 0.1, 100)
    controller.update(5.0, 1000)
    # Here a batch larger than the horizon counts as one that fills it.
    assert adapted_kl_coef(0.1, 5.0, target=0.1, horizon=100, num_trajectories=1000) < controller.value


def test_the_value_loss_is_verls(write_down: Callable[..., None]) -> None:
    values, old_values, returns = (drawn(7, 9, seed=seed) for seed in range(3))
    mask = (drawn(7, 9, seed=3) > -0.2).double()
    per_token = value_loss(values=values, old_values=old_values, returns=returns, clip=0.2)
    mine = float((per_token * mask).sum() / mask.sum())
    peers, clipped = verl.compute_value_loss(values, returns, old_values, mask, 0.2)
    assert 0.05 < float(clipped) < 0.95
    difference = abs(mine - float(peers))
    write_down("value_clip=0.2", "verl compute_value_loss", f"{difference:.0e}", "1e-12")
    assert difference <= 1e-12

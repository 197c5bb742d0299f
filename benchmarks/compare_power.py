"""How often `envsdk compare` calls a difference over seeds significant: 300 simulated comparisons each.

    python benchmarks/compare_power.py

A run's success is binomial over 256 held-out tasks, with a rate that spreads by 2 points over the seeds.
"""

from __future__ import annotations

import numpy as np

from envsdk.view.comparison import over_seeds

NUM_TASKS, SPREAD, BASE, NUM_COMPARISONS = 256, 0.02, 0.85, 300


def measured(rng: np.random.Generator, rate: float, num_seeds: int) -> dict[str, float]:
    """Held-out success by seed."""
    rates = rng.normal(rate, SPREAD, num_seeds).clip(0, 1)
    return {str(seed): rng.binomial(NUM_TASKS, each) / NUM_TASKS for seed, each in enumerate(rates)}


def main() -> None:
    rng = np.random.default_rng(0)
    for num_seeds in (3, 5):
        for gain in (0.0, 0.03, 0.06):
            found = [
                over_seeds(measured(rng, BASE + gain, num_seeds), measured(rng, BASE, num_seeds))
                for _ in range(NUM_COMPARISONS)
            ]
            share = np.mean([each is not None and each.is_significant for each in found])
            print(f"{num_seeds} seeds, {100 * gain:.0f} points: significant in {share:.0%}", flush=True)


if __name__ == "__main__":
    main()

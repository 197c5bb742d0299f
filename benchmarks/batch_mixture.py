"""Which share of each batch is of a tag whose episodes take ten times as long, in virtual time.

    python benchmarks/batch_mixture.py --docs      the figure into docs/images

The ledger is the product's; durations are drawn. 16 groups of 4 in a batch, half of each tag.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent / "staleness"))
from figure import draw_curves
from results import Spread

from tests.managers.test_batch_mixture import EQUAL, FAST_AND_SLOW, play

FIGURE = Path(__file__).parents[1] / "docs" / "images" / "batch-mixture.svg"
NUM_BATCHES, SEEDS = 24, (0, 1, 2)
VARIANTS: dict[str, dict[str, Any]] = {
    "as finished": {"keeps_shares": False},
    "at ratio 4": {"keeps_shares": False, "alpha": 4.0},
    "stratified": {"keeps_shares": True},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--docs", action="store_true")
    options = parser.parse_args()
    curves = {}
    for name, variant in VARIANTS.items():
        runs = [
            play(**variant, mean_s=FAST_AND_SLOW, weights=EQUAL, num_batches=NUM_BATCHES, seed=seed)
            for seed in SEEDS
        ]
        shares = [[each["slow"] / each.total() for each in batches] for batches, *_ in runs]
        curves[name] = {number: Spread.of(found) for number, found in enumerate(zip(*shares, strict=True))}
        took = statistics.fmean(finished_s for _, finished_s, _ in runs)
        print(f"{name}: {took:.0f} s, {', '.join(f'{each.mean:.0%}' for each in curves[name].values())}")
    picture = draw_curves(
        curves,
        heading="Share of a tag with long episodes in each batch",
        title="Two tags with equal shares; the episodes of one take ten times as long",
        subtitle="async_generation_ratio 1, or 4; max_staleness 4",
        num_seeds=len(SEEDS),
    )
    if options.docs:
        FIGURE.write_text(picture)


if __name__ == "__main__":
    main()

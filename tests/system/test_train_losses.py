"""A policy loss by name, its settings and the correction, in a real run."""

from __future__ import annotations

from pathlib import Path

import pytest

from envsdk.tracking import read_metrics
from tests.system.jobs import Job

pytestmark = [pytest.mark.slow, pytest.mark.system, pytest.mark.timeout(600)]


def test_a_ratio_that_is_one_by_construction_is_said_once_and_the_correction_is_in_the_metrics(
    tmp_path: Path, model: Path
) -> None:
    job = Job(tmp_path, model, max_steps=2)
    code, output = job.finish(
        "pg_variant=gspo",
        "pg_args.clip_high=0.01",
        "train_infer_correction.is_weight.weight_type=sequence",
        "train_infer_correction.filters=[{agg_type: segment, ratio_low: 0.5, ratio_high: 2.0}]",
    )
    assert code == 0, output
    assert output.count("1 by construction") == 1
    rows = [row for row in read_metrics(job.run / "metrics.jsonl") if "actor/is_weight_ess" in row]
    assert len(rows) == 2
    for row in rows:
        assert 0 < row["actor/is_weight_ess"] <= 1 + 1e-6
        assert 0 <= row["actor/filter_0_segment_masked"] <= 1

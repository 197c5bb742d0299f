"""What the settings of the loss do not do is said once, and nothing else is said."""

from __future__ import annotations

from typing import Any

import pytest

from envsdk.algorithms.args import AlgorithmArgs
from envsdk.algorithms.loss_settings import notes

OFF = {"is_weight": {"enabled": False}}


def said(*, one_step: bool = False, staleness: int = 0, truncated: str = "", **keys: Any) -> str:
    return "\n".join(
        notes(
            AlgorithmArgs(**keys),
            one_optimizer_step=one_step,
            max_staleness=staleness,
            unknown_support=truncated,
        )
    )


@pytest.mark.parametrize("variant", ["ppo", "dapo", "decoupled_ppo", "segment_ppo", "kimi15"])
def test_a_ratio_that_is_one_by_construction_is_said_once_with_what_to_do(variant: str) -> None:
    text = said(pg_variant=variant, one_step=True, staleness=2)
    assert text.count("1 by construction") == 1
    assert f"pg_variant={variant}" in text
    assert "ppo_epochs" in text
    assert "staleness is corrected by" in text


def test_a_run_of_several_steps_and_a_ratio_over_the_behavior_policy_say_nothing() -> None:
    assert said() == ""
    assert said(staleness=3) == ""
    for variant in ("tis", "cispo", "topr"):
        assert said(pg_variant=variant, one_step=True, staleness=3) == ""
    assert said(one_step=True, staleness=3, pg_args={"ratio_over": "behavior"}) == ""


def test_a_unit_ratio_without_a_weight_is_said_to_correct_nothing() -> None:
    text = said(one_step=True, staleness=2, train_infer_correction=OFF)
    assert "it corrects nothing" in text
    assert "up to 2 versions ago for fresh ones" in text


def test_an_asynchronous_run_without_any_correction_is_named() -> None:
    assert "for fresh ones" in said(pg_variant="vanilla", staleness=1, train_infer_correction=OFF)
    assert said(pg_variant="vanilla", train_infer_correction=OFF) == ""


def test_truncated_sampling_is_told_with_what_it_does_to_the_loss() -> None:
    for keys in ({}, {"pg_variant": "cispo"}, {"train_infer_correction": {**OFF, "filters": [{}]}}):
        assert "why: ratios to the behavior policy compare two distributions" in said(truncated="why", **keys)
    assert "why: the gradient is of another distribution" in said(truncated="why", train_infer_correction=OFF)


def test_shared_keys_without_effect_and_aggregations_beside_the_paper_are_named() -> None:
    assert "pg_clip_high has no effect with pg_variant=vanilla" in said(
        pg_variant="vanilla", pg_clip_high=0.3
    )
    assert said(pg_clip_high=0.3, dual_clip=3.0) == ""
    assert "dapo averages over tokens" in said(pg_variant="dapo", loss_agg_mode="seq-mean-token-sum")
    assert "seq-mean-token-mean" in said(pg_variant="gspo")
    assert said(pg_variant="gspo", loss_agg_mode="seq-mean-token-mean") == ""

"""What a run says of its evaluations at its end."""

from __future__ import annotations

from envsdk.pipeline.run_end import success_before_and_after

FIRST = {"val/success/Lake": 0.25, "val/success/mean": 0.25, "val/episodes": 8.0}
LAST = {"val/success/Lake": 0.5, "val/success/mean": 0.5, "val/episodes": 8.0}


def test_the_first_and_the_last_evaluation_are_compared_the_mean_first() -> None:
    lines = success_before_and_after({10: LAST, 0: FIRST}).splitlines()
    assert lines[0] == "Held-out success, step 0 -> step 10:"
    assert [line.split()[0] for line in lines[1:]] == ["mean", "Lake"]
    assert lines[1].split()[1:] == ["25.0%", "->", "50.0%", "(+25.0", "points)"]


def test_a_single_evaluation_is_compared_with_nothing() -> None:
    lines = success_before_and_after({10: LAST}).splitlines()
    assert lines[0] == "Held-out success, step 10:"
    assert lines[1].split() == ["mean", "50.0%"]


def test_no_evaluation_is_said() -> None:
    assert "val_batch_size" in success_before_and_after({})

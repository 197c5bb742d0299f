"""What a run says of its evaluations at its end."""

from __future__ import annotations

from envsdk.runs.run import success_before_and_after

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


def test_an_evaluation_that_lost_episodes_is_not_compared_as_a_gain() -> None:
    """Of 512 held-out episodes 415 failed, all of one tag among them."""
    before = {
        "val/success/sums": 0.6, "val/success/comparisons": 0.5, "val/success/mean": 0.55,
        "val/num_scored/sums": 256.0, "val/num_scored/comparisons": 256.0,
    }  # fmt: skip
    after = {
        "val/success/sums": 1.0, "val/success/mean": 1.0, "val/num_scored/sums": 97.0,
        "val/num_failed/sums": 159.0, "val/num_scored/comparisons": 0.0, "val/num_failed/comparisons": 256.0,
        "val/failures/engine/turn_timeout": 415.0,
    }  # fmt: skip
    text = success_before_and_after({0: before, 160: after})
    assert "nan" not in text
    assert text.count("no gain is stated") == 3
    assert "55.0% of 512 -> 100.0% of 97, 415 of 512 failed" in text
    assert "50.0% of 256 -> all 256 failed" in text
    assert text.endswith("Failed in the last evaluation: 415 engine/turn_timeout.")

"""What is shown while episodes are played."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from envsdk.base.display import episode_progress
from envsdk.base.display.episode_progress import EpisodeProgress


def test_turns_are_shown_before_the_first_episode_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(episode_progress.time, "monotonic", lambda: clock[0])
    out = io.StringIO()
    with EpisodeProgress("evaluating", total=None, console=Console(file=out, width=200)) as progress:
        progress.start(0, 4)
        for turns in (0, 4, 4, 8, 8, 12):
            progress.turns(turns)
            clock[0] += 4.0
        progress.played(1, 1, 0)
    assert out.getvalue().splitlines() == [
        "evaluating: 0/4 8 turns",
        "evaluating: 0/4 12 turns",
    ]
    clock[0] += 6.0
    progress.played(1, 0, 0)
    assert (
        out.getvalue().splitlines()[-1] == "evaluating: 2/4 12 turns 0.067/s solved 50% of 2, about 30 s left"
    )

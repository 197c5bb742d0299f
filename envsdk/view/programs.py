"""The programs of a job, read from its buffer, as JSON-ready values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from envsdk.buffer.contract import Role
from envsdk.buffer.history import RECENT_S, STAGES, Brought, History, read_history
from envsdk.buffer.inspection import Content, Program, Step, inspect
from envsdk.buffer.places import buffer_of_job, find_buffer, opened

MAX_STEPS = 500
"""Steps of the chart of the trainer's waiting; with more, neighbors are averaged."""


def read_programs(folder: Path, now: float) -> dict[str, Any]:
    """`programs_view` of the job in `folder`. Raises what `find_buffer` and `opened` raise."""
    place = buffer_of_job(folder)
    if place is None:
        return {"problem": "No program has joined the job yet."}
    with opened(find_buffer(place)) as engine:
        return programs_view(inspect(engine, now=now), read_history(engine))


def programs_view(content: Content, history: History) -> dict[str, Any]:
    """Explorers and trainer, the buffer's depth over time, and who waited for whom."""
    brought = {each.explorer: each for each in history.brought}
    explorers = [each for each in content.programs if each.role == Role.EXPLORER]
    trainers = [each for each in content.programs if each.role == Role.TRAINER]
    waited = sum(step.waited_s for step in history.steps)
    return {
        "status": content.status,
        "step": content.step,
        "version": content.version,
        "capacity": content.terms.capacity_groups,
        "max_staleness": content.terms.staleness_bound,
        "states": {state.value: total.num_groups for state, total in content.by_state().items()},
        "reasons": list(content.reasons.items()),
        "tags": [asdict(use) for use in content.used_by_tag()],
        "trainer": [_about(each, content) for each in trainers],
        "explorers": [
            _about(each, content) | _rates(each, brought.get(each.name), history, content.read_at)
            for each in explorers
        ],
        "times": [round(time, 3) for time in history.times],
        "depth": {stage: history.depth[stage] for stage in STAGES},
        "rates": {
            each.explorer: [round(60 * number / history.interval_s, 3) for number in each.by_time]
            for each in history.brought
            if each.num_ready
        },
        "waits": [
            *({"name": each.name, "groups": waited} for each in trainers),
            *(
                {"name": each.name, "places": each.waited_places_s, "weights": each.waited_weights_s}
                for each in explorers
            ),
        ],
        "waited_by_step": _thinned(history.steps),
    }


def _about(program: Program, content: Content) -> dict[str, Any]:
    is_known = program.version >= 0 and content.version >= 0 and program.left_at is None
    return {
        "name": program.name,
        "state": program.state(content.read_at),
        "seen_at": program.seen_at,
        "version": program.version if program.version >= 0 else None,
        "behind": max(0, content.version - program.version) if is_known else None,
        "held": program.num_held,
    }


def _rates(program: Program, brought: Brought | None, history: History, now: float) -> dict[str, Any]:
    until = history.began_at + (history.times[-1] if history.times else 0.0)
    lived_s = max(1.0, (until if program.left_at is None else program.left_at) - program.joined_at)
    number, seconds = (0, lived_s) if brought is None else (brought.num_ready, lived_s)
    if brought is not None and program.state(now) == "lives" and lived_s > RECENT_S:
        number, seconds = brought.num_recent, RECENT_S
    return {
        "ready": 0 if brought is None else brought.num_ready,
        "dropped": 0 if brought is None else brought.num_dropped,
        "lag": None if brought is None else brought.mean_lag,
        "per_min": 60 * number / seconds,
        "waited_places_s": program.waited_places_s,
        "waited_weights_s": program.waited_weights_s,
    }


def _thinned(steps: Sequence[Step]) -> list[dict[str, Any]]:
    size = -(-len(steps) // MAX_STEPS) or 1
    parts = [steps[first : first + size] for first in range(0, len(steps), size)]
    return [
        {
            "step": part[0].step,
            "last": part[-1].step,
            "waited_s": sum(each.waited_s for each in part) / len(part),
        }
        for part in parts
    ]

"""Small data in the format of ALFWorld's json_2.1.1, made from generated games."""

from __future__ import annotations

import json
from pathlib import Path

from envsdk.envs.alfworld.household import generate_game

GRAMMAR = 'grammar :: """{ "task": [ { "rhs": "Your task is to: UNKNOWN GOAL." } ] }""";'


def write_official_game(
    root: Path,
    split: str,
    number: int,
    task_type: str,
    *,
    solvable: bool = True,
    domain: str = "(define (domain alfred))",
    grammar: str = GRAMMAR,
    mark: str = "None",
) -> Path:
    """One trial's folder; returns its game file."""
    game = generate_game(number, task_type, size="small")
    goal = game.goal
    place = goal.receptacle_type or goal.lamp_type
    folder = (
        root
        / "json_2.1.1"
        / split
        / f"{task_type}-{goal.object_type}-{mark}-{place}-{number}"
        / f"trial_T{number:05}"
    )
    folder.mkdir(parents=True)
    trial = {
        "task_type": task_type,
        "pddl_params": {
            "object_target": goal.object_type,
            "parent_target": goal.receptacle_type,
            "toggle_target": goal.lamp_type,
            "mrecep_target": "",
            "object_sliced": False,
        },
        "turk_annotations": {"anns": [{"task_desc": game.description}]},
    }
    (folder / "traj_data.json").write_text(json.dumps(trial))
    path = folder / "game.tw-pddl"
    data = {
        "grammar": grammar.replace("UNKNOWN GOAL", game.description),
        "pddl_domain": domain,
        "pddl_problem": game.problem,
        "solvable": solvable,
        "walkthrough": ["look"],
    }
    path.write_text(json.dumps(data))
    return path

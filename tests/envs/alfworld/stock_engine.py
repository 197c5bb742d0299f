"""Plays games with TextWorld and ALFWorld as they are installed, in a process of its own.

python stock_engine.py < [{"game": {...}, "commands": [...]}, ...]      # one JSON answer per line
"""

from __future__ import annotations

import json
import sys

import envsdk.envs.alfworld.textworld_import  # noqa: F401

# isort: split
import textworld
from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
from textworld.envs import PddlEnv


def main() -> None:
    out = sys.stdout
    for course in json.load(sys.stdin):
        env = AlfredDemangler(PddlEnv(textworld.EnvInfos(won=True, admissible_commands=True)))
        env.load(course["game"])
        states = [env.reset()]
        states += [env.step(command)[0] for command in course["commands"]]
        scenes = [
            [state.feedback, list(state["admissible_commands"]), bool(state["won"])] for state in states
        ]
        out.write(json.dumps(scenes) + "\n")
        out.flush()


if __name__ == "__main__":
    main()

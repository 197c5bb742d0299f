"""The evaluations that ship with envsdk, as entry points of `envsdk.evals`."""

from pathlib import Path

from envsdk.rollouts.play.eval_spec import evaluations_in

FROZEN_LAKE, SOKOBAN, SUMS = evaluations_in(Path(__file__).with_suffix(".yaml"))

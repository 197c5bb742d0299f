"""Grading: a patch's text in, a verdict out, in a fresh sandbox that sees nothing else of the agent."""

from envsdk.envs.swe.evaluator.evaluation import Evaluation, Verdict
from envsdk.envs.swe.evaluator.grade import evaluate
from envsdk.envs.swe.evaluator.validation import Validation, validate

__all__ = ["Evaluation", "Validation", "Verdict", "evaluate", "validate"]

"""The `exact` reward: the response, or the answer found in it, is the row's `ground_truth` to the letter."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import Any, Literal

from envsdk.rewards.answer_text import after_thinking
from envsdk.rewards.answers import Extraction, Way, find_answer, short
from envsdk.rewards.reward import InlineReward, Reward, RewardError, Sample, stated_truth, unusable


class ExactArgs(Extraction):
    """The settings of `exact`."""

    extract: tuple[Way, ...] = ()
    """Ways of finding the answer in the response, as in `math`; none: the whole response is the answer."""
    ignore: tuple[Literal["case", "space", "punctuation"], ...] = ()
    """What does not count: upper and lower case, all space, all punctuation. Space at the ends never does."""


class ExactReward(InlineReward[ExactArgs]):
    """1 when the answer equals the row's `ground_truth`, otherwise 0. Unicode is compared in its NFC form."""

    Args = ExactArgs

    def score(self, sample: Sample) -> Reward:
        """Raises RewardError when the row has nothing to compare with."""
        if problem := self.problem(sample.row):
            raise RewardError(f"the row cannot be used: {problem}")
        truth = self._normal(sample.ground_truth)
        found = find_answer(sample.response, self.args)
        answer = found.answer
        if answer is None and not self.args.extract and not found.problem.endswith("closed"):
            answer = after_thinking(sample.response) if self.args.after_think else sample.response
        if answer is None:
            return Reward(value=0.0, verdict=found.problem, correct=False)
        if self._normal(answer) == truth:
            return Reward(value=1.0, verdict=f"{short(answer)} is right", correct=True)
        return Reward(
            value=0.0, verdict=f"{short(answer)} is not {short(sample.ground_truth)}", correct=False
        )

    def reference(self, sample: Sample) -> str | None:
        r"""The row's `ground_truth`, in a `\boxed{}` or whatever is looked for first."""
        truth = sample.known_truth
        ways = {"boxed": f"\\boxed{{{truth}}}", "tag": f"<answer>{truth}</answer>", "hash": f"#### {truth}"}
        return ways.get(self.args.extract[0] if self.args.extract else "", truth) or None

    def problem(self, row: Mapping[str, Any]) -> str | None:
        """Why the row's `ground_truth` cannot be compared with."""
        if problem := unusable(truth := stated_truth(row)):
            return problem
        return None if self._normal(str(truth)) else "it has no ground_truth to compare with"

    def _normal(self, text: str) -> str:
        text = unicodedata.normalize("NFC", text).strip()
        if "case" in self.args.ignore:
            text = text.casefold()
        if "space" in self.args.ignore:
            text = "".join(text.split())
        if "punctuation" in self.args.ignore:
            text = "".join(each for at, each in enumerate(text) if not _is_punctuation(text, at)).strip()
        return text


def _is_punctuation(text: str, at: int) -> bool:
    """Not the sign before a number, nor the point inside one."""
    if unicodedata.category(text[at])[0] != "P":
        return False
    before, after = text[at - 1 : at], text[at + 1 : at + 2]
    is_sign = text[at] == "-" and after.isdigit() and not before.isalnum()
    return not (is_sign or (text[at] == "." and before.isdigit() and after.isdigit()))

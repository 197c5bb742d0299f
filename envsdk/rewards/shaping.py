"""Rewards for the form of a response: `format`, `length` and `repetition`. They are parts of a `sum`."""

from __future__ import annotations

import re
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from envsdk.base.settings.strict import StrictSettings
from envsdk.rewards.reward import InlineReward, Reward, RewardFunction, Sample


class FormatArgs(StrictSettings):
    """The settings of `format`."""

    tags: tuple[str, ...] = ("think", "answer")
    """The response is `<think>...</think><answer>...</answer>`: each tag once, in this order, with only space
    around them. Empty: no tags are required."""
    opened_by_prompt: bool = False
    """The prompt ends with the first opening tag, so that the response does not have it."""
    pattern: str = ""
    """A regular expression that the response has to match from its beginning (`re.match` with DOTALL and
    MULTILINE), instead of `tags`."""
    min_think_chars: int = Field(default=0, ge=0)
    """The content of the first tag is at least so long."""
    max_think_chars: int | None = Field(default=None, ge=1)
    """The content of the first tag is at most so long."""
    met: float = 1.0
    """The value of a response that has the format."""
    missed: float = 0.0
    """The value of one that does not."""

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str) -> str:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"is no regular expression: {error}") from None
        return pattern


class FormatReward(RewardFunction):
    """`met` when the response has the required form, otherwise `missed`.

    It runs in a worker process: a pattern may take forever on a text made for that.
    """

    Args = FormatArgs

    def __init__(self, args: FormatArgs) -> None:
        self.args = args
        self._pattern = re.compile(args.pattern, re.DOTALL | re.MULTILINE) if args.pattern else None

    def score(self, sample: Sample) -> Reward:
        problem = self._problem_with(sample.response)
        if problem is None:
            return Reward(value=self.args.met, verdict="the format is met", correct=True)
        return Reward(value=self.args.missed, verdict=problem, correct=False)

    def reference(self, sample: Sample) -> str | None:
        """A response with the tags; with a pattern, the row's `ground_truth`, whatever it scores."""
        if self._pattern is not None:
            return sample.known_truth or None
        contents = [sample.known_truth or "0"] * len(self.args.tags)
        contents[:1] = ["." * max(self.args.min_think_chars, 1)] * len(contents[:1])
        text = "".join(
            f"<{tag}>{inside}</{tag}>" for tag, inside in zip(self.args.tags, contents, strict=True)
        )
        return text.partition(">")[2] if self.args.opened_by_prompt else text

    def unscorable(self, reason: str) -> Reward:
        return Reward(value=self.args.missed, verdict=reason, correct=False)

    def _problem_with(self, response: str) -> str | None:
        if self._pattern is not None:
            return None if self._pattern.match(response) else "the response does not match the pattern"
        text = response.strip()
        if self.args.opened_by_prompt and self.args.tags:
            text = f"<{self.args.tags[0]}>{text}"
        for index, tag in enumerate(self.args.tags):
            opening, closing = f"<{tag}>", f"</{tag}>"
            if not text.startswith(opening):
                return f"{opening} is missing or not in its place"
            inside, found, text = text[len(opening) :].partition(closing)
            if not found:
                return f"{closing} is missing"
            if any(f"<{slash}{each}>" in inside for each in self.args.tags for slash in ("", "/")):
                return f"{opening} holds another tag"
            if index == 0 and (problem := self._length_problem(inside.strip())):
                return problem
            text = text.lstrip()
        return f"text after {closing}" if self.args.tags and text else None

    def _length_problem(self, thoughts: str) -> str | None:
        if len(thoughts) < self.args.min_think_chars:
            return f"{len(thoughts)} characters of thought, at least {self.args.min_think_chars} are wanted"
        if self.args.max_think_chars is not None and len(thoughts) > self.args.max_think_chars:
            return f"{len(thoughts)} characters of thought, at most {self.args.max_think_chars} are wanted"
        return None


class LengthArgs(StrictSettings):
    """The settings of `length`."""

    max_length: int = Field(ge=1)
    """Length from which the value is -1."""
    buffer: int = Field(ge=0)
    """The value falls from 0 to -1 over the last `buffer` units before `max_length`."""
    unit: Literal["characters", "words"] = "characters"
    """What is counted; words are separated by space."""

    @model_validator(mode="after")
    def _buffer_fits(self) -> Self:
        if self.buffer > self.max_length:
            raise ValueError(f"buffer ({self.buffer}) is longer than max_length ({self.max_length})")
        return self


class LengthReward(InlineReward[LengthArgs]):
    """The soft overlong punishment of DAPO (arXiv 2503.14476, equation 13), in characters or words.

    With L the length, M = max_length and B = buffer: 0 for L <= M - B, (M - B - L) / B up to M, -1 beyond.
    """

    Args = LengthArgs

    def score(self, sample: Sample) -> Reward:
        length = len(sample.response.split() if self.args.unit == "words" else sample.response)
        free = self.args.max_length - self.args.buffer
        if length <= free:
            value = 0.0
        else:
            value = -1.0 if length > self.args.max_length else (free - length) / self.args.buffer
        return Reward(value=value, verdict=f"{length} {self.args.unit}", correct=value == 0)


class RepetitionArgs(StrictSettings):
    """The settings of `repetition`."""

    ngram_size: int = Field(default=3, ge=1, le=40)
    """Words, separated by space, in an n-gram."""


class RepetitionReward(InlineReward[RepetitionArgs]):
    """-(1 - D / N), with D different n-grams among the N of the response, in lower case; 0 without any.

    The repetition penalty of "Demystifying Long Chain-of-Thought Reasoning in LLMs" (arXiv 2502.03373); its
    maximum is the part's weight.
    """

    Args = RepetitionArgs

    def score(self, sample: Sample) -> Reward:
        words = sample.response.lower().split()
        total = len(words) - self.args.ngram_size + 1
        if total < 1:
            return Reward(value=0.0, verdict="too short to repeat itself", correct=True)
        distinct = len(set(zip(*(words[start:] for start in range(self.args.ngram_size)), strict=False)))
        value = distinct / total - 1
        verdict = f"{total - distinct} of {total} {self.args.ngram_size}-grams repeat others"
        return Reward(value=value, verdict=verdict, correct=value == 0)

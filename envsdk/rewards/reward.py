"""The reward contract: how a response to a prompt is scored.

    prompt -> response -> score(sample) -> Reward(value, verdict, parts)

A reward function is found under the entry-point group `envsdk.rewards`, or as `package.module:Class`:

    class Shout(RewardFunction):
        def score(self, sample: Sample) -> Reward:
            loud = sample.response.isupper()
            return Reward(value=float(loud), verdict="loud" if loud else "quiet", correct=loud)

Its constructor takes the settings that stand beside `worker_cls` in the YAML file as keywords; a class may
declare them as a pydantic model, `Args`, and then gets one instance of it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Generic, TypeVar

from pydantic import BaseModel

from envsdk.contracts.failures import Boundary, EnvsdkError
from envsdk.contracts.prompts import Message

PLUGINS = "envsdk.rewards"
Settings = TypeVar("Settings", bound=BaseModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What is scored: one response, with the prompt and the row of data that it answers. Picklable."""

    response: str
    """The policy's whole text."""
    messages: Sequence[Message] = ()
    """The prompt as a chat."""
    row: Mapping[str, Any] = field(default_factory=dict)
    """The row's fields under their standard names, such as `ground_truth`, `test_cases` and `tag`."""

    @property
    def ground_truth(self) -> str:
        """The row's reference answer. RewardError when it has none: its responses are masked."""
        if (value := stated_truth(self.row)) is None:
            raise RewardError("its row has no ground_truth")
        return str(value)

    @property
    def known_truth(self) -> str:
        """The row's reference answer; empty when it has none."""
        value = stated_truth(self.row)
        return "" if value is None else str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reward:
    """The score of one response. ValueError unless the numbers are finite."""

    value: float
    verdict: str = ""
    """Why, in one line for a person: `12 is right`, `7 is not 12`, `no answer found`."""
    correct: bool | None = None
    """Whether the response solves its task; None: where the value is at least 1."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """What the value is made of, by name."""
    fault: str = ""
    """What a wrong response did to its scorer: `raised`, `deadline`, `memory` or `died`; empty for others.
    Set by the workers."""

    def __post_init__(self) -> None:
        for number in (self.value, *self.parts.values()):
            if not math.isfinite(number):
                raise ValueError(f"a reward must be finite, not {number}")

    @property
    def success(self) -> bool:
        """`correct`, or what stands for it when it is None."""
        return self.value >= 1 if self.correct is None else self.correct


class RewardError(EnvsdkError):
    """A response could not be scored, through no fault of its own: its episode is masked."""

    boundary = Boundary.REWARD


class Runs(StrEnum):
    """Where a reward function runs."""

    INLINE = "inline"
    """In the event loop of the process that plays: for pure text functions of microseconds, linear in the
    length of the response."""
    PROCESS = "process"
    """In a worker process that is killed at the deadline: for everything that parses or computes."""


class RewardFunction(ABC):
    """Scores responses. One instance scores many and keeps no state between them.

    After an exception, a missed deadline or the death of a process, the row's reference answer is scored in a
    fresh process: when that works, the response was at fault and gets `unscorable(reason)`; otherwise the
    episode is masked (RewardError). `workers.py` has the whole rule.
    """

    Args: ClassVar[type[BaseModel] | None] = None
    """The settings as a model whose instance the constructor takes; None: it takes them as keywords."""
    runs: ClassVar[Runs] = Runs.PROCESS

    @classmethod  # noqa: B027 - most functions need nothing
    def preload(cls) -> None:
        """Import what scoring needs and what takes long to import.

        Called once in the process from which the workers are forked, so that no deadline counts it and a
        fresh worker has it at once.
        """

    @abstractmethod
    def score(self, sample: Sample) -> Reward:
        """The reward of one response. Deterministic."""

    def score_batch(self, samples: Sequence[Sample]) -> Sequence[Reward]:
        """The rewards of several responses, in their order; for functions that are faster on many at once."""
        return [self.score(sample) for sample in samples]

    def reference(self, sample: Sample) -> str | None:
        """A response that solves the sample's task; None when the row does not tell."""
        return sample.known_truth or None

    def unscorable(self, reason: str) -> Reward:
        """What a response gets on which this function fails; `reason` is a line for a person."""
        return Reward(value=0.0, verdict=reason, correct=False)

    def problem(self, row: Mapping[str, Any]) -> str | None:
        """Why no response to this row can be scored, such as a ground truth that does not parse; or None."""
        return None


class InlineReward(RewardFunction, Generic[Settings]):
    """A function that its settings describe, and that no response holds up."""

    runs = Runs.INLINE

    def __init__(self, args: Settings) -> None:
        self.args = args


class AsyncRewardFunction(RewardFunction):
    """A reward function that waits for a server or a sandbox. It is awaited in the event loop that plays.

    It tells the response's faults from others itself: RewardError is for what the response did not cause.
    """

    runs: ClassVar[Runs] = Runs.INLINE
    keeps_deadline: ClassVar[bool] = False
    """Whether it ends every call by itself, and its queue is its own: no other deadline holds for it."""

    def score(self, sample: Sample) -> Reward:
        """Not for this kind: it is awaited."""
        raise TypeError(f"{type(self).__name__} is awaited: await score_async(sample)")

    @abstractmethod
    async def score_async(self, sample: Sample) -> Reward:
        """As `RewardFunction.score`."""

    async def close(self) -> None:
        """Free connections and sandboxes. Idempotent."""


def stated_truth(row: Mapping[str, Any]) -> Any:
    """The row's `ground_truth`; of a list that holds one text or number, as `["5"]`, that one."""
    match row.get("ground_truth"):
        case [str() | int() | float() as alone]:
            return alone
        case value:
            return value


def unusable(ground_truth: object) -> str | None:
    """Why a row's `ground_truth` is no text or number that an answer could equal; None when it may be one."""
    if ground_truth is None or ground_truth == "":
        return "it has no ground_truth"
    if isinstance(ground_truth, float) and not math.isfinite(ground_truth):
        return f"its ground_truth is {ground_truth}, which no answer equals"
    if isinstance(ground_truth, Mapping | list | tuple):
        return f"its ground_truth is a {type(ground_truth).__name__}, not a text or a number"
    return None

"""Samplers that draw tasks by weights, which follow from the results of each task. Pure.

What is drawn is an *arm*: a task, or with `choose: tags` a tag. The n-th draw uses the n-th number of the
run's seed, so that a saved sampler continues exactly. The chance of an arm is its weight's share among the
arms that are free: not in play, and not resting at the gate.

    sampler      weight, with p the success rate that is expected of the arm
    weighted     the tag's weight
    difficulty   exp(-|p - target| / temperature)
    learnability p (1 - p)
    easy_to_hard 1 for the easiest share of the tasks, which grows; or all of them in order
    prioritized  by rank of the spread of rewards, and by the time since the arm was played

p = (successes + 1) / (episodes + 2) over the latest `window` episodes: the mean of a Beta(1, 1) prior after
them. A task that was never played has p = 1/2, which is tried early by all that look for medium tasks.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, NonNegativeFloat, PositiveFloat, PositiveInt

from envsdk.algorithms.task_samplers.contract import (
    PlayedGroup,
    SamplerArgs,
    SamplerConfig,
    TaskOrder,
    TaskSampler,
)
from envsdk.base.settings.strict import StrictSettings
from envsdk.contracts.failures import ConfigurationError
from envsdk.contracts.seeds import stable_seed
from envsdk.contracts.trajectory import Task

Share = Annotated[float, Field(ge=0, le=1)]
Arms = NDArray[np.int64]
_WHOLE_TAG = -1
"""Index of the arm that is a tag."""
_SEEDS = 2**31


class Gate(StrictSettings):
    """Which tasks rest: those that are solved, and those that are hopeless. They are tried again later."""

    solved: Share = 1.0
    """Success rate from which on a task is solved."""
    hopeless: Share = 0.0
    """Success rate up to which a task is hopeless."""
    after: PositiveInt = 8
    """Episodes of the window that must have been played before that is said."""
    look_again: PositiveInt = 500
    """Groups that are started, of whatever tasks, until the task is tried again."""


def _counts(value: Any) -> Any:
    """One message in place of one per type of the union."""
    for each in value.values() if isinstance(value, Mapping) else (value,):
        if value is not None and (isinstance(each, bool) or not isinstance(each, int) or each < 1):
            named = f", not {each!r}" if isinstance(value, Mapping) else ""
            raise ValueError(f"must be a whole number above 0, or a section of such numbers by tag{named}")
    return value


class ScoredArgs(SamplerArgs):
    """What these samplers have in common."""

    choose: Literal["tasks", "tags", "both"] = "tasks"
    """`tasks`: each tag has its share, and its tasks are chosen. `tags`: tags are chosen, and the tasks of
    each come in order. `both`: the tasks of all tags compete. An environment plays one tag: a chosen tag is
    played no faster than its environments allow."""
    num_tasks: Annotated[PositiveInt | dict[str, PositiveInt] | None, BeforeValidator(_counts)] = None
    """How many tasks of each tag are chosen from: the first so many; a number for all, or by tag. All of a
    list when absent. Required with `choose: tasks` or `both` where the seed decides what a task is."""
    window: PositiveInt = 32
    """Latest episodes of a task, or tag, that its success rate is of."""
    gate: Gate | None = None
    """Which tasks rest; none when absent."""

    @property
    def returns_to_tasks(self) -> bool:
        return self.choose != "tags"


Own = TypeVar("Own", bound=ScoredArgs)


class Results:
    """The latest results of each arm."""

    def __init__(self, num_arms: int, window: int) -> None:
        self._window = window
        self.windows: dict[int, str] = {}
        """The latest episodes of an arm, the newest one last: 1 where it succeeded."""
        self.episodes = np.zeros(num_arms, np.int64)
        self.successes = np.zeros(num_arms, np.int64)
        self.spread = np.zeros(num_arms)
        """Standard deviation of the rewards of the latest group."""
        self.seen_at = np.full(num_arms, -1, np.int64)
        """Draws before the latest results came; -1: there are none."""

    @property
    def rate(self) -> NDArray[np.float64]:
        """The success rate that is expected of each arm."""
        return (self.successes + 1) / (self.episodes + 2)

    def set(self, arm: int, episodes: str, spread: float, seen_at: int) -> None:
        """Replace the results of an arm; of more episodes than the window has, by the newest."""
        self.windows[arm] = window = episodes[-self._window :]
        self.episodes[arm], self.successes[arm] = len(window), window.count("1")
        self.spread[arm], self.seen_at[arm] = spread, seen_at


class ScoredSampler(TaskSampler[Own]):
    """See the module."""

    settings: ClassVar[type[SamplerArgs]] = ScoredArgs

    def __init__(
        self, config: SamplerConfig, args: Own, order: TaskOrder, state: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(config, args, order, state)
        self.arms: list[tuple[str, int]] = []
        """Tag and index of each; the index of a whole tag is -1."""
        self.arms_of: dict[str, Arms] = {}
        """Numbers of the arms by tag."""
        for tag in config.tasks:
            first = len(self.arms)
            self.arms += [(tag, index) for index in self._indexes(tag)]
            self.arms_of[tag] = np.arange(first, len(self.arms))
        self._numbers = {arm: number for number, arm in enumerate(self.arms)}
        self.results = Results(len(self.arms), args.window)
        self.num_draws = 0
        self._in_play = np.zeros(len(self.arms), np.int64)
        """Groups of each arm that were started and are not over."""
        if state is not None:
            self._restore(state)

    @abstractmethod
    def weights(self, arms: Arms) -> NDArray[np.float64]:
        """Weights of these arms, at least 0."""

    def next_task(self) -> Task:
        if self.args.choose == "tasks":
            arms = self.arms_of[self.order.next_tag()]
        else:
            arms = np.concatenate([self.arms_of[tag] for tag in self.order.tags])
        tag, index = self.arms[arm := self._draw(arms)]
        self._in_play[arm] += 1
        self.num_draws += 1
        return self.task(tag, self.order.next_index(tag) if index == _WHOLE_TAG else index)

    def observe(self, group: PlayedGroup) -> None:
        index = _WHOLE_TAG if self.args.choose == "tags" else group.task.index
        arm = self._numbers.get((group.task.tag, index))
        if arm is None:
            return  # of a run that had other tags or more tasks
        self._in_play[arm] = max(0, self._in_play[arm] - 1)
        if group.successes:
            episodes = "".join("01"[success] for success in group.successes)
            before = self.results.windows.get(arm, "")
            self.results.set(arm, before + episodes, float(np.std(group.rewards)), self.num_draws)

    def state(self) -> dict[str, Any]:
        results = self.results
        return {
            "num_draws": self.num_draws,
            "results": [
                [*self.arms[arm], window, float(results.spread[arm]), int(results.seen_at[arm])]
                for arm, window in results.windows.items()
            ],
            "in_play": [[*self.arms[arm], int(self._in_play[arm])] for arm in np.flatnonzero(self._in_play)],
        }

    def metrics(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for tag, arms in self.arms_of.items():
            episodes = self.results.episodes[arms]
            found[f"played_share/{tag}"] = float(np.mean(episodes > 0))
            found[f"success/{tag}"] = float(self.results.successes[arms].sum() / max(1, episodes.sum()))
            if self.args.gate is not None:
                found[f"resting_share/{tag}"] = float(np.mean(self.resting(arms)))
        return found

    def resting(self, arms: Arms) -> NDArray[np.bool_]:
        """Which of these arms the gate keeps out."""
        gate, results = self.args.gate, self.results
        if gate is None:
            return np.zeros(len(arms), np.bool_)
        episodes = results.episodes[arms]
        rate = results.successes[arms] / np.maximum(1, episodes)
        is_settled = (episodes >= gate.after) & ((rate >= gate.solved) | (rate <= gate.hopeless))
        return is_settled & (self.num_draws - results.seen_at[arms] < gate.look_again)

    def pick(self, arms: Arms, uniform: float) -> int:
        """One of these arms; `uniform` is a random number in [0, 1)."""
        sums = np.cumsum(self.weights(arms))
        if not sums[-1] > 0:
            return int(arms[int(uniform * len(arms))])
        return int(arms[np.searchsorted(sums, uniform * sums[-1], side="right")])

    def _draw(self, arms: Arms) -> int:
        free = arms if self.args.choose == "tags" else arms[self._in_play[arms] == 0]
        free = free if len(free) else arms
        admitted = free[~self.resting(free)]
        if not len(admitted):  # the one that has rested longest
            return int(free[np.argmin(self.results.seen_at[free])])
        uniform = stable_seed("task sampler", self.config.seed, self.num_draws) / _SEEDS
        return self.pick(admitted, uniform)

    def _indexes(self, tag: str) -> Sequence[int]:
        if not self.args.returns_to_tasks:
            return (_WHOLE_TAG,)
        number = self.config.tasks[tag].num_tasks
        if number is None:
            raise ConfigurationError(
                f"task_sampler: {self.config.name} returns to tasks, and those of tag {tag!r} never end: say "
                f"how many to use by task_sampler.num_tasks, or set choose: tags"
            )
        return range(number)

    def _restore(self, state: Mapping[str, Any]) -> None:
        self.num_draws = state["num_draws"]
        for tag, index, *row in state["results"]:
            if (arm := self._numbers.get((tag, index))) is not None:
                self.results.set(arm, *row)
        for tag, index, count in state["in_play"]:
            if (arm := self._numbers.get((tag, index))) is not None:
                self._in_play[arm] = count


class WeightedArgs(ScoredArgs):
    """`weighted`."""

    choose: Literal["tasks", "tags", "both"] = "both"
    """`tasks` of each tag by its share, `tags`, or the tasks of `both`, which compete."""
    weights: dict[str, NonNegativeFloat] = Field(default_factory=dict)
    """Weight of each tag, shared by its tasks; 1 where none is given. They have no effect with `choose:
    tasks`."""


class Weighted(ScoredSampler[WeightedArgs]):
    """Tags by weights that may be fractions or 0, tasks at random."""

    settings = WeightedArgs

    def weights(self, arms: Arms) -> NDArray[np.float64]:
        weights = np.zeros(len(self.arms))
        for tag, own in self.arms_of.items():
            weights[own] = self.args.weights.get(tag, 1.0) / len(own)
        return weights[arms]


class DifficultyArgs(ScoredArgs):
    """`difficulty`."""

    target: Share = 0.5
    """Success rate that is looked for."""
    temperature: NonNegativeFloat = 0.1
    """How far from it tasks are still played; 0: the nearest one is."""


class Difficulty(ScoredSampler[DifficultyArgs]):
    """Tasks whose success rate is near a target: weight exp(-|p - target| / temperature).

    The weight is that of Trinity-RFT's `difficulty_based` selector; the estimate of p is our own window.
    """

    settings = DifficultyArgs

    def weights(self, arms: Arms) -> NDArray[np.float64]:
        distance = np.abs(self.results.rate[arms] - self.args.target)
        distance = distance - distance.min()
        nearest, temperature = distance == 0, self.args.temperature
        return np.asarray(np.exp(-distance / temperature) if temperature else nearest, np.float64)


class Learnability(ScoredSampler[ScoredArgs]):
    """Tasks that succeed sometimes: weight p (1 - p), the variance of a success.

    Source: sampling for learnability, arXiv:2408.15099, used on groups of replies by arXiv:2502.12272.
    """

    def weights(self, arms: Arms) -> NDArray[np.float64]:
        rate: NDArray[np.float64] = self.results.rate[arms]
        return rate * (1 - rate)


class EasyToHardArgs(ScoredArgs):
    """`easy_to_hard`."""

    columns: list[str] = Field(default_factory=list)
    """Columns of prompt data that say how hard a row is, the first before the others. Without them `choose`
    must be `tags`, which go from easy to hard in the order of `tags`."""
    higher_is: Literal["harder", "easier"] = "harder"
    """What a higher value in `columns` means."""
    over_groups: PositiveInt | None = None
    """Groups until all tasks are admitted. None: tasks are played in order, and then again, without a
    gate."""
    start: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Share of the tasks that is admitted at first, with `over_groups`."""


class EasyToHard(ScoredSampler[EasyToHardArgs]):
    """The easiest tasks first.

    With `over_groups` T, a task is drawn from the easiest share c of all after t groups, at random:

        c(t) = min(1, sqrt(t (1 - start^2) / T + start^2))

    Source: the square-root competence of arXiv:1903.09848, eq. 7. Without it tasks are played in order, as by
    Trinity-RFT's `offline_easy2hard` selector.
    """

    settings = EasyToHardArgs

    def __init__(
        self,
        config: SamplerConfig,
        args: EasyToHardArgs,
        order: TaskOrder,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(config, args, order, state)
        self._ranks = np.arange(len(self.arms), dtype=np.int64)
        for tag, arms in self.arms_of.items() if args.choose != "tags" else ():
            ranks = config.tasks[tag].ranks
            assert ranks is not None, "columns are checked with the configuration"
            self._ranks[arms] = ranks[: len(arms)]
        self._num_played: dict[str, int] = dict(state["num_played"]) if state is not None else {}
        """With tasks in order: how many of each list, by its tag; "" is the list of all."""

    def state(self) -> dict[str, Any]:
        return super().state() | {"num_played": self._num_played}

    def weights(self, arms: Arms) -> NDArray[np.float64]:
        assert self.args.over_groups is not None
        first = self.args.start**2
        competence = math.sqrt(min(1.0, self.num_draws * (1 - first) / self.args.over_groups + first))
        whole = self._list_of(arms)
        easiest = np.sort(self._ranks[whole])[math.ceil(competence * len(whole)) - 1]
        return np.asarray(self._ranks[arms] <= easiest, np.float64)

    def _draw(self, arms: Arms) -> int:
        if self.args.over_groups is not None:
            return super()._draw(arms)
        name = self.arms[arms[0]][0] if self.args.choose == "tasks" else ""
        number = self._num_played.get(name, 0)
        self._num_played[name] = number + 1
        return int(arms[np.lexsort((arms, self._ranks[arms]))[number % len(arms)]])

    def _list_of(self, arms: Arms) -> Arms:
        """All arms of the list that these are some of."""
        return (
            self.arms_of[self.arms[arms[0]][0]] if self.args.choose == "tasks" else np.arange(len(self.arms))
        )


class PrioritizedArgs(ScoredArgs):
    """`prioritized`."""

    temperature: PositiveFloat = 0.5
    """Exponent 1 / temperature of the rank: a lower one plays the highest ranks more often."""
    staleness: Share = 0.1
    """Share of the draws that goes by the time since a task was last played."""


class Prioritized(ScoredSampler[PrioritizedArgs]):
    """Tasks from which most was to be learned when they were last played.

    With the rank r of the spread (standard deviation) of the rewards of a task's latest group, the highest
    and what was never played first, and the number a of groups started since:

        chance = (1 - staleness) r^(-1 / temperature) / sum + staleness a / sum

    Source: prioritized level replay, arXiv:2010.03934, eqs. 2 and 3; the spread stands for its score, the
    mean size of the advantages.
    """

    settings = PrioritizedArgs

    def weights(self, arms: Arms) -> NDArray[np.float64]:
        results, args = self.results, self.args
        seen_at = results.seen_at[arms]
        score = np.where(seen_at < 0, np.inf, results.spread[arms])
        ranks = np.empty(len(arms))
        ranks[np.lexsort((arms, -score))] = np.arange(1, len(arms) + 1)
        by_rank, age = ranks ** (-1 / args.temperature), (self.num_draws - seen_at).astype(np.float64)
        age /= age.sum() or 1.0
        return np.asarray((1 - args.staleness) * by_rank / by_rank.sum() + args.staleness * age)

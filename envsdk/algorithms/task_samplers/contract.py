"""What a task sampler is: it says which task the next group plays. Pure.

    made (from a saved state) -> (next_task | observe)* -> state

    class EveryOther(TaskSampler):
        def next_task(self):
            tag = self.order.next_tag()
            return self.task(tag, 2 * self.order.next_index(tag))

A task is a tag and an index. Where the environment lists its tasks (prompts, SWE, terminal), the index is a
place in that list; elsewhere it decides the seed, and tasks never end: a sampler that returns to tasks must
be told how many of them to use.

Owner: the ledger or, with explorers, the buffer. The same calls give the same tasks on every machine, also
across `state`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from envsdk.algorithms.group_filters import PluginEntry
from envsdk.base.plugins import load_plugin
from envsdk.base.settings.strict import StrictSettings
from envsdk.base.settings.validation import validated
from envsdk.contracts.failures import ConfigurationError
from envsdk.contracts.trajectory import Task

TASK_SAMPLERS = "envsdk.task_samplers"
"""Entry-point group whose names `task_sampler` takes."""
UNIFORM = "uniform"


class SamplerArgs(StrictSettings):
    """Settings of one sampler. This one takes none."""

    @property
    def returns_to_tasks(self) -> bool:
        """Whether it must know how many tasks each tag has."""
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class TagTasks:
    """What is known of a tag's tasks before any is played."""

    num_tasks: int | None = None
    """How many there are; None: they never end."""
    ranks: Sequence[int] | None = None
    """How hard each task is: the easiest have the lowest. None: unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedGroup:
    """A group that was delivered, rejected by a group filter, or given up."""

    task: Task
    successes: Sequence[bool]
    """Outcomes of the members that have one; empty when the group was given up or not needed."""
    rewards: Sequence[float]
    """Rewards of the same members."""


class TaskOrder(Protocol):
    """The order of a run that asks for no other: tags by their shares, the tasks of each by index."""

    split: str

    @property
    def tags(self) -> Sequence[str]:
        """Tags that the next group may be of."""
        ...

    def next_tag(self) -> str: ...

    def next_index(self, tag: str) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerConfig:
    """Which sampler, with what; plain enough to be written down."""

    name: str
    args: Mapping[str, Any] = field(default_factory=dict)
    """Its settings."""
    tasks: Mapping[str, TagTasks] = field(default_factory=dict)
    """Tasks by tag."""
    seed: int = 0
    """The run's."""


Own = TypeVar("Own", bound=SamplerArgs)


class TaskSampler(ABC, Generic[Own]):
    """See the module. A subclass names the model of its settings and may override the others."""

    settings: ClassVar[type[SamplerArgs]] = SamplerArgs

    def __init__(
        self, config: SamplerConfig, args: Own, order: TaskOrder, state: Mapping[str, Any] | None = None
    ) -> None:
        """`state` is what `state()` of an earlier one gave, perhaps with other tags, tasks and settings."""
        self.config = config
        self.args = args
        self.order = order

    @abstractmethod
    def next_task(self) -> Task:
        """The task of the next group, of one of `order.tags`."""

    def observe(self, group: PlayedGroup) -> None:
        """A group is over. Called once for each task that `next_task` gave, in the order of their start."""

    def state(self) -> dict[str, Any]:
        """Everything that it has learned, as plain JSON types."""
        return {}

    def metrics(self) -> dict[str, float]:
        """What a run shows of it after each batch: metrics `task_sampler/NAME` by NAME."""
        return {}

    def task(self, tag: str, index: int) -> Task:
        """The task `index` of `tag`."""
        return Task(tag=tag, split=self.order.split, index=index)


class Uniform(TaskSampler[SamplerArgs]):
    """Each tag by its share, its tasks in order. The default."""

    def next_task(self) -> Task:
        tag = self.order.next_tag()
        return self.task(tag, self.order.next_index(tag))


class TaskSamplerEntry(PluginEntry):
    """`task_sampler`: a name alone, or a section with `name` and the sampler's settings."""

    name: str = UNIFORM
    """Entry point in `envsdk.task_samplers`, or `package.module:Class`. Other keys are its settings."""


def sampler_class(name: str) -> type[TaskSampler[Any]]:
    """The class of a sampler. ConfigurationError when there is no such one."""
    found = load_plugin(TASK_SAMPLERS, name)
    if isinstance(found, type) and issubclass(found, TaskSampler):
        return found
    raise ConfigurationError(f"task_sampler: {name} is no class that derives from TaskSampler")


def load_sampler(
    config: SamplerConfig | None, order: TaskOrder, state: Mapping[str, Any] | None = None
) -> TaskSampler[Any]:
    """The sampler with its settings; `uniform` where `config` is None. ConfigurationError for wrong ones.

    `state` is that of `saved_state`. Another sampler's is not used.
    """
    config = config or SamplerConfig(name=UNIFORM)
    found = sampler_class(config.name)
    own = validated(found.settings, config.args, "task_sampler", owner=config.name)
    is_its_own = state is not None and state["name"] == config.name
    return found(config, own, order, state["state"] if is_its_own and state is not None else None)


def saved_state(sampler: TaskSampler[Any]) -> dict[str, Any]:
    """What `load_sampler` makes the same sampler from."""
    return {"name": sampler.config.name, "state": sampler.state()}

"""Group filters: which finished groups are worth learning from.

    group complete -> every filter of its tag asked -> kept, or dropped with a reason and another task played

A filter is a pure function of the group's trajectories: a reason to drop it, or None to keep it. It is
found under the entry-point group `envsdk.group_filters`, or by `package.module:function`:

    def too_short(group):
        if max(len(trajectory.turns) for trajectory in group) < 2:
            return "no episode has two turns"
        return None

One that takes settings declares them as a model, and gets an instance of it:

    class LengthArgs(FilterArgs):
        least: int = 2


    @group_filter(LengthArgs)
    def too_short_for(group, own): ...
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Protocol, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_serializer

from envsdk.base.plugins import load_plugin
from envsdk.base.settings.strict import StrictSettings
from envsdk.base.settings.validation import validated
from envsdk.contracts.failures import ConfigurationError
from envsdk.contracts.trajectory import Trajectory

PLUGINS = "envsdk.group_filters"


class GroupFilter(Protocol):
    """Decides about one complete group."""

    def __call__(self, group: Sequence[Trajectory]) -> str | None:
        """Why to drop the group, in one line; None keeps it.

        `group` holds every member that reported, failed ones (`failure` set, no outcome) among them. Pure:
        the same group has the same answer, in any order of its members. Where the policy plays several roles,
        it is asked for each, about the members as that role lived them.
        """
        ...


class FilterArgs(StrictSettings):
    """Settings of one filter. This one takes none."""


Own = TypeVar("Own", bound=FilterArgs)


@dataclass(frozen=True, slots=True)
class GroupFilterPlugin(Generic[Own]):
    """A filter that takes settings: the function, and the model of its settings."""

    function: Callable[[Sequence[Trajectory], Own], str | None]
    settings: type[Own]


def group_filter(
    settings: type[Own],
) -> Callable[[Callable[[Sequence[Trajectory], Own], str | None]], GroupFilterPlugin[Own]]:
    """Decorator: make a function of a group and settings a group filter that takes `settings`."""

    def declare(function: Callable[[Sequence[Trajectory], Own], str | None]) -> GroupFilterPlugin[Own]:
        return GroupFilterPlugin(function, settings)

    return declare


class PluginEntry(BaseModel):
    """A plug-in by its name alone, or as a section with its name and its settings."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    name: str

    @property
    def args(self) -> Mapping[str, Any]:
        """The plug-in's own settings, as written."""
        return self.model_extra or {}

    @model_serializer(mode="wrap")
    def _name_alone_where_that_is_all(self, handler: Any) -> Any:
        values = {key: value for key, value in handler(self).items() if value is not None}
        return self.name if set(values) == {"name"} else values


class GroupFilterEntry(PluginEntry):
    """An entry of `group_filters`: a name alone, or a section with name, tags and the filter's settings."""

    name: str
    """Entry point in `envsdk.group_filters`, or `package.module:function`. Other keys are its settings."""
    tags: Annotated[list[str], Field(min_length=1)] | None = None
    """Tags whose groups it judges; all of them when absent."""

    @property
    def label(self) -> str:
        """In metrics and messages."""
        return self.name if self.tags is None else f"{self.name}/{'+'.join(self.tags)}"

    def judges(self, group: Sequence[Trajectory]) -> bool:
        """Whether the group is of one of its tags."""
        return self.tags is None or any(trajectory.task.tag in self.tags for trajectory in group[:1])

    def __str__(self) -> str:
        return self.label


def as_entry(value: Any) -> Any:
    """A name as the entry that it stands for."""
    return {"name": value} if isinstance(value, str) else value


GroupFilterEntries = list[Annotated[GroupFilterEntry, BeforeValidator(as_entry)]]


def filter_settings(name: str) -> type[FilterArgs]:
    """The model of a filter's settings. ConfigurationError when there is no such filter."""
    found = load_plugin(PLUGINS, name)
    return found.settings if isinstance(found, GroupFilterPlugin) else FilterArgs


def load_filter(entry: GroupFilterEntry) -> GroupFilter:
    """The filter with its settings bound. ConfigurationError for an unknown name and for wrong settings."""
    found = load_plugin(PLUGINS, entry.name)
    own = validated(filter_settings(entry.name), entry.args, "group_filters", owner=entry.name)
    if isinstance(found, GroupFilterPlugin):
        plugin = found
        return lambda group: plugin.function(group, own)
    if not callable(found):
        raise ConfigurationError(f"group_filters: {entry.name} is no filter but {type(found).__name__}")
    function: GroupFilter = found
    return function


def zero_variance(group: Sequence[Trajectory]) -> str | None:
    """Drop a group whose members all have the same reward: compared with one another, they teach nothing.

    Failed members are not looked at.
    """
    rewards = {trajectory.total_reward for trajectory in group if trajectory.failure is None}
    if len(rewards) > 1:
        return None
    return f"every reward is {rewards.pop():g}" if rewards else "every member failed"


def uniform_success(group: Sequence[Trajectory]) -> str | None:
    """Drop a group that solved its task always or never, whatever the rewards.

    Failed members are not looked at. Source: the dynamic sampling of DAPO, arXiv:2503.14476, eq. 11.
    """
    successes = {trajectory.success for trajectory in group if trajectory.failure is None}
    if not successes:
        return "every member failed"
    if len(successes) > 1:
        return None
    return "every member succeeded" if successes.pop() else "no member succeeded"


class MeanFilterArgs(FilterArgs):
    """`mean_filter`."""

    threshold_down: float = -1.0
    """A group whose mean reward is up to this is dropped."""
    threshold_up: float | None = None
    """A group whose mean reward is this or more is dropped; null: none is."""


@group_filter(MeanFilterArgs)
def mean_filter(group: Sequence[Trajectory], own: MeanFilterArgs) -> str | None:
    """Drop a group that is too hard or too easy: its mean reward is not between the two thresholds.

    Failed members are not looked at, and a single reward is kept. Source: ROLL's query filter of this name.
    """
    rewards = _rewards(group)
    if len(rewards) < 2:
        return None if rewards else "every member failed"
    mean = statistics.fmean(rewards)
    if mean <= own.threshold_down:
        return f"the mean reward {mean:g} is not above threshold_down {own.threshold_down:g}"
    if own.threshold_up is not None and mean >= own.threshold_up:
        return f"the mean reward {mean:g} is not below threshold_up {own.threshold_up:g}"
    return None


class StdFilterArgs(FilterArgs):
    """`std_filter`."""

    std_threshold: float = -1.0
    """A group whose rewards have a standard deviation (n - 1) up to this is dropped."""


@group_filter(StdFilterArgs)
def std_filter(group: Sequence[Trajectory], own: StdFilterArgs) -> str | None:
    """Drop a group whose rewards hardly differ.

    Failed members are not looked at, and a single reward is kept. Source: ROLL's query filter of this name.
    """
    rewards = _rewards(group)
    if len(rewards) < 2:
        return None if rewards else "every member failed"
    deviation = statistics.stdev(rewards)
    if deviation <= own.std_threshold:
        return f"the deviation {deviation:g} is not above std_threshold {own.std_threshold:g}"
    return None


def _rewards(group: Sequence[Trajectory]) -> list[float]:
    return [trajectory.total_reward for trajectory in group if trajectory.failure is None]

"""What passes between the buffer and the programs of a job. Pure."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from envsdk.contracts import run_limits
from envsdk.contracts.failures import ConfigurationError, EnvsdkError
from envsdk.contracts.trajectory import Task

BUFFER_FILE = "buffer.db"
"""A job's buffer, in its folder, when the configuration names no other."""


class GroupState(StrEnum):
    """Where a group is."""

    OPEN = "open"
    """Its task was started, and no explorer plays it: its explorer left or died."""
    LEASED = "leased"
    """An explorer plays it."""
    READY = "ready"
    """It is complete and waits for a batch."""
    TAKEN = "taken"
    """It is in a batch that no checkpoint has trained yet."""
    TRAINED = "trained"
    """A checkpoint has learned from it."""
    DROPPED = "dropped"
    """It will not be trained; `reason` says why."""


class DropReason(StrEnum):
    """Why the buffer itself drops a group."""

    TOO_OLD = "too old"
    """Its oldest token was sampled more versions ago than `max_staleness` allows."""
    GIVEN_UP = "given up"
    """Explorers that played it were lost, `max_group_attempts` times."""
    WENT_BACK = "trainer went back"
    """Weights sampled it that the trainer gave up, when it continued from an earlier checkpoint."""
    DAMAGED = "damaged"
    """Its trajectories cannot be read."""


class Role(StrEnum):
    """What a program of a job does."""

    EXPLORER = "explorer"
    TRAINER = "trainer"


class JobStatus(StrEnum):
    """What became of the trainer."""

    WAITING = "waiting"
    """None has begun."""
    RUNNING = "running"
    FINISHED = "finished"
    """It took all its steps."""


class Signal(StrEnum):
    """What a program may wait for; each is a counter that rises when it happened."""

    BATCH = "batch"
    """Enough groups are ready for the batch that the trainer waits for."""
    PLACES = "places"
    """Groups may be claimed."""
    VERSION = "version"
    """Weights were published, or the job ended."""


class LeaseLost(EnvsdkError):
    """This program was not heard for so long that others took it for dead: it must join again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms(run_limits.Staleness):
    """What all programs of a job agree on. The first to come writes them down; each later one is compared."""

    seed: int
    group_size: int
    groups_per_batch: int
    alpha: float
    """`async_generation_ratio`."""
    max_staleness: int | None = None
    """Versions that a token may be behind the trainer when its group is taken; None: alpha, rounded up."""
    sync_interval: int = 1
    """Steps per version."""
    num_groups_redundancy: int = 0
    max_group_attempts: int = 8
    task_sampler: str = ""
    """`SamplerConfig` of the job as JSON; empty where tasks come in order."""

    @property
    def capacity_groups(self) -> int:
        """Groups that may be leased, ready or in training at the same time."""
        batch = self.groups_per_batch * self.group_size
        return run_limits.capacity(self.alpha, batch) // self.group_size + self.num_groups_redundancy

    def version_at(self, step: int) -> int:
        """The version under which step `step` is trained."""
        return step // self.sync_interval

    def last_step(self, version: int) -> int:
        """The last step whose batch may hold tokens of this version."""
        return (version + self.staleness_bound + 1) * self.sync_interval - 1

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Terms:
        return cls(**json.loads(text))

    def check_same(self, other: Terms) -> None:
        """ConfigurationError that names what `other`, of a program that wants to join, has differently."""
        ours, theirs = asdict(self), asdict(other)
        show = _SHORT.repr
        different = [
            f"{_KEYS_OF_TERMS[name]} is {show(theirs[name])} here and {show(ours[name])} in the job"
            for name in ours
            if ours[name] != theirs[name]
        ]
        if different:
            raise ConfigurationError(
                f"this program does not fit its job: {'; '.join(different)}. Give all programs of a job the "
                "same values, or the job another exp_name"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """What one program takes token ids and tags to be: another one reads its groups by that.

    Values are short texts, or digests of long ones and of files.
    """

    tokens: Mapping[str, str] = field(default_factory=dict)
    """Digests of `tokenizer`, `chat template` and `special tokens`; empty where the model is not made yet."""
    model: str = ""
    """Their folder, for messages."""
    tags: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Keys by tag: those that decide its tasks, prompts, rewards and limits."""
    may_differ: Sequence[str] = ()
    """Tags that are this program's own: neither compared nor written down."""

    def joined(self, written: Mapping[str, Any], *, is_alone: bool, has_begun: bool) -> Agreement:
        """What the job has once this program takes part.

        Args:
            written: What it has so far.
            is_alone: No other program lives: what tags mean may change, as in a run that is continued.
            has_begun: A trainer has published weights, whose token ids mean something for good.

        Raises:
            ConfigurationError: The others mean something else.
        """
        is_free = is_alone and not has_begun
        known = {key: value for key, value in written.items() if isinstance(value, dict)}
        problems, notes = [], []
        tokens = known.get(_TOKENS, {})
        different = [part for part in self.tokens if tokens.get(part, self.tokens[part]) != self.tokens[part]]
        if different and not is_free:
            problems.append(other_tokens(self.model, different))
        compared = {tag: keys for tag, keys in self.tags.items() if tag not in self.may_differ}
        for tag, keys in compared.items():
            if lines := _differences(tag, keys, known.get(tag, keys)):
                if is_alone:
                    notes += [f"other settings than before: {line}" for line in lines]
                else:
                    problems.append(
                        f"{'; '.join(lines)}. Make them the same; or give the tag another name here, to play "
                        f"it beside theirs; or let an explorer play its own, by explorer.may_differ=[{tag}]"
                    )
        if problems:
            raise ConfigurationError(f"this program does not fit its job: {' '.join(problems)}")
        new_tokens = {_TOKENS: dict(self.tokens if is_free else {**self.tokens, **tokens})}
        return Agreement(written={**known, **compared, **(new_tokens if self.tokens else {})}, notes=notes)


@dataclass(frozen=True, slots=True)
class Agreement:
    """What the programs of a job mean, and what is said of it."""

    written: Mapping[str, Any]
    """For the job's row: `Meaning.tags`, and `Meaning.tokens` under a name that is no tag's."""
    notes: Sequence[str]
    """Lines for the user."""


_TOKENS = ""
NO_MEANING = Meaning()
"""Meaning of programs that read and write no groups."""


def other_tokens(model: str, parts: Sequence[str]) -> str:
    """Why a program with the tokenizer of `model` cannot play for its job."""
    return (
        f"pretrain: the {' and the '.join(parts)} in {model} {'are' if len(parts) > 1 else 'is'} not the "
        "job's, so that its programs would read other texts from the same token ids. Give all of them the "
        "same model, or this job another exp_name."
    )


def _differences(tag: str, ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    return [
        f"tag {tag}: {key} is {ours.get(key, 'absent')} here and {theirs.get(key, 'absent')} in the job"
        for key in sorted(ours.keys() | theirs.keys())
        if ours.get(key) != theirs.get(key)
    ]


_KEYS_OF_TERMS = {
    "seed": "seed",
    "group_size": "train_env_manager.group_size",
    "groups_per_batch": "the number of groups in a batch (rollout_batch_size)",
    "alpha": "async_generation_ratio",
    "max_staleness": "max_staleness",
    "sync_interval": "synchronizer.sync_interval",
    "num_groups_redundancy": "train_env_manager.num_groups_redundancy",
    "max_group_attempts": "train_env_manager.max_group_attempts",
    "task_sampler": "task_sampler",
}
_SHORT = reprlib.Repr()
_SHORT.maxstring = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One start of a program, as the others know it."""

    role: Role
    name: str
    incarnation: str
    """Identity of this start: a program that is started again under its name is another one."""
    notes: Sequence[str] = field(default=(), compare=False)
    """Lines for the user: what it has differently than the job had before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedGroup:
    """A group that an explorer is to play."""

    group_id: int
    task: Task
    attempt: int
    """How many explorers lost it before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedGroup:
    """A complete group, on its way into the buffer."""

    group_id: int
    payload: bytes
    """Its trajectories, see `payload.pack`."""
    num_trajectories: int
    num_tokens: int
    """Sampled ones."""
    oldest_version: int | None
    """Oldest version among its tokens; None when none was sampled."""
    mean_reward: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """What a program learns when it renews its lease."""

    status: JobStatus
    step: int
    """The trainer's present step."""
    version: int
    """The newest published version; -1 before the first."""
    min_version: int
    """Tokens sampled under an older one cannot be used."""
    held: frozenset[int]
    """Groups that this program plays, as far as the buffer knows."""
    trainer_silent_s: float | None
    """Seconds since the trainer's lease ran out, or since it left; None while it lives."""
    explorer_versions: Mapping[str, int]
    """Version by living explorer: that of the weights it plays with; -1 before its first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedVersion:
    """Weights that were published."""

    version: int
    step: int
    location: Mapping[str, Any]
    """Where they are, in the words of the `sync_method`."""
    published_at: float

    def replaces(self, version: int, published_at: float) -> bool:
        """Whether these weights are newer than `version`, which was published at that time.

        A trainer that went back publishes an earlier version, or the same one, anew.
        """
        if self.version == version:
            return self.published_at != published_at
        return self.version > version or self.published_at > published_at


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenGroup:
    """One group of a batch."""

    group_id: int
    payload: bytes
    explorer: str
    ready_at: float
    """Unix time at which it was complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenBatch:
    """The groups of one step, in the order of their ids."""

    step: int
    version: int
    """The trainer's version when it was first taken."""
    is_again: bool
    """Whether an earlier process of the trainer had taken it."""
    groups: Sequence[TakenGroup]

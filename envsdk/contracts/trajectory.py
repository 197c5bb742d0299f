"""Episodes as data: task, token log, turn, trajectory.

    TokenLog:   append_prompt -> append_sampled -> append_prompt -> ... -> arrays()
    Trajectory: created once, by the env manager that played the episode; never changed afterwards

Token-in-token-out: the trainer sees exactly the ids that the engine sampled. Ids are therefore only appended,
and text is never tokenized again.

    log = TokenLog()
    log.append_prompt([5, 6, 7])
    log.append_sampled([8, 9], [-0.1, -0.7], [VersionSpan(version=3, start=0, end=2)])
    log.arrays().response_mask      # array([0, 0, 0, 1, 1], dtype=int8)
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from operator import attrgetter
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from envsdk.contracts.failures import ConfigurationError, Failure
from envsdk.contracts.players import POLICY, Result, Seat
from envsdk.contracts.prompts import PREFIX, Line, Message, TagPrompts
from envsdk.contracts.seeds import stable_seed
from envsdk.contracts.segments import Segment, last_segment, segments_of
from envsdk.contracts.support import Support

NO_VERSION = -1
"""Version of a token that no policy sampled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What one episode plays: a tag, a split, and an index in it."""

    tag: str
    """Name in `custom_envs`."""
    split: str
    """`train`, or the name of a held-out list such as `val`. Seeds depend on the split."""
    index: int
    """Position in the split, from 0."""

    def seed(self, run_seed: int) -> int:
        """Seed of the environment's `reset`, in [0, 2**31)."""
        return stable_seed(run_seed, self.split, self.tag, self.index)

    def policy_seed(self, run_seed: int, *, member: int, attempt: int, visit: int = 0) -> int:
        """Seed with which one member of the task's group samples, in [0, 2**31).

        `visit` tells apart the groups that play the task, where several do.
        """
        visits = (visit,) if visit else ()
        return stable_seed("policy", run_seed, self.split, self.tag, self.index, member, attempt, *visits)


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionSpan:
    """Tokens `[start, end)` of one reply were sampled under weight publication `version`."""

    version: int
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenArrays:
    """A finished token log; all arrays are `[num_tokens]`."""

    ids: NDArray[np.int32]
    response_mask: NDArray[np.int8]
    """1 where the policy sampled the token, 0 where it is part of a prompt."""
    behavior_logprobs: NDArray[np.float32]
    """Log-probability (nats) under the policy that sampled the token; 0 where the mask is 0."""
    versions: NDArray[np.int32]
    """Weight publication that sampled the token; `NO_VERSION` where the mask is 0."""
    experts: NDArray[np.int16] | None = None
    """`[num_tokens, num_routers, num_chosen]`: the experts that each router of a mixture chose for the token
    as an input; -1 where that was not recorded. None where it was of no token."""
    support: Support | None = None
    """Which tokens could be drawn, where tokens were left out and that is recorded."""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def oldest_version(self) -> int | None:
        """The oldest version among the sampled tokens; None without any."""
        sampled = self.versions[self.response_mask == 1]
        return int(sampled.min()) if len(sampled) else None


_GIVEN, _SAMPLED = array("b", (0,)), array("b", (1,))
_NO_LOGPROB = array("f", (0.0,))
_UNVERSIONED = array("i", (NO_VERSION,))


class TokenLog:
    """Append-only log of one sequence, owned by one env manager."""

    __slots__ = ("_experts", "_ids", "_logprobs", "_mask", "_supports", "_versions")

    def __init__(self) -> None:
        # 13 bytes a token, copied as one block: a long log is read in every turn.
        self._ids = array("i")
        self._mask = array("b")
        self._logprobs = array("f")
        self._versions = array("i")
        self._experts: list[tuple[int, NDArray[np.int16]]] = []
        """In the order of time: of the tokens from one on."""
        self._supports: dict[int, Support] = {}
        """Each reply's, by the place of its first token."""

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def num_sampled(self) -> int:
        """Tokens of the replies so far."""
        return sum(self._mask)

    @property
    def num_routed(self) -> int:
        """Number of first tokens whose experts are recorded."""
        return sum(len(experts) for _, experts in self._experts)

    @property
    def ids(self) -> Sequence[int]:
        """Every token so far: the prompt of the next request. Read only."""
        return self._ids

    def append_prompt(self, ids: Sequence[int]) -> None:
        """Append tokens that the policy did not sample."""
        given = array("i", ids)
        count = len(given)
        self._ids += given
        self._mask += _GIVEN * count
        self._logprobs += _NO_LOGPROB * count
        self._versions += _UNVERSIONED * count

    def append_sampled(
        self,
        ids: Sequence[int],
        logprobs: Sequence[float],
        spans: Sequence[VersionSpan],
        experts: NDArray[np.int16] | None = None,
        support: Support | None = None,
    ) -> None:
        """Append one reply. ValueError unless the spans cover it in order, without gap or overlap, and the
        support has each of its tokens.

        `experts` are of the tokens from the `num_routed`-th to the one before the last, prompts included.
        """
        if len(logprobs) != len(ids):
            raise ValueError(f"{len(ids)} sampled tokens but {len(logprobs)} log-probabilities")
        sampled, given_logprobs, versions = array("i", ids), array("f", logprobs), array("i")
        for span in spans:
            if span.start != len(versions) or span.end < span.start:
                raise ValueError(f"version spans do not cover the reply in order: {list(spans)}")
            versions += array("i", (span.version,)) * (span.end - span.start)
        if len(versions) != len(sampled):
            raise ValueError(f"version spans cover {len(versions)} of {len(sampled)} sampled tokens")
        if support is not None:
            support.check(np.array(sampled, np.int32))
            self._supports[len(self)] = support
        self._ids += sampled
        self._mask += _SAMPLED * len(sampled)
        self._logprobs += given_logprobs
        self._versions += versions
        if experts is not None:
            self._experts.append((len(self._ids) - 1 - len(experts), experts))

    def extend(self, other: TokenLog, start: int) -> None:
        """Append the tokens of another log from `start` on, where no reply began before and goes on."""
        shift = len(self._ids) - start
        for begin, experts in other._experts:
            new = experts[max(0, start - begin) :]
            if len(new):
                self._experts.append((max(begin, start) + shift, new))
        self._supports |= {place + shift: each for place, each in other._supports.items() if place >= start}
        self._ids += other._ids[start:]
        self._mask += other._mask[start:]
        self._logprobs += other._logprobs[start:]
        self._versions += other._versions[start:]

    def arrays(self) -> TokenArrays:
        """A copy of the log as arrays."""
        return TokenArrays(
            ids=np.array(self._ids, np.int32),
            response_mask=np.array(self._mask, np.int8),
            behavior_logprobs=np.array(self._logprobs, np.float32),
            versions=np.array(self._versions, np.int32),
            experts=self._all_experts(),
            support=self._support(),
        )

    def _all_experts(self) -> NDArray[np.int16] | None:
        if not self._experts:
            return None
        found = np.full((len(self._ids), *self._experts[0][1].shape[1:]), -1, np.int16)
        for start, experts in self._experts:
            found[start : start + len(experts)] = experts
        return found

    def _support(self) -> Support | None:
        parts, lengths, end = list[Support | None](), list[int](), 0
        for place, support in self._supports.items():
            parts += [None, support]
            lengths += [place - end, len(support)]
            end = place + len(support)
        return Support.joined([*parts, None], [*lengths, len(self) - end])


class FinishReason(StrEnum):
    """Why a reply ended."""

    STOP = "stop"
    """A stop token was sampled; it is the reply's last token."""
    LENGTH = "length"
    """`max_new_tokens` or the engine's context was reached."""
    ABORT = "abort"
    """The request was aborted, or a weight update in mode `restart` ended it. The tokens so far are kept."""
    ERROR = "error"
    """The engine failed before the reply was complete: a result of engines only, never of a turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One observation, one reply, one `env.step`."""

    observation: str
    """The environment's text, before the prompt template is applied."""
    reply: str
    """The policy's text: the action."""
    reward: float
    response_start: int
    """Index of the reply's first token in the token log; 0 when the policy has no tokens."""
    response_end: int
    """One past the reply's last token; equal to the start when the policy has no tokens."""
    finish_reason: FinishReason = FinishReason.STOP
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Numbers from the step's `info["metrics"]`, such as `action_is_valid`."""
    state_hash: str | None = None
    """The environment's hash of its state before the reply; None unless hashes are recorded."""
    details: str | None = None
    """A JSON object from the step's `info["details"]`, for people to read: what a grade is made of."""
    generate_s: float = field(default=0.0, repr=False, compare=False)
    """Seconds spent waiting for the reply. Not stored: 0 where the episode was read from a file."""
    env_s: float = field(default=0.0, repr=False, compare=False)
    """Seconds spent in the environment's `step`. Not stored."""
    follows: int | None = None
    """The turn whose tokens its prompt begins with, and all before them: an index into `Trajectory.turns`, -1
    where it begins a line of its own. None: the turn before it."""
    role: str = ""
    """Who replied, where an episode has several agents; `summary` for a summary of the line so far, `prefix`
    for a replayed turn."""


class Outcome(StrEnum):
    """How an episode ended."""

    TERMINATED = "terminated"
    """The environment ended the task, won or lost."""
    TRUNCATED = "truncated"
    """A limit on turns or `sequence_length` ended it. It is scored with the rewards so far."""
    FAILED = "failed"
    """Something broke; see `failure`. The episode is masked and has no score."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One finished episode."""

    trajectory_id: str
    """Unique in a run: the split and the id of the lease it was played under."""
    group_id: int
    task: Task
    seed: int
    outcome: Outcome
    success: bool
    """`info["success"]` of the last step; False when the episode failed."""
    turns: Sequence[Turn]
    """In the order in which they ended. They form a tree where one `follows` not the one before it."""
    tokens: TokenArrays | None
    """In the order of time: what was new in a turn's prompt, its reply, then the next turn. Each token stands
    once; `segments` puts them together as models compute them. None when the policy samples no tokens
    (scripted, oracle)."""
    failure: Failure | None = None
    final_observation: str = ""
    started_at: float
    """Unix time, seconds."""
    ended_at: float
    generate_s: float = 0.0
    """Seconds spent waiting for replies."""
    env_s: float = 0.0
    """Seconds spent in the environment's `reset` and `step`."""
    worker: str = ""
    """The worker process that played it."""
    shown: TagPrompts | None = field(default=None, repr=False, compare=False)
    """What the observations were shown with. Not stored: readers and players of episodes know it by tag."""
    seats: Mapping[str, Seat] = field(default_factory=dict)
    """Who played each role, among several players; empty where there is one."""
    tools: Sequence[Mapping[str, Any]] = field(default=(), repr=False, compare=False)
    """Functions that the policy's chat template was given, as OpenAI's API describes them."""
    task_name: str = ""
    """What the environment calls the task; empty where its tasks have no names."""

    def __reduce__(self) -> tuple[Callable[..., Trajectory], tuple[Any, ...]]:
        """Pickled as one nested tuple: object by object takes many times as long."""
        row = list(_TRAJECTORY.row(self))
        row[_TASK] = _TASKS.row(self.task)
        turns = [_TURN.row(turn) for turn in self.turns]
        row[_TURNS] = tuple(turns) if isinstance(self.turns, tuple) else turns
        row[_TOKENS] = None if self.tokens is None else _packed(self.tokens)
        return _unpickled, tuple(row)

    @property
    def label(self) -> str:
        """What messages call its task: its name, or tag, place in the split and seed."""
        task = self.task
        return self.task_name or f"{task.tag} {task.split} {task.index} (seed {self.seed})"

    @property
    def score(self) -> tuple[bool, float] | tuple[None, None]:
        """`success` and `total_reward`; nothing of an episode that failed."""
        return (None, None) if self.outcome is Outcome.FAILED else (self.success, self.total_reward)

    @property
    def total_reward(self) -> float:
        """Sum of the rewards of the turns that the policy played."""
        return float(sum(turn.reward for turn in self.turns if self.is_own(turn.role)))

    def is_own(self, role: str) -> bool:
        """Whether the policy plays this role."""
        return role != PREFIX and (role not in self.seats or self.seats[role].player == POLICY)

    @property
    def num_replayed(self) -> int:
        """Turns of an earlier episode that it begins with."""
        return sum(turn.role == PREFIX for turn in self.turns)

    def learns(self, segment: Segment) -> bool:
        """Whether a token of the policy is in one of its segments."""
        tokens = segment.tokens
        return self.is_own(segment.role) and tokens is not None and bool(tokens.response_mask.any())

    @property
    def own_roles(self) -> list[str]:
        """The roles that the policy plays, among several players."""
        return [role for role in self.seats if self.is_own(role)]

    @property
    def has_won(self) -> bool:
        """Whether a role that the policy plays won, among several players."""
        return any(self.result_of(role) is Result.WIN for role in self.own_roles)

    def result_of(self, role: str) -> Result:
        """How it went for one of `seats`."""
        best = max(seat.score for seat in self.seats.values())
        if self.seats[role].score < best:
            return Result.LOSS
        if [seat.score for seat in self.seats.values()].count(best) == 1:
            return Result.WIN
        return Result.UNFINISHED if self.outcome is Outcome.TRUNCATED else Result.DRAW

    def part(self, segment: Segment) -> Trajectory:
        """The episode as one of its lines: that segment's own turns and its tokens.

        With several players it succeeded where that line's role won.
        """
        seats, role = self.seats, segment.role
        return replace(
            self,
            turns=segment.turns[segment.num_given_turns :],
            tokens=segment.tokens,
            success=self.result_of(role) is Result.WIN if role in seats else self.success,
        )

    @property
    def oldest_version(self) -> int | None:
        """Oldest version of the tokens; None without sampled tokens."""
        return None if self.tokens is None else self.tokens.oldest_version

    @property
    def num_sampled_tokens(self) -> int:
        """Tokens the policy wrote."""
        return 0 if self.tokens is None else int(self.tokens.response_mask.sum())

    def segments(self) -> list[Segment]:
        """Its lines, each as one sequence of tokens; one where every turn continues the turn before it.

        Each sampled token has mask 1 in exactly one of them.
        """
        return segments_of(self.turns, self.tokens)

    def to_messages(self, segment: Segment | None = None) -> list[Message]:
        """The conversation as chat messages (`role`, `content`), from the system prompt to the last reply.

        Of an episode with several segments: that of `segment`, or of the one with the last reply.
        ConfigurationError when `shown` is None.
        """
        return self.line(segment or last_segment(self.segments())).messages

    def line(self, segment: Segment) -> Line:
        """A segment's conversation, and the tools that its first prompt shows. Raises as `to_messages`."""
        if self.shown is None:
            raise ConfigurationError(
                f"trajectory {self.trajectory_id} does not know the prompts of {self.task.tag!r}: read it by "
                "envsdk.Trajectories.from_folder, or set `shown` by dataclasses.replace(trajectory, "
                "shown=envsdk.contracts.prompts.TagPrompts(...))"
            )
        return self.shown.line(self.turns, segment.numbers, self.tools)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutBatch:
    """One batch of complete groups. Failed members are part of their group."""

    version: int
    """The trainer's version when the batch was taken."""
    groups: Sequence[Sequence[Trajectory]]
    ledger_counts: Mapping[str, int] = field(default_factory=dict)
    """Ended leases since the start of the run, by how they ended."""
    failures: Mapping[str, int] = field(default_factory=dict)
    """Failed episodes since the last batch, by `boundary/kind`."""
    failing_tags: Mapping[str, str] = field(default_factory=dict)
    """Tags whose episodes since the last batch have all failed, with the last failure."""
    filtered: Mapping[str, int] = field(default_factory=dict)
    """Groups dropped since the last batch, by group filter."""
    discarded_tokens: int = 0
    """Sampled tokens thrown away since the last batch."""
    dropped_tokens: Mapping[str, int] = field(default_factory=dict)
    """Those of them, by tag, that were to be trained: group filters and spare episodes are left out."""
    workers: Mapping[str, int] = field(default_factory=dict)
    """Where their number changes: `playing` now, `added` and `retired` since the start of the process."""
    depth: float | None = None
    """Batches that generation might run ahead, where the run finds that by itself."""
    sampling: Mapping[str, float] = field(default_factory=dict)
    """Metrics of the run's task sampler and prefixes, as of the end of this batch."""

    @property
    def trajectories(self) -> list[Trajectory]:
        """Trajectories of all groups, in order."""
        return [trajectory for group in self.groups for trajectory in group]


Record = TypeVar("Record")


class Rows(Generic[Record]):
    """To and from the fields of a dataclass with slots, for data that crosses processes by the thousand.

    Pickle looks up the fields of each frozen instance anew, and Ray's pickler calls Python for each object. A
    tuple of plain values takes a tenth of the time.

        rows = Rows(VersionSpan)
        rows.row(VersionSpan(version=3, start=0, end=2))    # (3, 0, 2)
        rows.make((3, 0, 2))                                # the span; __init__ is not called
    """

    def __init__(self, record: type[Record]) -> None:
        self.names = tuple(field.name for field in fields(record))  # type: ignore[arg-type]
        self.row = attrgetter(*self.names)
        self._record = record
        self._assign = [getattr(record, name).__set__ for name in self.names]

    def make(self, row: Iterable[Any]) -> Record:
        """The instance with these values, in the order of the fields."""
        made = self._record.__new__(self._record)
        for assign, value in zip(self._assign, row, strict=True):
            assign(made, value)
        return made


_TASKS, _TURN, _TRAJECTORY = Rows(Task), Rows(Turn), Rows(Trajectory)
_TASK, _TURNS, _TOKENS = map(_TRAJECTORY.names.index, ("task", "turns", "tokens"))
_COLUMNS = {"ids": np.int32, "response_mask": np.int8, "behavior_logprobs": np.float32, "versions": np.int32}


def _packed(tokens: TokenArrays) -> tuple[Any, ...]:
    columns = ((getattr(tokens, name), dtype) for name, dtype in _COLUMNS.items())
    packed = (column.astype(dtype, copy=False).tobytes() for column, dtype in columns)
    return *packed, tokens.experts, tokens.support


def _unpickled(*values: Any) -> Trajectory:
    row = list(values)
    row[_TASK] = _TASKS.make(row[_TASK])
    row[_TURNS] = type(row[_TURNS])(_TURN.make(turn) for turn in row[_TURNS])
    if row[_TOKENS] is not None:
        *packed, experts, support = row[_TOKENS]
        columns = zip(_COLUMNS.items(), packed, strict=True)
        arrays = {name: np.frombuffer(data, dtype) for (name, dtype), data in columns}
        row[_TOKENS] = TokenArrays(**arrays, experts=experts, support=support)
    return _TRAJECTORY.make(row)

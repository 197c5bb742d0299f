"""Episodes as data: task, token log, turn, trajectory.

    TokenLog:   append_prompt -> append_sampled -> append_prompt -> ... -> arrays()
    Trajectory: made once, by the env manager that played it; never changed afterwards

Token-in-token-out: what the engine sampled is what the trainer sees, so ids are only ever
appended and never re-tokenized.

    log = TokenLog()
    log.append_prompt([5, 6, 7])
    log.append_sampled([8, 9], [-0.1, -0.7], [VersionSpan(version=3, start=0, end=2)])
    log.arrays().response_mask      # array([0, 0, 0, 1, 1], dtype=int8)
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from envsdk.failures import Failure
from envsdk.seeds import stable_seed

NO_VERSION = -1
"""Version of a token that no policy sampled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What one episode is about."""

    tag: str
    """Name in `custom_envs`."""
    split: str
    """`train`, or the name of a held-out list such as `val`; splits share no seed by construction."""
    index: int
    """Position in the split, from 0."""

    def seed(self, run_seed: int) -> int:
        """Seed of the environment's `reset`, in [0, 2**31)."""
        return stable_seed(run_seed, self.split, self.tag, self.index)

    def policy_seed(self, run_seed: int, *, member: int, attempt: int) -> int:
        """Seed of the sampling of one member of the task's group, in [0, 2**31)."""
        return stable_seed("policy", run_seed, self.split, self.tag, self.index, member, attempt)


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
    """1 where the policy sampled the token, 0 where it was given."""
    behavior_logprobs: NDArray[np.float32]
    """Log-probability (nats) under the policy that sampled the token; 0 where the mask is 0."""
    versions: NDArray[np.int32]
    """Weight publication that sampled the token; `NO_VERSION` where the mask is 0."""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def oldest_version(self) -> int | None:
        """The oldest version among sampled tokens; None when nothing was sampled."""
        sampled = self.versions[self.response_mask == 1]
        return int(sampled.min()) if len(sampled) else None


_GIVEN, _SAMPLED = array("b", (0,)), array("b", (1,))
_NO_LOGPROB = array("f", (0.0,))
_UNVERSIONED = array("i", (NO_VERSION,))


class TokenLog:
    """Append-only log of one sequence, owned by one env manager."""

    __slots__ = ("_ids", "_logprobs", "_mask", "_versions", "oldest_version")

    def __init__(self) -> None:
        # Of 13 bytes a token, and copied as a block: a long log is read for every turn.
        self._ids = array("i")
        self._mask = array("b")
        self._logprobs = array("f")
        self._versions = array("i")
        self.oldest_version: int | None = None

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def ids(self) -> Sequence[int]:
        """Every token so far, 32 bits each: the next request's prompt. Read only."""
        return self._ids

    def append_prompt(self, ids: Sequence[int]) -> None:
        """Append tokens the policy did not write."""
        given = array("i", ids)
        count = len(given)
        self._ids += given
        self._mask += _GIVEN * count
        self._logprobs += _NO_LOGPROB * count
        self._versions += _UNVERSIONED * count

    def append_sampled(
        self, ids: Sequence[int], logprobs: Sequence[float], spans: Sequence[VersionSpan]
    ) -> None:
        """Append one reply. The spans must cover the reply without gap or overlap, else ValueError."""
        if len(logprobs) != len(ids):
            raise ValueError(f"{len(ids)} sampled tokens but {len(logprobs)} log-probabilities")
        sampled, given_logprobs, versions = array("i", ids), array("f", logprobs), array("i")
        oldest_version = self.oldest_version
        for span in spans:
            if span.start != len(versions) or span.end < span.start:
                raise ValueError(f"version spans do not cover the reply in order: {list(spans)}")
            versions += array("i", (span.version,)) * (span.end - span.start)
            if span.end > span.start and (oldest_version is None or span.version < oldest_version):
                oldest_version = span.version
        if len(versions) != len(sampled):
            raise ValueError(f"version spans cover {len(versions)} of {len(sampled)} sampled tokens")
        self.oldest_version = oldest_version
        self._ids += sampled
        self._mask += _SAMPLED * len(sampled)
        self._logprobs += given_logprobs
        self._versions += versions

    def arrays(self) -> TokenArrays:
        """A copy as arrays `[num_tokens]`."""
        return TokenArrays(
            ids=np.array(self._ids, np.int32),
            response_mask=np.array(self._mask, np.int8),
            behavior_logprobs=np.array(self._logprobs, np.float32),
            versions=np.array(self._versions, np.int32),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One observation, one reply, one `env.step`."""

    observation: str
    """What the environment showed, before the prompt template."""
    reply: str
    """The policy's text: the action."""
    reward: float
    response_start: int
    """Index of the reply's first token in the token log; 0 when the policy has no tokens."""
    response_end: int
    """One past the reply's last token; equal to the start when the policy has no tokens."""
    finish_reason: str = "stop"
    """Why the reply ended: `stop`, `length` or `abort`."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Numbers from the step's `info["metrics"]`, such as `action_is_valid`."""
    state_hash: str | None = None
    """The environment's hash of the state that was replied to; None where nobody asked for it."""


class Outcome(StrEnum):
    """How an episode ended."""

    TERMINATED = "terminated"
    """The environment said the task is over (won or lost)."""
    TRUNCATED = "truncated"
    """A limit ended it: turns, or `sequence_length`. Scored as it stands."""
    FAILED = "failed"
    """No outcome; see `failure`. Masked, never scored 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One finished episode."""

    trajectory_id: str
    """Id of the lease it was played under; unique in a run."""
    group_id: int
    task: Task
    seed: int
    outcome: Outcome
    success: bool
    """`info["success"]` of the last step; False when failed."""
    turns: Sequence[Turn]
    tokens: TokenArrays | None
    """None when the policy has no tokens (scripted, oracle)."""
    failure: Failure | None = None
    final_observation: str = ""
    started_at: float
    """Unix time, seconds."""
    ended_at: float
    generate_s: float = 0.0
    """Time spent waiting for replies, seconds."""
    env_s: float = 0.0
    """Time spent in `reset` and `step`, seconds."""
    worker: str = ""

    @property
    def total_reward(self) -> float:
        """Sum of the turns' rewards."""
        return float(sum(turn.reward for turn in self.turns))

    @property
    def oldest_version(self) -> int | None:
        """The oldest version among sampled tokens; None when nothing was sampled."""
        return None if self.tokens is None else self.tokens.oldest_version

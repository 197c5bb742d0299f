"""The episode that a manager plays now: its lines of tokens, its turns, and who plays which role."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any

from envsdk.algorithms.task_samplers.prefixes import Prefix
from envsdk.contracts.env import Info
from envsdk.contracts.failures import Boundary, Failure
from envsdk.contracts.players import POLICY, Seat
from envsdk.contracts.policy import Reply
from envsdk.contracts.prompts import Message, TagPrompts
from envsdk.contracts.trajectory import Outcome, Task, TokenLog, Trajectory, Turn
from envsdk.engines.tool_calls.reading import as_ended
from envsdk.managers.env_host import EpisodeFailed


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeOrder:
    """One episode to play, under one lease."""

    lease_id: int
    group_id: int
    member: int
    task: Task
    seed: int
    """For the environment's reset; the same for all members of a group."""
    policy_seed: int
    """For sampling; differs between members and attempts."""
    prefix: Prefix | None = None
    """What is replayed before the policy plays."""


@dataclass(slots=True)
class _Line:
    """One line of tokens of the running episode."""

    log: TokenLog = field(default_factory=TokenLog)
    start: int = 0
    """Its first turn."""
    last: int = -1
    """The turn that the next one follows; -1 where it begins the line."""
    num_copied: int = 0
    """How many of its tokens are in the episode's log; not counted where both are the same."""
    carried: Sequence[Message] = ()
    """Turns of earlier lines that it shows again."""


@dataclass(slots=True)
class Episode:
    """The running episode; becomes a Trajectory."""

    order: EpisodeOrder
    worker: str
    foreign: AbstractSet[str] = frozenset()
    """Opponents with another tokenizer than the policy's."""
    trajectory_id: str = field(init=False)
    log: TokenLog = field(default_factory=TokenLog)
    """Tokens of all turns, in the order of time."""
    line: _Line = field(init=False)
    """The present one. The first has the episode's log, unless there are several players."""
    role: str = ""
    """Whose turn it is, among several players."""
    seats: dict[str, Seat] = field(default_factory=dict)
    lines: dict[str, _Line] = field(default_factory=dict)
    """Line of each role."""
    turns: list[Turn] = field(default_factory=list)
    history: Sequence[Message] = ()
    """Messages before the first observation."""
    outcome: Outcome = Outcome.TRUNCATED
    failure: Failure | None = None
    success: bool = False
    final_observation: str = ""
    tools: Sequence[Mapping[str, Any]] = ()
    started_at: float = field(default_factory=time.time)
    generate_s: float = 0.0
    env_s: float = 0.0
    max_turns: int = 0
    """Turns before it is truncated, replayed ones included."""

    def __post_init__(self) -> None:
        self.trajectory_id = f"{self.order.task.split}-{self.order.lease_id}"
        self.line = _Line(log=self.log)

    def begin_line(self, shown: TagPrompts) -> None:
        """The next turn begins a line, whose prompt shows of the turns before what `shown` says."""
        start = len(self.turns)
        carried = shown.carried(self.turns, start, self.role)
        self.line = self.lines[self.role] = _Line(start=start, carried=shown.spoken(self.turns, carried))

    def turn_to(self, role: str) -> None:
        """The next turn is this role's, on the role's own line. EpisodeFailed when there is no such role."""
        self._check_roles({role})
        self.role, self.line = role, self.lines.setdefault(role, _Line())

    def _place(self, reply: Reply) -> tuple[int, int]:
        """Take over what is new in the line. Returns where the reply's tokens stand in `log`.

        What an opponent sampled is there as if it were a prompt: nobody learns it. Tokens of another
        tokenizer are left out.
        """
        line = self.line
        if line.log is self.log:
            return reply.response_start, reply.response_end
        if self.role and self.seats[self.role].player in self.foreign:
            return len(self.log), len(self.log)
        shift = len(self.log) - line.num_copied
        if self.role and self.seats[self.role].player != POLICY:
            self.log.append_prompt(line.log.ids[line.num_copied :])
        else:
            self.log.extend(line.log, line.num_copied)
        line.num_copied = len(line.log)
        return reply.response_start + shift, reply.response_end + shift

    def add_turn(
        self,
        observation: str,
        reply: Reply,
        reward: float,
        info: Info,
        state_hash: str | None,
        *,
        generate_s: float,
        env_s: float = 0.0,
        role: str = "",
    ) -> None:
        (start, end), line = self._place(reply), self.line
        details = info.get("details")
        # What the prompts began with, and what is not to be learned, is kept where readers of episodes look.
        added: dict[str, Any] = {"history": self.history} if self.history and not self.turns else {}
        if added := added | ({} if reply.learned else {"reply_learned": False}):
            details = json.dumps(json.loads(details or "{}") | added, ensure_ascii=False)
        self.turns.append(
            Turn(
                observation=observation,
                reply=reply.text,
                reward=reward,
                response_start=start,
                response_end=end,
                finish_reason=reply.finish_reason,
                metrics=as_ended(info.get("metrics") or {}, reply.finish_reason),
                state_hash=state_hash,
                details=details,
                generate_s=generate_s,
                env_s=env_s,
                follows=line.last if line.last != len(self.turns) - 1 else None,
                role=role,
            )
        )
        line.last = len(self.turns) - 1
        if self.seats:
            self._pay(info.get("rewards") or {})

    def _pay(self, rewards: Mapping[str, float]) -> None:
        """Count scores. A role that did not reply earns with its last turn; that of the other is there."""
        self._check_roles(rewards.keys())
        for role, paid in rewards.items():
            self.seats[role] = replace(self.seats[role], score=self.seats[role].score + paid)
            earned = self.lines[role].last if role in self.lines else -1
            if role != self.role and earned >= 0:
                self.turns[earned] = replace(self.turns[earned], reward=self.turns[earned].reward + paid)

    def _check_roles(self, named: AbstractSet[str]) -> None:
        if unknown := sorted(named - self.seats.keys()):
            message = f"info names the role {unknown[0]!r}, and info['roles'] of reset has {[*self.seats]}"
            raise EpisodeFailed(Failure(boundary=Boundary.ENVIRONMENT, kind="role_unknown", message=message))

    def fail(self, failure: Failure) -> None:
        self.outcome = Outcome.FAILED
        self.failure = failure
        self.success = False

    def finish(self, task_name: str) -> Trajectory:
        order = self.order
        trajectory = Trajectory(
            trajectory_id=self.trajectory_id,
            group_id=order.group_id,
            task=order.task,
            seed=order.seed,
            outcome=self.outcome,
            success=self.success,
            turns=self.turns,
            tokens=self.log.arrays() if len(self.log) else None,
            failure=self.failure,
            final_observation=self.final_observation,
            started_at=self.started_at,
            ended_at=time.time(),
            generate_s=self.generate_s,
            env_s=self.env_s,
            worker=self.worker,
            tools=self.tools,
            seats=self.seats,
            task_name=task_name,
        )
        has_won = bool(self.seats) and self.failure is None and trajectory.has_won
        return replace(trajectory, success=has_won) if self.seats else trajectory

"""Pure: an ended session as trajectories, in the format that training and data sets share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from envsdk.contracts.failures import Failure
from envsdk.contracts.trajectory import Outcome, Task, Trajectory, Turn
from envsdk.engines.endpoint.record import ConversationRecord, Line, RecordedReply
from envsdk.engines.tool_calls.reading import ATTEMPT, attempt_metric


@dataclass(frozen=True, slots=True, kw_only=True)
class Reward:
    """What came of a session's replies so far."""

    num_replies: int
    """Replies there were; the last of them is rewarded."""
    reward: float
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """What a session's episode was about and how it ended."""

    episode_id: str
    task: Task
    group_id: int
    seed: int
    rewards: Sequence[Reward] = ()
    outcome: Outcome = Outcome.TERMINATED
    success: bool = False
    failure: Failure | None = None
    final_observation: str = ""
    started_at: float
    """Unix time, seconds."""
    ended_at: float
    env_s: float = 0.0
    worker: str = ""


def trajectories(record: ConversationRecord, episode: Episode) -> list[Trajectory]:
    """One per line, the one with the latest reply first; none when nothing was sampled.

    A turn is one reply. Each line gets all rewards: a reward goes to the line's own last reply before it, or
    to its first one when the reward came before that.
    """
    return [
        _trajectory(line, episode, episode.episode_id if number == 0 else f"{episode.episode_id}/{number}")
        for number, line in enumerate(record.lines())
    ]


def without_replies(episode: Episode) -> Trajectory:
    """The episode of an agent that asked the policy nothing."""
    return _make(episode, episode.episode_id, turns=(), line=None)


def _trajectory(line: Line, episode: Episode, trajectory_id: str) -> Trajectory:
    rewards = dict.fromkeys((reply.number for reply in line.own), 0.0)
    metrics: dict[int, dict[str, float]] = {number: {} for number in rewards}
    for reward in episode.rewards:
        before = [number for number in rewards if number < reward.num_replies]
        number = max(before, default=line.own[0].number)
        rewards[number] += reward.reward
        metrics[number].update(reward.metrics)
    turns: list[Turn] = []
    position = 0
    for index, reply in enumerate(line.replies):
        start = position + len(reply.prompt_ids)
        position = start + len(reply.token_ids)
        if index >= line.num_shared:
            turns.append(_turn(reply, start, rewards[reply.number], metrics[reply.number]))
    return _make(episode, trajectory_id, turns=turns, line=line)


def _turn(reply: RecordedReply, start: int, reward: float, metrics: Mapping[str, float]) -> Turn:
    if reply.attempt is not None:  # it knows better than an environment that was given the text alone
        metrics = {name: value for name, value in metrics.items() if ATTEMPT not in name}
    return Turn(
        observation=reply.observation,
        reply=reply.text,
        reward=reward,
        response_start=start,
        response_end=start + len(reply.token_ids),
        finish_reason=reply.finish_reason,
        metrics={**metrics, **attempt_metric(reply.attempt)},
        state_hash=reply.state_hash,
    )


def _make(episode: Episode, trajectory_id: str, *, turns: Sequence[Turn], line: Line | None) -> Trajectory:
    return Trajectory(
        trajectory_id=trajectory_id,
        group_id=episode.group_id,
        task=episode.task,
        seed=episode.seed,
        outcome=episode.outcome,
        success=episode.success,
        turns=turns,
        tokens=None if line is None else line.token_log().arrays(),
        failure=episode.failure,
        final_observation=episode.final_observation,
        started_at=episode.started_at,
        ended_at=episode.ended_at,
        generate_s=sum(reply.generate_s for reply in line.own) if line is not None else 0.0,
        env_s=episode.env_s,
        worker=episode.worker,
    )

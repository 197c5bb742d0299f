"""A training run in virtual time: the real ledger and the real router, with drawn durations. Pure.

    episode: leased -> reset -> (reply -> step)* -> finished          canceled: the slot is free at once
    trainer: waiting -> collecting -> training -> updating weights -> waiting

What a run does besides (processes, messages, files) costs nothing here, unless the workload says how much.

    prediction = simulate(Simulated(ledger=..., num_slots=64, num_engines=2, ...), num_steps=20)
    prediction.step_s
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Literal, NamedTuple

from envsdk.contracts.failures import EnvsdkError
from envsdk.managers.ledger import RolloutLedger
from envsdk.managers.ledger_parts import depth_control
from envsdk.managers.ledger_types import (
    Cancel,
    Command,
    Discard,
    Grant,
    GroupDropped,
    GroupReady,
    Lease,
    LedgerConfig,
    LedgerCounts,
    Stalled,
)
from envsdk.view.planning.engines import Engine, LeastLoadedDispatch, Reply, RouterDispatch, speeds

MOST_ROUTED_ENGINES = 64
"""With more engines `LeastLoadedDispatch` takes the routers' place, unless the exact one is asked for."""


class RunStalls(EnvsdkError):
    """The simulated run would never deliver another batch."""


class TurnDraw(NamedTuple):
    """One turn of an episode."""

    reply_s: float
    """Seconds that the reply takes alone on an engine."""
    env_s: float
    """Seconds from the reply to the next request: the step, and what a turn costs besides."""
    num_tokens: int = 1
    """Tokens of the prompt and of the longest reply."""


@dataclass(frozen=True, slots=True)
class EpisodeDraw:
    """What an episode will be."""

    turns: Sequence[TurnDraw]
    """At least one."""
    reset_s: float = 0.0
    num_tokens: int = 0
    """That the trainer reads."""
    is_failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """What is simulated."""

    ledger: LedgerConfig
    num_slots: int
    """Environments that play at the same time."""
    num_engines: int
    draw: Callable[[Lease], EpisodeDraw]
    train_s: Callable[[int], float]
    """Seconds of a training step on a batch of so many tokens."""
    max_running: int = 128
    """Replies that one engine samples at once (`infer_batch_size`)."""
    slowdown: dict[int, float] = field(default_factory=dict)
    """How many times longer a reply takes, by the number of replies that its engine samples at once."""
    slots_per_worker: int = 64
    """Environments of one worker process, which has a router of its own."""
    update_s: float = 0.0
    """Seconds from the end of a training step until all engines sample under the new weights."""
    pause_s: float = 0.0
    """The last part of `update_s`, in which the engines stand still."""
    collect_s: float = 0.0
    """Seconds between a batch's completion and the start of its training step."""
    weight_update: Literal["continue", "restart", "finish"] = "continue"
    keeps_groups_together: bool = False
    """Whether the first replies of a group go to one engine."""
    is_rejected: Callable[[int], bool] | None = None
    """Whether the group filter drops the group of this task index."""
    routing: Literal["auto", "router", "least_loaded"] = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What the simulated run did after its warm-up."""

    step_s: float
    num_steps: int
    trainer_idle: float
    """Share of the time in which the trainer does not train, weight updates included."""
    engine_idle: float
    """Share of the engines' time in which they sample nothing."""
    places_used: float
    """Replies sampled at once, as a share of all engines' `max_running`."""
    slot_idle: float
    """Share of the environments' time without a lease."""
    staleness_mean: float
    staleness_max: int
    waste: float
    """Leases that ended without delivery, over all that ended."""
    tokens_per_step: float
    """That the trainer reads."""
    trajectories_per_step: int
    depth: float
    """Batches that generation runs ahead, on average."""
    is_exact: bool
    """Whether the real router chose the engines."""

    @property
    def trajectories_per_s(self) -> float:
        """Trained."""
        return self.trajectories_per_step / self.step_s

    @property
    def tokens_per_s(self) -> float:
        """Trained."""
        return self.tokens_per_step / self.step_s


@dataclass(slots=True, eq=False)
class _Play:
    """An episode on its slot."""

    lease: Lease
    slot_id: str
    episode: EpisodeDraw
    worker: int
    turn: int = 0
    reply: Reply | None = None
    oldest_version: int | None = None
    is_open: bool = True


@dataclass(slots=True)
class _Totals:
    """Sums since the start."""

    busy_s: float
    served_s: float
    leased_s: float
    trained_s: float
    counts: LedgerCounts


def simulate(run: Simulated, *, num_steps: int, warmup: int | None = None) -> Prediction:
    """Play until `warmup + num_steps` batches are trained. RunStalls when that never happens.

    Without `warmup`, as many steps as fill the pipeline: the bound on staleness and three more.
    """
    if warmup is None:
        bound = run.ledger.staleness_bound
        warmup = bound + 3 if run.ledger.max_wait_share is None else 6 * bound
    return _Simulation(run).run(num_steps, max(1, warmup))


class _Simulation:
    def __init__(self, run: Simulated) -> None:
        self._run = run
        self._ledger = RolloutLedger(run.ledger)
        self._control = depth_control(run.ledger, run.ledger.alpha)
        tables = speeds(run.slowdown, run.max_running)
        self._engines = [Engine(speeds=tables) for _ in range(run.num_engines)]
        self._wakes: list[float] = [math.inf] * run.num_engines
        """When an event of this engine is due; it may come early."""
        num_workers = math.ceil(run.num_slots / run.slots_per_worker)
        is_routed = run.routing == "router" or (
            run.routing == "auto" and run.num_engines <= MOST_ROUTED_ENGINES
        )
        self._dispatch = (
            RouterDispatch(num_workers, run.num_engines)
            if is_routed
            else LeastLoadedDispatch(run.num_engines)
        )
        self._is_exact = is_routed
        self._now = 0.0
        self._tie = count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._plays: dict[int, _Play] = {}
        self._finished: dict[int, _Play] = {}
        """Episodes by lease, each until it is delivered or discarded."""
        self._worker_of: dict[str, int] = {}
        self._is_waiting = True
        """Whether the trainer waits for a batch."""
        self._wait_began = 0.0
        self._is_draining = False
        self._leased_s = self._trained_s = self._leased_at = 0.0
        self._steps: list[float] = []
        """When each training step ended, its weight update included."""
        self._staleness: list[list[int]] = []
        self._tokens: list[int] = []
        self._depths: list[float] = []

    def run(self, num_steps: int, warmup: int) -> Prediction:
        ledger = self._run.ledger
        tags = [tag for tag, weight in ledger.tag_weights.items() for _ in range(weight)]
        slots = {f"slot{i}": tags[i * len(tags) // self._run.num_slots] for i in range(self._run.num_slots)}
        self._worker_of = {f"slot{i}": i // self._run.slots_per_worker for i in range(self._run.num_slots)}
        self._carry_out(self._ledger.add_slots(slots, 0.0))
        before: _Totals | None = None
        while len(self._steps) < warmup + num_steps:
            if before is None and len(self._steps) == warmup:
                before = self._totals()
            self._next_event()
        assert before is not None
        return self._prediction(before, warmup, num_steps)

    def _next_event(self) -> None:
        deadline = self._ledger.next_deadline()
        if deadline is not None and (not self._events or deadline <= self._events[0][0]):
            self._now = max(self._now, deadline)
            self._carry_out(self._ledger.tick(self._now))
            self._take_if_ready()
            return
        if not self._events:
            raise RunStalls("nothing is left to happen and no batch is ready")
        self._now, _, happen = heapq.heappop(self._events)
        happen()

    def _at(self, when: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._tie), happen))

    def _carry_out(self, commands: Iterable[Command]) -> None:
        freed: list[str] = []
        for command in commands:
            match command:
                case Grant(lease=lease, slot_id=slot_id):
                    self._begin(lease, slot_id)
                case Cancel(lease_id=lease_id, slot_id=slot_id):
                    self._cancel(lease_id)
                    freed.append(slot_id)
                case GroupReady(group_id=group_id, lease_ids=lease_ids):
                    self._filter(group_id, lease_ids)
                case Stalled(message=message):
                    raise RunStalls(message)
                case Discard(lease_id=lease_id):
                    self._finished.pop(lease_id, None)
                case GroupDropped():
                    pass
        if freed:
            self._carry_out(self._ledger.slots_idle(freed, self._now))

    def _begin(self, lease: Lease, slot_id: str) -> None:
        self._count_leased()
        episode = self._run.draw(lease)
        play = self._plays[lease.lease_id] = _Play(lease, slot_id, episode, self._worker_of[slot_id])
        if episode.reset_s:
            self._at(self._now + episode.reset_s, lambda: self._ask(play))
        else:
            self._ask(play)

    def _cancel(self, lease_id: int) -> None:
        self._count_leased()
        play = self._plays.pop(lease_id, None)
        if play is None:
            return
        play.is_open = False
        reply = play.reply
        if reply is not None:
            if reply.engine >= 0:
                engine = self._engines[reply.engine]
                engine.advance(self._now)
                engine.cancel(reply)
                self._wake(reply.engine)
            reply.is_open = False
            self._send(self._dispatch.forget(reply))
        self._dispatch.ended_session(str(lease_id))

    def _filter(self, group_id: int, lease_ids: tuple[int, ...]) -> None:
        rejects = self._run.is_rejected
        if rejects is not None and rejects(self._finished[lease_ids[0]].lease.task.index):
            self._carry_out(self._ledger.reject_group(group_id, self._now))

    def _ask(self, play: _Play) -> None:
        if not play.is_open:
            return
        lease, turn = play.lease, play.episode.turns[play.turn]
        is_pinned = self._run.keeps_groups_together and play.turn == 0
        play.reply = Reply(
            owner=play,
            session=str(lease.lease_id),
            group=lease.group_id if is_pinned else None,
            work=turn.reply_s,
            num_tokens=turn.num_tokens,
            worker=play.worker,
        )
        self._send(self._dispatch.submit(play.reply))

    def _send(self, sent: Iterable[tuple[Reply, int]]) -> None:
        for reply, index in sent:
            reply.engine = index
            engine = self._engines[index]
            engine.advance(self._now)
            engine.submit(reply)
            self._wake(index)

    def _wake(self, index: int) -> None:
        """See that this engine has an event no later than its next end."""
        end = self._engines[index].next_end()
        if end is not None and end < self._wakes[index]:
            self._wakes[index] = end
            self._at(end, lambda: self._look_at(index, end))

    def _look_at(self, index: int, due: float) -> None:
        if self._wakes[index] != due:
            return  # an earlier event took its place
        self._wakes[index] = math.inf
        engine = self._engines[index]
        engine.advance(self._now)
        for reply in engine.take_ended():
            play = reply.owner
            assert isinstance(play, _Play)
            play.reply = None
            oldest = play.oldest_version
            play.oldest_version = reply.version if oldest is None else min(oldest, reply.version)
            self._at(self._now + play.episode.turns[play.turn].env_s, partial(self._stepped, play))
            self._send(self._dispatch.answered(reply, engine.num_queued))
        self._wake(index)
        self._publish_if_drained()

    def _stepped(self, play: _Play) -> None:
        if not play.is_open:
            return
        play.turn += 1
        if play.turn < len(play.episode.turns):
            self._ask(play)
            return
        self._count_leased()
        lease_id = play.lease.lease_id
        play.is_open = False
        del self._plays[lease_id]
        self._dispatch.ended_session(str(lease_id))
        self._finished[lease_id] = play
        self._carry_out(
            self._ledger.finished(
                lease_id, self._now, oldest_version=play.oldest_version, failed=play.episode.is_failed
            )
        )
        self._take_if_ready()

    def _take_if_ready(self) -> None:
        if not self._is_waiting:
            return
        ledger, run = self._ledger, self._run
        had_idle_slot = ledger.has_idle_slot
        batch, commands = ledger.take(run.ledger.batch_size, self._now)
        if batch is not None:
            self._is_waiting = False
            plays = [
                self._finished.pop(lease_id) for lease_id in batch.lease_ids if lease_id in self._finished
            ]
            oldest = [play.oldest_version for play in plays if play.oldest_version is not None]
            self._staleness.append([batch.version - version for version in oldest])
            self._tokens.append(sum(play.episode.num_tokens for play in plays))
            self._depths.append(ledger.alpha)
            train_s = run.train_s(self._tokens[-1])
            self._trained_s += train_s
            self._at(self._now + run.collect_s + train_s, self._trained)
        self._carry_out(commands)
        if batch is not None and self._control is not None:
            waited_s = self._now - self._wait_began
            lasted_s = waited_s + run.collect_s + train_s + run.update_s
            alpha = self._control.observe(waited_s=waited_s, lasted_s=lasted_s, had_idle_slot=had_idle_slot)
            if alpha is not None:
                self._carry_out(ledger.set_depth(alpha, self._now))

    def _trained(self) -> None:
        if self._run.weight_update == "finish":
            for engine in self._engines:
                engine.is_held = True
            self._is_draining = True
            self._publish_if_drained()
        else:
            self._at(self._now + self._run.update_s - self._run.pause_s, self._freeze)

    def _publish_if_drained(self) -> None:
        if self._is_draining and not any(engine.num_running for engine in self._engines):
            self._is_draining = False
            self._at(self._now + self._run.update_s, self._publish)

    def _freeze(self) -> None:
        if self._run.pause_s:
            for engine in self._engines:
                engine.advance(self._now)
                engine.is_frozen = engine.is_held = True
        self._at(self._now + self._run.pause_s, self._publish)

    def _publish(self) -> None:
        version = self._ledger.version + 1
        for index, engine in enumerate(self._engines):
            engine.advance(self._now)
            engine.is_frozen = engine.is_held = False
            engine.version = version
            if self._run.weight_update == "restart":
                engine.restart()
            engine.fill()
            self._wake(index)
        self._steps.append(self._now)
        self._wait_began = self._now
        self._is_waiting = True
        self._carry_out(self._ledger.publish(version, self._now))
        self._take_if_ready()

    def _count_leased(self) -> None:
        self._leased_s += len(self._plays) * (self._now - self._leased_at)
        self._leased_at = self._now

    def _totals(self) -> _Totals:
        self._count_leased()
        for engine in self._engines:
            engine.advance(self._now)
        # A training step that has begun belongs to what follows.
        under_way_s = 0.0 if self._is_waiting else self._run.train_s(self._tokens[-1])
        return _Totals(
            busy_s=math.fsum(engine.busy_s for engine in self._engines),
            served_s=math.fsum(engine.served_s for engine in self._engines),
            leased_s=self._leased_s,
            trained_s=self._trained_s - under_way_s,
            counts=self._ledger.counts,
        )

    def _prediction(self, before: _Totals, warmup: int, num_steps: int) -> Prediction:
        run, after = self._run, self._totals()
        elapsed_s = self._steps[warmup + num_steps - 1] - self._steps[warmup - 1]
        if elapsed_s <= 0:
            raise RunStalls("the steps take no time at all: nothing in the workload takes any")
        engines_s = elapsed_s * run.num_engines
        ended = _ended(after.counts) - _ended(before.counts)
        delivered = after.counts.delivered - before.counts.delivered
        staleness = [age for ages in self._staleness[warmup : warmup + num_steps] for age in ages]
        return Prediction(
            step_s=elapsed_s / num_steps,
            num_steps=num_steps,
            trainer_idle=_share(1 - (after.trained_s - before.trained_s) / elapsed_s),
            engine_idle=_share(1 - (after.busy_s - before.busy_s) / engines_s),
            places_used=_share((after.served_s - before.served_s) / engines_s / run.max_running),
            slot_idle=_share(1 - (after.leased_s - before.leased_s) / elapsed_s / run.num_slots),
            staleness_mean=sum(staleness) / max(1, len(staleness)),
            staleness_max=max(staleness, default=0),
            waste=_share(1 - delivered / max(1, ended)),
            tokens_per_step=sum(self._tokens[warmup : warmup + num_steps]) / num_steps,
            trajectories_per_step=run.ledger.batch_size,
            depth=sum(self._depths[warmup : warmup + num_steps]) / num_steps,
            is_exact=self._is_exact,
        )


def _ended(counts: LedgerCounts) -> int:
    return counts.started - counts.open


def _share(value: float) -> float:
    """Without what rounding adds."""
    return min(1.0, max(0.0, value))

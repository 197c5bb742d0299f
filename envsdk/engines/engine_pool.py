"""Which engines of a run serve, and what is done about one that does not. Pure: events in, commands out.

    resting --the queue is long--> starting
    starting --started--> waiting --newest weights--> serving --slow, or not needed--> draining
        |                    |                           |                                |
        +------------ lost, silent or stalled for too long ----------> down               | its turns ended
                                                                        |                 |
            starting <--back-off over-- down;  lost too often: gone     slow: down;  not needed: resting

An engine joins the workers when it has the weights that all the others have. The trainer can give them
while it is at a published version; while it learns, an engine waits for the next publication. A draining
engine gets new weights as long as turns run on it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from envsdk.engines.engine import EngineHealth
from envsdk.engines.engine_pace import Demand, DemandConfig, Pace, num_open, slow_engines


class EngineState(StrEnum):
    STARTING = "starting"
    WAITING = "waiting"
    """Without the newest weights; no worker knows of it."""
    SERVING = "serving"
    DRAINING = "draining"
    """Its turns end there, and no worker sends it another."""
    DOWN = "down"
    """Until its back-off is over."""
    GONE = "gone"
    """For the rest of the run."""
    RESTING = "resting"
    """Without a process, until the load asks for it."""


_WITH_PROCESS = {EngineState.STARTING, EngineState.WAITING, EngineState.SERVING, EngineState.DRAINING}
_COMING = {EngineState.STARTING, EngineState.WAITING, EngineState.DOWN}
MOST_DRAINED = 0.7
"""Share of the time until its node goes away that an engine drains; the rest is for starting elsewhere."""
DRAINED_S = 2.0
"""A draining engine without requests for so long has ended its turns: what was on its way has come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolConfig:
    max_restarts: int = 3
    """In a row: an engine that serves for `steady_s` begins to count anew."""
    silence_s: float = 60.0
    """An engine that is not heard of for so long hangs."""
    start_s: float = 1800.0
    """The same while it starts."""
    steady_s: float = 300.0
    first_backoff_s: float = 1.0
    """Doubles with each loss in a row."""
    max_backoff_s: float = 30.0
    stall_s: float = 300.0
    """An engine that has requests and computes nothing for so long hangs, even if it says that it is well."""
    slow_ratio: float = 10.0
    """How much slower than the others an engine must be to be started again; 0: none is."""
    slow_s: float = 120.0
    """For so long. Doubles with each restart of an engine for being slow, which may be its place's fault."""
    stretch_s: float = 20.0
    """Engines are compared over such stretches of time."""
    drain_s: float = 120.0
    """The turns of a draining engine may take so long; what is left then moves to another."""
    min_engines: int | None = None
    """Kept without load; None: as many as the run begins with."""
    demand: DemandConfig = field(default_factory=DemandConfig)


@dataclass(frozen=True, slots=True)
class EngineIncarnation:
    """One incarnation of an engine."""

    name: str
    number: int
    """Number of the incarnation, from 0; the workers know the first incarnations from the beginning."""


@dataclass(frozen=True, slots=True)
class _Command:
    incarnation: EngineIncarnation


class Start(_Command):
    """Start this incarnation's process; `started` or `lost` follows."""


@dataclass(frozen=True, slots=True)
class End(_Command):
    """End what may be left of it."""

    is_well: bool = False
    """Let it close in order."""


class Leave(_Command):
    """Tell the workers to send it nothing more; what runs there may end there. `End` follows."""


class Update(_Command):
    """Give it the trainer's weights when nobody else does; `given` follows."""


class Join(_Command):
    """Tell the workers of it."""


PoolCommand = Start | End | Update | Join | Leave


@dataclass(slots=True)
class _Engine:
    incarnation: EngineIncarnation
    state: EngineState = EngineState.STARTING
    silence_s: float = 0.0
    served_s: float = 0.0
    backoff_s: float = 0.0
    num_losses: int = 0
    """In a row."""
    last_loss: str = ""
    pace: Pace = field(default_factory=Pace)
    health: EngineHealth | None = None
    """Newest look; None while weights move, and before the first."""
    seen_at_s: float = 0.0
    slow_s: float = 0.0
    """In a row."""
    num_slow_restarts: int = 0
    drained_s: float = 0.0
    """Since it began to drain."""
    empty_s: float = 0.0
    """In a row, while draining."""
    drain_limit_s: float = math.inf
    """Its turns may take so long."""
    returns: bool = False
    """When drained, it is started again."""

    def next_life(self, now_s: float) -> _Engine:
        """Its next incarnation, which is starting."""
        return _Engine(
            EngineIncarnation(self.incarnation.name, self.incarnation.number + 1),
            num_losses=self.num_losses,
            last_loss=self.last_loss,
            num_slow_restarts=self.num_slow_restarts,
            seen_at_s=now_s,
        )

    @property
    def is_known(self) -> bool:
        """Whether the workers know this incarnation: the first ones from the beginning."""
        is_first = self.state is EngineState.WAITING and self.incarnation.number == 0
        return is_first or self.state in {EngineState.SERVING, EngineState.DRAINING}

    def serve(self) -> list[PoolCommand]:
        if self.state is not EngineState.WAITING:
            return []
        self.state = EngineState.SERVING
        return [Join(self.incarnation)] if self.incarnation.number else []

    def drain(self, *, returns: bool) -> list[PoolCommand]:
        self.state = EngineState.DRAINING
        self.returns = returns
        return [Leave(self.incarnation)]

    def end_drained(self, *, is_well: bool) -> list[PoolCommand]:
        self.state = EngineState.DOWN if self.returns else EngineState.RESTING
        self.backoff_s = 0.0
        return [End(self.incarnation, is_well)]


class EnginePool:
    """Owner: the shell that has the engines' processes. Events of an ended incarnation are ignored.

    pool = EnginePool(["engine-0", "engine-1"])     # their processes are starting
    commands = pool.started(incarnation)
    commands = pool.published(0, pool.incarnations)        # both serve
    commands = pool.lost(incarnation, "killed")            # [End(incarnation)]
    commands = pool.tick(1.0)                       # [Start(EngineIncarnation("engine-0", 1))]
    """

    def __init__(
        self, names: Sequence[str], config: PoolConfig | None = None, *, num_started: int | None = None
    ) -> None:
        """All engines there may ever be. The first `num_started`, or all, are starting; the others rest."""
        self._config = config or PoolConfig()
        self._engines = {name: _Engine(EngineIncarnation(name, 0)) for name in names}
        for name in names[num_started:] if num_started is not None else ():
            self._engines[name].state = EngineState.RESTING
        self._min_engines = self._config.min_engines or len(self._in({EngineState.STARTING}))
        self._version: int | None = None
        self._demand = Demand(self._config.demand)
        self._now_s = 0.0
        self._stretch_s = 0.0
        self.num_restarts = 0
        """Restarts of all engines, since the start of the run."""
        self._news: list[str] = []

    def state(self, name: str) -> EngineState:
        return self._engines[name].state

    @property
    def incarnations(self) -> list[EngineIncarnation]:
        """Incarnations of the engines that have started: those a publication is for."""
        started = _WITH_PROCESS - {EngineState.STARTING}
        return [engine.incarnation for engine in self._engines.values() if engine.state in started]

    @property
    def has_queue(self) -> bool:
        """At the last look at each engine that serves, requests waited at all of them."""
        serving = self._in({EngineState.SERVING})
        return bool(serving) and all(each.health and each.health.num_queued for each in serving)

    @property
    def num_serving(self) -> int:
        return len(self._in({EngineState.SERVING}))

    @property
    def num_engines(self) -> int:
        """Those that serve, or will unless they are lost for good."""
        return len(self._in({EngineState.SERVING, *_COMING})) + sum(
            engine.returns for engine in self._in({EngineState.DRAINING})
        )

    @property
    def failure(self) -> str:
        """Why no engine will ever serve again; empty while one may."""
        if any(engine.state is not EngineState.GONE for engine in self._engines.values()):
            return ""
        losses = "; ".join(
            f"{name} was lost {_times(engine.num_losses)}, last: {engine.last_loss}"
            for name, engine in self._engines.items()
        )
        return f"no engine is left, and actor_infer.max_engine_restarts={self._config.max_restarts}: {losses}"

    def take_news(self) -> list[str]:
        """What users should know of since the last call: engines lost or restarted, and why; a line each."""
        news, self._news = self._news, []
        return news

    def started(self, incarnation: EngineIncarnation) -> list[PoolCommand]:
        engine = self._living(incarnation)
        if engine is None or engine.state is not EngineState.STARTING:
            return []
        engine.state = EngineState.WAITING
        engine.silence_s = 0.0
        return self._updates()

    def seen(self, incarnation: EngineIncarnation, health: EngineHealth) -> list[PoolCommand]:
        """Its counters now, while it samples as it can."""
        engine = self._living(incarnation)
        if engine is None:
            return []
        engine.silence_s = 0.0
        elapsed_s, engine.seen_at_s = self._now_s - engine.seen_at_s, self._now_s
        engine.health = health
        engine.pace.look(health, elapsed_s)
        if engine.pace.stalled_s > self._config.stall_s:
            return self.lost(
                incarnation, f"it had requests and computed nothing in {self._config.stall_s:g} s"
            )
        if engine.state is EngineState.DRAINING:
            engine.empty_s = 0.0 if num_open(health) else engine.empty_s + elapsed_s
            if engine.empty_s >= DRAINED_S:
                return engine.end_drained(is_well=True)
        return []

    def heard(self, incarnation: EngineIncarnation) -> None:
        """It is well, and paused on purpose: its counters say nothing."""
        if (engine := self._living(incarnation)) is not None:
            engine.silence_s = 0.0
            engine.seen_at_s = self._now_s
            engine.health = None
            engine.pace.skip()

    def lost(self, incarnation: EngineIncarnation, why: str) -> list[PoolCommand]:
        """Its process ended, it says that it is broken, or the weights could not be given to it."""
        engine = self._living(incarnation)
        if engine is None:
            return []
        if engine.state is EngineState.DRAINING and not engine.returns:
            return engine.end_drained(is_well=False)
        engine.num_losses += 1
        engine.last_loss = why
        engine.served_s = 0.0
        if engine.num_losses > self._config.max_restarts:
            engine.state = EngineState.GONE
            then = f"it stays away: actor_infer.max_engine_restarts={self._config.max_restarts}"
        else:
            engine.state = EngineState.DOWN
            then = "it is started again"
            doubled = self._config.first_backoff_s * 2.0 ** min(engine.num_losses - 1, 32)
            engine.backoff_s = min(doubled, self._config.max_backoff_s)
        self._news.append(f"{incarnation.name} was lost, {then}; the reason: {' '.join(why.split())}")
        return [End(incarnation)]

    def leave(self, incarnations: Iterable[EngineIncarnation], grace_s: float) -> list[PoolCommand]:
        """Their node goes away in so many seconds: their turns may end, and they are started elsewhere."""
        commands: list[PoolCommand] = []
        for incarnation in incarnations:
            engine = self._living(incarnation)
            if engine is None:
                continue
            if engine.state is EngineState.SERVING:
                commands += engine.drain(returns=True)
                self._news.append(
                    f"{incarnation.name} leaves its node, which goes away in {grace_s:.0f} s, and is started "
                    "elsewhere"
                )
            elif engine.state is not EngineState.DRAINING:
                engine.returns = True
                commands += engine.end_drained(is_well=False)
            engine.drain_limit_s = min(engine.drain_limit_s, engine.drained_s + MOST_DRAINED * grace_s)
        return commands

    def weights_move(self) -> None:
        """The trainer learns: it has no version's weights until the next `published`."""
        self._version = None

    def published(self, version: int, incarnations: Iterable[EngineIncarnation]) -> list[PoolCommand]:
        """`incarnations` have `version`, and so has the trainer.

        An engine that workers know and that was left out is lost: they would send it requests.
        """
        self._version = version
        given = set(incarnations)
        commands: list[PoolCommand] = []
        for engine in self._engines.values():
            if engine.incarnation in given:
                commands += engine.serve()
            elif engine.is_known:
                commands += self.lost(engine.incarnation, f"it did not get the weights of version {version}")
        return commands + self._updates()

    def version_for(self, incarnation: EngineIncarnation) -> int | None:
        """What `Update` is to give: None when it is not, or not now."""
        engine = self._living(incarnation)
        return self._version if engine is not None and engine.state is EngineState.WAITING else None

    def given(self, incarnation: EngineIncarnation, version: int) -> list[PoolCommand]:
        """It has these weights; it serves when there are none newer."""
        engine = self._living(incarnation)
        if engine is None or engine.state is not EngineState.WAITING or self._version is None:
            return []
        return engine.serve() if version == self._version else [Update(incarnation)]

    def tick(self, elapsed_s: float) -> list[PoolCommand]:
        """So much time passed in which engines were listened to."""
        self._now_s += elapsed_s
        commands: list[PoolCommand] = []
        for engine in self._engines.values():
            if engine.state is EngineState.DOWN:
                engine.backoff_s -= elapsed_s
                if engine.backoff_s <= 0:
                    self.num_restarts += 1
                    commands.append(self._start(engine))
            elif engine.state in _WITH_PROCESS:
                commands += self._grow_older(engine, elapsed_s)
        return commands + self._drain_slow(elapsed_s) + self._follow_demand(elapsed_s)

    def _grow_older(self, engine: _Engine, elapsed_s: float) -> list[PoolCommand]:
        engine.silence_s += elapsed_s
        if engine.state is EngineState.SERVING:
            engine.served_s += elapsed_s
            if engine.served_s >= self._config.steady_s:
                engine.num_losses = 0
        if engine.state is EngineState.DRAINING:
            engine.drained_s += elapsed_s
            if engine.drained_s > min(engine.drain_limit_s, self._config.drain_s):
                return engine.end_drained(is_well=False)
        starts = engine.state is EngineState.STARTING
        limit_s = self._config.start_s if starts else self._config.silence_s
        if engine.silence_s <= limit_s:
            return []
        return self.lost(
            engine.incarnation,
            f"{'it did not start' if starts else 'no sign of life'} in {limit_s:g} s",
        )

    def _drain_slow(self, elapsed_s: float) -> list[PoolCommand]:
        """At the end of a stretch, the engine that has been slow for longest, when all others serve."""
        self._stretch_s += elapsed_s
        if self._stretch_s < self._config.stretch_s:
            return []
        stretch_s, self._stretch_s = self._stretch_s, 0.0
        serving = {engine.incarnation.name: engine for engine in self._in({EngineState.SERVING})}
        rates = {name: engine.pace.end_stretch() for name, engine in serving.items()}
        slow = slow_engines(rates, self._config.slow_ratio)
        for name, engine in serving.items():
            engine.slow_s = engine.slow_s + stretch_s if name in slow else 0.0
        first_s = self._config.slow_s
        due = [
            engine
            for engine in serving.values()
            if engine.slow_s >= first_s * 2.0 ** min(engine.num_slow_restarts, 32)
        ]
        if not due or self._in({EngineState.DRAINING, *_COMING}):
            return []
        slowest = max(due, key=lambda engine: engine.slow_s)
        slowest.num_slow_restarts += 1
        self._news.append(
            f"{slowest.incarnation.name} was over {self._config.slow_ratio:g} times as slow as the others "
            f"for {slowest.slow_s:g} s; it is started again"
        )
        return slowest.drain(returns=True)

    def _follow_demand(self, elapsed_s: float) -> list[PoolCommand]:
        resting = self._in({EngineState.RESTING})
        num_missing = self._min_engines - self.num_engines
        if resting and num_missing > 0:
            return [self._start(engine) for engine in resting[:num_missing]]
        if self._in({EngineState.DRAINING, *_COMING}):
            self._demand.begin_again()
            return []
        serving = self._in({EngineState.SERVING})
        looks = [engine.health for engine in serving if engine.health is not None]
        if len(looks) < len(serving):
            return []
        self._demand.look(looks, elapsed_s)
        if self._demand.wants_more and resting:
            self._demand.begin_again()
            return [self._start(resting[0])]
        if self._demand.wants_fewer and len(serving) > self._min_engines:
            self._demand.begin_again()
            return serving[-1].drain(returns=False)
        return []

    def _start(self, engine: _Engine) -> PoolCommand:
        """Begin its next incarnation."""
        begun = self._engines[engine.incarnation.name] = engine.next_life(self._now_s)
        return Start(begun.incarnation)

    def _updates(self) -> list[PoolCommand]:
        if self._version is None:
            return []
        return [Update(e.incarnation) for e in self._engines.values() if e.state is EngineState.WAITING]

    def _in(self, states: set[EngineState]) -> list[_Engine]:
        return [engine for engine in self._engines.values() if engine.state in states]

    def _living(self, incarnation: EngineIncarnation) -> _Engine | None:
        engine = self._engines[incarnation.name]
        return engine if engine.incarnation == incarnation and engine.state in _WITH_PROCESS else None


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times in a row"

"""Which engines of a run serve, and what is done about one that does not. Pure: events in, commands out.

    starting --started--> waiting --newest weights--> serving
        |                    |                           |
        +------- lost, or silent for too long -----------+--> down --back-off over--> starting
                                                                \\-> lost too often: gone

An engine joins the workers when it has the weights that all the others have. The trainer can give them
while it is at a published version; while it learns, an engine waits for the next publication.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum


class EngineState(StrEnum):
    STARTING = "starting"
    WAITING = "waiting"
    """Without the newest weights; no worker knows of it."""
    SERVING = "serving"
    DOWN = "down"
    """Until its back-off is over."""
    GONE = "gone"
    """For the rest of the run."""


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


@dataclass(frozen=True, slots=True)
class Life:
    """One incarnation of an engine."""

    name: str
    number: int
    """From 0; the workers know the first lives from the beginning."""


@dataclass(frozen=True, slots=True)
class Start:
    """Start this life's process; `started` or `lost` follows."""

    life: Life


@dataclass(frozen=True, slots=True)
class End:
    """End what may be left of it."""

    life: Life


@dataclass(frozen=True, slots=True)
class Update:
    """Give it the trainer's weights when nobody else does; `given` follows."""

    life: Life


@dataclass(frozen=True, slots=True)
class Join:
    """Tell the workers of it."""

    life: Life


PoolCommand = Start | End | Update | Join


@dataclass(slots=True)
class _Engine:
    life: Life
    state: EngineState = EngineState.STARTING
    silence_s: float = 0.0
    served_s: float = 0.0
    backoff_s: float = 0.0
    num_losses: int = 0
    """In a row."""
    last_loss: str = ""


class EnginePool:
    """Owner: the shell that has the engines' processes. Events of a life that is over count for nothing.

    pool = EnginePool(["engine-0", "engine-1"])     # their processes are starting
    commands = pool.started(life)
    commands = pool.published(0, pool.lives)        # both serve
    commands = pool.lost(life, "killed")            # [End(life)]
    commands = pool.tick(1.0)                       # [Start(Life("engine-0", 1))]
    """

    def __init__(self, names: Sequence[str], config: PoolConfig | None = None) -> None:
        self._config = config or PoolConfig()
        self._engines = {name: _Engine(Life(name, 0)) for name in names}
        self._version: int | None = None
        self.num_restarts = 0
        """Of all engines, since the start of the run."""

    def state(self, name: str) -> EngineState:
        return self._engines[name].state

    @property
    def lives(self) -> list[Life]:
        """Of the engines that have started: those a publication is for."""
        started = {EngineState.WAITING, EngineState.SERVING}
        return [engine.life for engine in self._engines.values() if engine.state in started]

    @property
    def num_serving(self) -> int:
        return sum(engine.state is EngineState.SERVING for engine in self._engines.values())

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

    # What engines do

    def started(self, life: Life) -> list[PoolCommand]:
        engine = self._living(life)
        if engine is None or engine.state is not EngineState.STARTING:
            return []
        engine.state = EngineState.WAITING
        engine.silence_s = 0.0
        return self._updates()

    def heard(self, life: Life) -> None:
        """It says that it is well."""
        if (engine := self._living(life)) is not None:
            engine.silence_s = 0.0

    def lost(self, life: Life, why: str) -> list[PoolCommand]:
        """Its process ended, it says that it is broken, or the weights could not be given to it."""
        engine = self._living(life)
        if engine is None:
            return []
        engine.num_losses += 1
        engine.last_loss = why
        engine.served_s = 0.0
        if engine.num_losses > self._config.max_restarts:
            engine.state = EngineState.GONE
        else:
            engine.state = EngineState.DOWN
            doubled = self._config.first_backoff_s * 2.0 ** min(engine.num_losses - 1, 32)
            engine.backoff_s = min(doubled, self._config.max_backoff_s)
        return [End(life)]

    # What the trainer does

    def weights_move(self) -> None:
        """The trainer learns: it has no version's weights until the next `published`."""
        self._version = None

    def published(self, version: int, lives: Iterable[Life]) -> list[PoolCommand]:
        """`lives` have `version`, and so has the trainer.

        An engine that workers know and that was left out is lost: they would send it requests.
        """
        self._version = version
        given = set(lives)
        commands: list[PoolCommand] = []
        for engine in self._engines.values():
            if engine.life in given:
                commands += self._serve(engine)
            elif engine.state is EngineState.SERVING or self._waits_in_its_first_life(engine):
                commands += self.lost(engine.life, f"it did not get the weights of version {version}")
        return commands + self._updates()

    def version_for(self, life: Life) -> int | None:
        """What `Update` is to give: None when it is not, or not now."""
        engine = self._living(life)
        return self._version if engine is not None and engine.state is EngineState.WAITING else None

    def given(self, life: Life, version: int) -> list[PoolCommand]:
        """It has these weights; it serves when there are none newer."""
        engine = self._living(life)
        if engine is None or engine.state is not EngineState.WAITING or self._version is None:
            return []
        return self._serve(engine) if version == self._version else [Update(life)]

    # Time

    def tick(self, elapsed_s: float) -> list[PoolCommand]:
        """So much time passed in which engines were listened to."""
        commands: list[PoolCommand] = []
        for engine in self._engines.values():
            if engine.state is EngineState.DOWN:
                engine.backoff_s -= elapsed_s
                if engine.backoff_s <= 0:
                    commands.append(self._start_again(engine))
            elif engine.state is not EngineState.GONE:
                commands += self._grow_older(engine, elapsed_s)
        return commands

    def _grow_older(self, engine: _Engine, elapsed_s: float) -> list[PoolCommand]:
        engine.silence_s += elapsed_s
        if engine.state is EngineState.SERVING:
            engine.served_s += elapsed_s
            if engine.served_s >= self._config.steady_s:
                engine.num_losses = 0
        starts = engine.state is EngineState.STARTING
        limit_s = self._config.start_s if starts else self._config.silence_s
        if engine.silence_s <= limit_s:
            return []
        return self.lost(
            engine.life, f"{'it did not start' if starts else 'no sign of life'} in {limit_s:g} s"
        )

    def _start_again(self, engine: _Engine) -> PoolCommand:
        engine.life = Life(engine.life.name, engine.life.number + 1)
        engine.state = EngineState.STARTING
        engine.silence_s = 0.0
        self.num_restarts += 1
        return Start(engine.life)

    def _serve(self, engine: _Engine) -> list[PoolCommand]:
        if engine.state is not EngineState.WAITING:
            return []
        engine.state = EngineState.SERVING
        return [Join(engine.life)] if engine.life.number else []

    def _waits_in_its_first_life(self, engine: _Engine) -> bool:
        return engine.state is EngineState.WAITING and engine.life.number == 0

    def _updates(self) -> list[PoolCommand]:
        if self._version is None:
            return []
        return [Update(e.life) for e in self._engines.values() if e.state is EngineState.WAITING]

    def _living(self, life: Life) -> _Engine | None:
        engine = self._engines[life.name]
        over = {EngineState.DOWN, EngineState.GONE}
        return engine if engine.life == life and engine.state not in over else None


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times in a row"

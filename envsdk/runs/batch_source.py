"""BatchSource: where the pipeline's batches come from, and where its weights go.

    start -> (publish -> validate? -> get_batch)* -> finished -> close

`PlayedBatches` plays them in the same run; `envsdk.explorers.BufferedBatches` takes them from the buffer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Protocol, TypeVar

from ray.exceptions import RayError

from envsdk.base.processes.actor_death import ACTOR_DIED, reason_of_death
from envsdk.contracts.failures import EnvsdkError, as_envsdk_error
from envsdk.contracts.held import Held
from envsdk.contracts.trajectory import RolloutBatch
from envsdk.engines.engine import EngineHealth

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatus:
    """The state of a run's engines."""

    busy: Sequence[tuple[float, float]]
    """Stretches in which any of them had requests, since the status before; Unix seconds."""
    health: Mapping[str, EngineHealth]
    num_engines: int
    """Engines that serve or soon will."""
    num_serving: int
    num_restarts: int
    """Since the start of the run."""


class BatchSource(Protocol):
    """Owner: the pipeline. Errors are EnvsdkErrors. By default it plays no evaluations and has no engines."""

    @property
    def validates(self) -> bool:
        """Whether it plays evaluations."""
        return False

    async def start(self, *also: Callable[[], Awaitable[None]]) -> None:
        """Start it, and what `also` starts."""
        ...

    async def call(self, awaitable: Awaitable[Result]) -> Result:
        """Wait for an actor's answer; a failure that ends the run is raised here."""
        ...

    async def publish(self, version: int, *, step: int) -> dict[str, float]:
        """The trainer's weights are those before `step`; metrics of their transfer."""
        ...

    async def get_batch(self, step: int) -> RolloutBatch:
        """The batch of `step`; whatever process asks for it, the same."""
        ...

    async def num_ready(self) -> int:
        """Trajectories that are ready for the next batch."""
        ...

    async def validate(self, version: int, step: int) -> RolloutBatch:
        """Play the held-out tasks, where it `validates`."""
        raise AssertionError("it plays none")

    def weights_moving(self) -> AbstractAsyncContextManager[None]:
        """The trainer changes its weights meanwhile. Published ones may be copies."""
        return nullcontext()

    async def hold_engines(self, held: Held) -> None:
        """What its engines hold of their devices from now on, where they share them with a trainer."""
        return None

    async def checkpointed(self, step: int) -> None:
        """A checkpoint holds everything before `step`."""
        return None

    async def engine_status(self) -> EngineStatus | None:
        """None without engines of its own."""
        return None

    async def finished(self) -> None:
        """The run has all its steps."""
        return None

    async def close(self, *also: Callable[[], Awaitable[None]], patience_s: float) -> None:
        """End it, and what `also` ends."""
        ...


@contextmanager
def part_of_run(name_of: Callable[[BaseException], str], left: str) -> Iterator[None]:
    """Raises an EnvsdkError for an actor that dies or fails while the block waits; `left` is what remains."""
    try:
        yield
    except ACTOR_DIED as died:
        if getattr(died, "actor_init_failed", False):
            raise as_envsdk_error(died, "a part of the run cannot be started") from died
        raise EnvsdkError(
            f"{name_of(died)} died ({reason_of_death(died)}). {left} are whole: the same command continues "
            "from them"
        ) from died
    except (EnvsdkError, RayError) as error:
        raise as_envsdk_error(error, "a part of the run failed") from error

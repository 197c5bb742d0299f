"""`LocalEngine`: a model in an engine of this process, without Ray, for a program's own rollouts.

with envsdk.LocalEngine("my_model") as engine:
    trajectories = envsdk.rollout_sync("envsdk/FrozenLake-v1", policy=engine, group_size=8)
    engine.publish(model.state_dict(), version=1)
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from envsdk.base.plugins import load_plugin
from envsdk.base.processes.background_loop import background_loop, on_background_loop
from envsdk.contracts.failures import ConfigurationError, EngineError
from envsdk.contracts.policy import Policy, Reply, TurnContext
from envsdk.rollouts.play.model import check_model, find_model_folder, load_weights, max_positions, running
from envsdk.rollouts.play.options import in_python
from envsdk.rollouts.play.policy_form import PolicyForm
from envsdk.rollouts.play.source import DEFAULT_SEQUENCE_LENGTH
from envsdk.weights.folders import finite

if TYPE_CHECKING:
    from envsdk.config import RunConfig
    from envsdk.contracts.chat import ChatTokenizer
    from envsdk.engines.engine import Engine
    from envsdk.engines.proxy import InferenceProxy
    from envsdk.engines.sampling import SamplingParams
    from envsdk.managers.traj_env_manager import TagSetup

Result = TypeVar("Result")


def whole_version(version: object) -> int:
    """A version of weights; ConfigurationError for what is no whole number."""
    if not isinstance(version, int) or isinstance(version, bool):
        raise ConfigurationError(f"version: must be a whole number, not {version!r}")
    return version


class LocalEngine:
    """A model that samples in this process, for `rollout(policy=engine)`.

        created -> (started at its first use, or by `with`) -> publish* -> closed

    It runs on a loop of its own, so any thread and any loop may use it, also several rollouts at once, and a
    rollout may go on while weights are published. Episodes keep tokens, log-probabilities and the version
    that sampled each token.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        engine: str = "embedded",
        sequence_length: int | None = None,
        max_running: int = 64,
        seed: int = 42,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """Raises ConfigurationError when the folder cannot be played with, or the engine is unknown.

        Args:
            model: Hugging Face folder, a checkpoint, or a run's folder, for its newest checkpoint.
            engine: An engine by its registered name, as `strategy_name` takes it.
            sequence_length: Tokens of the longest episode; 2048, or what the model was made for, if less.
            max_running: Replies that are sampled together.
            seed: Of the engine; each reply has a seed of its own besides.
            settings: The engine's own, as `strategy_config` has them.
        """
        from envsdk.engines.engine import EngineConfig

        try:
            self.folder = find_model_folder(Path(model))
            check_model(self.folder)
        except ConfigurationError as error:
            raise in_python(error) from error
        self.max_running = max_running
        self.sequence_length = sequence_length or min(DEFAULT_SEQUENCE_LENGTH, max_positions(self.folder))
        self._engine_class: type[Engine] = load_plugin("envsdk.engines", engine)
        self._config = EngineConfig(
            model=self.folder,
            sequence_length=self.sequence_length,
            max_running=max_running,
            strategy_config=settings or {},
            seed=seed,
        )
        self._engine: Engine | None = None
        self._proxy: InferenceProxy | None = None
        self._chat: ChatTokenizer | None = None
        self._running = AsyncExitStack()
        self._starting = asyncio.Lock()
        self._publishing = asyncio.Lock()
        self._is_closed = False
        self._version = 0
        self._num_rollouts = itertools.count()

    @property
    def version(self) -> int:
        """Version of the weights that sample now: 0 for those of the folder."""
        return self._version

    def start(self) -> None:
        """Load the model, unless that is done. ConfigurationError when it cannot be, or after `close`."""
        on_background_loop(self._started())

    def publish(self, weights: Mapping[str, Any] | str | Path, version: int | None = None) -> None:
        """Sample with these weights from now on. Waits until they are in place; replies under way continue.

        In a coroutine: `await asyncio.to_thread(engine.publish, weights)`.

        Args:
            weights: A `state_dict` (tensors or arrays, on any device) under the names of the model's folder,
                a LoRA adapter's, or a folder of a model.
            version: What sampled tokens are stamped with; one more than before when absent.

        Raises:
            ConfigurationError: `weights` is none of these, or `version` is not above the present one.
            EngineError: A weight is missing, unknown or of another shape. The former weights stay.
        """
        if not isinstance(weights, Mapping | str | Path):
            raise ConfigurationError(
                f"publish: weights are a state_dict or a folder, not a {type(weights).__name__}; of a torch "
                "module, give module.state_dict()"
            )
        on_background_loop(self._publish(weights, None if version is None else whole_version(version)))

    def close(self) -> None:
        """End the engine and free the model. Idempotent; replies under way fail."""
        on_background_loop(self._close())

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        await on_engine_loop(self._started())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await on_engine_loop(self._close())

    def __repr__(self) -> str:
        return f"LocalEngine({str(self.folder)!r}, version={self._version})"

    async def _started(self) -> tuple[InferenceProxy, ChatTokenizer]:
        from envsdk.contracts.chat import ChatTokenizer

        async with self._starting:
            if self._is_closed:
                raise ConfigurationError(f"{self!r} is closed; make another one")
            if self._proxy is None or self._chat is None:
                chat = await asyncio.to_thread(ChatTokenizer.load, self.folder)
                engine = await asyncio.to_thread(self._engine_class.create, self._config)
                self._proxy = await self._running.enter_async_context(running(engine))
                self._engine, self._chat = engine, chat
            return self._proxy, self._chat

    async def _publish(self, weights: Mapping[str, Any] | str | Path, version: int | None) -> None:
        await self._started()
        async with self._publishing:
            number = self._version + 1 if version is None else version
            if number <= self._version:
                raise ConfigurationError(
                    f"publish: version {number} is not above {self._version}, whose weights sample now: "
                    "tokens of both could not be told apart"
                )
            await self._load(weights, number)

    async def _load(self, weights: Mapping[str, Any] | str | Path, version: int) -> None:
        assert self._engine is not None
        if isinstance(weights, Mapping):
            given: Any = _detached(weights)
        else:
            try:
                given = find_model_folder(Path(weights))
            except ConfigurationError as error:
                raise in_python(error) from error
        await load_weights(self._engine, given, version)
        self._version = version

    async def _close(self) -> None:
        async with self._starting:
            self._is_closed = True
            self._engine = self._proxy = self._chat = None
            await self._running.aclose()

    async def policies(self, generating: SamplingParams) -> Callable[[TagSetup], Policy]:
        """The policy by setup, for one rollout."""
        proxy, chat = await on_engine_loop(self._started())
        sessions, length = f"rollout{next(self._num_rollouts)}.", self.sequence_length
        return lambda setup: _OnEngineLoop(
            setup.engine_policy(proxy, chat, generating, sequence_length=length), sessions
        )


def _detached(weights: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """As a stream, whose tensors the engine copies: the program goes on training its own."""
    for name, value in weights.items():
        if not isinstance(name, str):
            raise EngineError(f"weight names are texts, not {name!r}")
        yield name, finite(name, value.detach() if hasattr(value, "detach") else value)


async def on_engine_loop(waiting: Coroutine[Any, Any, Result]) -> Result:
    """Await on the engines' loop, from any loop. Cancelled here, it is cancelled there."""
    loop = background_loop()
    if asyncio.get_running_loop() is loop:
        return await waiting
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(waiting, loop))


class _OnEngineLoop(Policy):
    """A policy whose turns run on the engine's loop."""

    name = "local_engine"

    def __init__(self, policy: Policy, sessions: str) -> None:
        """`sessions`: what tells this rollout's episodes from another's, which have the same ids."""
        self._policy = policy
        self._sessions = sessions

    async def act(self, turn: TurnContext) -> Reply:
        turn = replace(turn, session_id=self._sessions + turn.session_id)
        return await on_engine_loop(self._policy.act(turn))


class EngineForm(PolicyForm):
    """A LocalEngine as a policy."""

    name = "local_engine"

    def __init__(self, engine: LocalEngine, generating: SamplingParams) -> None:
        self.slots = engine.max_running
        self._engine = engine
        self._generating = generating

    def check(self, config: RunConfig, tags: Sequence[str]) -> None:
        for tag in tags:
            if (manager := config.custom_envs[tag].env_manager_cls) is not None:
                raise ConfigurationError(
                    f"policy: tag {tag} is played by {manager}, which asks an engine of its own; give the "
                    "model's folder instead of a LocalEngine"
                )

    @asynccontextmanager
    async def open(self, num_slots: int) -> AsyncIterator[Callable[[TagSetup], Policy]]:
        yield await self._engine.policies(self._generating)

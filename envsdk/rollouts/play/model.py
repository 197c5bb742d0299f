"""The model behind a policy: found in a folder, a checkpoint or a run, and run by an engine of this process.

source = model_source(resolve_source("FrozenLake"), Path("runs/NAME"), greedy=False, seed=42)
async with open_model(source) as (proxy, chat): ...
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envsdk.base.plugins import load_plugin
from envsdk.base.store import model_files
from envsdk.base.store.best import why_no_best
from envsdk.base.store.hub import hub_folder
from envsdk.base.store.model_files import content_digest, model_problem, newest_model, weights_problem
from envsdk.base.store.named_models import is_named_model
from envsdk.config import EMBEDDED_DEFAULT
from envsdk.config.plugins import settings_model
from envsdk.contracts.failures import ConfigurationError
from envsdk.engines.sampling import SamplingParams, recorded
from envsdk.engines.settings import EngineSettings
from envsdk.rollouts.play.source import DEFAULT_SEQUENCE_LENGTH, Source

if TYPE_CHECKING:
    from envsdk.config import RunConfig
    from envsdk.contracts.chat import ChatTokenizer
    from envsdk.engines.engine import Engine, WeightReference
    from envsdk.engines.proxy import InferenceProxy


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """The model behind the policy `model`, and the engine that runs it. Picklable."""

    folder: Path
    """Hugging Face folder."""
    engine: str
    """Entry point in `envsdk.engines`."""
    settings: Mapping[str, Any]
    """The engine's own."""
    max_running: int
    generating: SamplingParams
    sequence_length: int
    turn_timeout_s: float
    seed: int

    def describe(self) -> dict[str, Any]:
        """What decides its replies, as JSON."""
        return {
            "folder": str(self.folder.resolve()),
            "content": content_digest(self.folder),
            "engine": self.engine,
            **self._engine_identity(),
            "generating": recorded(self.generating),
            "sequence_length": self.sequence_length,
        }

    def _engine_identity(self) -> dict[str, Any]:
        """The engine's own word on which of its settings decide the replies; nothing for most engines."""
        model = settings_model("engines", self.engine, "strategy_config")
        if model is None or not issubclass(model, EngineSettings):
            return {}
        identity = model.model_validate(self.settings).identity()
        return {"settings": identity} if identity else {}


@asynccontextmanager
async def open_model(model: ModelSource) -> AsyncIterator[tuple[InferenceProxy, ChatTokenizer]]:
    """An engine of this process's own, for as long as the block runs."""
    async with open_engine(model) as (_, proxy, chat):
        yield proxy, chat


@asynccontextmanager
async def open_engine(model: ModelSource) -> AsyncIterator[tuple[Engine, InferenceProxy, ChatTokenizer]]:
    """The same, with the engine itself, for callers that give it other weights later."""
    from envsdk.contracts.chat import ChatTokenizer
    from envsdk.engines.engine import EngineConfig

    chat = ChatTokenizer.load(model.folder)
    engine_class: type[Engine] = load_plugin("envsdk.engines", model.engine)
    engine = engine_class.create(
        EngineConfig(
            model=model.folder,
            sequence_length=model.sequence_length,
            max_running=model.max_running,
            strategy_config=model.settings,
            seed=model.seed,
        )
    )
    async with running(engine, turn_timeout_s=model.turn_timeout_s) as proxy:
        yield engine, proxy, chat


@asynccontextmanager
async def running(engine: Engine, *, turn_timeout_s: float = 300.0) -> AsyncIterator[InferenceProxy]:
    """A started proxy in front of this engine, which is started and closed."""
    from envsdk.engines.proxy import InferenceProxy, LocalLink

    proxy = InferenceProxy({"local": LocalLink(engine)}, turn_timeout_s=turn_timeout_s)
    try:
        await engine.start()
        proxy.start()
        yield proxy
    finally:
        await proxy.close()
        await engine.close()


async def load_weights(engine: Engine, weights: WeightReference, version: int) -> None:
    """Give a running engine other weights; its requests continue. EngineError when the weights do not fit."""
    from envsdk.engines.engine import PauseMode

    is_inflight = engine.abilities.inflight_update
    if not is_inflight:
        await engine.pause(PauseMode.WAIT)
    try:
        await engine.load_weights(weights, version)
    finally:
        if not is_inflight:
            await engine.resume()


TinyPolicyMaker = Callable[["RunConfig"], Path]
"""Gives the folder of the tiny policy that a configuration describes (`envsdk.trainers.warm_start`)."""


def model_source(
    source: Source,
    model: Path | None,
    greedy: bool,
    seed: int,
    make_tiny_policy: TinyPolicyMaker | None = None,
) -> ModelSource:
    """The model of `source`, or the one in the folder `model`; ConfigurationError when there is none.

    `make_tiny_policy` is called where `source` names the tiny policy.
    """
    config = source.config
    infer = config.actor_infer
    generating = infer.generating_args.sampling
    if model is not None:
        folder = find_model_folder(model)
        check_model(folder)
    else:
        folder = _pretrained(source, make_tiny_policy)
    sequence_length = config.sequence_length
    if source.is_environment and sequence_length == DEFAULT_SEQUENCE_LENGTH:
        sequence_length = min(sequence_length, max_positions(folder))
    return ModelSource(
        folder=folder,
        engine=infer.strategy_args.strategy_name,
        settings=infer.settings,
        max_running=infer.infer_batch_size,
        generating=replace(generating, temperature=0.0) if greedy else generating,
        sequence_length=sequence_length,
        turn_timeout_s=config.val_env_manager.turn_timeout_s,
        seed=seed,
    )


def find_model_folder(path: Path, *, option: str = "--model") -> Path:
    """The Hugging Face folder that `path` is, or has in it as a checkpoint, or as a run in its newest one; or
    that of the model which is registered or on the hub under this name."""
    path = path.expanduser()
    if (found := newest_model(path)) is not None:
        if problem := weights_problem(found):
            raise ConfigurationError(f"{option}: {problem}")
        return found
    if why := why_no_best(path):
        raise ConfigurationError(f"{option}: {why}")
    if not path.exists() or is_named_model(str(path)):
        try:
            return hub_folder(str(path))
        except ConfigurationError as error:
            raise ConfigurationError(f"{option}: {error}") from error
    raise ConfigurationError(
        f"{option}: {path} holds no config.json: it is neither a Hugging Face folder nor a checkpoint "
        "(such as runs/NAME/checkpoints/step_000010), nor a run with one"
    )


def check_model(folder: Path) -> None:
    """ConfigurationError for a folder of a model that could not be played with."""
    if problem := model_problem(folder):
        raise ConfigurationError(f"--model: {problem}")


def max_positions(folder: Path) -> int:
    """Positions that the model was made for. ConfigurationError when its configuration cannot be read."""
    try:
        found = model_files.max_positions(folder)
    except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise ConfigurationError(f"--model: {folder / 'config.json'} is damaged: {error}") from error
    return found[1] if found else DEFAULT_SEQUENCE_LENGTH


def _pretrained(source: Source, make_tiny_policy: TinyPolicyMaker | None) -> Path:
    if source.is_environment:
        raise ConfigurationError("--policy model needs --model: a Hugging Face folder or a checkpoint")
    if source.config.pretrain != EMBEDDED_DEFAULT:
        return find_model_folder(Path(source.config.pretrain))
    if make_tiny_policy is None:
        raise ConfigurationError(f"pretrain: {EMBEDDED_DEFAULT} is made by the caller; name a folder here")
    return make_tiny_policy(source.config)

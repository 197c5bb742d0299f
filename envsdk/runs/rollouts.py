"""Rollouts for a trainer of one's own: Ray, engines, workers and the ledger; everything but the trainer.

    with Rollouts("agentic_async.yaml") as rollouts:
        for step in range(100):
            batch = rollouts.get_batch()
            my_trainer.step(batch)
            rollouts.publish(my_model.state_dict())

    start -> (get_batch -> publish)* -> close

`envsdk train` runs on the same `PlayedBatches`, with its own trainer for the weights. A batch is on disk
before it is given out. `state()` says which batches were given out: a program that keeps it with the
weights that learned from them continues exactly there, after any kill.
"""

from __future__ import annotations

import asyncio
import logging
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import ray

from envsdk.base.display.terminal import say
from envsdk.base.processes.background_loop import on_background_loop
from envsdk.base.processes.interruptible import interruptible
from envsdk.config import load_config
from envsdk.config.loading import LoadedConfig
from envsdk.config.models import RunConfig
from envsdk.config.start_checks import check_start, prompt_notes
from envsdk.contracts.failures import ConfigurationError, StorageError
from envsdk.contracts.prompts import TagPrompts
from envsdk.contracts.trajectory import RolloutBatch
from envsdk.engines.engine import EngineHealth
from envsdk.managers.ledger_types import LedgerState
from envsdk.managers.ray_runtime import ray_runtime
from envsdk.managers.wiring import tag_setups
from envsdk.rollouts.play.local_engine import whole_version
from envsdk.rollouts.results.trajectories import Batch
from envsdk.runs.lost_runtime import lost_runtime
from envsdk.runs.rollout_cluster import PlayedBatches, engines_and_workers
from envsdk.runs.rollout_metrics import rollout_metrics, validation_metrics, validation_problem
from envsdk.runs.run_folder import RunFolder, begin, only_run_in
from envsdk.weights.source import GivenWeights

_LOG = logging.getLogger("envsdk")


class AsyncRollouts:
    """`Rollouts` for a program with an event loop of its own.

        async with AsyncRollouts("agentic_async.yaml") as rollouts:
            batch = await rollouts.get_batch()

    The methods are the same, awaited.
    """

    def __init__(
        self,
        source: str | Path | LoadedConfig,
        overrides: Sequence[str] = (),
        *,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        """See `Rollouts`."""
        if isinstance(overrides, str):
            raise ConfigurationError(f"overrides: give a list, such as [{overrides!r}]")
        if isinstance(source, LoadedConfig):
            if overrides:
                raise ConfigurationError("overrides belong to load_config, which made this configuration")
            self._loaded = source
        else:
            self._loaded = load_config(source, overrides)
        self._state = None if state is None else checked_state(state, self.config)
        self._stack = ExitStack()
        self._weights: GivenWeights | None = None
        self._model: Path | None = None
        self._batches: PlayedBatches | None = None
        self._folder: RunFolder | None = None
        self._step = 0 if self._state is None else int(self._state["step"])
        self._version = 0 if self._state is None else int(self._state["version"])
        self._has_published = False
        self._num_taken = 0
        """Trajectories since the last `publish`."""
        self._taking = asyncio.Lock()
        """Each batch goes to one caller."""
        self._is_closed = False

    @property
    def config(self) -> RunConfig:
        """The configuration, checked and with its defaults."""
        return self._loaded.config

    @property
    def folder(self) -> Path:
        """Where batches are written: `output_dir/exp_name`."""
        return self.config.run_folder

    @property
    def model(self) -> Path:
        """The Hugging Face folder with the weights of version 0 and the tokenizer, once started."""
        self._started()
        assert self._model is not None
        return self._model

    @property
    def step(self) -> int:
        """Batches given out, in all processes of the run: the number of the next one."""
        return self._step

    @property
    def version(self) -> int:
        """Version of the weights that were published last."""
        return self._version

    async def start(self) -> None:
        """Start Ray, engines and workers; `async with` does so.

        Raises:
            ConfigurationError: The folder belongs to another run, or holds batches and `state` is missing.
            EnvsdkError: Something does not start.
        """
        if self._batches is not None:
            return
        if self._is_closed:
            raise ConfigurationError("these rollouts are closed: make others, with `state` to continue")
        try:
            await self._start()
        except BaseException:
            await self.close()
            raise

    async def _start(self) -> None:
        config, began = self.config, time.monotonic()
        for name in (name for name, each in config.opponents.items() if each.refresh_steps is not None):
            raise ConfigurationError(
                f"opponents.{name}.refresh_steps: its weights are those of checkpoints, and these rollouts "
                "write none; leave it out, and name a folder as `pretrain`"
            )
        self._stack.enter_context(only_run_in(config.run_folder))
        check_start(config)
        folder = self._folder = RunFolder.of_batches(config, self._state)
        model, changes = await interruptible(begin, self._loaded, folder)
        if not ray.is_initialized():  # else it is the caller's, who also ends it
            if_lost = lost_runtime(
                f"The batches in {folder.path} are whole: continue from the newest `state` that your program "
                "saved"
            )
            runtime = ray_runtime(config.ray, if_lost=if_lost, say=_say)
            await asyncio.to_thread(self._stack.enter_context, runtime)
        self._model, self._weights = model, GivenWeights(model)
        batches = self._batches = PlayedBatches(
            config, folder, model=model, weights=self._weights, say=_LOG.warning
        )
        for note in (*(f"other settings than before: {change}" for change in changes), *prompt_notes(config)):
            _LOG.warning(note)
        _say(f"starting {engines_and_workers(config)}")
        await batches.start()
        if self._state is None:
            await self._send(0)
        _say(f"ready after {time.monotonic() - began:.0f} s; batches go to {folder.path}")

    async def close(self) -> None:
        """End everything that was started. Idempotent."""
        self._is_closed = True
        batches, self._batches = self._batches, None
        if batches is not None:
            await batches.close()
        await asyncio.to_thread(self._stack.close)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def get_batch(self, num_trajectories: int | None = None) -> Batch:
        """See `Rollouts.get_batch`."""
        async with self._taking:
            batches = self._started()
            size = self.config.train_batch_size if num_trajectories is None else num_trajectories
            if not self._is_on_disk:
                self._check_published("get_batch")
                self._check_size(size)
                if self._version < batches.played_version:
                    raise ConfigurationError(
                        f"the engines have version {self._version}, but batches of the run were played under "
                        f"versions up to {batches.played_version}: publish before the next get_batch"
                    )
                if batches.is_suspended:
                    raise ConfigurationError(
                        "get_batch after suspend(): call resume() first, or it waits for ever"
                    )
            batch = await batches.get_batch(self._step, size)
            self._num_taken += len(batch.trajectories)
            self._step += 1
            return self._batch(batch, self._step - 1, rollout_metrics(batch))

    async def publish(self, weights: Mapping[str, Any] | str | Path, version: int | None = None) -> int:
        """See `Rollouts.publish`."""
        batches = self._started()
        if batches.is_asked:
            raise ConfigurationError(
                "a get_batch was given up before its batch came, and that batch must not grow older: call "
                "get_batch again before you publish"
            )
        first = self._version if not self._has_published else self._version + 1
        if not self._is_on_disk:
            first = max(first, batches.played_version)
        number = first if version is None else whole_version(version)
        if number < first:
            raise ConfigurationError(
                f"version {number} cannot be published after version {self._version}: versions count up, so "
                f"that a sample's age is known; the next one is {first}"
            )
        assert self._weights is not None
        checked = await asyncio.to_thread(self._weights.checked, weights)
        async with batches.weights_moving():
            former = self._weights.hold(checked)
        try:
            await self._send(number)
        except BaseException:
            # Engines that are started again must not get them under the former version.
            self._weights.hold(former)
            raise
        return number

    async def _send(self, version: int) -> None:
        await self._started().publish(version, step=self._step)
        self._version, self._has_published, self._num_taken = version, True, 0

    async def validate(self) -> Batch:
        """See `Rollouts.validate`."""
        batches = self._started()
        if not self.config.val_batch_size:
            raise ConfigurationError("val_batch_size: 0, so there are no held-out tasks to play")
        self._check_published("validate")
        batch = await batches.validate(self._version, self._step)
        metrics = validation_metrics(batch)
        if problem := validation_problem(metrics, self.config.max_failed_share):
            warnings.warn(f"validate(): {problem}", RuntimeWarning, stacklevel=2)
        return self._batch(batch, self._step, metrics)

    async def suspend(self) -> None:
        """See `Rollouts.suspend`."""
        await self._started().suspend()

    async def resume(self) -> None:
        """See `Rollouts.resume`."""
        await self._started().resume()

    async def engines(self) -> dict[str, EngineHealth]:
        """See `Rollouts.engines`."""
        batches = self._started()
        return await batches.call(batches.engines.health())

    def state(self) -> dict[str, Any]:
        """See `Rollouts.state`."""
        ledger = None if self._folder is None else self._folder.ledger_before(self._step)
        if ledger is None and self._folder is not None and self._step:
            raise StorageError(
                f"there is no state after step {self._step}: the batch before it is gone from {self.folder}"
            )
        return {
            "format": STATE_FORMAT,
            "step": self._step,
            "version": self._version,
            "seed": self.config.seed,
            "ledger": ledger,
        }

    def _batch(self, batch: RolloutBatch, step: int, metrics: Mapping[str, float]) -> Batch:
        shown = self._shown
        return Batch(
            (replace(each, shown=shown[each.task.tag]) for each in batch.trajectories),
            version=batch.version,
            step=step,
            metrics=metrics,
        )

    @cached_property
    def _shown(self) -> Mapping[str, TagPrompts]:
        config = self.config
        managers = [config.train_env_manager, *([config.val_env_manager] if config.val_batch_size else [])]
        return {tag: setup.shown for each in managers for tag, setup in tag_setups(config, each).items()}

    def _started(self) -> PlayedBatches:
        if self._batches is None:
            raise ConfigurationError("the rollouts are not started: use a `with` block, or call start()")
        return self._batches

    @property
    def _is_on_disk(self) -> bool:
        """Whether an earlier process left the next batch."""
        return self._folder is not None and self._step in self._folder.batches

    def _check_published(self, call: str) -> None:
        if not self._has_published:
            raise ConfigurationError(
                f"publish the weights that belong to `state` before {call}: episodes are played under them"
            )

    def _check_size(self, size: int) -> None:
        """ConfigurationError for a batch that would never come."""
        config = self.config
        group_size = config.train_env_manager.group_size
        if size <= 0 or size % group_size:
            raise ConfigurationError(
                f"get_batch({size}): ask for a multiple of train_env_manager.group_size, {group_size}"
            )
        if self._num_taken + size > config.train_batch_size:
            taken = f" and {self._num_taken} were taken since the last publish" if self._num_taken else ""
            raise ConfigurationError(
                f"get_batch({size}): {config.train_batch_size} trajectories (rollout_batch_size) are played "
                f"for a version of the weights{taken}: publish the trained weights first, or raise that key"
            )


class Rollouts:
    """Episodes for a trainer of one's own, played by engines and workers of a run's YAML file.

        with Rollouts("agentic_async.yaml", ["rollout_batch_size=64"]) as rollouts:
            batch = rollouts.get_batch()
            rollouts.publish(model.state_dict())

    Its calls wait, from any thread, in a notebook too; `AsyncRollouts` has the same ones to await.
    """

    def __init__(
        self,
        source: str | Path | LoadedConfig,
        overrides: Sequence[str] = (),
        *,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        """Nothing is started yet.

        Args:
            source: A run's YAML file, as for `envsdk train`: a path, or the name of a shipped example. What
                it says of the trainer (`actor_train`) is not used.
            overrides: `key=value`, which replace single keys.
            state: What `state()` gave, for continuing. Without it, a run in the folder continues from its
                first batch: those on disk are given out again.

        Raises:
            ConfigurationError: The configuration or the state is wrong.
        """
        self._rollouts = AsyncRollouts(source, overrides, state=state)

    @property
    def config(self) -> RunConfig:
        """The configuration, checked and with its defaults."""
        return self._rollouts.config

    @property
    def folder(self) -> Path:
        """Where batches are written: `output_dir/exp_name`."""
        return self._rollouts.folder

    @property
    def model(self) -> Path:
        """The Hugging Face folder with the weights of version 0 and the tokenizer, once started."""
        return self._rollouts.model

    @property
    def step(self) -> int:
        """Batches given out, in all processes of the run: the number of the next one."""
        return self._rollouts.step

    @property
    def version(self) -> int:
        """Version of the weights that were published last."""
        return self._rollouts.version

    def start(self) -> None:
        """Start Ray, engines and workers; `with` does so. Raises EnvsdkError."""
        on_background_loop(self._rollouts.start())

    def close(self) -> None:
        """End everything that was started. Idempotent."""
        on_background_loop(self._rollouts.close())

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def get_batch(self, num_trajectories: int | None = None) -> Batch:
        """Wait for the next complete groups; they are on disk when this returns.

        No sampled token is more than `max_staleness` versions of the weights behind `Batch.version`.

        Args:
            num_trajectories: A multiple of the group size; the configured batch (`rollout_batch_size`) when
                None. Between two calls of `publish`, at most that many are given out.

        Raises:
            ConfigurationError: So many will never come.
            EnvsdkError: The run cannot go on: the policy fails in every episode, or no engine is left.
        """
        return on_background_loop(self._rollouts.get_batch(num_trajectories))

    def publish(self, weights: Mapping[str, Any] | str | Path, version: int | None = None) -> int:
        """Give the engines these weights; episodes go on under them.

        Args:
            weights: Tensors or arrays under Hugging Face names, as `state_dict()` gives them: a copy in main
                memory is kept. Or a Hugging Face folder or checkpoint, which must stay until the next call.
            version: Counts up from 0, the weights of `pretrain`; one more than the last when None. After a
                start with `state`, the first call gives the weights that belong to it, under its version.

        Returns:
            The version.

        Raises:
            ConfigurationError: Names or shapes are not the model's, or the version is not above the last.
        """
        return on_background_loop(self._rollouts.publish(weights, version))

    def validate(self) -> Batch:
        """Play the held-out tasks (`val_batch_size`) under the weights published last; training waits."""
        return on_background_loop(self._rollouts.validate())

    def suspend(self) -> None:
        """Begin no episode and send no request to engines until `resume`."""
        on_background_loop(self._rollouts.suspend())

    def resume(self) -> None:
        """Continue after `suspend`."""
        on_background_loop(self._rollouts.resume())

    def engines(self) -> dict[str, EngineHealth]:
        """The engines that run, by name: version of the weights, requests, what they have counted."""
        return on_background_loop(self._rollouts.engines())

    def state(self) -> dict[str, Any]:
        """What to keep with a checkpoint of the weights, as JSON: which batches were given out.

        Call it when the weights have learned from every batch given out so far. `Rollouts(..., state=...)`
        then gives out the batches after those, each once.
        """
        return self._rollouts.state()


def _say(text: str) -> None:
    """To stderr, unless the program says by `logging` what it wants to see of the logger `envsdk`."""
    if _LOG.hasHandlers() or _LOG.level:
        _LOG.info(text)
    else:
        say(text, err=True)


STATE_FORMAT = "envsdk.rollouts/1"


def checked_state(state: Mapping[str, Any], config: RunConfig) -> Mapping[str, Any]:
    """`state`, if a run of this configuration can continue from it; else ConfigurationError."""
    if not isinstance(state, Mapping) or state.get("format") != STATE_FORMAT:
        raise ConfigurationError(f"state: give what Rollouts.state() returned, of format {STATE_FORMAT}")
    for name in ("step", "version", "seed"):
        number = state.get(name)
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:
            raise ConfigurationError(f"state: `{name}` must be a whole number from 0 on, not {number!r}")
    ledger = state.get("ledger")
    if state["step"] and not isinstance(ledger, Mapping):
        raise ConfigurationError(
            f"state: it is of step {state['step']} and has no ledger, so that tasks would be played again"
        )
    try:
        if ledger is not None:
            LedgerState.from_dict(ledger)
    except (KeyError, TypeError, ValueError, AttributeError, StorageError) as error:
        raise ConfigurationError(f"state: its ledger is damaged ({type(error).__name__}: {error})") from error
    if state["seed"] != config.seed:
        raise ConfigurationError(
            f"state: it is of a run with seed {state['seed']}, but the configuration has {config.seed}"
        )
    return state

"""An engine that scores the policy's tokens, for a `TrainerHost` to hold in place of a trainer.

create -> score* -> close, on an event loop of its own
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from envsdk.base.plugins import load_plugin
from envsdk.config.plugins import ENGINES
from envsdk.contracts.failures import TrainerError
from envsdk.contracts.trainer import TeacherScores, TrainerConfig
from envsdk.contracts.trajectory import FinishReason
from envsdk.engines.engine import Engine, EngineConfig, GenerationRequest
from envsdk.engines.sampling import SamplingParams

NAME = f"{__name__}:TeacherEngine"
"""As a strategy's name."""


class TeacherEngine:
    """Called from one thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._loop = asyncio.new_event_loop()
        self._loop.run_until_complete(engine.start())

    @classmethod
    def create(cls, config: TrainerConfig) -> Self:
        """`strategy_config` has the engine's name, its own settings, and how many sequences run at once."""
        given: Mapping[str, Any] = config.strategy_config
        engine_class: type[Engine] = load_plugin(ENGINES, given["engine"])
        engine = engine_class.create(
            EngineConfig(
                model=config.model,
                sequence_length=config.sequence_length + 1,  # it samples one token
                max_running=given["max_running"],
                strategy_config=given["settings"],
                seed=config.seed,
            )
        )
        return cls(engine)

    def kernels(self) -> Mapping[str, str]:
        """None that it tells of."""
        return {}

    def score(self, sequences: Sequence[NDArray[np.int32]], num_top: int) -> list[TeacherScores]:
        """Scores of each token given those before it, with those of the `num_top` likeliest in its place."""
        return self._loop.run_until_complete(self._score(sequences, num_top))

    async def _score(self, sequences: Sequence[NDArray[np.int32]], num_top: int) -> list[TeacherScores]:
        sampling = SamplingParams(max_new_tokens=1, temperature=0, prompt_logprobs=True, top_logprobs=num_top)
        requests = [
            GenerationRequest(request_id=f"{number}", prompt_ids=ids, sampling=sampling)
            for number, ids in enumerate(sequences)
        ]
        found = []
        for result in await asyncio.gather(*map(self._engine.submit, requests)):
            if result.finish_reason is FinishReason.ERROR or (scores := result.prompt_scores) is None:
                raise TrainerError(f"the teacher did not score a sequence: {result.error}")
            top = scores.top
            found.append(
                TeacherScores(
                    logprobs=_after_the_first(scores.logprobs),
                    top_ids=None if top is None else _after_the_first(top.token_ids),
                    top_logprobs=None if top is None else _after_the_first(top.logprobs),
                )
            )
        return found

    def close(self) -> None:
        self._loop.run_until_complete(self._engine.close())


def _after_the_first(values: NDArray[Any]) -> NDArray[Any]:
    return np.concatenate([np.zeros((1, *values.shape[1:]), values.dtype), values])

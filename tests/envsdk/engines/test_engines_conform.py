"""The mock and the embedded engine against the shared suites."""

from __future__ import annotations

import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simulated_engines
import torch
from tiny_models import save_tiny

from envsdk.engines.embedded import EmbeddedEngine
from envsdk.engines.engine import Engine, EngineConfig, WeightReference
from envsdk.engines.mock import MockEngine
from envsdk.testing.engine_structures import write_tokenizer
from envsdk.testing.engines import CoreSuite, EngineSuite


class TestMockConforms(EngineSuite):
    engine_class = MockEngine
    unknown_key = "latncy"
    nearest_key = "latency"

    def config(self, **changes: Any) -> EngineConfig:
        settings: dict[str, Any] = {
            "reply": "random",
            "vocab_size": self.vocab_size,
            "latency": {"kind": "per_token", "token_s": self.long_reply_s / self.long_reply},
        }
        changes["strategy_config"] = settings | dict(changes.get("strategy_config", {}))
        return EngineConfig(model=None, sequence_length=self.sequence_length, **changes)

    def weights(self) -> WeightReference:
        return {"weight": np.zeros(1, np.float32)}

    def play(self, scenario: Coroutine[Any, Any, None]) -> None:
        simulated_engines.run(scenario)  # its latencies are timers: in virtual time they take none


class _SlowedEmbedded(CoreSuite):
    """The tiny models are too quick to be interrupted: every step waits a little."""

    engine_class = EmbeddedEngine
    long_reply_s = 0.5
    kind: str
    folder: Path
    other: Path

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _models(cls, tmp_path_factory: pytest.TempPathFactory) -> None:
        cls.folder = save_tiny(cls.kind, tmp_path_factory.mktemp(cls.kind))
        write_tokenizer(cls.folder)
        cls.other = save_tiny(cls.kind, tmp_path_factory.mktemp(cls.kind + "-other"), seed=1)

    def config(self, **changes: Any) -> EngineConfig:
        return EngineConfig(model=self.folder, sequence_length=self.sequence_length, **changes)

    def weights(self) -> WeightReference:
        return self.other

    def make_engine(self, **changes: Any) -> Engine:
        engine = EmbeddedEngine.create(self.config(**changes))
        decode = engine.core.decoder.decode

        def slowed(tokens: torch.Tensor) -> torch.Tensor:
            lengths = engine.core.batch._lengths[: len(tokens)]
            if lengths.max() > 45:  # only the long replies, so that the rest of the suite is quick
                time.sleep(1.2 * self.long_reply_s / (self.long_reply - 45))
            return decode(tokens)

        engine.core.decoder.decode = slowed  # type: ignore[method-assign]
        return engine


class TestEmbeddedFastPathConforms(_SlowedEmbedded):
    kind = "qwen3"


@pytest.mark.slow  # by day, test_families.py has the decoder of this path, and the rest is the fast path's
class TestEmbeddedGenericPathConforms(_SlowedEmbedded):
    kind = "gpt2"

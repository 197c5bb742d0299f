"""The `vllm` engine against the shared suite, with vLLM itself.

vLLM takes many seconds to start, so one runs per model: a test's engine is built anew around it, and the
model's first weights are put back in between. `test_vllm.py` starts and closes it for real.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from vllm_models import EXACT, save_model

from envsdk.base.settings.validation import validated
from envsdk.engines.engine import Engine, EngineConfig, WeightReference
from envsdk.engines.vllm.backend import AsyncLLMBackend
from envsdk.engines.vllm.engine import VLLMEngine
from envsdk.engines.vllm.settings import VLLMSettings
from envsdk.engines.vllm.staged_weights import stage
from envsdk.testing.engine_structures import write_tokenizer
from envsdk.testing.engines import CoreSuite

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

BLOCK_SIZE = 32


class _SharedBackend(AsyncLLMBackend):
    """Outlives the engines around it."""

    async def begin_again(self, folder: Path) -> None:
        """As if it had just started."""
        self.counters.__init__()  # type: ignore[misc]
        await self.freeze(forget=True)
        staged = stage(folder, {}, optional=frozenset())
        await self.load(staged.handle)
        staged.close()
        await self.set_version(0)
        await self.thaw()

    async def start(self) -> None: ...

    async def close(self) -> None: ...


class _VLLMSuite(CoreSuite):
    engine_class = VLLMEngine
    unknown_key, nearest_key = "gpu_memory_utilisation", "gpu_memory_utilization"
    sequence_length, long_reply = 512, 400
    prefix_block = BLOCK_SIZE
    kind: str
    with_adapters = False
    folder: Path
    other: Path
    loop: asyncio.AbstractEventLoop
    backend: _SharedBackend

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _vllm(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        cls.folder = save_model(cls.kind, tmp_path_factory.mktemp(cls.kind))
        write_tokenizer(cls.folder)
        cls.other = save_model(cls.kind, tmp_path_factory.mktemp(cls.kind + "-other"), seed=1)
        config = cls.engine_config(max_running=128)
        cls.backend = _SharedBackend.open(config, cls.settings(config))
        with asyncio.Runner() as runner:
            cls.loop = runner.get_loop()
            runner.run(AsyncLLMBackend.start(cls.backend))
            yield
            runner.run(AsyncLLMBackend.close(cls.backend))

    @classmethod
    def engine_config(cls, **changes: Any) -> EngineConfig:
        settings = EXACT | {"block_size": BLOCK_SIZE, "enable_lora": cls.with_adapters}
        changes["strategy_config"] = settings | dict(changes.get("strategy_config", {}))
        return EngineConfig(model=cls.folder, sequence_length=cls.sequence_length, **changes)

    @staticmethod
    def settings(config: EngineConfig) -> VLLMSettings:
        return validated(VLLMSettings, config.strategy_config, "strategy_config")

    def config(self, **changes: Any) -> EngineConfig:
        return self.engine_config(**changes)

    def weights(self) -> WeightReference:
        return self.other

    def make_engine(self, **changes: Any) -> Engine:
        config = self.config(**changes)
        return VLLMEngine.on(self.backend, config=config, settings=self.settings(config))

    def run(self, test: Callable[[Engine], Coroutine[Any, Any, None]], **changes: Any) -> None:
        async def scenario() -> None:
            await self.backend.begin_again(self.folder)
            engine = self.make_engine(**changes)
            await engine.start()
            try:
                await asyncio.wait_for(test(engine), 60)
            finally:
                await engine.close()

        self.loop.run_until_complete(scenario())


class TestVLLMWithQwen3AndAdaptersConforms(_VLLMSuite):
    kind = "qwen3"
    with_adapters = True


class TestVLLMWithTiedQwen2Conforms(_VLLMSuite):
    kind = "qwen2-tied"

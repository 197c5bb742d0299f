"""The `sglang` engine against the shared suite, with SGLang's own server on a GPU.

SGLang is looked for here, or in the environment whose interpreter ENVSDK_SGLANG_PYTHON names. The server
takes long to start, so one serves all tests; each engine that is built on it loads the first weights again.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from envsdk.base.net.rendezvous import free_port
from envsdk.contracts.failures import EngineError
from envsdk.engines.engine import EngineConfig, WeightReference
from envsdk.engines.sglang.connection import ServerProcess
from envsdk.engines.sglang.engine import SGLangEngine
from envsdk.engines.sglang.settings import SGLangSettings, server_arguments
from envsdk.testing.engine_structures import write_tokenizer
from envsdk.testing.engines import CoreSuite

PYTHON = os.environ.get("ENVSDK_SGLANG_PYTHON", "")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not PYTHON and importlib.util.find_spec("sglang") is None, reason="needs SGLang"),
]


def write_model(folder: Path, seed: int) -> Path:
    """A tiny Qwen3 whose heads are as wide as kernels want them."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen3Config

    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=CoreSuite.vocab_size,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=64,
        max_position_embeddings=512,
        initializer_range=0.1,
        bos_token_id=None,
        eos_token_id=3,
    )
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    write_tokenizer(folder)
    return folder


class TestSGLangServerConforms(CoreSuite):
    engine_class = SGLangEngine
    unknown_key, nearest_key = "mem_fraction_statik", "mem_fraction_static"
    sequence_length, long_reply, long_reply_s = 512, 400, 0.2
    folder: Path
    other: Path
    base_url: str

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _serve(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        cls.folder = write_model(tmp_path_factory.mktemp("model"), 0)
        cls.other = write_model(tmp_path_factory.mktemp("other"), 1)
        port = free_port("127.0.0.1")
        cls.base_url = f"http://127.0.0.1:{port}"
        config = EngineConfig(model=cls.folder, sequence_length=cls.sequence_length, max_running=128)
        settings = SGLangSettings(structured_output=True)
        server = ServerProcess(PYTHON or sys.executable, server_arguments(config, settings, port=port))

        async def begin() -> None:
            await server.start()
            engine = SGLangEngine.create(cls.on_server(strategy_config={"start_timeout_s": 600}))
            try:
                await engine.start()  # waits until the server answers
            except EngineError as error:
                pytest.fail(f"{error}\n{server.last_words()}")
            await engine.close()

        with asyncio.Runner() as runner:
            try:
                runner.run(begin())
                yield
            finally:
                runner.run(server.stop())

    @classmethod
    def on_server(cls, **changes: Any) -> EngineConfig:
        settings = {"base_url": cls.base_url, "structured_output": True, "stream_interval": 4}
        changes["strategy_config"] = settings | dict(changes.get("strategy_config", {}))
        return EngineConfig(model=cls.folder, sequence_length=cls.sequence_length, **changes)

    def config(self, **changes: Any) -> EngineConfig:
        return self.on_server(**changes)

    def weights(self) -> WeightReference:
        return self.other

"""For all tests: Hypothesis measures no time, because a busy machine is not a bug, and no hub is asked.

And tiny random policies in Hugging Face folders, made here and not fetched.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Callable, Generator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import Phase, settings

from envsdk.contracts.trainer import TrainSequence
from tests.by_day import NUM_EXAMPLES

os.environ["HF_HUB_OFFLINE"] = "1"
# Two processes whose threads wait for one another on two cores do three times the work.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A shell has the programs of its background ignore Ctrl-C. One that does so forks for each command of a
# sandbox, in place of vfork: 26 ms in a process of 1.5 GB, which has loaded all tests.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
by_day = settings(deadline=None, max_examples=NUM_EXAMPLES)
settings.register_profile("envsdk", by_day)
settings.register_profile("night", by_day, max_examples=6 * NUM_EXAMPLES)
# For `tests.mutations`, which asks whether a test fails, and not for the smallest example.
settings.register_profile("unshrunk", by_day, phases=[Phase.explicit, Phase.generate])
settings.load_profile("envsdk")

VOCAB_SIZE = 61


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """No garbage collection looks at the million objects of all test modules and of what they import."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        if (server := sys.modules.get("uvicorn.server")) is not None:
            vars(server)["asyncio"] = _ImpatientAsyncio()
        # Each of a thousand clients would read the machine's certificates: 25 ms.
        for name in ("httpx._transports.default", "httpx2._transports.default"):
            if (transports := sys.modules.get(name)) is not None:
                vars(transports)["create_ssl_context"] = cache(vars(transports)["create_ssl_context"])


class _ImpatientAsyncio:
    """asyncio for uvicorn, which looks every 0.1 s whether to end and who is left: 0.2 s for each server."""

    def __getattr__(self, name: str) -> object:
        return getattr(asyncio, name)

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s / 20)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Qwen3, two layers, hidden size 64, tied embeddings; with tokenizer files to be copied."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.set_num_threads(1)
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("qwen3")
    config = Qwen3Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=256,
        tie_word_embeddings=True,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    return folder


@pytest.fixture(scope="session")
def untied_model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Llama, one layer, untied embeddings."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    folder = tmp_path_factory.mktemp("llama")
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=False,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture
def make_sequences() -> Callable[..., list[TrainSequence]]:
    """Random sequences of 3 to 60 tokens, a fifth of them sampled, off-policy by about half a nat."""

    def make(count: int, seed: int = 0, **fields: object) -> list[TrainSequence]:
        rng = np.random.default_rng(seed)
        sequences = []
        for _ in range(count):
            length = int(rng.integers(3, 61))
            mask = (rng.random(length) < 0.2).astype(np.int8)
            mask[0], mask[length // 2] = 0, 1
            drawn: dict[str, object] = {
                "ids": rng.integers(0, VOCAB_SIZE, length).astype(np.int32),
                "response_mask": mask,
                "behavior_logprobs": (rng.normal(-4.1, 0.5, length) * mask).astype(np.float32),
                "advantages": (rng.normal(0, 1, length) * mask).astype(np.float32),
                "returns": (rng.normal(0, 1, length) * mask).astype(np.float32),
                "reference_logprobs": (rng.normal(-4.1, 0.5, length) * mask).astype(np.float32),
            }
            sequences.append(TrainSequence(**{**drawn, **fields}))
        return sequences

    return make

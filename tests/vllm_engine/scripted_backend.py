"""Stands for vLLM where it is not installed: tokens by a clock, answers in vLLM's shapes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from envsdk.contracts.held import Held
from envsdk.engines.vllm.backend import StatLogger
from envsdk.engines.vllm.staged_weights import Handle, read_staged


@dataclass
class _Reply:
    draw: np.random.Generator
    options: Mapping[str, Any]
    num_prompt_tokens: int = 0
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    spans: list[SimpleNamespace] = field(default_factory=list)
    finish_reason: str | None = None
    aborted: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def completion(self) -> SimpleNamespace:
        count = len(self.token_ids)
        flat = SimpleNamespace(start_indices=list(range(count)), logprobs=list(self.logprobs))
        return SimpleNamespace(
            token_ids=list(self.token_ids),
            logprobs=flat,
            weight_versions=list(self.spans),
            finish_reason=self.finish_reason,
            routed_experts=self.routed_experts,
        )

    @property
    def routed_experts(self) -> np.ndarray | None:
        """Token, layer and choice tell what an expert is; of the last token there are none."""
        if (start := self.options.get("routed_experts_prompt_start")) is None:
            return None
        tokens = np.arange(start, self.num_prompt_tokens + len(self.token_ids) - 1, dtype=np.uint8)
        return tokens[:, None, None] % 4 + np.zeros((2, 2), np.uint8)


class ScriptedBackend:
    """In place of `AsyncLLMBackend`. A reply depends on its seed alone; every token takes `token_s`."""

    weight_device = "cpu"

    def __init__(self, *, vocab_size: int = 64, token_s: float = 0.0) -> None:
        self.vocab_size = vocab_size
        self.counters = StatLogger()
        self.error = ""
        self.broken_load = ""
        """When set, what `load` raises."""
        self.loaded: list[dict[str, np.ndarray]] = []
        self.transferred: list[dict[str, Any]] = []
        self.adapters: list[dict[str, np.ndarray]] = []
        self.salts: list[str | None] = []
        self.forgets: list[bool] = []
        self.held: list[Held] = []
        self._token_s = token_s
        self._version = "0"
        self._replies: dict[str, _Reply] = {}
        self._said: dict[tuple[int, ...], list[float]] = {}
        self._flowing = asyncio.Event()

    async def start(self) -> None:
        self._flowing.set()

    async def generate(
        self,
        request_id: str,
        prompt_ids: Sequence[int],
        options: Mapping[str, Any],
        *,
        priority: int,
        cache_salt: str | None,
    ) -> Any:
        self.salts.append(cache_salt)
        seed = options["seed"] if options["temperature"] else 0
        reply = self._replies[request_id] = _Reply(np.random.default_rng(seed), options, len(prompt_ids))
        self._record(computed=len(prompt_ids))
        while reply.finish_reason is None:
            await asyncio.sleep(self._token_s)
            await self._flows_or(reply.aborted)
            if self.error:
                raise RuntimeError(self.error)
            if reply.finish_reason is None:
                self._sample(reply)
        del self._replies[request_id]
        self._said[(*prompt_ids, *reply.token_ids)] = list(reply.logprobs)
        scores = None
        if options["prompt_logprobs"] is not None:
            scores = self._scored(tuple(prompt_ids), options["prompt_logprobs"])
        return SimpleNamespace(outputs=[reply.completion], prompt_logprobs=scores)

    def _scored(self, prompt_ids: tuple[int, ...], num_top: int) -> SimpleNamespace:
        """As it said them before, where it did."""
        told = self._said.get(prompt_ids, [])
        own = [*[-1.0] * (len(prompt_ids) - 1 - len(told)), *told]
        width = 1 + num_top
        return SimpleNamespace(
            start_indices=[0, *(width * place for place in range(len(own)))],
            end_indices=[0, *(width * (place + 1) for place in range(len(own)))],
            logprobs=[value for logprob in own for value in [logprob] * width],
            token_ids=[id for token in prompt_ids[1:] for id in [token, *range(num_top)]],
        )

    async def _flows_or(self, aborted: asyncio.Event) -> None:
        """vLLM ends what is aborted at once, also while it is paused."""
        while not (self._flowing.is_set() or aborted.is_set()):
            waits = [asyncio.ensure_future(event.wait()) for event in (self._flowing, aborted)]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()

    def _sample(self, reply: _Reply) -> None:
        token = int(reply.draw.integers(self.vocab_size))
        biased = [token for token, value in (reply.options["logit_bias"] or {}).items() if value >= 100]
        token = biased[0] if biased else token
        reply.token_ids.append(token)
        logprob = -float(reply.draw.random())
        reply.logprobs.append(0.0 if biased else logprob)
        count = len(reply.token_ids)
        if reply.spans and reply.spans[-1].version == self._version:
            reply.spans[-1].end = count
        else:
            reply.spans.append(SimpleNamespace(version=self._version, start=count - 1, end=count))
        if token in reply.options["stop_token_ids"]:
            reply.finish_reason = "stop"
        elif count == reply.options["max_tokens"]:
            reply.finish_reason = "length"
        self._record(sampled=1)

    def _record(self, *, sampled: int = 0, computed: int = 0) -> None:
        prompt = SimpleNamespace(computed=computed)
        self.counters.record(
            SimpleNamespace(kv_cache_usage=0.25),
            SimpleNamespace(num_generation_tokens=sampled, prompt_token_stats=prompt),
        )

    def sampled_so_far(self, request_id: str) -> Any | None:
        reply = self._replies.get(request_id)
        return reply.completion if reply else None

    async def abort(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            if reply := self._replies.get(request_id):
                reply.finish_reason = "abort"
                reply.aborted.set()

    async def freeze(self, *, forget: bool) -> None:
        self.forgets.append(forget)
        self._flowing.clear()

    async def thaw(self) -> None:
        self._flowing.set()

    async def hold(self, held: Held) -> None:
        self.held.append(held)

    async def load(self, handle: Handle) -> None:
        assert self.held[-1:] != [Held.NOTHING]
        if self.broken_load:
            raise RuntimeError(self.broken_load)
        self.loaded.append({name: np.array(value) for name, value in read_staged(handle)})

    async def transfer(self, info: dict[str, Any]) -> None:
        self.transferred.append(info)

    async def load_adapter(self, folder: Path) -> None:
        config = json.loads((folder / "adapter_config.json").read_text())
        assert config["rank_pattern"] == config["alpha_pattern"]  # the scaling is in B
        self.adapters.append(load_file(folder / "adapter_model.safetensors"))

    async def set_version(self, version: int) -> None:
        self._version = str(version)

    async def close(self) -> None:
        self._flowing.set()

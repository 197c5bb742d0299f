"""The parts of the conformance suite about biases, likeliest tokens, scored prompts and LoRA adapters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from envsdk.contracts.failures import EngineError
from envsdk.contracts.trajectory import FinishReason
from envsdk.engines.engine import Engine, ErrorKind, GenerationResult, PauseMode, WeightReference
from envsdk.engines.sampling import LogitChanges
from envsdk.testing.engine_harness import EngineHarness, check_result, gather, on_engine
from envsdk.weights.lora import A_SUFFIX, B_SUFFIX


class LogitTests(EngineHarness):
    """Tests of every engine: one that lacks an ability answers with an error that names it."""

    async def _is_able(self, engine: Engine, ability: str, **asked: Any) -> bool:
        if getattr(engine.abilities, ability):
            return True
        refused = await engine.submit(self.request(ability, **asked))
        assert (refused.finish_reason, len(refused.token_ids)) == (FinishReason.ERROR, 0)
        assert refused.error_kind is ErrorKind.UNSUPPORTED_SAMPLING
        assert refused.error.startswith(f"{ability}: ")
        return False

    @on_engine(max_running=8)
    async def test_a_bias_decides_which_tokens_are_sampled_and_counts_in_their_log_probabilities(
        self, engine: Engine
    ) -> None:
        only = LogitChanges(bias=((5, 100.0),))
        if not await self._is_able(engine, "logit_changes", changes=only):
            return
        requests = [self.request(n, changes=only, seed=n) for n in range(3)]
        free = self.request("free", num_tokens=12)
        *biased, unbiased = await gather(engine, [*requests, free])
        for request, result in zip(requests, biased, strict=True):
            check_result(request, result, sequence_length=self.sequence_length)
            assert set(result.token_ids.tolist()) == {5}
            if engine.abilities.processed_logprobs:
                np.testing.assert_allclose(result.logprobs, 0.0, atol=1e-4)
        alone = await engine.submit(free)
        assert unbiased.token_ids.tolist() == alone.token_ids.tolist()

    @on_engine()
    async def test_the_likeliest_tokens_of_each_position_come_with_the_reply(self, engine: Engine) -> None:
        if not await self._is_able(engine, "top_logprobs", top_logprobs=3):
            return
        plain = self.request("told", num_tokens=12)
        told = self.request("told", num_tokens=12, top_logprobs=3)
        before = await engine.submit(plain)
        result = await engine.submit(told)
        assert result.token_ids.tolist() == before.token_ids.tolist()
        assert result.top is not None
        assert before.top is None
        assert result.top.token_ids.shape == result.top.logprobs.shape == (12, 3)
        assert (np.diff(result.top.logprobs, axis=1) <= 0).all()
        for token, logprob, ids, logprobs in zip(
            result.token_ids, result.logprobs, result.top.token_ids, result.top.logprobs, strict=True
        ):
            assert logprob <= logprobs[0] + 1e-6
            assert logprob in logprobs[ids == token] or logprob <= logprobs[-1] + 1e-6

    @on_engine()
    async def test_likeliest_tokens_of_a_reply_that_is_cut_short_are_as_many_as_its_tokens(
        self, engine: Engine
    ) -> None:
        if not await self._is_able(engine, "top_logprobs", top_logprobs=2):
            return
        running = engine.submit(self.long_request(top_logprobs=2))
        await self.mid_reply(engine)
        if engine.abilities.progress:
            for delta in await engine.progress({"long": 1}):
                assert delta.top is not None
                assert len(delta.top.token_ids) == len(delta.token_ids)
        await engine.pause(PauseMode.ABORT)
        result = await running
        assert result.top is not None
        assert len(result.top.token_ids) == len(result.token_ids) > 0

    @on_engine(max_running=8)
    async def test_the_tokens_that_could_be_drawn_come_with_a_reply_that_asks_for_them(
        self, engine: Engine
    ) -> None:
        shape = {"top_k": 3, "num_tokens": 12}
        if not await self._is_able(engine, "support", support=True, **shape):
            return
        asked = [self.request(n, support=True, seed=n, **shape) for n in range(3)]
        plain, whole = self.request("plain", **shape), self.request("whole", support=True)
        *results, unasked, of_all = await gather(engine, [*asked, plain, whole])
        assert unasked.support is None
        assert of_all.support is None
        for request, result in zip(asked, results, strict=True):
            check_result(request, result, sequence_length=self.sequence_length)
            assert result.support is not None
            assert result.support.counts.tolist() == [3] * 12
            result.support.check(result.token_ids)
        running = engine.submit(self.long_request(support=True, top_k=3))
        await self.mid_reply(engine)
        deltas = await engine.progress({"long": 1})
        await engine.pause(PauseMode.ABORT)
        parts: list[Any] = [*deltas, await running]
        for part in parts:
            assert part.support is not None
            part.support.check(part.token_ids)

    @on_engine(max_running=8)
    async def test_a_scored_prompt_has_the_log_probabilities_that_it_would_be_sampled_with(
        self, engine: Engine
    ) -> None:
        if not await self._is_able(engine, "prompt_logprobs", prompt_logprobs=True):
            return
        first = self.request("first", length=5, num_tokens=20)
        reply = await engine.submit(first)
        whole = np.concatenate([first.prompt_ids, reply.token_ids])
        again = self.request("again", prompt_ids=whole, num_tokens=1, prompt_logprobs=True, temperature=0)
        one = self.request("one", length=1, num_tokens=1, prompt_logprobs=True, top_logprobs=1)
        plain = self.request("plain", num_tokens=12)
        scored, shortest, beside = await gather(engine, [again, one, plain])
        assert scored.prompt_scores is not None
        assert scored.prompt_scores.logprobs.shape == (len(whole) - 1,)
        np.testing.assert_allclose(scored.prompt_scores.logprobs[-20:], reply.logprobs, atol=1e-3)
        assert shortest.prompt_scores is not None
        assert shortest.prompt_scores.logprobs.shape == (0,)
        assert beside.prompt_scores is None
        alone = await engine.submit(plain)
        assert beside.token_ids.tolist() == alone.token_ids.tolist()


class AdapterTests(EngineHarness):
    """Tests of engines with the ability `lora`, on models whose `config.model` folder has all weights."""

    def whole_weights(self) -> dict[str, np.ndarray[Any, Any]]:
        """Those of the model's folder."""
        from safetensors.numpy import load_file

        folder = self.config().model
        assert folder is not None
        return {
            name: weight for file in folder.glob("*.safetensors") for name, weight in load_file(file).items()
        }

    def adapter(self, seed: int, rank: int = 4) -> dict[str, np.ndarray[Any, Any]]:
        """A LoRA adapter for two of the model's matrices, large enough to be noticed."""
        rng = np.random.default_rng(seed)
        halves = {}
        whole = self.whole_weights()
        for name in [name for name in whole if name.endswith(("q_proj.weight", "c_proj.weight"))][:2]:
            module, (rows, columns) = name.removesuffix(".weight"), whole[name].shape
            halves[module + A_SUFFIX] = rng.normal(0, 0.4, (rank, columns)).astype(np.float32)
            halves[module + B_SUFFIX] = rng.normal(0, 0.4, (rows, rank)).astype(np.float32)
        return halves

    def merged(self, adapter: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
        """The model's weights with the adapter added."""
        whole = self.whole_weights()
        for name in adapter:
            if name.endswith(A_SUFFIX):
                module = name.removesuffix(A_SUFFIX)
                whole[f"{module}.weight"] = (
                    whole[f"{module}.weight"] + adapter[module + B_SUFFIX] @ adapter[name]
                )
        return whole

    @on_engine(needs="lora")
    async def test_an_adapter_is_added_to_the_weights_of_the_models_folder(self, engine: Engine) -> None:

        async def replies(weights: WeightReference, version: int) -> list[GenerationResult]:
            await engine.load_weights(weights, version)
            requests = [self.request(n, num_tokens=10, temperature=0.8) for n in range(4)]
            return await gather(engine, requests)

        first, second = self.adapter(1), self.adapter(2)
        found = [
            await replies(weights, version)
            for version, weights in enumerate(
                # Two adapters do not add up, and full weights leave nothing of one behind.
                [first, second, self.merged(first), self.merged(second), self.whole_weights(), first],
                1,
            )
        ]
        for one, other in ((0, 2), (1, 3), (0, 5)):
            for result, expected in zip(found[one], found[other], strict=True):
                assert result.token_ids.tolist() == expected.token_ids.tolist()
                np.testing.assert_allclose(result.logprobs, expected.logprobs, atol=1e-4)
        assert [span.version for span in found[5][0].version_spans] == [6]
        for other in (1, 4):
            pairs = zip(found[0], found[other], strict=True)
            assert max(abs(float(a.logprobs[0] - b.logprobs[0])) for a, b in pairs) > 1e-3

    @on_engine(needs="lora")
    async def test_a_running_reply_goes_on_through_an_adapter_and_carries_both_versions(
        self, engine: Engine
    ) -> None:
        request = self.long_request()
        running = engine.submit(request)
        await self.mid_reply(engine)
        await engine.load_weights(self.adapter(1), 1)
        assert not running.done()
        result = await running
        check_result(request, result, sequence_length=self.sequence_length)
        assert [span.version for span in result.version_spans] == [0, 1]
        # Its last token is one of the adapted model's.
        await engine.load_weights(self.merged(self.adapter(1)), 2)
        before = np.concatenate([request.prompt_ids, result.token_ids[:-1]])
        token = int(result.token_ids[-1])
        again = self.request("again", prompt_ids=before, num_tokens=1, seed=request.sampling.seed)
        for _ in range(200):
            found = await engine.submit(again)
            if int(found.token_ids[0]) == token:
                np.testing.assert_allclose(found.logprobs[0], result.logprobs[-1], atol=1e-4)
                break
            assert again.sampling.seed is not None
            sampling = replace(again.sampling, seed=again.sampling.seed + 1)
            again = replace(again, sampling=sampling)

    @on_engine(needs="lora")
    async def test_an_adapter_that_does_not_fit_is_refused_and_changes_nothing(self, engine: Engine) -> None:
        good = self.adapter(1)
        name = next(iter(good))
        module = name.removesuffix(A_SUFFIX)
        before = await engine.submit(self.request("before", seed=1, prompt_ids=self.prompt()))
        for broken in (
            {name: good[name]},
            {**good, name: good[name][:, :-1]},
            {**good, "nobody" + A_SUFFIX: good[name], "nobody" + B_SUFFIX: good[module + B_SUFFIX]},
            {**good, "model.norm.weight": np.ones(4, np.float32)},
        ):
            with pytest.raises(EngineError, match=r"adapter|weight"):
                await engine.load_weights(broken, 1)
        after = await engine.submit(self.request("after", seed=1, prompt_ids=self.prompt()))
        assert after.token_ids.tolist() == before.token_ids.tolist()
        assert [span.version for span in after.version_spans] == [0]

"""The part of the conformance suite about logit biases, likeliest tokens and scored prompts."""

from __future__ import annotations

from typing import Any

import numpy as np

from envsdk.contracts.trajectory import FinishReason
from envsdk.engines.engine import Engine, ErrorKind, PauseMode
from envsdk.engines.sampling import LogitChanges
from envsdk.testing.engine_harness import EngineHarness, check_result, gather, on_engine


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

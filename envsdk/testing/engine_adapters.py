"""The part of the conformance suite about LoRA adapters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from envsdk.contracts.failures import EngineError
from envsdk.engines.engine import Engine, GenerationResult, WeightReference
from envsdk.testing.engine_harness import EngineHarness, check_result, gather, on_engine
from envsdk.weights.lora import A_SUFFIX, B_SUFFIX


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

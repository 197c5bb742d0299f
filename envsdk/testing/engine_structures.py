"""The part of the conformance suite about replies that are held to a structure, and a tokenizer for it."""

from __future__ import annotations

import json
import re
import string
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from envsdk.contracts.trajectory import FinishReason
from envsdk.engines.engine import Engine, ErrorKind, GenerationRequest, PauseMode
from envsdk.engines.sampling import OutputStructure, TaggedJson
from envsdk.testing.engine_harness import EngineHarness, check_result, gather, on_engine

ALPHABET = string.ascii_lowercase + string.digits + '{}[]":,.-_<>/ ' + string.ascii_uppercase[:13]
"""Text of `write_tokenizer`'s first tokens, one character each."""
END_TOKEN = len(ALPHABET)
"""The one behind them, which ends a text."""
_SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"a": {"type": "boolean"}},
        "required": ["a"],
        "additionalProperties": False,
    }
)


def write_tokenizer(folder: Path) -> None:
    """A tokenizer of 64 tokens, `ALPHABET` and one that ends a text, into a Hugging Face folder."""
    vocabulary = {"\u0120" if text == " " else text: token for token, text in enumerate(ALPHABET)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary | {"<end>": END_TOKEN}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<end>", special=True)])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<end>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")


def text_of(token_ids: Iterable[int]) -> str:
    """What `write_tokenizer`'s tokens say."""
    return "".join(ALPHABET[token] for token in token_ids)


class StructureTests(EngineHarness):
    """Tests of every engine; those with `structured_output` are on a model with `write_tokenizer`'s."""

    def structured_request(
        self, name: str | int, structure: OutputStructure, **changes: Any
    ) -> GenerationRequest:
        """A request whose text is held to `structure`; of an engine on a model with `write_tokenizer`'s."""
        changes = {"num_tokens": 40} | changes
        return self.request(name, structure=structure, stop_token_ids=(END_TOKEN,), **changes)

    @on_engine(needs="structured_output", max_running=8)
    async def test_the_text_of_a_reply_keeps_to_its_structure(self, engine: Engine) -> None:
        structures = {
            "choices": (OutputStructure(choices=("north", "no", "south")), r"north|no|south"),
            "regex": (OutputStructure(regex="<a>[b-d]{2}</a>|ab"), "<a>[b-d]{2}</a>|ab"),
            "json": (OutputStructure(json_schema=_SCHEMA), r'\s*\{\s*"a"\s*:\s*(true|false)\s*\}\s*'),
        }
        requests = [
            self.structured_request(f"{kind} {n}", structure, seed=n)
            for kind, (structure, _) in structures.items()
            for n in range(4)
        ]
        free = self.request("free", num_tokens=12)
        *held, unheld = await gather(engine, [*requests, free])
        for request, result in zip(requests, held, strict=True):
            check_result(request, result, sequence_length=self.sequence_length)
            if result.finish_reason is FinishReason.STOP:
                text = text_of(result.token_ids[:-1])
                assert re.fullmatch(structures[request.request_id.split()[0]][1], text), text
        ended = [
            result.finish_reason for result in held if result.request_id.startswith(("choices", "regex"))
        ]
        assert set(ended) == {FinishReason.STOP}
        alone = await engine.submit(free)
        assert unheld.token_ids.tolist() == alone.token_ids.tolist()

    @on_engine(needs="structured_output")
    async def test_json_between_fixed_texts_is_kept_to_or_refused(self, engine: Engine) -> None:
        either = OutputStructure(
            tagged=(
                TaggedJson(begin="<a>", json_schema=_SCHEMA, end="</a>"),
                TaggedJson(begin="<b>", json_schema='{"enum": ["no", "on"]}', end="</b>"),
            )
        )
        requests = [self.structured_request(f"{n}", either, seed=n) for n in range(6)]
        for request, result in zip(requests, await gather(engine, requests), strict=True):
            if result.finish_reason is FinishReason.ERROR:
                assert result.error_kind is ErrorKind.UNSUPPORTED_SAMPLING
                continue
            check_result(request, result, sequence_length=self.sequence_length)
            text = text_of(result.token_ids[:-1])
            assert re.fullmatch(r'<a>\{\s*"a"\s*:\s*(true|false)\s*\}</a>|<b>"(no|on)"</b>', text), text

    @on_engine(needs="structured_output")
    async def test_a_structured_reply_that_survives_updates_keeps_to_its_structure(
        self, engine: Engine
    ) -> None:
        letters = OutputStructure(regex="[a-d]{150}")
        request = self.structured_request("long", letters, num_tokens=160, survives_weight_update=True)
        running = engine.submit(request)
        await self.mid_reply(engine)
        await engine.pause(PauseMode.ABORT)
        if engine.abilities.weight_updates:
            await engine.load_weights(self.weights(), 1)
        await engine.resume()
        result = await running
        check_result(request, result, sequence_length=self.sequence_length)
        assert result.finish_reason is FinishReason.STOP
        assert re.fullmatch("[a-d]{150}", text_of(result.token_ids[:-1]))

    @on_engine(needs="structured_output")
    async def test_log_probabilities_of_a_structured_reply_are_those_of_what_was_left_to_choose(
        self, engine: Engine
    ) -> None:
        only = OutputStructure(choices=("north",))
        forced = await engine.submit(self.structured_request("forced", only))
        assert text_of(forced.token_ids[:-1]) == "north"
        if engine.abilities.processed_logprobs:
            np.testing.assert_allclose(forced.logprobs, 0.0, atol=1e-4)
        two = OutputStructure(choices=("no", "on"))
        seeds = [
            self.structured_request(f"two {n}", two, prompt_ids=self.prompt(), seed=n) for n in range(24)
        ]
        results = await gather(engine, seeds)
        first = {text_of(result.token_ids[:-1]): float(result.logprobs[0]) for result in results}
        if engine.abilities.processed_logprobs and len(first) == 2:
            assert np.exp(list(first.values())).sum() == pytest.approx(1.0, abs=1e-3)

    @on_engine()
    async def test_a_structure_that_cannot_be_kept_to_is_an_error_of_its_request_alone(
        self, engine: Engine
    ) -> None:
        structure = OutputStructure(choices=("no",))
        if not engine.abilities.structured_output:
            refused = await engine.submit(self.structured_request("refused", structure))
            assert (refused.finish_reason, len(refused.token_ids)) == (FinishReason.ERROR, 0)
            assert refused.error_kind is ErrorKind.UNSUPPORTED_SAMPLING
            return
        for name, request in {
            "regex": self.structured_request("regex", OutputStructure(regex="((")),
            "schema": self.structured_request("schema", OutputStructure(json_schema="{")),
            "endless": self.request("endless", structure=structure),
        }.items():
            result = await engine.submit(request)
            assert (result.finish_reason, len(result.token_ids)) == (FinishReason.ERROR, 0), name
            assert result.error_kind is ErrorKind.STRUCTURED_OUTPUT, (name, result.error)
        assert (await engine.submit(self.structured_request("good", structure))).error == ""

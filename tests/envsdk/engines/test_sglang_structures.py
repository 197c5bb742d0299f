"""Replies with a structure and LoRA adapters with the `sglang` engine, on an emulated server."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from remote_play import request, then
from sglang_play import (
    check_logprobs,
    config_of,
    hang_up_after,
    having,
    one_reply,
    play,
    sampled,
    serving,
    slowly,
)
from sglang_server import TABLE, Array, FakeSGLang, read_table, write_model

from envsdk.contracts.failures import ConfigurationError, EngineError
from envsdk.contracts.trajectory import FinishReason
from envsdk.engines.engine import EngineConfig, ErrorKind, GenerationRequest, GenerationResult
from envsdk.engines.sampling import OutputStructure
from envsdk.engines.sglang.engine import SGLangEngine
from envsdk.testing.engine_structures import END_TOKEN, text_of, write_tokenizer
from envsdk.weights.lora import A_SUFFIX, B_SUFFIX


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model", seed=0)


@pytest.fixture
def server(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSGLang]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serving(folder) as server:
        yield server


@pytest.fixture
def config(server: FakeSGLang, folder: Path) -> EngineConfig:
    return config_of(server, folder)


LETTERS = OutputStructure(regex="[a-d]{40}")


@pytest.fixture
def structuring(server: FakeSGLang, folder: Path) -> FakeSGLang:
    write_tokenizer(folder)
    server.behavior.tokenizer = folder
    return server


def bound(name: str = "a", structure: OutputStructure = LETTERS, **changes: Any) -> GenerationRequest:
    asked = request(name, max_new_tokens=60, structure=structure, stop_token_ids=(END_TOKEN,))
    return replace(asked, **changes)


def check_letters(result: GenerationResult) -> None:
    assert result.finish_reason is FinishReason.STOP
    assert re.fullmatch("[a-d]{40}", text_of(result.token_ids[:-1]))


def test_an_update_lets_a_reply_with_a_structure_end_and_goes_on_with_the_others(
    structuring: FakeSGLang, config: EngineConfig, tmp_path: Path
) -> None:
    other = write_model(tmp_path / "other", seed=1)

    async def update(engine: SGLangEngine) -> None:
        slowly(structuring)
        held, free = engine.submit(bound()), engine.submit(request("b", max_new_tokens=120))
        await sampled(engine, 10)
        waiting = asyncio.ensure_future(engine.load_weights(other, 1))
        check_letters(await held)
        await waiting
        assert [span.version for span in (await held).version_spans] == [0]
        assert [span.version for span in (await free).version_spans] == [0, 1]
        check_letters(await engine.submit(bound("c")))
        assert engine.health().error == ""

    play(config, update)
    assert {body["sampling_params"].get("regex") for body in structuring.behavior.bodies} == {
        None, "[a-d]{40}"
    }  # fmt: skip


def test_a_reply_with_a_structure_that_was_broken_off_begins_anew_unless_it_was_read(
    structuring: FakeSGLang, config: EngineConfig
) -> None:
    expected = one_reply(config, **vars_of(bound()))
    then(structuring, hang_up_after(9))
    anew = one_reply(config, **vars_of(bound()))
    assert anew.token_ids.tolist() == expected.token_ids.tolist()
    check_letters(anew)
    assert [len(body["input_ids"]) for body in structuring.behavior.bodies[-2:]] == [3, 3]

    async def ask(engine: SGLangEngine) -> None:
        result = await engine.submit(bound(stream=True))
        assert "partly read cannot continue" in result.error

    then(structuring, hang_up_after(9))
    play(config, ask)


def vars_of(asked: GenerationRequest) -> dict[str, Any]:
    return {field.name: getattr(asked.sampling, field.name) for field in fields(asked.sampling)}


def test_only_a_reply_that_nobody_else_could_go_on_with_is_told_of_while_it_runs(
    structuring: FakeSGLang, config: EngineConfig
) -> None:
    async def ask(engine: SGLangEngine) -> None:
        slowly(structuring)
        running = [engine.submit(bound("quiet")), engine.submit(bound("read", stream=True))]
        await sampled(engine, 20)
        told = await engine.progress({"quiet": 0, "read": 0})
        assert [delta.request_id for delta in told] == ["read"]
        for result in await asyncio.gather(*running):
            check_letters(result)

    play(config, ask)


def test_structures_need_a_server_with_a_tokenizer_and_a_stop_token_that_ends_texts(
    structuring: FakeSGLang, config: EngineConfig, folder: Path
) -> None:
    (folder / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    refused = one_reply(config, **vars_of(bound()))
    assert refused.error_kind is ErrorKind.STRUCTURED_OUTPUT
    assert "end tokens [1, 2]" in refused.error
    structuring.behavior.tokenizer = None
    with pytest.raises(ConfigurationError, match="without --skip-tokenizer-init"):
        one_reply(having(config, structured_output=True))


def halves(seed: int, rank: int = 4) -> dict[str, Array]:
    draw = np.random.default_rng(seed)
    module = TABLE.removesuffix(".weight")
    return {
        module + A_SUFFIX: draw.normal(0, 0.4, (rank, 64)).astype(np.float32),
        module + B_SUFFIX: draw.normal(0, 0.4, (64, rank)).astype(np.float32),
    }


def test_an_adapter_comes_while_replies_go_on_and_takes_the_place_of_the_last(
    server: FakeSGLang, config: EngineConfig, folder: Path
) -> None:
    server.behavior.enable_lora = True
    tables = [read_table(folder)]
    for seed in (1, 2):
        half_a, half_b = halves(seed).values()
        tables.append(tables[0] + half_b @ half_a)

    async def update(engine: SGLangEngine) -> None:
        assert engine.abilities.lora
        slowly(server)
        running = engine.submit(request(max_new_tokens=80))
        for version in (1, 2):
            await sampled(engine, 20 * version)
            await engine.load_weights(iter(halves(version).items()), version)
        result = await running
        assert [span.version for span in result.version_spans] == [0, 1, 2]
        check_logprobs(result, tables)
        assert len(server.engine.adapters) == 1
        await engine.load_weights(folder, 3)
        assert not server.engine.adapters

    play(config, update)
    assert len(server.behavior.updates) == 2  # the model at the start, and whole weights at the end


def test_an_adapter_that_the_server_does_not_take_changes_nothing(
    server: FakeSGLang, config: EngineConfig
) -> None:
    async def update(engine: SGLangEngine) -> None:
        with pytest.raises(EngineError, match=r"does not take the adapter: .*rank 20 is incompatible"):
            await engine.load_weights(halves(1, rank=20), 1)
        assert engine.health().error == ""
        result = await engine.submit(request())
        assert [span.version for span in result.version_spans] == [0]

    server.behavior.enable_lora = True
    play(config, update)


def test_a_server_that_takes_no_adapters_is_known_for_it(server: FakeSGLang, config: EngineConfig) -> None:
    async def update(engine: SGLangEngine) -> None:
        assert not engine.abilities.lora
        with pytest.raises(EngineError, match="is not one of the model's"):
            await engine.load_weights(halves(1), 1)

    play(config, update)

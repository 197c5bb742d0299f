"""The `sglang` engine against an emulated server on a socket, and its pure parts."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from remote_play import request, then
from safetensors.numpy import save_file
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
    status,
)
from sglang_server import TABLE, FakeSGLang, Respond, distributions, read_table, table, write_model

from envsdk.config import load_config
from envsdk.contracts.failures import ConfigurationError, EngineError
from envsdk.contracts.held import Held
from envsdk.contracts.trajectory import FinishReason, VersionSpan
from envsdk.engines.engine import EngineConfig, PauseMode, WeightReference
from envsdk.engines.engine_host import EngineHost
from envsdk.engines.sglang.engine import SGLangEngine
from envsdk.testing.engine_structures import write_tokenizer
from envsdk.testing.engines import CoreSuite, until
from envsdk.weights.buckets import fill_buckets


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


class TestSGLangConforms(CoreSuite):
    engine_class = SGLangEngine
    unknown_key, nearest_key = "mem_fraction_statik", "mem_fraction_static"
    long_reply_s = 0.5
    server: FakeSGLang
    folder: Path
    other: Path

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _serve(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        cls.folder = write_model(tmp_path_factory.mktemp("table"), seed=0)
        write_tokenizer(cls.folder)
        cls.other = write_model(tmp_path_factory.mktemp("other"), seed=1)
        with FakeSGLang(read_table(cls.folder)) as cls.server:
            cls.server.behavior.tokenizer, cls.server.behavior.enable_lora = cls.folder, True
            cls.server.behavior.slow_after = 30  # the long replies, so that the rest of the suite is quick
            cls.server.behavior.token_s = 1.2 * cls.long_reply_s / (cls.long_reply - 30)
            yield
        assert not cls.server.engine.crash
        assert not cls.server.behavior.num_stale_reads

    def config(self, **changes: Any) -> EngineConfig:
        settings = {"base_url": self.server.base_url, "stream_interval": 4}
        changes["strategy_config"] = settings | dict(changes.get("strategy_config", {}))
        return EngineConfig(model=self.folder, sequence_length=self.sequence_length, **changes)

    def weights(self) -> WeightReference:
        return self.other


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model", seed=0)


@pytest.fixture
def other(tmp_path: Path) -> Path:
    return write_model(tmp_path / "other", seed=1)


@pytest.fixture
def server(folder: Path) -> Iterator[FakeSGLang]:
    with serving(folder) as server:
        yield server


@pytest.fixture
def config(server: FakeSGLang, folder: Path) -> EngineConfig:
    return config_of(server, folder)


@pytest.mark.parametrize(
    "shape",
    [{}, {"temperature": 0.6}, {"temperature": 0.7, "top_k": 9, "top_p": 0.8}, {"temperature": 0.0}],
)
def test_logprobs_are_those_of_the_distribution_that_tokens_were_drawn_from(
    shape: dict[str, Any], config: EngineConfig, folder: Path
) -> None:
    result = one_reply(config, max_new_tokens=12, **shape)
    assert len(result.token_ids) == 12
    check_logprobs(result, [read_table(folder)], **shape)


def test_logprobs_before_truncation_are_to_be_had_and_said_to_be(config: EngineConfig, folder: Path) -> None:
    async def ask(engine: SGLangEngine) -> None:
        assert not engine.abilities.processed_logprobs
        result = await engine.submit(request(top_p=0.5))
        raw = distributions(read_table(folder), 4, {"temperature": 1, "top_k": -1, "top_p": 1})[0]
        assert result.logprobs[0] == pytest.approx(raw[result.token_ids[0]], abs=1e-5)

    play(having(config, logprobs="untruncated"), ask)


def test_top_p_without_top_k_is_answered_with_what_to_do(config: EngineConfig) -> None:
    result = one_reply(config, top_p=0.5)
    assert result.finish_reason is FinishReason.ERROR
    assert "set top_k as well" in result.error


def test_without_logprobs_they_are_not_asked_for_and_recorded_as_nan(
    server: FakeSGLang, config: EngineConfig
) -> None:
    result = one_reply(having(config, logprobs="none"))
    assert np.isnan(result.logprobs).all()
    assert not server.behavior.bodies[-1]["return_logprob"]


@pytest.mark.parametrize("incremental", [True, False])
def test_messages_with_new_tokens_and_with_all_give_the_same_reply(
    incremental: bool, server: FakeSGLang, config: EngineConfig
) -> None:
    expected = one_reply(config, max_new_tokens=30)
    server.behavior.incremental = incremental
    assert one_reply(config, max_new_tokens=30).token_ids.tolist() == expected.token_ids.tolist()


def test_a_reply_interrupted_at_its_stop_token_does_not_go_on(
    server: FakeSGLang, config: EngineConfig
) -> None:
    free = one_reply(config, max_new_tokens=20).token_ids.tolist()
    stop = free[7]
    whole = free[: free.index(stop) + 1]

    async def interrupt(engine: SGLangEngine) -> None:
        slowly(server)
        running = engine.submit(request(max_new_tokens=20, stop_token_ids=(stop,)))
        await until(lambda: bool(engine.core.requests.names))
        reply = next(iter(engine.core.requests.names))
        await until(lambda: len(reply.token_ids) >= 1)
        await engine.pause(PauseMode.KEEP)
        # SGLang looks at an abort first, so that an aborted reply may end with its stop token.
        reply.token_ids[:] = whole
        reply.logprobs[:] = [-1.0] * len(whole)
        reply.spans[:] = [VersionSpan(version=0, start=0, end=len(whole))]
        await engine.resume()
        result = await running
        assert result.finish_reason is FinishReason.STOP
        assert result.token_ids.tolist() == whole

    play(config, interrupt)


def test_tokens_after_an_update_are_of_the_new_weights(
    server: FakeSGLang, config: EngineConfig, folder: Path, other: Path
) -> None:
    tables = [read_table(folder), read_table(other)]

    async def update(engine: SGLangEngine) -> None:
        slowly(server)
        running = [engine.submit(request(str(n), max_new_tokens=60, seed=n)) for n in range(5)]
        await sampled(engine, 40)
        await engine.load_weights(other, 1)
        for result in await asyncio.gather(*running):
            assert [span.version for span in result.version_spans] == [0, 1]
            assert len(result.token_ids) == 60
            check_logprobs(result, tables)

    play(config, update)


def test_weights_come_as_a_mapping_and_as_a_stream(
    server: FakeSGLang, config: EngineConfig, folder: Path
) -> None:
    tables = [read_table(folder), table(5), table(6)]

    async def update(engine: SGLangEngine) -> None:
        await engine.load_weights({TABLE: table(5)}, 1)
        check_logprobs(await engine.submit(request()), tables)
        await engine.load_weights(iter([(TABLE, table(6))]), 2)
        check_logprobs(await engine.submit(request()), tables)

    play(config, update)
    for update_body in server.behavior.updates[1:]:  # the first is the model, at the start
        assert not Path(update_body["model_path"]).exists()


def test_a_stream_that_fails_or_does_not_fit_changes_nothing(
    server: FakeSGLang, config: EngineConfig
) -> None:
    def breaks_off() -> Iterator[tuple[str, Any]]:
        yield TABLE, table(5)
        raise EngineError("the trainer died")

    async def update(engine: SGLangEngine) -> None:
        slowly(server)
        running = engine.submit(request(max_new_tokens=40))
        await sampled(engine, 4)
        for weights, complaint in [
            (breaks_off(), "the trainer died"),
            ({"unknown": table(5)}, "`unknown` is not one of the model's"),
            ({TABLE: table(5)[:3]}, r"shape \[3, 64\]; the model needs \[64, 64\]"),
            ({}, f"`{TABLE}` is missing"),
        ]:
            with pytest.raises(EngineError, match=complaint):
                await engine.load_weights(weights, 1)
        result = await running
        assert [span.version for span in result.version_spans] == [0]
        assert engine.health().error == ""

    play(config, update)
    assert len(server.behavior.updates) == 1  # the model, at the start


def test_an_update_that_the_server_refuses_breaks_the_engine(
    server: FakeSGLang, config: EngineConfig, folder: Path
) -> None:
    async def update(engine: SGLangEngine) -> None:
        waiting = [engine.submit(request(str(n), max_new_tokens=200)) for n in range(12)]
        # The server's model is another than the folder says.
        (folder / "model.safetensors").unlink()
        save_file({"odd": table(0)}, folder / "model.safetensors")
        with pytest.raises(EngineError, match=r"weights 1 did not arrive.*Failed to update weights"):
            await engine.load_weights({"odd": table(1)}, 1)
        assert "Failed to update weights" in engine.health().error
        for result in await asyncio.gather(*waiting):
            assert result.finish_reason is FinishReason.ERROR

    slowly(server)
    play(config, update)


def test_somebody_else_who_updates_the_server_is_found_out(server: FakeSGLang, config: EngineConfig) -> None:
    async def ask(engine: SGLangEngine) -> None:
        server.engine.update_weight_version("theirs")
        result = await engine.submit(request())
        assert "of weights `theirs`" in result.error

    play(config, ask)


def test_an_update_waits_for_the_schedulers_last_step(
    server: FakeSGLang, config: EngineConfig, other: Path
) -> None:
    """SGLang dies when it empties its cache earlier."""

    async def update(engine: SGLangEngine) -> None:
        slowly(server, 0.05)
        for version in (1, 2, 3):
            await engine.submit(request(max_new_tokens=2))
            await engine.load_weights(other, version)

    play(config, update)
    assert not server.engine.crash


@pytest.mark.parametrize("mode", [PauseMode.KEEP, PauseMode.ABORT])
def test_a_request_on_its_way_to_the_server_is_aborted_when_it_gets_there(
    mode: PauseMode, server: FakeSGLang, config: EngineConfig
) -> None:
    arrived, may_go_on = threading.Event(), threading.Event()

    def late(handler: Any, body: dict[str, Any]) -> bool:
        arrived.set()
        may_go_on.wait()
        return False

    async def pause(engine: SGLangEngine) -> None:
        slowly(server)
        running = engine.submit(request(max_new_tokens=100))
        await until(arrived.is_set)
        pausing = asyncio.ensure_future(engine.pause(mode))
        await asyncio.sleep(0.25)  # the first aborts come before it
        assert not pausing.done()
        may_go_on.set()
        await pausing
        await engine.resume()
        result = await running
        is_kept = mode is PauseMode.KEEP
        assert result.finish_reason is (FinishReason.LENGTH if is_kept else FinishReason.ABORT)
        assert (len(result.token_ids) == 100) is is_kept

    then(server, late)
    play(config, pause)


def test_abort_ends_the_request_on_the_server_too(server: FakeSGLang, config: EngineConfig) -> None:
    async def ask(engine: SGLangEngine) -> None:
        slowly(server)
        running, spared = engine.submit(request(max_new_tokens=200)), engine.submit(request("b"))
        await sampled(engine, 10)
        engine.abort(["a"])
        assert (await running).finish_reason is FinishReason.ABORT
        assert len((await running).token_ids) >= 5
        assert (await spared).finish_reason is FinishReason.LENGTH
        await until(server.engine.is_fully_idle)

    play(config, ask)


def test_seeds_go_on_where_an_update_interrupted_them(
    server: FakeSGLang, config: EngineConfig, folder: Path
) -> None:
    undisturbed = one_reply(config, max_new_tokens=60)

    async def update(engine: SGLangEngine) -> None:
        slowly(server)
        running = engine.submit(request(max_new_tokens=60))
        await sampled(engine, 10)
        await engine.load_weights(folder, 1)  # the same weights
        result = await running
        assert [span.version for span in result.version_spans] == [0, 1]
        assert result.token_ids.tolist() == undisturbed.token_ids.tolist()

    play(config, update)


@pytest.mark.parametrize("mode", ["continue", "finish", "restart"])
def test_a_training_runs_host_updates_it_in_every_mode(
    mode: str, server: FakeSGLang, config: EngineConfig
) -> None:
    async def scenario() -> None:
        host = EngineHost("sglang", config)
        await host.start()
        slowly(server)
        running = host._engine.submit(request(max_new_tokens=40))
        await sampled(host._engine, 5)  # type: ignore[arg-type]
        await host.begin_update("u", 1, mode)
        bucket = next(fill_buckets([(TABLE, table(5))], lambda: np.empty(1 << 16, np.uint8)))
        assert await host.take_bucket("u", 0, bucket.chunks, len(bucket.data), bucket.data)
        await host.complete_update("u")
        versions = [span.version for span in (await running).version_spans]
        assert versions == {"continue": [0, 1], "finish": [0], "restart": [0]}[mode]
        again = await host._engine.submit(request("b"))
        check_logprobs(again, [table(0), table(5)])
        await host.close()

    asyncio.run(asyncio.wait_for(scenario(), 30))


@pytest.mark.parametrize("failure", [status(429), status(503), hang_up_after(0), hang_up_after(9)])
def test_a_failure_that_passes_leaves_no_trace(
    failure: Respond, server: FakeSGLang, config: EngineConfig
) -> None:
    expected = one_reply(config, max_new_tokens=30)
    then(server, failure, failure)
    result = one_reply(config, max_new_tokens=30)
    assert result.finish_reason is FinishReason.LENGTH
    assert result.token_ids.tolist() == expected.token_ids.tolist()


def test_a_request_the_server_refuses_is_answered_with_its_words(
    server: FakeSGLang, config: EngineConfig
) -> None:
    then(server, status(400))
    assert "400: told 400" in one_reply(config).error
    assert len(server.behavior.bodies) == 3


def test_retries_end(server: FakeSGLang, config: EngineConfig) -> None:
    then(server, *[status(503)] * 3)
    assert "told 503 (asked 3 times)" in one_reply(having(config, max_retries=2)).error


def test_a_server_that_aborts_by_itself_is_asked_again_but_not_for_ever(
    server: FakeSGLang, config: EngineConfig
) -> None:
    def abort(handler: Any, body: dict[str, Any]) -> bool:
        timer = threading.Timer(0.03, handler.engine.abort, ("", True))
        timer.start()
        return False

    slowly(server)
    then(server, abort)
    assert one_reply(config, max_new_tokens=40).finish_reason is FinishReason.LENGTH
    then(server, *[abort] * 3)
    result = one_reply(having(config, max_retries=2), max_new_tokens=250)
    assert "ended the request by itself: Aborted (asked 3 times)" in result.error
    assert 0 < len(result.token_ids) < 250


def test_a_server_that_falls_silent_breaks_the_engine(
    server: FakeSGLang, config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("envsdk.engines.sglang.engine.LOOK_S", 0.02)

    async def hang(engine: SGLangEngine) -> None:
        slowly(server, 0.1)
        running = engine.submit(request(max_new_tokens=200))
        await until(lambda: engine.health().kv_usage == 0.25)
        server.behavior.hangs.set()
        result = await running
        assert result.finish_reason is FinishReason.ERROR
        assert "does not answer" in result.error
        assert engine.health().error == result.error

    play(having(config, silence_timeout_s=0.2), hang)


def test_a_server_that_is_not_as_deterministic_as_asked_for_is_refused(
    server: FakeSGLang, config: EngineConfig
) -> None:
    server.behavior.deterministic = False
    with pytest.raises(ConfigurationError, match="--enable-deterministic-inference"):
        one_reply(config)
    assert len(one_reply(having(config, deterministic=False)).token_ids) == 6


def test_a_server_whose_logprobs_are_without_temperature_is_refused(
    server: FakeSGLang, config: EngineConfig
) -> None:
    server.behavior.original_logprobs = True
    with pytest.raises(ConfigurationError, match="SGLANG_RETURN_ORIGINAL_LOGPROB"):
        one_reply(config)


def test_a_server_without_a_prefix_cache_is_known_for_it(server: FakeSGLang, config: EngineConfig) -> None:
    async def look(engine: SGLangEngine) -> bool:
        return engine.abilities.prefix_reuse

    assert play(config, look)
    server.behavior.radix_cache = False
    assert not play(config, look)


def test_a_server_left_with_other_weights_gets_the_models(
    server: FakeSGLang, config: EngineConfig, folder: Path, other: Path
) -> None:
    async def update(engine: SGLangEngine) -> None:
        await engine.load_weights(other, 1)

    play(config, update)
    left = one_reply(having(config, load_at_start=False))
    check_logprobs(left, [read_table(other)])
    check_logprobs(one_reply(config), [read_table(folder)])


def test_the_servers_key_comes_from_the_environment(
    server: FakeSGLang, config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.behavior.api_key = "secret"
    monkeypatch.setenv("TEST_KEY", "secret")
    assert len(one_reply(having(config, api_key_env="TEST_KEY")).token_ids) == 6
    monkeypatch.setenv("TEST_KEY", "wrong")
    with pytest.raises(EngineError, match="401: Unauthorized"):
        one_reply(having(config, api_key_env="TEST_KEY"))


def test_what_cannot_work_is_refused_before_anything_starts(folder: Path, tmp_path: Path) -> None:
    config = EngineConfig(model=folder, sequence_length=64)
    for bad, complaint in [
        (replace(config, model=None), "needs a model"),
        (replace(config, model=tmp_path), r"no config\.json"),
        (replace(config, sequence_length=1), "at least 2"),
        (having(config, python="/no/such/python"), "`python`.*cannot be run"),
    ]:
        with pytest.raises(ConfigurationError, match=complaint):
            SGLangEngine.create(bad)


def test_training_with_it_is_allowed() -> None:
    overrides = ["actor_infer.strategy_args.strategy_name=sglang"]
    assert load_config("agentic_async.yaml", overrides).config.actor_infer.strategy_args.strategy_name


@pytest.fixture
def launched(folder: Path, tmp_path: Path) -> EngineConfig:
    """With an interpreter that runs the emulated server whatever module it is to run."""
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\nexec {sys.executable} {Path(__file__).with_name("sglang_server.py")} "$@"\n'
    )
    python.chmod(0o755)
    return EngineConfig(
        model=folder, sequence_length=64, strategy_config={"python": str(python), "context_length": 100}
    )


def test_a_server_is_started_updated_and_ended(launched: EngineConfig, other: Path, folder: Path) -> None:
    async def scenario(engine: SGLangEngine) -> int:
        check_logprobs(await engine.submit(request()), [read_table(folder)])
        await engine.load_weights(other, 1)
        check_logprobs(await engine.submit(request()), [read_table(folder), read_table(other)])
        process = engine.core.connection._process
        assert process is not None
        assert process._process is not None
        return process._process.pid

    guard = play(launched, scenario)
    assert not psutil.pid_exists(guard)


def test_a_server_that_ends_breaks_the_engine_at_once(
    launched: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("envsdk.engines.sglang.engine.LOOK_S", 0.02)

    async def kill(engine: SGLangEngine) -> None:
        process = engine.core.connection._process
        assert process is not None
        assert process._process is not None
        for child in psutil.Process(process._process.pid).children(recursive=True):
            child.kill()
        await until(lambda: bool(engine.health().error))
        assert "SGLang's server ended" in engine.health().error
        assert (await engine.submit(request())).finish_reason is FinishReason.ERROR

    play(launched, kill)


def test_a_server_that_does_not_start_is_an_error_with_its_words(launched: EngineConfig) -> None:
    with pytest.raises(EngineError, match=r"(?s)exit status 2.*unrecognized arguments: --tp-size 2"):
        one_reply(having(launched, tp_size=2))


def test_a_server_does_not_outlive_a_process_that_was_killed(launched: EngineConfig, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    script = f"""
import asyncio
from pathlib import Path
from envsdk.engines.sglang.connection import ServerProcess

async def main():
    server = ServerProcess("sleep", [])
    server._command = ["sleep", "600"]
    await server.start()
    Path({str(pids)!r} + ".new").write_text(str(server._process.pid))
    Path({str(pids)!r} + ".new").rename({str(pids)!r})
    await asyncio.sleep(600)

asyncio.run(main())
"""
    owner = subprocess.Popen([sys.executable, "-c", script], env=os.environ | {"TMPDIR": str(tmp_path)})

    async def scenario() -> None:
        await until(pids.exists)
        guard = psutil.Process(int(pids.read_text()))
        await until(lambda: bool(guard.children()))
        sleeper = guard.children()[0]
        owner.kill()
        await until(lambda: not sleeper.is_running() and not guard.is_running())

    asyncio.run(asyncio.wait_for(scenario(), 30))
    owner.wait()


def test_memory_is_given_back_and_weights_come_before_the_cache(
    config: EngineConfig, server: FakeSGLang, other: Path
) -> None:
    async def ask(engine: SGLangEngine) -> None:
        await engine.pause(PauseMode.KEEP)
        await engine.hold(Held.NOTHING)
        later = engine.submit(request(max_new_tokens=8))
        await engine.hold(Held.WEIGHTS)
        await engine.load_weights(other, 1)
        await engine.hold(Held.ALL)
        await engine.resume()
        check_logprobs(await later, [read_table(other)] * 2)

    play(replace(config, takes_turns=True), ask)
    assert server.behavior.occupied == [["kv_cache", "weights"], ["kv_cache"], []]


@pytest.mark.parametrize(
    ("saver", "held", "expected"),
    [(False, Held.NOTHING, "--enable-memory-saver"), (True, Held.ALL, "no new ones were loaded")],
)
def test_memory_that_cannot_come_or_go_ends_the_engine(
    saver: bool, held: Held, expected: str, config: EngineConfig, server: FakeSGLang
) -> None:
    server.behavior.memory_saver = saver

    async def ask(engine: SGLangEngine) -> None:
        await engine.pause(PauseMode.KEEP)
        if held is Held.ALL:
            await engine.hold(Held.NOTHING)
        with pytest.raises(EngineError, match=expected):
            await engine.hold(held)
        assert expected in engine.health().error

    play(config, ask)

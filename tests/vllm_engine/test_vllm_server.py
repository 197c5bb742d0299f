"""vLLM's own server: the `openai` engine asks its `/inference/v1/generate`, and its classes read ours."""

from __future__ import annotations

import base64
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx2
import numpy as np
import pytest
from remote_play import play_on, request
from test_endpoint_generate import PROMPT, generate
from test_endpoint_server import events, serving
from vllm_models import save_model

from envsdk.contracts.trajectory import FinishReason
from envsdk.engines.engine import EngineConfig, GenerationResult
from envsdk.engines.engine_support.experts import from_npy
from envsdk.engines.openai.engine import OpenAIEngine
from envsdk.engines.openai.settings import OpenAISettings
from envsdk.engines.openai.wire import completion_body, read_event
from envsdk.testing.engine_structures import write_tokenizer

pytestmark = pytest.mark.vllm
LENGTH = 512


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = save_model("qwen3", tmp_path_factory.mktemp("model"))
    write_tokenizer(folder)  # completions need one
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = [
        "--model", str(folder), "--served-model-name", "tiny", "--port", str(port), "--host", "127.0.0.1",
        "--enable-scale-out", "--logprobs-mode", "processed_logprobs",
        "--dtype", "float32", "--enforce-eager", "--max-model-len", str(LENGTH), "--max-num-seqs", "8",
        "--block-size", "32",
        "--kv-cache-memory-bytes", str(1 << 28), "--no-enable-chunked-prefill", "--generation-config", "vllm",
    ]  # fmt: skip
    environment = {
        **os.environ, "VLLM_NO_USAGE_STATS": "1", "VLLM_SERVER_DEV_MODE": "1", "OMP_NUM_THREADS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind", "TORCHDYNAMO_DISABLE": "1",
    }  # fmt: skip
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *options]
    log = tmp_path_factory.mktemp("log") / "vllm.log"
    with log.open("w") as out:
        server = subprocess.Popen(command, env=environment, stdout=out, stderr=out, start_new_session=True)
    try:
        base = f"http://127.0.0.1:{port}"
        with httpx2.Client(transport=httpx2.HTTPTransport(retries=8), timeout=5) as http:
            while not _answers(http, base):
                assert server.poll() is None, log.read_text()[-4000:]
        yield base
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait()


def _answers(http: httpx2.Client, base: str) -> bool:
    try:
        return http.get(f"{base}/health").status_code == httpx2.codes.OK
    except httpx2.TransportError:
        return False


def config(url: str, protocol: str, **extra_body: Any) -> EngineConfig:
    settings = {"base_url": f"{url}/v1", "model": "tiny", "protocol": protocol, "extra_body": extra_body}
    return EngineConfig(model=None, sequence_length=LENGTH, strategy_config=settings)


async def replies(engine: OpenAIEngine) -> list[GenerationResult]:
    shapes: list[dict[str, Any]] = [{}, {"temperature": 0.0}, {"top_p": 0.8, "top_k": 9}, {"seed": 5}]
    return [
        await engine.submit(request(str(number), max_new_tokens=12, **shape))
        for number, shape in enumerate(shapes)
    ]


def test_generate_samples_what_completions_sample(url: str) -> None:
    ours = play_on(OpenAIEngine, config(url, "generate"), replies)
    theirs = play_on(OpenAIEngine, config(url, "completions"), replies)
    for one, other in zip(ours, theirs, strict=True):
        assert one.finish_reason is other.finish_reason is not FinishReason.ERROR
        assert one.token_ids.tolist() == other.token_ids.tolist()
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-5)


def test_weights_that_come_during_a_reply_are_the_version_of_its_later_tokens(url: str) -> None:
    async def ask(engine: OpenAIEngine) -> None:
        async with httpx2.AsyncClient(timeout=60) as http:
            running = engine.submit(request("a", max_new_tokens=400))
            while not any(reply.token_ids for reply in engine.core.tasks):
                assert not running.done(), running.result()
                await http.get(f"{url}/health")
            label = {"new_version": "4"}
            (await http.post(f"{url}/update_weight_version", json=label)).raise_for_status()
            result = await running
            assert [span.version for span in result.version_spans] == [0, 4]
            assert result.version_spans[-1].end == len(result.token_ids) == 400
            label = {"new_version": "mine"}
            (await http.post(f"{url}/update_weight_version", json=label)).raise_for_status()
            assert "label `mine`" in (await engine.submit(request("b"))).error

    play_on(OpenAIEngine, config(url, "generate", ignore_eos=True), ask)


def test_experts_are_asked_for_and_read_in_the_words_of_vllms_own_server() -> None:
    """It tells of them with its V2 model runner alone, which does not run on a CPU."""
    from vllm.entrypoints.scale_out.token_in_token_out import protocol
    from vllm.utils.serial_utils import numpy2base64

    settings = OpenAISettings(base_url="http://server/v1", model="tiny", protocol="generate")
    body = completion_body(settings, replace(request(), experts_from=2), 4, tells_experts=True)
    asked = protocol.GenerateRequest.model_validate(body)
    assert asked.sampling_params.routed_experts_prompt_start == 2
    chosen = np.arange(24, dtype=np.uint8).reshape(4, 3, 2)
    choice = protocol.GenerateTokensStreamChoice(
        index=0, token_ids=[5], finish_reason="stop", routed_experts=numpy2base64(chosen)
    )
    told = protocol.GenerateTokensStreamResponse(request_id="a", choices=[choice]).model_dump_json()
    delta = read_event(told, prompt_ids=[3, 1, 4], with_logprobs=False)
    assert delta.experts is not None
    np.testing.assert_array_equal(from_npy(base64.b64decode(delta.experts)), chosen)


async def test_vllms_own_classes_read_what_the_endpoint_answers() -> None:
    from vllm.entrypoints.scale_out.token_in_token_out import protocol

    for mode in ("tokens", "text"):
        whole, chunk = {
            "tokens": (protocol.GenerateTokensResponse, protocol.GenerateTokensStreamResponse),
            "text": (protocol.GenerateTextResponse, protocol.GenerateTextStreamResponse),
        }[mode]
        async with serving() as served:
            asked: dict[str, Any] = {"output_mode": mode, "return_token_ids": True}
            read = whole.model_validate((await generate(served, **asked)).json())
            usage = {"stream_options": {"include_usage": True}}
            chunks = events(await generate(served, **asked, **usage, stream=True))
        streamed = [chunk.model_validate(each) for each in chunks]
        assert read.prompt_token_ids == streamed[0].prompt_token_ids == PROMPT
        ids = [token for each in streamed for choice in each.choices for token in choice.token_ids]
        assert ids == read.choices[0].token_ids
        assert streamed[-2].choices[0].weight_versions == read.choices[0].weight_versions
        assert read.choices[0].weight_versions[0].version == "0"

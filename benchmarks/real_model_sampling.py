"""Tokens per second of a real model on a CPU: the embedded engine, `generate`, llama.cpp and vLLM.

    python benchmarks/real_model_sampling.py MODEL [--quick] [--threads 1 2]
        [--llama PYTHON --gguf FILE] [--vllm PYTHON]

MODEL is a Hugging Face folder, sampled in bfloat16 at temperature 1. Each engine is a process of its own,
and all take their turns at each size, so that a busy machine slows all alike. llama.cpp takes part where
PYTHON can import `llama_cpp` and `gguf`; FILE is the same model in GGUF, which is written anew as BF16 and
Q8_0. vLLM, uncompiled, takes part where PYTHON has it. Prompts are computed anew each time and count. One
thread is timed by CPU seconds, which a busy machine hardly changes, several by the clock. Exits with 1 where
the embedded engine is behind a peer; llama.cpp may be ahead at one sequence.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

SIZES = [(count, prompt) for prompt in (64, 512) for count in (1, 8, 32, 128)]
QUICK = [(1, 64), (8, 64), (32, 64), (128, 64), (8, 512)]
MOST, NEW, VOCABULARY = 128, 64, 48_000
_KEPT: list[Any] = []
Sample = Callable[[Any, int], None]
"""Prompts `[sequences, tokens]`, and how many tokens follow each."""


def embedded(model: str, threads: int) -> Sample:
    import torch

    from envsdk.engines.embedded import EmbeddedEngine
    from envsdk.engines.engine import EngineConfig, GenerationRequest
    from envsdk.engines.sampling import SamplingParams

    torch.set_num_threads(threads)
    loop = asyncio.new_event_loop()
    engine = EmbeddedEngine.create(
        EngineConfig(
            model=Path(model),
            sequence_length=512 + NEW,
            max_running=MOST,
            strategy_config={"dtype": "bfloat16", "num_threads": threads, "kv_slots": MOST},
        )
    )
    loop.run_until_complete(engine.start())

    async def run(prompts: Any, new: int) -> None:
        asked = [
            engine.submit(
                GenerationRequest(
                    request_id=str(number),
                    prompt_ids=prompt.astype(np.int32),
                    sampling=SamplingParams(max_new_tokens=new, seed=number),
                )
            )
            for number, prompt in enumerate(prompts)
        ]
        assert all(len(result.token_ids) == new for result in await asyncio.gather(*asked))

    return lambda prompts, new: loop.run_until_complete(run(prompts, new))


def generate(model: str, threads: int) -> Sample:
    import torch
    import transformers

    torch.set_num_threads(threads)
    transformers.logging.set_verbosity_error()
    policy = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16).eval()

    def run(prompts: Any, new: int) -> None:
        ids = torch.from_numpy(prompts)
        with torch.inference_mode():
            output = policy.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                min_new_tokens=new,
                max_new_tokens=new,
                pad_token_id=0,
            )
        assert output.shape[1] == prompts.shape[1] + new

    return run


def rewritten(source: str, target: Path, kind: str) -> str:
    """The model of a GGUF file with all matrices as BF16 or Q8_0."""
    import gguf  # type: ignore[import-not-found]

    reader = gguf.GGUFReader(source)
    architecture = reader.get_field("general.architecture")
    assert architecture is not None
    writer = gguf.GGUFWriter(target, architecture.contents())
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name not in ("general.architecture", "general.file_type"):
            nested = field.types[1] if len(field.types) > 1 else None
            writer.add_key_value(name, field.contents(), field.types[0], sub_type=nested)
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        stored = getattr(gguf.GGMLQuantizationType, kind if values.ndim > 1 else "F32")
        writer.add_tensor(tensor.name, gguf.quantize(values, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(target)


def llama(source: str, threads: int, kind: str) -> Sample:
    import llama_cpp as cpp  # type: ignore[import-not-found]

    silence = cpp.llama_log_callback(lambda *_: None)
    _KEPT.append(silence)  # llama.cpp holds its address only
    with tempfile.TemporaryDirectory() as folder:
        path = rewritten(source, Path(folder) / "model.gguf", kind)
        cpp.llama_log_set(silence, ctypes.c_void_p(0))
        cpp.llama_backend_init()
        loading = cpp.llama_model_default_params()
        loading.use_mmap = False
        model = cpp.llama_model_load_from_file(path.encode(), loading)
    assert model

    def run(prompts: Any, new: int) -> None:
        count, length = prompts.shape
        params = cpp.llama_context_default_params()
        params.n_ctx, params.n_seq_max = count * (length + new), count
        params.n_batch, params.n_ubatch = 2048, 512
        params.n_threads = params.n_threads_batch = threads
        context = cpp.llama_init_from_model(model, params)
        batch = cpp.llama_batch_init(2048, 0, 1)
        sampler = cpp.llama_sampler_chain_init(cpp.llama_sampler_chain_default_params())
        cpp.llama_sampler_chain_add(sampler, cpp.llama_sampler_init_dist(1))

        def decode(tokens: list[tuple[int, int, int, bool]]) -> list[int]:
            """Tokens as id, position, sequence and whether the next one is sampled."""
            sampled = []
            for start in range(0, len(tokens), 2048):
                part = tokens[start : start + 2048]
                batch.n_tokens = len(part)
                for index, (token, position, sequence, wanted) in enumerate(part):
                    batch.token[index], batch.pos[index], batch.logits[index] = token, position, wanted
                    batch.n_seq_id[index], batch.seq_id[index][0] = 1, sequence
                assert cpp.llama_decode(context, batch) == 0
                sampled += [
                    cpp.llama_sampler_sample(sampler, context, i) for i, each in enumerate(part) if each[3]
                ]
            return sampled

        last = decode(
            [
                (int(token), position, sequence, position == length - 1)
                for sequence, prompt in enumerate(prompts)
                for position, token in enumerate(prompt)
            ]
        )
        for step in range(new - 1):
            last = decode([(token, length + step, sequence, True) for sequence, token in enumerate(last)])
        assert len(last) == count
        cpp.llama_sampler_free(sampler)
        cpp.llama_batch_free(batch)
        cpp.llama_free(context)

    return run


def vllm(model: str, threads: int) -> Sample:
    os.environ |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # so that its CPU seconds are this process's
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": "3",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        "TORCHDYNAMO_DISABLE": "1",
        "OMP_NUM_THREADS": str(threads),
    }
    from vllm import LLM, SamplingParams

    engine = LLM(
        model=model,
        dtype="bfloat16",
        max_model_len=512 + NEW,
        max_num_seqs=MOST,
        enforce_eager=True,
        enable_prefix_caching=False,
        disable_log_stats=True,
    )

    def run(prompts: Any, new: int) -> None:
        results = engine.generate(
            [{"prompt_token_ids": prompt.tolist()} for prompt in prompts],
            SamplingParams(temperature=1.0, max_tokens=new, ignore_eos=True, logprobs=0, detokenize=False),
            use_tqdm=False,
        )
        assert all(len(result.outputs[0].token_ids) == new for result in results)

    return run


def serve(name: str, source: str, threads: int) -> None:
    """Sample as many sequences as each line of the input asks for; write CPU and wall seconds."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what engines print is no answer
    began = time.perf_counter()
    if name.startswith("llama"):
        run = llama(source, threads, name.split()[1])
    else:
        run = {"embedded": embedded, "generate": generate, "vllm": vllm}[name](source, threads)
    print(json.dumps({"loaded_s": time.perf_counter() - began}), file=answers, flush=True)
    for line in sys.stdin:
        count, length, new = json.loads(line)
        prompts = np.random.default_rng(count).integers(100, VOCABULARY, (count, length))
        cpu, wall = time.process_time(), time.perf_counter()
        run(prompts, new)
        print(json.dumps([time.process_time() - cpu, time.perf_counter() - wall]), file=answers, flush=True)


class Peer:
    """One engine in a process of its own."""

    def __init__(self, name: str, python: str, source: str, threads: int) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [python, __file__, source, "--serve", name, "--threads", str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"},
        )
        self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        if not (line := self._process.stdout.readline()):
            raise SystemExit(f"{self.name} ended: its last words are above")
        return json.loads(line)

    def sample(self, count: int, length: int, new: int) -> tuple[float, float]:
        assert self._process.stdin is not None
        print(json.dumps([count, length, new]), file=self._process.stdin, flush=True)
        cpu, wall = self._answer()
        return cpu, wall

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def compare(peers: list[Peer], threads: int, sizes: list[tuple[int, int]], new: int, repeats: int) -> bool:
    """Print tokens per second of each, and what part of the embedded engine's they are."""
    passed = True
    print(f"{threads} thread{'s' * (threads > 1)}, {new} new tokens; in brackets the embedded engine's lead")
    for count, length in sizes:
        for peer in peers:
            peer.sample(count, length, 2)
        found = [[peer.sample(count, length, new) for peer in peers] for _ in range(repeats)]
        clock = 0 if threads == 1 else 1
        speeds = [
            count * new / statistics.median(times[index][clock] for times in found)
            for index in range(len(peers))
        ]
        cells = [
            f"{peer.name} {speed:.0f} ({speeds[0] / speed:.2f})"
            for peer, speed in zip(peers, speeds, strict=True)
        ]
        print(f"{count:4d} x {length:3d}: " + ", ".join(cells), flush=True)
        rivals = [
            s for p, s in zip(peers, speeds, strict=True) if count > 1 or not p.name.startswith("llama")
        ]
        passed = passed and speeds[0] >= max(rivals)
    return passed


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--quick", action="store_true", help="five sizes, 16 new tokens, once each")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--llama", default="", help="the Python that has llama_cpp and gguf")
    parser.add_argument("--gguf", default="", help="the model in GGUF, of any type")
    parser.add_argument("--vllm", default="", help="the Python that has vllm")
    parser.add_argument("--serve", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given.serve, given.model, given.threads[0])
        return 0
    passed = True
    for threads in given.threads:
        peers = [Peer(name, sys.executable, given.model, threads) for name in ("embedded", "generate")]
        if given.llama:
            peers += [Peer(f"llama {kind}", given.llama, given.gguf, threads) for kind in ("BF16", "Q8_0")]
        if given.vllm:
            peers.append(Peer("vllm", given.vllm, given.model, threads))
        sizes, new, repeats = (QUICK, 16, 1) if given.quick else (SIZES, NEW, 3)
        passed = compare(peers, threads, sizes, new, repeats) and passed
        for peer in peers:
            peer.close()
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())

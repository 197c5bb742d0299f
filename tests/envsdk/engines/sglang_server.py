"""A server for tests that speaks SGLang's HTTP protocol the way the source of SGLang 0.5.20 does.

    python sglang_server.py -m sglang.launch_server --model-path FOLDER --port PORT ...

Its model is a table, read from safetensors files: the next token depends on the last one alone. What it does
as SGLang does it: a token is drawn from the request's seed and the token's position; log-probabilities are
those after temperature, and after truncation with a sampling mask; messages hold what is new; requests are
aborted by name or all, a step late, and not at all before the scheduler has them; the prefix cache is emptied
only when nothing is left to do, and the scheduler dies when an update finds it otherwise. With a tokenizer,
replies are held to a grammar, which begins with the first token that is sampled; adapters are read from
folders in PEFT's format, one for each request, and unloaded when no request has them any more.
"""

from __future__ import annotations

import argparse
import base64
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
from local_http import LocalServer, QuietHandler
from safetensors.numpy import load_file, save_file
from server_grammar import Grammar, begin_grammar, biased

VOCAB_SIZE = 64
TABLE = "table.q_proj.weight"
SAMPLING_MASK_MAX_TOKENS = 4096
Respond = Callable[["_Handler", dict[str, Any]], bool]
Array = np.ndarray[Any, Any]


def write_model(folder: Path, *, seed: int) -> Path:
    """A Hugging Face folder with a table."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text("{}")
    save_file({TABLE: table(seed)}, folder / "model.safetensors")
    return folder


def table(seed: int) -> Array:
    logits = np.random.default_rng(seed).normal(0.0, 1.5, (VOCAB_SIZE, VOCAB_SIZE))
    return np.asarray(logits, np.float32)


def read_table(folder: Path) -> Array:
    """KeyError or ValueError when it has no such weight."""
    weights = {
        name: array for file in folder.glob("*.safetensors") for name, array in load_file(file).items()
    }
    logits = np.asarray(weights[TABLE], np.float64)
    if logits.shape != (VOCAB_SIZE, VOCAB_SIZE):
        raise ValueError(f"shape {logits.shape}")
    return logits


@dataclass(slots=True)
class Behavior:
    """What the server does; change it between requests."""

    deterministic: bool = True
    radix_cache: bool = True
    original_logprobs: bool = False
    """As with SGLANG_RETURN_ORIGINAL_LOGPROB."""
    incremental: bool = True
    """Messages hold what is new; otherwise all tokens so far."""
    api_key: str = ""
    slow_after: int = 10_000
    """Tokens of a reply after which each step takes `token_s`."""
    token_s: float = 0.0
    respond: list[Respond] = field(default_factory=list)
    """Taken from the front, one per `/generate`: answers instead, or returns False to go on."""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    """Of `/generate`, that came."""
    updates: list[dict[str, Any]] = field(default_factory=list)
    hangs: threading.Event = field(default_factory=threading.Event)
    """While set, nothing but `/generate` is answered."""
    tokenizer: Path | None = None
    """Its folder; None as with --skip-tokenizer-init."""
    memory_saver: bool = True
    """As with --enable-memory-saver."""
    occupied: list[list[str]] = field(default_factory=list)
    """What was released after each call about memory."""
    enable_lora: bool = False
    max_lora_rank: int = 16
    routed: Array | None = None
    """`[positions, layers, chosen]`, as with --enable-return-routed-experts."""
    num_stale_reads: int = 0
    """Keys and values of older weights that were used."""


@dataclass(slots=True, eq=False)
class _Request:
    body: dict[str, Any]
    grammar: Grammar | None = None
    cached: int = 0
    output_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    sampling_logprobs: list[float] = field(default_factory=list)
    sampling_mask: list[list[int]] = field(default_factory=list)
    num_told: int = 0
    finish: dict[str, Any] | None = None
    to_finish: bool = False
    abort_sent: bool = False
    versions: list[tuple[str, int]] = field(default_factory=list)
    messages: list[dict[str, Any]] = field(default_factory=list)

    @property
    def rid(self) -> str:
        return str(self.body["rid"])

    @property
    def adapter(self) -> str | None:
        return self.body.get("lora_path")

    @property
    def params(self) -> dict[str, Any]:
        return dict(self.body["sampling_params"])


class Engine:
    """Tokenizer manager and scheduler in one: a thread that takes a step of all requests at a time."""

    def __init__(self, logits: Array, behavior: Behavior, *, context_length: int, max_running: int) -> None:
        self.behavior = behavior
        self.context_length = context_length
        self.max_running = max_running
        self.weight_version = "default"
        self.crash = ""
        self._logits = logits
        self.released: set[str] = set()
        self._turn = threading.Condition()
        self._states: dict[str, _Request] = {}
        """Known to the tokenizer manager."""
        self._waiting: list[_Request] = []
        self._running: list[_Request] = []
        self._has_last_batch = False
        self._num_updates = 0
        self.adapters: dict[str, Array] = {}
        """What each adds to the table, by name."""
        self._cache: dict[tuple[str | None, tuple[int, ...]], int] = {}
        """Prefixes whose keys and values are kept, and after how many updates they were computed."""
        self._is_closed = False
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self._thread.start()

    def close(self) -> None:
        with self._turn:
            self._is_closed = True
            self._turn.notify_all()
        self._thread.join()

    def generate(self, body: dict[str, Any]) -> _Request:
        """ValueError for a request that is not allowed."""
        with self._turn:
            if body["rid"] in self._states:
                raise ValueError(f"Duplicate request ID detected: {body['rid']}")
            num_input = len(body["input_ids"])
            if num_input >= self.context_length:
                raise ValueError(
                    f"The input ({num_input} tokens) is longer than the model's context length "
                    f"({self.context_length} tokens)."
                )
            request = _Request(body)
            if request.adapter is not None and request.adapter not in self.adapters:
                raise ValueError(f"The following requested LoRA adapters are not loaded: {request.adapter}")
            try:
                request.grammar = begin_grammar(request.params, self.behavior.tokenizer)
            except ValueError as error:
                request.finish = {"type": "abort", "message": str(error), "status_code": 400}
                self._tell(request)
                return request
            top_k = request.params["top_k"]
            greedy = request.params["temperature"] < 1e-6
            if body.get("return_sampling_mask") and not (greedy or 1 <= top_k <= SAMPLING_MASK_MAX_TOKENS):
                message = f"return_sampling_mask requires top_k=1 [...] got top_k={top_k}."
                request.finish = {"type": "abort", "message": message, "status_code": 400}
                self._tell(request)
                return request
            self._states[request.rid] = request
            self._waiting.append(request)
            self._turn.notify_all()
            return request

    def take(self, request: _Request) -> list[dict[str, Any]]:
        """Blocks until there are messages, or the scheduler died."""
        with self._turn:
            self._turn.wait_for(lambda: request.messages or self.crash or self._is_closed)
            taken, request.messages = request.messages, []
            return taken

    def abort(self, rid: str, abort_all: bool) -> None:
        with self._turn:
            if not abort_all:
                state = self._states.get(rid)
                if state is None or state.abort_sent:
                    return
                state.abort_sent = True
            for request in [*self._waiting]:
                if abort_all or request.rid.startswith(rid):
                    self._waiting.remove(request)
                    del self._states[request.rid]
                    request.finish = {"type": "abort", "message": "Abort in waiting queue"}
                    self._tell(request)
            for request in self._running:
                if abort_all or request.rid.startswith(rid):
                    request.to_finish = True
            self._turn.notify_all()

    def update_weight_version(self, new_version: str) -> None:
        with self._turn:
            self._record_version(new_version)

    def _record_version(self, new_version: str) -> None:
        if new_version != self.weight_version:
            for request in [*self._running, *self._waiting]:
                if request.output_ids:
                    request.versions.append((self.weight_version, len(request.output_ids)))
            self.weight_version = new_version

    def is_fully_idle(self) -> bool:
        return not (self._waiting or self._running or self._has_last_batch)

    def flush_cache(self, timeout_s: float) -> bool:
        with self._turn:
            if not self._turn.wait_for(self.is_fully_idle, timeout_s):
                return False
            self._cache.clear()
            return True

    def update_weights(self, body: dict[str, Any]) -> tuple[bool, str]:
        with self._turn:
            self.behavior.updates.append(body)
            assert "weights" not in self.released
            try:
                self._logits = read_table(Path(body["model_path"]))
            except (KeyError, ValueError) as error:
                return False, f"Failed to update weights: {error}.\nRolling back to original weights."
            self._num_updates += 1
            if body["flush_cache"]:
                if not self.is_fully_idle():
                    self.crash = "AssertionError: Cache flush failed after updating weights"
                    self._turn.notify_all()
                    return False, self.crash
                self._cache.clear()
            self._record_version(body["weight_version"])
            return True, "Succeeded to update model weights."

    def occupy(self, resumes: bool, tags: list[str]) -> str:
        """Why not; empty when it is done."""
        with self._turn:
            if not self.behavior.memory_saver:
                return "torch_memory_saver is not enabled"
            if not self.is_fully_idle():
                return "release_memory_occupation should be called only when server is idle."
            assert all((tag in self.released) == resumes for tag in tags)
            self.released = self.released - set(tags) if resumes else self.released | set(tags)
            if "weights" in tags:
                self._logits = np.full_like(self._logits, np.nan)
            self.behavior.occupied.append(sorted(self.released))
            return ""

    def load_adapter(self, name: str, folder: Path) -> str:
        """Why not; empty when it is there."""
        with self._turn:
            if not self.behavior.enable_lora:
                return "LoRA is not enabled. Please set `--enable-lora` to enable LoRA."
            if name in self.adapters:
                return f"Failed to load LoRA adapter {name} because it is already loaded"
            config = json.loads((folder / "adapter_config.json").read_text())
            assert config["peft_type"] == "LORA"
            if config["r"] > self.behavior.max_lora_rank:
                return f"LoRA adapter {name} with rank {config['r']} is incompatible"
            halves = load_file(folder / "adapter_model.safetensors")
            module = "base_model.model." + TABLE.removesuffix(".weight")
            half_a, half_b = halves[f"{module}.lora_A.weight"], halves[f"{module}.lora_B.weight"]
            assert len(half_a) == config["r"]
            assert module.rpartition(".")[2] in config["target_modules"]
            self.adapters[name] = config["lora_alpha"] / config["r"] * (half_b @ half_a).astype(np.float64)
            return ""

    def unload_adapter(self, name: str) -> str:
        """Waits for the requests that have it."""
        with self._turn:
            self._turn.wait_for(lambda: all(state.adapter != name for state in self._states.values()))
            return (
                "" if self.adapters.pop(name, None) is not None else f"LoRA with name {name} does not exist"
            )

    def _loop(self) -> None:
        while True:
            with self._turn:
                self._turn.wait_for(
                    lambda: (
                        self._waiting
                        or self._running
                        or self._has_last_batch
                        or self._is_closed
                        or self.crash
                    )
                )
                if self._is_closed or self.crash:
                    return
                self._step()
                slow = any(len(request.output_ids) > self.behavior.slow_after for request in self._running)
                self._turn.notify_all()
            time.sleep(self.behavior.token_s if slow else 0)

    def _step(self) -> None:
        assert not (self.released and self._running)
        while self._waiting and len(self._running) < self.max_running:
            request = self._waiting.pop(0)
            request.cached = self._reuse(request.adapter, request.body["input_ids"][:-1])
            self._running.append(request)
        self._has_last_batch = bool(self._running)
        for request in [*self._running]:
            self._sample(request)
            interval = request.params.get("stream_interval") or 1
            if request.finish or interval == 1 or len(request.output_ids) % interval == 1:
                self._tell(request)
            if request.finish:
                self._running.remove(request)
                del self._states[request.rid]
                if self.behavior.radix_cache:
                    self._keep(request.adapter, [*request.body["input_ids"], *request.output_ids[:-1]])

    def _reuse(self, adapter: str | None, prefix: list[int]) -> int:
        count = 0
        while count < len(prefix):
            update = self._cache.get((adapter, tuple(prefix[: count + 1])))
            if update is None:
                break
            self.behavior.num_stale_reads += update != self._num_updates
            count += 1
        return count

    def _keep(self, adapter: str | None, token_ids: list[int]) -> None:
        for count in range(1, len(token_ids) + 1):
            self._cache.setdefault((adapter, tuple(token_ids[:count])), self._num_updates)

    def _sample(self, request: _Request) -> None:
        params, sequence = request.params, [*request.body["input_ids"], *request.output_ids]
        logits = self._logits if request.adapter is None else self._logits + self.adapters[request.adapter]
        allowed = None if request.grammar is None else request.grammar.allowed()
        scaled, truncated = distributions(logits, sequence[-1], params, allowed)
        seed = params.get("sampling_seed", 42) if self.behavior.deterministic else None
        draw = np.random.default_rng(None if seed is None else [seed, len(sequence)])
        if params["temperature"] < 1e-6:
            token = int(np.argmax(scaled))
        else:
            token = int(np.argmax(truncated + draw.gumbel(size=VOCAB_SIZE)))
        if request.grammar is not None:
            request.grammar.advance(token)
        plain = log_softmax(logits[sequence[-1] % VOCAB_SIZE]) if self.behavior.original_logprobs else scaled
        request.output_ids.append(token)
        request.logprobs.append(float(plain[token]))
        request.sampling_logprobs.append(float(truncated[token]))
        request.sampling_mask.append(np.flatnonzero(np.isfinite(truncated)).tolist())
        room = self.context_length - len(request.body["input_ids"])
        if request.to_finish:
            told = {"message": "Aborted", "status_code": None, "err_type": None}
            request.finish = {"type": "abort", **told}
        elif token in (params.get("stop_token_ids") or ()) or (request.grammar and request.grammar.is_over):
            request.finish = {"type": "stop", "matched": token}
        elif len(request.output_ids) >= min(params["max_new_tokens"], room):
            request.finish = {"type": "length", "length": params["max_new_tokens"]}

    def _tell(self, request: _Request) -> None:
        count = len(request.output_ids)
        start = request.num_told if self.behavior.incremental else 0
        request.num_told = count
        body = request.body
        meta: dict[str, Any] = {
            "id": request.rid,
            "finish_reason": request.finish,
            "prompt_tokens": len(body["input_ids"]),
            "weight_version": self.weight_version,
            "completion_tokens": count,
            "cached_tokens": request.cached,
        }
        if body["return_logprob"]:
            pairs = zip(request.logprobs[start:], request.output_ids[start:], strict=True)
            meta["input_token_logprobs"] = []
            if body.get("logprob_start_len") == 0:
                meta |= self._scored(body["input_ids"], body["top_logprobs_num"])
            meta["output_token_logprobs"] = [[logprob, token, None] for logprob, token in pairs]
        if body.get("return_sampling_mask"):
            meta["output_token_sampling_logprobs"] = request.sampling_logprobs[start:]
            meta["output_token_sampling_mask"] = request.sampling_mask[start:]
        if request.finish and body.get("return_routed_experts") and self.behavior.routed is not None:
            end = len(body["input_ids"]) + count - 1
            rows = self.behavior.routed[body["routed_experts_start_len"] : end]
            meta["routed_experts"] = base64.b64encode(rows.astype("<i4").tobytes()).decode()
        if request.finish:
            starts = 0
            meta["weight_versions"] = []
            for version, end in [*request.versions, (self.weight_version, count)]:
                meta["weight_versions"].append({"version": version, "start": starts, "end": end})
                starts = end
        request.messages.append({"output_ids": request.output_ids[start:], "meta_info": meta})

    def _scored(self, ids: list[int], num_top: int) -> dict[str, Any]:
        rows = [log_softmax(self._logits[token % VOCAB_SIZE]) for token in ids[:-1]]
        own = [[float(row[token]), token, None] for row, token in zip(rows, ids[1:], strict=True)]
        tops = [[[float(row[v]), int(v), None] for v in np.argsort(-row)[:num_top]] for row in rows]
        told = {"input_token_logprobs": [[None, ids[0], None], *own]}
        return told | ({"input_top_logprobs": [None, *tops]} if num_top else {})

    def load(self) -> dict[str, Any]:
        with self._turn:
            return {"dp_rank": 0, "num_running_reqs": len(self._running), "token_usage": 0.25}


def distributions(
    logits: Array, last: int, params: dict[str, Any], allowed: Array | None = None
) -> tuple[Array, Array]:
    """Log-probabilities after temperature, and after top_k and top_p too, of the tokens that are allowed."""
    row = biased(logits[last % VOCAB_SIZE], params)
    if allowed is not None:
        row = np.where(allowed, row, -np.inf)
    if params["temperature"] < 1e-6:
        return log_softmax(row), log_softmax(row)
    scaled = log_softmax(row / params["temperature"])
    order = np.argsort(-scaled, kind="stable")
    kept = scaled.copy()
    if params["top_k"] > 0:
        kept[order[params["top_k"] :]] = -np.inf
    before = np.cumsum(np.exp(scaled)[order]) - np.exp(scaled)[order]
    kept[order[before > params["top_p"]]] = -np.inf
    return scaled, log_softmax(kept)


def log_softmax(logits: Array) -> Array:
    shifted = logits - logits.max()
    return np.asarray(shifted - np.log(np.exp(shifted).sum()))  # -inf stays what it is


class _Handler(QuietHandler):
    @property
    def engine(self) -> Engine:
        return self.server.engine  # type: ignore[attr-defined, no-any-return]

    @property
    def behavior(self) -> Behavior:
        return self.engine.behavior

    def do_GET(self) -> None:
        self.route({})

    def do_POST(self) -> None:
        self.route(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def route(self, body: dict[str, Any]) -> None:
        url = urlsplit(self.path)
        behavior, engine = self.behavior, self.engine
        if behavior.hangs.is_set() and url.path != "/generate":
            self.rfile.read(1)  # until the client hangs up
        elif engine.crash:
            self.close_connection = True
        elif behavior.api_key and self.headers["Authorization"] != f"Bearer {behavior.api_key}":
            self.answer(401, {"error": "Unauthorized"})
        elif url.path == "/health":
            self.answer(200, None)
        elif url.path == "/server_info":
            self.answer(200, {
                "version": "0.5.20",
                "enable_deterministic_inference": behavior.deterministic,
                "disable_radix_cache": not behavior.radix_cache,
                "skip_tokenizer_init": behavior.tokenizer is None,
                "grammar_backend": "xgrammar",
                "enable_lora": behavior.enable_lora,
                "enable_return_routed_experts": behavior.routed is not None,
                "internal_states": [{}],
            })  # fmt: skip
        elif url.path == "/v1/loads":
            self.answer(200, {"loads": [engine.load()]})
        elif url.path == "/generate":
            self.generate(body)
        elif url.path == "/abort_request":
            engine.abort(body.get("rid", ""), body.get("abort_all", False))
            self.answer(200, None)
        elif url.path == "/flush_cache":
            flushed = engine.flush_cache(float(parse_qs(url.query).get("timeout", ["0"])[0]))
            self.answer(200 if flushed else 400, None)
        elif url.path == "/update_weight_version":
            if body.get("abort_all_requests", True):
                engine.abort("", abort_all=True)
            engine.update_weight_version(body["new_version"])
            self.answer(200, {"success": True, "new_version": body["new_version"]})
        elif url.path in ("/release_memory_occupation", "/resume_memory_occupation"):
            problem = engine.occupy(url.path.startswith("/resume"), body["tags"])
            self.answer(500 if problem else 200, {"detail": problem} if problem else None)
        elif url.path == "/load_lora_adapter":
            self.answer_lora(engine.load_adapter(body["lora_name"], Path(body["lora_path"])))
        elif url.path == "/unload_lora_adapter":
            self.answer_lora(engine.unload_adapter(body["lora_name"]))
        elif url.path == "/update_weights_from_disk":
            success, message = engine.update_weights(body)
            if engine.crash:
                self.close_connection = True
                return
            self.answer(200 if success else 400, {"success": success, "message": message})
        else:
            self.answer(404, {"detail": "Not Found"})

    def answer_lora(self, problem: str) -> None:
        self.answer(400 if problem else 200, {"success": not problem, "error_message": problem or None})

    def generate(self, body: dict[str, Any]) -> None:
        behavior = self.behavior
        behavior.bodies.append(body)
        if behavior.respond and behavior.respond.pop(0)(self, body):
            return
        self.begin_stream()
        try:
            for message in self.messages(body):
                self.event(json.dumps(message))
        except (BrokenPipeError, ConnectionResetError):
            self.engine.abort(body["rid"], abort_all=False)
            self.close_connection = True
            return
        if self.engine.crash:
            self.close_connection = True
            return
        self.event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def messages(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        try:
            request = self.engine.generate(body)
        except ValueError as error:
            yield {"error": {"message": str(error), "type": "invalid_request_error", "code": 400}}
            return
        while True:
            taken = self.engine.take(request)
            if not taken:
                return  # the scheduler died
            yield from taken
            if taken[-1]["meta_info"]["finish_reason"]:
                return


class FakeSGLang(LocalServer):
    """`with FakeSGLang(table(0)) as server:` serves on 127.0.0.1 until the block ends."""

    def __init__(
        self, logits: Array, *, port: int = 0, context_length: int = 1024, max_running: int = 64
    ) -> None:
        self.behavior = Behavior()
        self.engine = Engine(logits, self.behavior, context_length=context_length, max_running=max_running)
        super().__init__(_Handler, port=port, engine=self.engine)

    def __exit__(self, *_: object) -> None:
        self.engine.close()
        super().__exit__()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("-m", dest="module", choices=["sglang.launch_server"], required=True)
    parser.add_argument("--model-path", type=Path, required=True)
    parser.add_argument("--host", choices=["127.0.0.1"], required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--max-running-requests", type=int, required=True)
    parser.add_argument("--random-seed", type=int, required=True)
    parser.add_argument("--context-length", type=int, default=1024)
    parser.add_argument("--max-lora-rank", type=int, default=16)
    parser.add_argument("--lora-target-modules", nargs="+")
    flags = (
        "skip-tokenizer-init",
        "incremental-streaming-output",
        "enable-deterministic-inference",
        "enable-lora",
    )
    for flag in flags:
        parser.add_argument(f"--{flag}", action="store_true")
    given = parser.parse_args(arguments)
    print(f"serving {given.model_path}", flush=True)
    server = FakeSGLang(
        read_table(given.model_path),
        port=given.port,
        context_length=given.context_length,
        max_running=given.max_running_requests,
    )
    server.behavior.deterministic = given.enable_deterministic_inference
    server.behavior.incremental = given.incremental_streaming_output
    server.behavior.tokenizer = None if given.skip_tokenizer_init else given.model_path
    server.behavior.enable_lora, server.behavior.max_lora_rank = given.enable_lora, given.max_lora_rank
    with server:
        threading.Event().wait()


if __name__ == "__main__":
    main()

"""A server for tests that speaks the completions protocol and `/inference/v1/generate` as vLLM's source does.

Its model is a table: the next token depends on the last one alone. It samples for real, so that its
log-probabilities mean something, and it can be told to misbehave.
"""

from __future__ import annotations

import base64
import io
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.envsdk.engines.local_http import LocalServer, QuietHandler
from tests.envsdk.engines.server_grammar import Grammar, begin_grammar, biased

VOCAB_SIZE = 64
LOGITS = np.random.default_rng(7).normal(0.0, 1.5, (VOCAB_SIZE, VOCAB_SIZE))
Respond = Callable[["_Handler", dict[str, Any]], bool]


@dataclass(slots=True)
class Behavior:
    """What the server does; change it between requests."""

    token_ids: bool = True
    processed_logprobs: bool = True
    includes_stop_token: bool = True
    api_key: str = ""
    tokenizer: Path | None = None
    """Its folder, for structures; None: the server knows of none."""
    understands: str = "structured_outputs"
    """How it is told of structures; it passes over what it does not understand."""
    heeds_biases: bool = True
    generates: bool = True
    """Whether it has `/inference/v1/generate`."""
    label: str = "default"
    """Of its weights."""
    relabel: dict[int, str] = field(default_factory=dict)
    """Labels of the weights that come during a reply, by the number of its tokens before."""
    extras: dict[str, Any] = field(default_factory=dict)
    """Further fields of a choice of `generate`."""
    routed: np.ndarray | None = None
    """`[positions, layers, chosen]`, as of vLLM with --enable-return-routed-experts."""
    slow_after: int = 10_000
    """Tokens of a reply after which each takes `token_s`."""
    token_s: float = 0.0
    respond: list[Respond] = field(default_factory=list)
    """Taken from the front, one per request: answers instead, or returns False to go on."""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    """Requests that came."""
    num_broken_off: int = 0
    """Replies that the client left before their end."""
    num_connections: int = 0


class FakeServer(LocalServer):
    """`with FakeServer() as server:` serves on 127.0.0.1 until the block ends."""

    path = "/v1"

    def __init__(self) -> None:
        self.behavior = Behavior()
        super().__init__(_Handler, behavior=self.behavior)


def distribution(
    last: int, body: dict[str, Any], allowed: np.ndarray[Any, Any] | None = None
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Raw log-probabilities, and those of the sampling distribution, of the tokens that are allowed."""
    logits = biased(LOGITS[last % VOCAB_SIZE], body)
    if allowed is not None:
        logits = np.where(allowed, logits, -np.inf)
    raw = _log_softmax(logits)
    if body["temperature"] == 0:
        return raw, raw
    scaled = logits / body["temperature"]
    order = np.argsort(-scaled)
    if body["top_k"] > 0:
        scaled[order[body["top_k"] :]] = -np.inf
    before = np.cumsum(np.exp(_log_softmax(scaled))[order]) - np.exp(_log_softmax(scaled))[order]
    scaled[order[before >= body["top_p"]]] = -np.inf
    return raw, _log_softmax(scaled)


def _log_softmax(logits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    shifted = logits - logits.max()
    with np.errstate(divide="ignore"):
        return np.asarray(shifted - np.log(np.exp(shifted).sum()))


def grammar_of(body: dict[str, Any], behavior: Behavior) -> Grammar | None:
    """ValueError for one that cannot be kept to."""
    if behavior.tokenizer is None:
        return None
    asked: dict[str, Any] = {}
    match behavior.understands:
        case "structured_outputs":
            asked = body.get("structured_outputs", {})
        case "response_format" if "response_format" in body:
            assert body["response_format"]["type"] == "json_schema"
            asked = {"json": body["response_format"]["json_schema"]["schema"]}
        case "sglang":
            assert body.get("json_schema") is None or isinstance(body["json_schema"], str)
            asked = {
                "json": json.loads(body.get("json_schema") or "null"),
                "regex": body.get("regex"),
                "structural_tag": body.get("structural_tag"),
            }
    schema = asked.get("json")
    params = {
        "regex": asked.get("regex"),
        "json_schema": None if schema is None else json.dumps(schema),
        "choices": tuple(asked.get("choice") or ()),
        "structural_tag": asked.get("structural_tag"),
    }
    return begin_grammar(params, behavior.tokenizer)


def sample(
    body: dict[str, Any], grammar: Grammar | None = None, *, processed: bool
) -> Iterator[tuple[int, float]]:
    """Tokens with their log-probabilities, until the grammar's end if there is one."""
    draw = np.random.default_rng(body.get("seed"))
    last = body["prompt"][-1]
    while grammar is None or not grammar.is_over:
        raw, sampling = distribution(last, body, None if grammar is None else grammar.allowed())
        if body["temperature"] == 0:
            last = int(np.argmax(raw))
        else:
            last = int(draw.choice(VOCAB_SIZE, p=np.exp(sampling)))
        if grammar is not None:
            grammar.advance(last)
        yield last, float((sampling if processed else raw)[last])


class _Handler(QuietHandler):
    def setup(self) -> None:
        super().setup()
        self.behavior.num_connections += 1

    @property
    def behavior(self) -> Behavior:
        return self.server.behavior  # type: ignore[attr-defined, no-any-return]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        behavior = self.behavior
        behavior.bodies.append(body)
        is_generate = self.path == "/inference/v1/generate" and behavior.generates
        if is_generate:  # from here on as a completion, whose events are translated back
            body = {**body["sampling_params"], "prompt": body["token_ids"], "stream": body["stream"]}
        if behavior.respond and behavior.respond.pop(0)(self, body):
            return
        if self.path != "/v1/completions" and not is_generate:
            self.answer(404, {"detail": "Not Found"})
        elif behavior.api_key and self.headers["Authorization"] != f"Bearer {behavior.api_key}":
            self.answer(401, {"error": "Unauthorized"})
        else:
            try:
                self.stream(body, generated if is_generate else chunk)
            except (BrokenPipeError, ConnectionResetError):
                behavior.num_broken_off += 1
                self.close_connection = True

    def stream(self, body: dict[str, Any], write: Callable[[dict[str, Any]], str]) -> None:
        behavior = self.behavior
        try:
            if not behavior.heeds_biases:
                body.pop("logit_bias", None)
            grammar = grammar_of(body, behavior)
        except ValueError as error:
            self.answer(400, {"error": {"message": str(error)}})
            return
        self.begin_stream()
        prompt: list[int] | None = body["prompt"]
        spans: list[dict[str, Any]] = []
        tokens = sample(body, grammar, processed=behavior.processed_logprobs)
        for count, (token, logprob) in enumerate(tokens, start=1):
            if count > behavior.slow_after:
                time.sleep(behavior.token_s)
            behavior.label = behavior.relabel.pop(count - 1, behavior.label)
            if not spans or spans[-1]["version"] != behavior.label:
                spans.append({"version": behavior.label, "start": count - 1})
            spans[-1]["end"] = count
            is_stop = token in body["stop_token_ids"]
            reason = "stop" if is_stop else "length" if count == body["max_tokens"] else None
            is_left_out = is_stop and not behavior.includes_stop_token
            text = "" if is_stop else "\u2028"  # a line to some, though not in an event stream
            choice: dict[str, Any] = {
                "index": 0,
                "text": text,
                "logprobs": None,
                "finish_reason": reason,
                "stop_reason": token if is_stop else None,
                "prompt_token_ids": prompt if behavior.token_ids else None,
                "token_ids": ([] if is_left_out else [token]) if behavior.token_ids else None,
            }
            if "logprobs" in body:
                choice["logprobs"] = {
                    "text_offset": [] if is_left_out else [count - 1],
                    "token_logprobs": [] if is_left_out else [logprob],
                    "tokens": [] if is_left_out else [text],
                    "top_logprobs": [] if is_left_out else [{text: logprob}],
                }
            if reason is not None and behavior.routed is not None:
                end = len(body["prompt"]) + count - 1
                rows = behavior.routed[body.get("routed_experts_prompt_start", 0) : end]
                with io.BytesIO() as file:
                    np.save(file, rows)
                    choice["routed_experts"] = base64.b64encode(file.getvalue()).decode()
            if write is generated:
                choice |= {**behavior.extras, "weight_versions": None if reason is None else spans}
            self.event(write(choice))
            prompt = None
            if reason is not None:
                break
        self.event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")


def chunk(choice: dict[str, Any]) -> str:
    """One event of vLLM's stream."""
    head = {"id": "cmpl-1", "object": "text_completion", "created": 1_790_000_000, "model": "table"}
    return json.dumps({**head, "choices": [choice], "usage": None}, ensure_ascii=False)


def generated(choice: dict[str, Any]) -> str:
    """The same, of vLLM's `/inference/v1/generate`."""
    choice = {name: value for name, value in choice.items() if name != "text"}
    prompt = choice.pop("prompt_token_ids")
    if choice["logprobs"] is not None:
        pairs = zip(choice["token_ids"], choice["logprobs"]["token_logprobs"], strict=True)
        told = [{"token_id": token, "logprob": value, "rank": 1} for token, value in pairs]
        choice["logprobs"] = {"content": [each | {"top_logprobs": [each]} for each in told]}
    head = {"request_id": "generate-tokens-1", "output_mode": "tokens", "usage": None}
    head |= {} if prompt is None else {"prompt_token_ids": prompt}
    return json.dumps({**head, "choices": [choice]})

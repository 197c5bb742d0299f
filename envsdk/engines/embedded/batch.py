"""Continuous batching: which sequences run, where their keys and values lie, and when they end.

    request: submit -> queue -> row (prefill, then one token per step) -> Ended, exactly once
    slot:    free -> row -> idle (a session's cache) -> row | free

Rows are slots `[0, num_rows)`: the decoder works on a contiguous range and never gathers, and a
slot is moved when a row comes or goes, which costs about as much as one step of that row. Slots
beyond hold the caches of sessions between two turns; the least recently used one makes room.

No thread and no event loop in here; `engine.py` runs it on its compute thread.

    batch.submit(request)
    while batch.has_work:
        for ended in batch.step(): ...
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from envsdk.contracts.trajectory import FinishReason, VersionSpan
from envsdk.engines.continuation import rows_of, spans_within
from envsdk.engines.core import result_of
from envsdk.engines.embedded.decoder import Decoder
from envsdk.engines.embedded.guide import Guides
from envsdk.engines.embedded.row import Row
from envsdk.engines.embedded.sampling import (
    Sampled,
    SamplingPlan,
    changed,
    prompt_scores,
    sample,
    uniforms,
)
from envsdk.engines.engine import (
    EngineFailure,
    GenerationRequest,
    GenerationResult,
    TokenDelta,
)

_NO_GROUP = -1


class Batch:
    """The sequences of one decoder. Owned by one thread."""

    def __init__(
        self,
        decoder: Decoder[Any],
        *,
        sequence_length: int,
        max_running: int,
        max_prefill_tokens: int,
        prefix_reuse: bool,
        seed: int,
        guides: Guides | None = None,
    ) -> None:
        """`guides` are there where a request may have a structure."""
        self.version = 0
        self.num_tokens_sampled = 0
        self.num_prefilled_tokens = 0
        self._decoder = decoder
        self._max_running = max_running
        self._max_prefill_tokens = max_prefill_tokens
        self._keeps_sessions = prefix_reuse and decoder.caches
        self._guides = guides
        self._fresh_seeds = np.random.Generator(np.random.PCG64(seed))
        self._queue: list[tuple[int, int, GenerationRequest]] = []
        self._rows: list[Row] = []
        slots = decoder.num_slots
        self._ids = np.zeros((slots, sequence_length), np.int64)
        """Known tokens of each slot."""
        self._lengths = np.zeros(slots, np.int64)
        """How many of them there are; keys and values exist for all but a row's last one."""
        self._logprobs = np.zeros((slots, sequence_length), np.float32)
        self._uniforms = np.zeros((slots, sequence_length), np.float32)
        """What samples the token at each position."""
        self._groups = np.full(slots, _NO_GROUP, np.int64)
        """`prompt_group` of the request whose prompt each slot begins with."""
        self._slot_session: list[str] = [""] * slots
        """Session whose cache an idle slot holds; empty for rows and free slots."""
        self._idle: OrderedDict[str, int] = OrderedDict()
        """Slot by session, least recently used first."""
        self._free = set(range(slots))
        self._stale = False
        """Weights were swapped: the rows' keys and values are of older ones."""
        self._changed = True
        """Rows came, went or moved since the decoder and the plan were updated."""
        self._is_special = False
        """One of the decoder's rows is."""
        self._plan: SamplingPlan | None = None
        self._tokens = torch.empty(0)
        self._row_numbers = np.arange(slots)
        self._stops: frozenset[int] = frozenset()
        self._steps_to_limit = 0

    @property
    def num_running(self) -> int:
        return len(self._rows)

    @property
    def has_work(self) -> bool:
        return bool(self._rows or self._queue)

    @property
    def kv_usage(self) -> float:
        """Share of all slots' positions that hold keys and values in use."""
        return float(self._lengths.sum()) / self._ids.size

    def submit(self, request: GenerationRequest, arrival: int) -> None:
        """Queue a request that fits the model; `arrival` orders requests of one priority."""
        heapq.heappush(self._queue, (request.priority, arrival, request))

    def recall(self) -> list[str]:
        """Empty the queue: ids of the requests that were in it."""
        recalled = [request.request_id for _, _, request in self._queue]
        self._queue.clear()
        return recalled

    def abort(self, request_ids: Sequence[str]) -> list[GenerationResult]:
        """End these requests, queued or running; unknown ids are ignored."""
        doomed = set(request_ids)
        ended = [
            result_of(request.request_id, FinishReason.ABORT)
            for _, _, request in self._queue
            if request.request_id in doomed
        ]
        if ended:
            self._queue = [entry for entry in self._queue if entry[2].request_id not in doomed]
            heapq.heapify(self._queue)
        running = {
            n: FinishReason.ABORT for n, row in enumerate(self._rows) if row.request.request_id in doomed
        }
        return ended + self._end(running)

    def progress(self, num_known: Mapping[str, int]) -> list[TokenDelta]:
        """What these rows have beyond so many tokens; after logits that were not finite, nothing."""
        found = []
        for number, row in enumerate(self._rows):
            known = num_known.get(row.request.request_id)
            count = int(self._lengths[number]) - row.prompt_length
            if known is None or count <= known:
                continue
            new = slice(row.prompt_length + known, row.prompt_length + count)
            logprobs = self._logprobs[number, new].copy()
            if not np.isfinite(logprobs).all():
                continue
            found.append(
                TokenDelta(
                    request_id=row.request.request_id,
                    token_ids=self._ids[number, new].astype(np.int32),
                    logprobs=logprobs,
                    version_spans=spans_within([*row.spans, *self._open_span(row, count)], known, count),
                    top=row.top(known),
                    support=row.support(known),
                )
            )
        return found

    def swap(self, weights: Any, version: int) -> None:
        """Take new weights between two steps. Rows continue; idle sessions are forgotten."""
        for number, row in enumerate(self._rows):
            self._close_span(row, int(self._lengths[number]))
        self._decoder.use(weights)
        self.version = version
        self._stale = bool(self._rows)
        for session in list(self._idle):
            self._forget(session)

    def fail(self, error: str) -> list[GenerationResult]:
        """End everything, queued or running, with `error`."""
        ended = [self._result(number, FinishReason.ERROR, error) for number in range(len(self._rows))]
        failure = EngineFailure(error)
        for _, _, request in self._queue:
            ended.append(result_of(request.request_id, FinishReason.ERROR, failure=failure))
        self._rows.clear()
        self._queue.clear()
        return ended

    def step(self) -> list[GenerationResult]:
        """Take in what waits, then sample one token for every row. Returns what ended."""
        if self._stale:
            self._recompute()
        ended = self._admit() if self._queue else []
        if self._rows:
            ended += self._decode()
        return ended

    def _admit(self) -> list[GenerationResult]:
        first = len(self._rows)
        past: list[int] = []
        followers: list[tuple[GenerationRequest, int]] = []
        """Requests with the prompt of a row that this call computes, and that row."""
        budget = self._max_prefill_tokens
        while self._queue and len(self._rows) + len(followers) < self._max_running:
            request = self._queue[0][2]
            leader = self._same_prompt(request, first, len(self._rows))
            if leader is None and past and budget < len(request.prompt_ids):
                break
            heapq.heappop(self._queue)
            if leader is not None:
                followers.append((request, leader))
                continue
            reused = self._seat(request, first)
            past.append(reused)
            budget -= len(request.prompt_ids) - reused
        if not past:
            return []
        rows = range(first, len(self._rows))
        ids = [self._ids[row, : self._lengths[row]] for row in rows]
        self.num_prefilled_tokens += sum(len(row) for row in ids) - sum(past)
        logits = self._decoder.prefill(first, ids, past, want_logits=True)
        assert logits is not None
        for request, leader in followers:
            self._decoder.move(leader, self._take_slot(request), len(request.prompt_ids))
        if followers:
            numbers = [*range(len(rows)), *(leader - first for _, leader in followers)]
            logits = logits[torch.tensor(numbers, device=logits.device)]
        self._changed = True
        plan = self._plan_for(self._rows[first:])
        return self._record(first, sample(self._shaped(first, logits), self._next_uniforms(first), plan))

    def _same_prompt(self, request: GenerationRequest, first: int, last: int) -> int | None:
        """One of the slots `[first, last)` that holds the prompt of a member of the request's group."""
        if request.prompt_group is None or not self._keeps_sessions or request.session_id in self._idle:
            return None
        if request.sampling.prompt_logprobs:
            return None
        prompt = request.prompt_ids
        for slot in np.flatnonzero(self._groups[first:last] == request.prompt_group) + first:
            if self._lengths[slot] >= len(prompt) and np.array_equal(self._ids[slot, : len(prompt)], prompt):
                return int(slot)
        return None

    def _seat(self, request: GenerationRequest, first: int) -> int:
        """Make `request` the last row; returns how many of its tokens are cached there.

        Rows from `first` on have no keys and values yet.
        """
        prompt = request.prompt_ids
        length = len(prompt)
        slot = len(self._rows)
        held = self._idle.get(request.session_id) if request.session_id else None
        if request.sampling.prompt_logprobs:
            ids = prompt.astype(np.int64)
            self._take_slot(request)
            scores = prompt_scores(self._decoder.score(slot, ids), ids, request.sampling.top_logprobs)
            self._rows[slot].prompt_scores = scores
            self.num_prefilled_tokens += length - 1
            return length - 1 if self._decoder.caches else 0
        if held is None:
            self._take_slot(request)
            before = self._same_prompt(request, 0, first)
            source = self._same_prompt(request, slot + 1, len(self._groups)) if before is None else before
            if source is None:
                return 0
            self._decoder.move(source, slot, length - 1)
            return length - 1
        both = min(int(self._lengths[held]), length - 1)
        self._exchange(slot, held)
        self._forget(request.session_id)
        differs = self._ids[slot, :both] != prompt[:both]
        self._take_slot(request)
        return int(differs.argmax()) if differs.any() else both

    def _take_slot(self, request: GenerationRequest) -> int:
        """Make `request` the last row, in the slot of that number; its keys and values are the caller's."""
        prompt = request.prompt_ids
        length = len(prompt)
        slot = len(self._rows)
        self._vacate(slot)
        self._free.discard(slot)
        self._groups[slot] = _NO_GROUP if request.prompt_group is None else request.prompt_group
        sampling = request.sampling
        end = min(length + sampling.max_new_tokens, self._ids.shape[1])
        seed = int(self._fresh_seeds.integers(2**63)) if sampling.seed is None else sampling.seed
        self._ids[slot, :length] = prompt
        self._lengths[slot] = length
        if sampling.temperature > 0:
            self._uniforms[slot, length:end] = uniforms(seed, end - length)
        guide = None
        if sampling.structure is not None:
            assert self._guides is not None
            guide = self._guides.begin(sampling.structure, sampling.stop_token_ids)
        self._rows.append(
            Row(
                request=request,
                prompt_length=length,
                stops=frozenset(sampling.stop_token_ids),
                end=end,
                guide=guide,
            )
        )
        return slot

    def _decode(self) -> list[GenerationResult]:
        if self._changed:
            self._begin()
        assert self._plan is not None
        logits = self._decoder.decode(self._tokens)
        sampled = sample(self._shaped(0, logits), self._next_uniforms(0), self._plan)
        self._tokens = sampled.tokens_B
        return self._record(0, sampled)

    def _shaped(self, first: int, logits: Tensor) -> Tensor:
        """The logits of rows `first` and on with their requests' changes, and without the tokens that lead
        away from their structures."""
        if not (self._changed or self._is_special):
            return logits
        for number, row in enumerate(self._rows[first:], first):
            if (changes := row.request.sampling.changes) is not None:
                ids = self._ids[number, : self._lengths[number]]
                prompt, reply = ids[: row.prompt_length], ids[row.prompt_length :]
                which = torch.tensor([number - first], device=logits.device)
                logits = logits.index_copy(
                    0, which, changed(logits[number - first], changes, prompt, reply).unsqueeze(0)
                )
        guided = [
            (index, row.guide.allowed())
            for index, row in enumerate(self._rows[first:])
            if row.guide is not None
        ]
        if not guided:
            return logits
        rows = torch.tensor([index for index, _ in guided], device=logits.device)
        allowed = torch.from_numpy(np.stack([allowed for _, allowed in guided])).to(logits.device)
        return logits.index_copy(0, rows, logits[rows].masked_fill(~allowed, -torch.inf))

    def _begin(self) -> None:
        """Update decoder and sampler to the current rows."""
        count = len(self._rows)
        lengths = self._lengths[:count]
        last = self._ids[self._row_numbers[:count], lengths - 1]
        self._tokens = torch.from_numpy(last).to(self._decoder.device)
        self._decoder.begin(self._ids, lengths)
        self._plan = self._plan_for(self._rows)
        self._stops = frozenset().union(*(row.stops for row in self._rows))
        self._steps_to_limit = min(row.end - int(n) for row, n in zip(self._rows, lengths, strict=True))
        self._is_special = any(row.is_special for row in self._rows)
        self._changed = False

    def _plan_for(self, rows: Sequence[Row]) -> SamplingPlan:
        params = [row.request.sampling for row in rows]
        return SamplingPlan.of(params, self._decoder.device)

    def _next_uniforms(self, first: int) -> Tensor:
        count = len(self._rows)
        chosen = self._uniforms[self._row_numbers[first:count], self._lengths[first:count]]
        return torch.from_numpy(chosen).to(self._decoder.device)

    def _record(self, first: int, sampled: Sampled) -> list[GenerationResult]:
        """Append one sampled token to rows `first` and on; end those that are complete."""
        count = len(self._rows)
        rows, lengths = self._row_numbers[first:count], self._lengths[first:count]
        host_tokens = sampled.tokens_B.cpu().numpy()
        self._ids[rows, lengths] = host_tokens
        self._logprobs[rows, lengths] = sampled.logprobs_B.cpu().numpy()
        lengths += 1
        self.num_tokens_sampled += count - first
        for row, experts in zip(self._rows[first:], self._decoder.experts(), strict=False):
            row.experts.append(experts)
        if self._changed or self._is_special:
            for index, (row, token) in enumerate(zip(self._rows[first:], host_tokens.tolist(), strict=True)):
                if row.guide is not None and token not in row.stops:
                    row.guide.advance(token)
                if sampled.top is not None and row.request.sampling.top_logprobs:
                    row.tops.append(rows_of(sampled.top, index, index + 1))
                if sampled.support is not None and row.request.sampling.tells_support:
                    row.sets.append(sampled.support.take(slice(index, index + 1)).ids)
        if not self._changed:
            # The usual step: nobody stopped and nobody is at a limit, without looking at each row.
            self._steps_to_limit -= 1
            if self._steps_to_limit > 0 and self._stops.isdisjoint(host_tokens.tolist()):
                return []
        ended: dict[int, FinishReason] = {}
        for number, token in enumerate(host_tokens.tolist(), first):
            row = self._rows[number]
            if token in row.stops:
                ended[number] = FinishReason.STOP
            elif self._lengths[number] >= row.end:
                ended[number] = FinishReason.LENGTH
        return self._end(ended)

    def _recompute(self) -> None:
        """Keys and values of the rows under the new weights; the last token's come with the next step."""
        ids = [self._ids[row, : self._lengths[row] - 1] for row in range(len(self._rows))]
        if ids:
            self._decoder.prefill(0, ids, [0] * len(ids), want_logits=False)
            self.num_prefilled_tokens += sum(len(row) for row in ids)
        self._stale = False

    def _end(self, reasons: dict[int, FinishReason]) -> list[GenerationResult]:
        """Answer these rows and close the gaps they leave."""
        results: list[GenerationResult] = []
        # From the last row down, so that the row moved into a gap is one that stays.
        for number in sorted(reasons, reverse=True):
            result = self._result(number, reasons[number])
            results.append(result)
            failed = result.finish_reason is FinishReason.ERROR
            self._leave(number, keep=not self._stale and not failed)
            if failed:
                # The row that took its place has left a slot that may hold what is no number as well.
                self._decoder.clear(len(self._rows))
        results.reverse()
        return results

    def _result(self, number: int, reason: FinishReason, error: str = "") -> GenerationResult:
        row = self._rows[number]
        length = int(self._lengths[number])
        self._close_span(row, length)
        logprobs = self._logprobs[number, row.prompt_length : length].copy()
        if not np.isfinite(logprobs).all():
            reason = FinishReason.ERROR
            error = error or "the model's logits are not finite numbers; its weights have diverged"
            logprobs = np.nan_to_num(logprobs, nan=0.0, neginf=float(np.finfo(np.float32).min))
            self._decoder.clear(number)
        return GenerationResult(
            request_id=row.request.request_id,
            token_ids=self._ids[number, row.prompt_length : length].astype(np.int32),
            logprobs=logprobs,
            version_spans=tuple(row.spans),
            finish_reason=reason,
            error=error,
            top=row.top(0),
            prompt_scores=row.prompt_scores,
            experts=row.routed(length - 1),
            support=row.support(0),
        )

    def _close_span(self, row: Row, length: int) -> None:
        row.spans += self._open_span(row, length - row.prompt_length)

    def _open_span(self, row: Row, end: int) -> list[VersionSpan]:
        start = row.spans[-1].end if row.spans else 0
        return [VersionSpan(version=self.version, start=start, end=end)] if end > start else []

    def _leave(self, number: int, *, keep: bool) -> None:
        """Row `number` goes; the last row takes its place and its cache stays as its session's."""
        last = len(self._rows) - 1
        session = self._rows[number].request.session_id
        self._lengths[number] -= 1  # the last token has no keys and values
        keep = keep and self._keeps_sessions and bool(session) and self._lengths[number] > 0
        if not keep:
            self._lengths[number] = 0
        if number != last:
            self._exchange(number, last)
            self._rows[number] = self._rows[last]
        self._rows.pop()
        if keep:
            if session in self._idle:
                self._forget(session)
            self._idle[session] = last
            self._slot_session[last] = session
        else:
            self._free.add(last)
        self._changed = True

    def _forget(self, session: str) -> None:
        """Drop an idle session's cache."""
        slot = self._idle.pop(session)
        self._slot_session[slot] = ""
        self._lengths[slot] = 0
        self._free.add(slot)

    def _vacate(self, slot: int) -> None:
        """Move the idle session in `slot` elsewhere, at the cost of the least recently used one."""
        session = self._slot_session[slot]
        if not session:
            return
        if not self._free:
            self._forget(next(iter(self._idle)))
        if slot in self._free:
            return
        self._exchange(slot, max(self._free))

    def _exchange(self, one: int, other: int) -> None:
        """Exchange two slots with everything in them."""
        if one == other:
            return
        first, second = int(self._lengths[one]), int(self._lengths[other])
        if first == 0:
            self._decoder.move(other, one, second)
        elif second == 0:
            self._decoder.move(one, other, first)
        else:
            self._decoder.exchange(one, other, max(first, second))
        pair, swapped = [one, other], [other, one]
        for table in (self._ids, self._lengths, self._logprobs, self._uniforms, self._groups):
            table[pair] = table[swapped]
        for slot, session in ((one, self._slot_session[other]), (other, self._slot_session[one])):
            self._slot_session[slot] = session
            if session:
                self._idle[session] = slot
        was_free = [slot in self._free for slot in pair]
        for slot, free in zip(swapped, was_free, strict=True):
            (self._free.add if free else self._free.discard)(slot)

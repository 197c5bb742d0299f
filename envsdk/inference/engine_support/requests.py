"""Pure: requests that wait for a place at the server, structures in a server's words, and results."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import json
import re
from collections.abc import Iterable, Sequence

import numpy as np

from envsdk.inference.engine import (
    EngineFailure,
    ErrorKind,
    FinishReason,
    GenerationRequest,
    GenerationResult,
    OutputStructure,
)
from envsdk.inference.tagged_json import structural_tag
from envsdk.trajectory import VersionSpan

Answer = asyncio.Future[GenerationResult]


class WaitingRequests:
    """Lowest priority number first; among equals, first come first served."""

    def __init__(self) -> None:
        self._arrivals = itertools.count()
        self._heap: list[tuple[int, int, GenerationRequest, Answer]] = []
        self._ids: set[str] = set()

    def __len__(self) -> int:
        return len(self._heap)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._ids

    @property
    def ids(self) -> frozenset[str]:
        return frozenset(self._ids)

    def push(self, request: GenerationRequest, answer: Answer) -> None:
        """`request.request_id` is not waiting yet."""
        heapq.heappush(self._heap, (request.priority, next(self._arrivals), request, answer))
        self._ids.add(request.request_id)

    def pop(self) -> tuple[GenerationRequest, Answer]:
        """The next one. IndexError when none waits."""
        _, _, request, answer = heapq.heappop(self._heap)
        self._ids.discard(request.request_id)
        return request, answer

    def remove(self, request_ids: Iterable[str]) -> list[tuple[GenerationRequest, Answer]]:
        """Take these out; unknown ids are passed over."""
        removed = self._ids.intersection(request_ids)
        if not removed:
            return []
        gone = [entry for entry in self._heap if entry[2].request_id in removed]
        self._heap = [entry for entry in self._heap if entry[2].request_id not in removed]
        heapq.heapify(self._heap)
        self._ids -= removed
        return [(request, answer) for _, _, request, answer in gone]


_SPECIAL = re.compile(r"[][.^$*+?(){}|\\]")


def sglang_structure(structure: OutputStructure) -> dict[str, str]:
    """Fields of SGLang's sampling parameters, and of its completions."""
    if structure.regex is not None:
        return {"regex": structure.regex}
    if structure.json_schema is not None:
        return {"json_schema": structure.json_schema}
    if structure.tagged:
        return {"structural_tag": json.dumps(structural_tag(structure.tagged))}
    # Only what means something else is escaped: not each of SGLang's grammar backends takes more.
    return {"regex": "|".join(_SPECIAL.sub(r"\\\g<0>", choice) for choice in structure.choices)}


def result_of(
    request_id: str,
    reason: FinishReason,
    token_ids: Sequence[int] = (),
    logprobs: Sequence[float] = (),
    version_spans: Iterable[VersionSpan] = (),
    failure: EngineFailure | None = None,
) -> GenerationResult:
    """What was sampled, as arrays; `failure` is given with the reason `error`."""
    return GenerationResult(
        request_id=request_id,
        token_ids=np.array(token_ids, np.int32),
        logprobs=np.array(logprobs, np.float32),
        version_spans=tuple(version_spans),
        finish_reason=reason,
        error=failure.message if failure is not None else "",
        error_kind=failure.kind if failure is not None else ErrorKind.REQUEST_FAILED,
    )

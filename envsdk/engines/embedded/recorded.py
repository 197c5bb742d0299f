"""Decoding steps whose kernels are launched together: recorded once, then replayed (CUDA graphs).

    size not seen yet    record: the step runs, and its kernels are kept
    seen                 copy the tokens in, replay

At the batches of an agent a step is some hundred small kernels that take longer to launch than to run. A
recording computes with the shapes and the memory that it was made with. So rows and keys are rounded up to a
few sizes, everything that changes lies in memory of its own that is written to in place, and a row that only
fills up a size writes its keys and values to a slot that nobody reads.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

_LOG = logging.getLogger(__name__)
_ONE_AT_A_TIME = threading.Lock()
"""PyTorch records one graph of a process at a time."""
_LEAST_KEYS = 128
"""Fewer keys are not worth a recording of their own."""

Step = Callable[[Tensor, Tensor, Tensor, int], Tensor]
"""Tokens `[B]`, positions `[B]`, targets `[B, K, 2]` and a number of keys to logits `[B, V]`."""


class Recorder(Protocol):
    """Makes recordings on one device."""

    def __call__(self, step: Callable[[], None]) -> Callable[[], None]:
        """Run `step` once. What is returned runs the same kernels on the same memory again."""
        ...


class CudaGraphs:
    """Recordings as CUDA graphs, which never run at once: all take their memory from one pool.

    Where PyTorch cannot record a step, each of its kernels is launched by itself; the log says so once.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()
        self._works = True

    def __call__(self, step: Callable[[], None]) -> Callable[[], None]:
        current = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            # Libraries set themselves up in the first step on a stream, which they may not while recording.
            step()
        current.wait_stream(self._stream)
        if not self._works:
            return step
        graph = torch.cuda.CUDAGraph()
        # Other threads build weights and train meanwhile, and may allocate as they like.
        recording = torch.cuda.graph(
            graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
        )
        try:
            with _ONE_AT_A_TIME, recording:
                step()
        except RuntimeError as error:
            torch.cuda.set_stream(current)  # which a recording that fails does not
            self._works = False
            _LOG.warning("The embedded engine goes on without CUDA graphs, which failed: %s", error)
            return step
        replay: Callable[[], None] = graph.replay
        return replay


class RecordedRows:
    """The rows being decoded, in memory that recordings know. Owned by the decoder.

    begin -> decode* -> begin ...
    """

    def __init__(
        self,
        step: Step,
        *,
        recorder: Recorder,
        spare_target: Tensor,
        max_rows: int,
        max_keys: int,
        vocab_size: int,
    ) -> None:
        """`spare_target` `[K, 2]` is where a row that only fills up a size writes position 0."""
        self._step = step
        self._recorder = recorder
        self._spare_target = spare_target
        self._max_rows = max_rows
        self._max_keys = max_keys
        self._tokens = torch.zeros(max_rows, dtype=torch.int64, device=spare_target.device)
        self._positions = torch.zeros_like(self._tokens)
        self._targets = spare_target.expand(max_rows, -1, -1).clone()
        self._logits = torch.empty(max_rows, vocab_size, device=spare_target.device)
        self._num_rows = 0
        self._num_keys = 0
        self._recordings: dict[tuple[int, int], Callable[[], None]] = {}

    def begin(self, positions: Tensor, targets: Tensor, num_keys: int) -> None:
        """The rows' last tokens are at `positions` `[B]` and go to `targets` `[B, K, 2]`; the longest row has
        `num_keys` tokens."""
        self._num_rows, self._num_keys = len(positions), num_keys
        self._positions.zero_()
        self._positions[: self._num_rows] = positions
        self._targets.copy_(self._spare_target.expand_as(self._targets))
        self._targets[: self._num_rows] = targets

    def forget(self) -> None:
        """The memory that the recordings know is gone."""
        self._recordings.clear()

    def decode(self, tokens: Tensor) -> Tensor:
        """One step, as `Decoder.decode`; the logits are valid until the next one."""
        self._tokens[: self._num_rows] = tokens
        rows = rounded_up(self._num_rows, self._max_rows)
        keys = rounded_up(max(self._num_keys, _LEAST_KEYS), self._max_keys)
        self._num_keys += 1
        recording = self._recordings.get((rows, keys))
        if recording is None:
            self._recordings[rows, keys] = self._recorder(lambda: self._run(rows, keys))
        else:
            recording()
        return self._logits[: self._num_rows]

    def _run(self, rows: int, keys: int) -> None:
        positions, targets = self._positions[:rows], self._targets[:rows]
        self._logits[:rows] = self._step(self._tokens[:rows], positions, targets, keys)
        positions += 1
        targets += 1


def rounded_up(number: int, most: int) -> int:
    """The least of 1, 2, 3, 4, 6, 8, 12, 16, ... that is no less than `number`, but at most `most`."""
    power = 1 << (number - 1).bit_length()
    between = power * 3 // 4
    return min(between if power >= 4 and between >= number else power, most)

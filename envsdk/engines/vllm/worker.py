"""What vLLM's worker processes learn from envsdk: to take weights out of shared memory, and to end in time.

vLLM mixes `WorkerExtension` into its own worker class (`worker_extension_cls`), where `collective_rpc`
finds its methods. Imported in those processes alone, which then end with the process named by `OWNER`.
"""

from __future__ import annotations

import multiprocessing
import os
import select
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from envsdk.engines.vllm.settings import OWNER
from envsdk.engines.vllm.staged_weights import Handle, read_staged


class WorkerExtension:
    """Methods of every worker. Names begin with `envsdk_`, so that they meet none of vLLM's."""

    model_runner: Any

    def envsdk_load_weights(self, handle: Handle) -> None:
        """Compute with the weights behind `handle` from the next step on.

        vLLM copies them into the memory the old ones have, layer by layer.
        """
        model = self.model_runner.get_model()
        _pack_experts_again(model)
        self.model_runner.reload_weights(weights_iterator=_tensors(handle))
        _repack_tied_head(model)


def _end_with(pid: int) -> None:
    """End when process `pid` has ended, however it did; vLLM's engine core would run on by itself."""
    with suppress(ProcessLookupError):
        select.select([os.pidfd_open(pid)], [], [])
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid is not None and parent.pid != pid:  # the engine core
        with suppress(ProcessLookupError):
            os.kill(parent.pid, signal.SIGKILL)
    os._exit(1)


if OWNER in os.environ:
    threading.Thread(
        target=_end_with, args=(int(os.environ[OWNER]),), name="envsdk-end-with-owner", daemon=True
    ).start()


def _tensors(handle: Handle) -> Iterator[tuple[str, Tensor]]:
    for name, weight in read_staged(handle):
        yield name, weight if isinstance(weight, Tensor) else torch.from_numpy(weight)


def _pack_experts_again(model: Any) -> None:
    """On a CPU experts are padded and packed where they have no kernel yet: vLLM 0.32 does not renew that."""
    for layer in model.modules():
        method: Any = getattr(layer, "quant_method", None)
        if getattr(method, "moe_kernel", None) is not None and layer.w13_weight.device.type == "cpu":
            method.moe_kernel = None


def _repack_tied_head(model: Any) -> None:
    """On a CPU a head computes with a packed copy of its weight; vLLM 0.32 does not renew a tied one's."""
    head: Any = getattr(model, "lm_head", None)
    embedding: Any = getattr(getattr(model, "model", model), "embed_tokens", None)
    if embedding is None or not hasattr(head, "cpu_linear"):
        return
    if head.weight.data_ptr() == embedding.weight.data_ptr():
        from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

        dispatch_cpu_unquantized_gemm(head, remove_weight=False)

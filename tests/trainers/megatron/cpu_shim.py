"""Let megatron-core run without CUDA, for tests on tiny models.

Megatron asks for CUDA devices, streams and generators by name. `install` gives its modules, and no others, a
view of `torch` in which the CPU answers such requests; the real `torch` and every other library stay as
they are. A request that the view does not know fails where it is made. With CUDA `install` does nothing.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.machinery
import logging
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_CPU = torch.device("cpu")
_LIBRARY = "megatron.core"
_FACTORIES = (
    "arange",
    "as_tensor",
    "empty",
    "empty_like",
    "full",
    "load",
    "ones",
    "ones_like",
    "rand",
    "randn",
    "tensor",
    "zeros",
    "zeros_like",
)
"""Functions of `torch` to which Megatron hands a CUDA device."""
_log = logging.getLogger(__name__)
_installed = False


def install() -> bool:
    """Let megatron-core run on the CPU; True when it does, False where CUDA is present. Idempotent."""
    global _installed
    if torch.cuda.is_available():
        return False
    if _installed:
        return True
    _log.warning("no CUDA device: Megatron runs on the CPU through a shim")
    # First of all: what is imported after it is not compiled, which takes longer than it saves here.
    importlib.import_module("megatron.core.jit").disable_jit_fuser()
    for name in (
        "distributed",
        "models.gpt",
        "optimizer",
        "parallel_state",
        "pipeline_parallel",
        "tensor_parallel.random",
        "transformer.moe.token_dispatcher",
    ):
        importlib.import_module(f"{_LIBRARY}.{name}")
    view = _TorchView()
    for module in list(sys.modules.values()):
        _adapt(module, view)
    sys.meta_path.insert(0, _LaterModules(view))
    _random_state_of_the_cpu()
    _types_by_name()
    _tokens_of_experts()
    _installed = True
    return True


class _TorchView(types.ModuleType):
    """`torch`, but what is asked for on CUDA is on the CPU."""

    def __init__(self) -> None:
        super().__init__("torch")
        vars(self)["cuda"] = _CudaView("torch.cuda")
        for name in _FACTORIES:
            vars(self)[name] = _on_cpu(getattr(torch, name))

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


class _CudaView(types.ModuleType):
    """`torch.cuda` of a machine whose one device is the CPU, on which all work is done in order."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cuda, name)

    class Stream:
        """A stream or an event: there is nothing to wait for."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            pass

        def __getattr__(self, name: str) -> Callable[..., Any]:
            return lambda *args, **kwargs: self

    Event = Stream

    def current_device(self) -> torch.device:
        return _CPU

    def device_count(self) -> int:
        return 1

    def current_stream(self, *args: Any) -> Stream:
        return self.Stream()

    default_stream = current_stream

    def stream(self, stream: Any) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def synchronize(self, *args: Any) -> None:
        pass

    def empty_cache(self) -> None:
        pass

    def set_device(self, *args: Any) -> None:
        pass

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def get_rng_state(self, *args: Any) -> Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: Tensor, *args: Any) -> None:
        torch.set_rng_state(state)


class _LaterModules:
    """Adapts modules of Megatron that are imported after `install`."""

    def __init__(self, view: _TorchView) -> None:
        self._view = view

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not name.startswith(f"{_LIBRARY}."):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: types.ModuleType) -> None:
                execute(module)
                _adapt(module, self._view)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _adapt(module: types.ModuleType, view: _TorchView) -> None:
    if not getattr(module, "__name__", "").startswith(f"{_LIBRARY}."):
        return
    if vars(module).get("torch") is torch:
        vars(module)["torch"] = view
    for name, value in list(vars(module).items()):
        if isinstance(value, types.FunctionType) and hasattr(value, "_torchdynamo_orig_callable"):
            vars(module)[name] = value._torchdynamo_orig_callable


def _on_cpu(create: Callable[..., Any]) -> Callable[..., Any]:
    def created(*args: Any, **kwargs: Any) -> Any:
        asked = kwargs.get("device")
        if asked is not None and (isinstance(asked, int) or torch.device(asked).type == "cuda"):
            kwargs["device"] = _CPU
            kwargs.pop("pin_memory", None)
        return create(*args, **kwargs)

    return created


def _random_state_of_the_cpu() -> None:
    """The tracker of random states reaches past `torch.cuda` into the default CUDA generator."""
    random: Any = importlib.import_module("megatron.core.tensor_parallel.random")

    def get_state(device: Any = "cuda", clone: bool = False, graph_safe: bool = False) -> Tensor:
        return torch.get_rng_state()

    def set_state(state: Tensor, device: Any = -1, graph_safe: bool = False) -> None:
        torch.set_rng_state(state)

    random._get_cuda_rng_state, random._set_cuda_rng_state = get_state, set_state
    # It warns of a CPU state that changes while a CUDA state is borrowed; they are one.
    logging.getLogger(random.__name__).setLevel(logging.ERROR)


def _types_by_name() -> None:
    """Tensors compared with the name `torch.cuda.FloatTensor`, and a weight moved by `.cuda()`."""
    clip_grads: Any = importlib.import_module("megatron.core.optimizer.clip_grads")
    distributed: Any = importlib.import_module("megatron.core.optimizer.distrib_optimizer")
    optimizer: Any = importlib.import_module("megatron.core.optimizer.optimizer")
    language: Any = importlib.import_module("megatron.core.models.common.language_module.language_module")
    for function in (
        clip_grads.clip_grad_by_total_norm_fp32,
        distributed.DistributedOptimizer.__init__,
        distributed.DistributedOptimizer._build_model_and_main_param_groups,
        distributed.DistributedOptimizer.get_parameter_state_dp_zero,
        optimizer.Float16OptimizerWithFloat16Params.__init__,
        language.LanguageModule.setup_embeddings_and_output_layer,
    ):
        function = getattr(function, "__func__", function)
        code = function.__code__
        function.__code__ = code.replace(
            co_consts=_renamed(code.co_consts),
            co_names=tuple("cpu" if name == "cuda" else name for name in code.co_names),
        )


def _renamed(constant: Any) -> Any:
    if isinstance(constant, str):
        return constant.replace("torch.cuda.", "torch.")
    return tuple(map(_renamed, constant)) if isinstance(constant, tuple) else constant


def _tokens_of_experts() -> None:
    """Mixture of experts: what only CUDA tensors or NCCL would bring along."""
    dispatcher: Any = importlib.import_module("megatron.core.transformer.moe.token_dispatcher")
    mappings: Any = importlib.import_module("megatron.core.tensor_parallel.mappings")

    def to_cpu(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
        # Megatron leaves a tensor that is there already as it is, yet splits want numbers.
        return tensor.numpy() if as_numpy and torch.is_tensor(tensor) else tensor

    dispatcher.maybe_move_tensor_to_cpu = to_cpu
    gather, scatter = mappings._gather_along_first_dim, mappings._reduce_scatter_along_first_dim

    # Expert-tensor-parallel ranks hold different numbers of tokens; gloo wants them alike.
    def gather_uneven(rows: Tensor, group: Any, sizes: Any = None, use_global_buffer: bool = False) -> Tensor:
        if sizes is None or group.size() == 1:
            return gather(rows, group, sizes, use_global_buffer)  # type: ignore[no-any-return]
        lengths = [int(size) for size in sizes]
        padded = rows.new_zeros(max(lengths), *rows.shape[1:])
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in lengths]
        dist.all_gather(parts, padded, group=group)
        return torch.cat([part[:length] for part, length in zip(parts, lengths, strict=True)])

    def scatter_uneven(
        rows: Tensor, group: Any, sizes: Any = None, use_global_buffer: bool = False
    ) -> Tensor:
        if sizes is None or group.size() == 1:
            return scatter(rows, group, sizes, use_global_buffer)  # type: ignore[no-any-return]
        total = rows.clone()
        dist.all_reduce(total, group=group)
        mine: Tensor = torch.split(total, [int(size) for size in sizes])[group.rank()]
        return mine.contiguous()

    mappings._gather_along_first_dim = gather_uneven
    mappings._reduce_scatter_along_first_dim = scatter_uneven

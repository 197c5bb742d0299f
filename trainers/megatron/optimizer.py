"""AdamW where ranks shard parameters, moments or both: Megatron's optimizers under our schedule.

A parameter here is one rank's shard under tensor, pipeline and expert parallelism. Its float32 value and
its moments are either complete on this rank or, with the distributed optimizer, cut into flat parts of
which each data-parallel rank has one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import megatron.core.optimizer
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.optimizer import OptimizerConfig, ParamKey, get_megatron_optimizer
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.optimizer.optimizer_config import ParamPredicate
from torch import Tensor, nn

from envsdk.contracts.failures import TrainerError
from envsdk.trainers.torch_optimizer import dither_of, set_learning_rate
from envsdk.trainers.training_args import TrainingArgs

Kind = Literal["weight", "exp_avg", "exp_avg_sq"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """The part of one parameter that this rank steps; its tensors are flat and float32."""

    start: int
    """Start of the part in the flattened parameter."""
    main: Tensor
    state: dict[str, Tensor]
    """`step, exp_avg, exp_avg_sq`"""

    def tensor(self, kind: Kind) -> Tensor:
        return self.main if kind == "weight" else self.state[kind]


class ParallelOptimizer:
    """accumulate -> step -> accumulate ...; every rank makes every call.

    What is decayed and when a step is refused is as in `torch_optimizer.Optimizer`.
    """

    def __init__(
        self,
        chunks: Sequence[nn.Module],
        args: TrainingArgs,
        *,
        is_distributed: bool,
        dtype: torch.dtype,
        overlap_param_gather: bool = False,
    ) -> None:
        self.args = args
        self.num_steps = 0
        """Optimizer steps taken; the position in the schedule."""
        self._chunks: Sequence[Any] = chunks
        self._is_distributed = is_distributed
        self._gathers_later = overlap_param_gather
        # One home for step counts and moments, whatever else is installed.
        megatron.core.optimizer.USING_PYTORCH_OPTIMIZER = True
        spared = ParamPredicate("not decayed", _is_not_decayed)
        settings = OptimizerConfig(
            optimizer="adam",
            lr=args.learning_rate,
            weight_decay=args.weight_decay,
            adam_beta1=args.adam_beta1,
            adam_beta2=args.adam_beta2,
            adam_eps=args.adam_epsilon,
            clip_grad=0.0,
            bf16=dtype == torch.bfloat16,
            params_dtype=dtype,
            use_distributed_optimizer=is_distributed,
            overlap_param_gather=overlap_param_gather,
        )
        self._optimizer = get_megatron_optimizer(
            settings, list(chunks), {ParamKey(predicate=spared): {"wd_mult": 0.0}}
        )
        for group in self._optimizer.param_groups:
            group["weight_decay"] = args.weight_decay * group["wd_mult"]
        self._members = [
            member for member in self._optimizer.chained_optimizers if not member.is_stub_optimizer
        ]
        self._parts = _parts(self._members, [p for chunk in chunks for p in chunk.parameters()])
        self.zero_grad()

    def zero_grad(self) -> None:
        for chunk in self._chunks:
            chunk.zero_grad_buffer()
        self._optimizer.zero_grad()

    def step(self, *, only: Callable[[nn.Parameter], bool] | None = None) -> tuple[float, float]:
        """Clip, step, clear; returns (gradient norm before clipping, learning rate), the same on all ranks.

        Parameters that are not `only` keep weights and moments, without decay. TrainerError, with weights
        and moments untouched, when the norm is not finite.
        """
        self._optimizer.prepare_grads()
        for parameter, part in self._parts.items():
            if only is not None and not only(parameter):
                part.main.grad = None
        norm = float(self._optimizer.get_grad_norm())
        if not math.isfinite(norm):
            self.zero_grad()
            raise TrainerError(f"the gradient norm is {norm} at optimizer step {self.num_steps}")
        gradients = [part.main.grad for part in self._parts.values() if part.main.grad is not None]
        if self.args.max_grad_norm is not None and gradients:
            torch._foreach_mul_(gradients, min(1.0, self.args.max_grad_norm / (norm + 1e-6)))
        learning_rate = set_learning_rate(self._optimizer.param_groups, self.num_steps, self.args)
        self._optimizer.step_with_ready_grads()
        self.zero_grad()
        self.num_steps += 1
        return norm, learning_rate

    @torch.no_grad()
    def dither(self, seed: int) -> None:
        """As `CausalLM.dither`, of the float32 values behind bfloat16 parameters, which stay as they are.

        Ranks with the same parameter add the same.
        """
        for parameter, part in self._parts.items():
            if parameter.dtype is torch.bfloat16 and parameter.ndim > 1:
                noise = dither_of(parameter.float(), torch.Generator().manual_seed(seed)).reshape(-1)
                own = noise[part.start : part.start + part.main.numel()]
                part.main.add_(own.view(part.main.shape))

    def finish_param_gather(self) -> None:
        """Parameters are up to date after it, also where they would be gathered in the next forward pass."""
        if self._gathers_later:
            for chunk in self._chunks:
                chunk.start_param_sync(force_sync=True)

    def tensors(self) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """Parameters; what a step needs besides; and gradients, which are zero between two steps."""
        parameters = [parameter for chunk in self._chunks for parameter in chunk.parameters()]
        rest = [tensor for part in self._parts.values() for tensor in (part.main, *part.state.values())]
        return parameters, rest, [each.main_grad for each in parameters if hasattr(each, "main_grad")]

    def num_steps_of(self, parameter: nn.Parameter) -> int:
        """Steps that moved a parameter; 0 where this rank steps nothing of it."""
        part = self._parts.get(parameter)
        return 0 if part is None else int(part.state["step"])

    def full_tensor(self, parameter: nn.Parameter, kind: Kind) -> Tensor:
        """Float32, in the parameter's shape, from the parts of all data-parallel ranks."""
        flat = torch.zeros(parameter.numel(), dtype=torch.float32, device=parameter.device)
        part = self._parts.get(parameter)
        if part is not None:
            tensor = part.tensor(kind).detach().reshape(-1)
            flat[part.start : part.start + len(tensor)] = tensor
        if self._is_distributed:
            dist.all_reduce(flat, group=_sharing_group(parameter))
        return flat.view(parameter.shape)

    @torch.no_grad()
    def put(self, parameter: nn.Parameter, values: Tensor, *, kind: Kind) -> None:
        """Set this rank's part from full `values`. A weight is also put into the parameter itself."""
        part = self._parts.get(parameter)
        if part is not None:
            tensor = part.tensor(kind)
            flat = values.reshape(-1)[part.start : part.start + tensor.numel()]
            tensor.copy_(flat.view(tensor.shape))
        if kind == "weight":
            parameter.copy_(values)

    @torch.no_grad()
    def put_num_steps(self, parameter: nn.Parameter, num_steps: int) -> None:
        part = self._parts.get(parameter)
        if part is not None:
            part.state["step"].fill_(num_steps)

    @torch.no_grad()
    def snapshot(self) -> Callable[[], None]:
        """Copy weights and moments; the result puts the copy back."""
        self.finish_param_gather()
        parameters = (parameter for chunk in self._chunks for parameter in chunk.parameters())
        live = [parameter.detach() for parameter in parameters if parameter.requires_grad]
        for parameter, part in self._parts.items():
            live += part.state.values()
            if parameter.dtype != torch.float32:  # else the part is a view of the parameter
                live.append(part.main.detach())
        copies = [tensor.clone() for tensor in live]
        num_steps = self.num_steps

        def restore() -> None:
            for tensor, copy in zip(live, copies, strict=True):
                tensor.copy_(copy)
            self.num_steps = num_steps
            self.zero_grad()

        return restore


def _is_not_decayed(parameter: nn.Parameter) -> bool:
    return parameter.ndim < 2 or getattr(parameter, "is_embedding_or_output_parameter", False)


def _parts(members: Sequence[Any], parameters: Sequence[nn.Parameter]) -> dict[nn.Parameter, _Part]:
    """Parts by parameter; those of which this rank steps nothing are missing."""
    parts: dict[nn.Parameter, _Part] = {}
    for member in members:
        main_of = {id(main): main for group in member.optimizer.param_groups for main in group["params"]}
        for main in main_of.values():
            member.optimizer.state[main] = {
                "step": torch.zeros(()),
                "exp_avg": torch.zeros_like(main),
                "exp_avg_sq": torch.zeros_like(main),
            }
        if isinstance(member, DistributedOptimizer):
            for parameter, main in _sharded(member):
                start = member._get_model_param_range_map(parameter)["param"].start
                parts[parameter] = _Part(start=start, main=main, state=member.optimizer.state[main])
            continue
        for parameter in parameters:
            main = getattr(parameter, "main_param", parameter)
            if id(main) in main_of:
                parts[parameter] = _Part(start=0, main=main, state=member.optimizer.state[main])
    return parts


def _sharded(member: Any) -> Iterator[tuple[nn.Parameter, Tensor]]:
    """Each parameter of which this rank has a part, and the part that is stepped.

    Not by Megatron's own index of them, which is off where precisions are mixed.
    """
    for parameters, mains in (
        (member.model_float16_groups, member.shard_fp32_from_float16_groups),
        (member.model_fp32_groups, member.shard_fp32_groups),
    ):
        for group, main_group in zip(parameters, mains, strict=True):
            yield from zip(group, main_group, strict=True)


def _sharing_group(parameter: nn.Parameter) -> Any:
    """The ranks over which the distributed optimizer shards a parameter, owners of a part or not."""
    if getattr(parameter, "allreduce", True):
        return parallel_state.get_data_parallel_group(with_context_parallel=True)
    return parallel_state.get_expert_data_parallel_group()

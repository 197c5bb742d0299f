"""AdamW, the learning-rate schedule, and the guard against steps that are not finite."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from envsdk.contracts.failures import TrainerError
from envsdk.trainers.offload import DeviceMemory, placed
from envsdk.trainers.process_group import full_tensor, placed_like
from envsdk.trainers.training_args import TrainingArgs


def learning_rate_at(step: int, args: TrainingArgs) -> float:
    """Learning rate of optimizer step `step`, from 0.

    Linear warm-up to the peak over `warmup_steps` (step 0 already learns), then constant, or a linear or
    cosine decay that reaches `min_lr_ratio` x peak at `max_steps` and stays there.
    """
    if step < args.warmup_steps:
        return args.learning_rate * (step + 1) / args.warmup_steps
    if args.lr_scheduler_type == "constant" or args.max_steps is None:
        return args.learning_rate
    progress = min(1.0, (step - args.warmup_steps) / max(1, args.max_steps - args.warmup_steps))
    share = 1 - progress if args.lr_scheduler_type == "linear" else (1 + math.cos(math.pi * progress)) / 2
    return args.learning_rate * (args.min_lr_ratio + (1 - args.min_lr_ratio) * share)


def set_learning_rate(groups: Iterable[dict[str, Any]], step: int, args: TrainingArgs) -> float:
    """Give PyTorch's parameter groups the learning rate of optimizer step `step`, and return it."""
    learning_rate = learning_rate_at(step, args)
    for group in groups:
        group["lr"] = learning_rate
    return learning_rate


def dither_of(weight: Tensor, generator: torch.Generator) -> Tensor:
    """Up to half of the way from each bfloat16 number in a float32 `weight` to the next one, at random."""
    step = torch.ldexp(torch.ones_like(weight), torch.frexp(weight).exponent - 8)
    step *= (weight == weight.bfloat16()) & (weight != 0)
    return step * (torch.rand(weight.shape, generator=generator).to(weight.device) - 0.5)


class Optimizer:
    """AdamW over named parameters: accumulate -> step -> accumulate ...

    Matrices are decayed; norms, biases (one-dimensional) and embeddings are not: decay would pull norm
    gains to 0 and forget rare tokens. A tied output embedding counts as an embedding.
    """

    def __init__(
        self,
        parameters: Iterable[tuple[str, nn.Parameter]],
        embeddings: Iterable[nn.Module],
        args: TrainingArgs,
    ) -> None:
        self.args = args
        self.parameters = dict(parameters)
        self.num_steps = 0
        """Optimizer steps taken; the position in the schedule."""
        self._averages = {n: p.detach().clone() for n, p in self.parameters.items()} if args.ema_decay else {}
        """Moving averages of the weights; the weights themselves while averages are shown."""
        self._shows_average = False
        spared = {id(weight) for module in embeddings for weight in module.parameters()}
        decayed = [p for p in self.parameters.values() if p.ndim >= 2 and id(p) not in spared]
        plain = [p for p in self.parameters.values() if p.ndim < 2 or id(p) in spared]
        self.adam = torch.optim.AdamW(
            [
                {"params": decayed, "weight_decay": args.weight_decay},
                {"params": plain, "weight_decay": 0.0},
            ],
            lr=args.learning_rate,
            betas=(args.adam_beta1, args.adam_beta2),
            eps=args.adam_epsilon,
            fused=True,
        )
        self._make_gradients()

    def _make_gradients(self) -> None:
        for parameter in self.parameters.values():
            # Always there: a step whose gradient is zero still moves by momentum, like any other.
            parameter.grad = torch.zeros_like(parameter)

    @torch.no_grad()
    def show_average(self, is_shown: bool) -> None:
        """Exchange weights and averages, unless the parameters already hold what is asked for."""
        if is_shown is self._shows_average:
            return
        self._shows_average = is_shown
        for name, average in self._averages.items():
            weight = self.parameters[name].detach().clone()
            self.parameters[name].copy_(average)
            average.copy_(weight)

    @torch.no_grad()
    def _follow(self) -> None:
        """Move the averages towards the weights, faster at first: TensorFlow's `ExponentialMovingAverage`."""
        decay = min(self.args.ema_decay, self.num_steps / (9 + self.num_steps))
        for name, average in self._averages.items():
            average.lerp_(self.parameters[name].detach(), 1 - decay)

    def zero_grad(self) -> None:
        self.adam.zero_grad(set_to_none=False)

    def step(self, *, only: str = "") -> tuple[float, float]:
        """Clip, step, clear; returns (gradient norm before clipping, learning rate).

        Parameters whose names do not begin with `only` keep weights and moments, without decay.
        TrainerError, with weights and moments untouched, when the norm is not finite.
        """
        left_out = [p for name, p in self.parameters.items() if not name.startswith(only)]
        for parameter in left_out:
            parameter.grad = None
        try:
            return self._step()
        finally:
            for parameter in left_out:
                parameter.grad = torch.zeros_like(parameter)

    def _step(self) -> tuple[float, float]:
        gradients = [p.grad for p in self.parameters.values() if p.grad is not None]
        norm = full_tensor(torch.nn.utils.get_total_norm(gradients))
        if not torch.isfinite(norm):
            self.zero_grad()
            raise TrainerError(f"the gradient norm is {float(norm)} at optimizer step {self.num_steps}")
        if self.args.max_grad_norm is not None:
            torch.nn.utils.clip_grads_with_norm_(self.parameters.values(), self.args.max_grad_norm, norm)
        learning_rate = set_learning_rate(self.adam.param_groups, self.num_steps, self.args)
        self.adam.step()
        self.zero_grad()
        self.num_steps += 1
        self._follow()
        return float(norm), learning_rate

    def move(self, memory: DeviceMemory, *, on_device: bool) -> None:
        """Move moments and averages. Gradients, zero between two steps, are dropped and made again."""
        for parameter in self.parameters.values():
            parameter.grad = None
        for moments in self.adam.state.values():
            for key, value in moments.items():
                moments[key] = placed(value, memory, on_device=on_device)
        for name, average in self._averages.items():
            self._averages[name] = placed(average, memory, on_device=on_device)
        if on_device:
            self._make_gradients()

    def state(self) -> dict[str, Tensor]:
        """Weights and moments, by name: `weight/NAME`, `exp_avg/NAME`, `exp_avg_sq/NAME`, `step/NAME`; and
        `average/NAME`.

        The live tensors, not copies; with several ranks, this rank's part of each. Moments are missing
        before the first step.
        """
        self.show_average(False)
        tensors = {f"average/{name}": average for name, average in self._averages.items()}
        for name, parameter in self.parameters.items():
            tensors[f"weight/{name}"] = parameter.detach()
            for key, value in self.adam.state.get(parameter, {}).items():
                tensors[f"{key}/{name}"] = value
        return tensors

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor], num_steps: int) -> None:
        """Copy back the tensors of `state`, full or sharded."""
        self.show_average(False)
        for name, parameter in self.parameters.items():
            parameter.copy_(placed_like(parameter, tensors[f"weight/{name}"]))
            if name in self._averages:  # a checkpoint from before there was one has none
                stored = tensors.get(f"average/{name}")
                self._averages[name].copy_(parameter if stored is None else placed_like(parameter, stored))
            moments = [key for key in ("step", "exp_avg", "exp_avg_sq") if f"{key}/{name}" in tensors]
            if not moments:
                self.adam.state.pop(parameter, None)
                continue
            self.adam.state[parameter] = {
                key: placed_like(parameter, tensors[f"{key}/{name}"]) for key in moments
            }
        self.zero_grad()
        self.num_steps = num_steps

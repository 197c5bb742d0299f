"""Metrics of one trainer step, summed over micro-batches, optimizer steps and ranks. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import add
from typing import Literal, get_args

import torch
from torch import Tensor

_Kind = Literal["loss", "term", "sum", "count", "squares", "max", "min"]
_TOGETHER: Mapping[_Kind, Callable[[float, float], float]] = {
    **dict.fromkeys(get_args(_Kind), add),
    **{"max": max, "min": min},
}
"""What two numbers of a kind make."""


class StepMetrics:
    """Sums over micro-batches.

    ((add | add_weight | add_term)* -> add_micro_batch)* -> [merge, over ranks] -> leave_out -> metrics

    Values of `add` are averaged over the tokens they were computed for. Where sequences are left out these
    are not all sampled tokens; `metrics` says how many they are. Numbers stay on the device until the end of
    the micro-batch, which fetches all of them at once.
    """

    def __init__(self) -> None:
        self.num_real_tokens = 0
        """Inputs computed that are not padding."""
        self.num_padded_tokens = 0
        """Inputs computed, padding included."""
        self.num_saved_tokens = 0
        """Inputs that rows share with an earlier one, and that were computed there."""
        self._num_left_out = 0
        self._found: dict[tuple[_Kind, str], float] = {}
        """Numbers by kind and name."""
        self._norms: list[float] = []
        self._learning_rate = 0.0
        self._on_device: list[tuple[_Kind, str, Tensor]] = []
        """Scalars to enter when they are fetched."""

    def add(self, name: str, values_N: Tensor, *, with_max: bool = False) -> None:
        self._on_device.append(("sum", name, values_N.double().sum()))
        self._enter("count", name, values_N.numel())
        if with_max and values_N.numel():
            self._on_device.append(("max", name, values_N.max()))

    def add_weight(self, name: str, values_N: Tensor) -> None:
        """Add a factor of the loss, with its extremes and its effective sample size."""
        self.add(name, values_N, with_max=True)
        self._on_device.append(("squares", name, values_N.double().square().sum()))
        if values_N.numel():
            self._on_device.append(("min", name, values_N.min()))

    def add_term(self, name: str, value: Tensor) -> None:
        """Add a term of the loss, a scalar; the terms add up to the loss."""
        self._on_device.append(("term", name, value))

    def add_micro_batch(
        self, loss: Tensor, *, num_real_tokens: int, num_padded_tokens: int, num_saved_tokens: int = 0
    ) -> None:
        """End a micro-batch with its loss, a scalar, and with the number of inputs it computed and saved."""
        self._on_device.append(("loss", "", loss))
        self.num_real_tokens += num_real_tokens
        self.num_padded_tokens += num_padded_tokens
        self.num_saved_tokens += num_saved_tokens
        self._fetch()

    def _fetch(self) -> None:
        """Enter the scalars of the device, all by one transfer."""
        waiting, self._on_device = self._on_device, []
        if waiting:
            numbers = torch.stack([value.detach().double() for _, _, value in waiting]).tolist()
            for (kind, name, _), number in zip(waiting, numbers, strict=True):
                self._enter(kind, name, number)

    def _enter(self, kind: _Kind, name: str, number: float) -> None:
        before = self._found.get((kind, name))
        self._found[kind, name] = number if before is None else _TOGETHER[kind](before, number)

    def _named(self, kind: _Kind) -> dict[str, float]:
        """What was found of this kind, by name."""
        return {name: number for (found, name), number in self._found.items() if found == kind}

    def leave_out(self, num_tokens: int) -> None:
        """Sampled tokens that were not computed, because they cannot have a gradient: no clipping took one
        away from them; nothing else is known of them."""
        self._num_left_out += num_tokens
        self._enter("sum", "clip_fraction", 0.0)
        self._enter("count", "clip_fraction", num_tokens)

    def add_step(self, grad_norm: float, learning_rate: float) -> None:
        self._norms.append(grad_norm)
        self._learning_rate = learning_rate

    @classmethod
    def merge(cls, parts: Sequence[StepMetrics]) -> StepMetrics:
        """The sum: over ranks before `add_step`, over optimizer steps after it."""
        merged = cls()
        for part in parts:
            part._fetch()
            merged.num_real_tokens += part.num_real_tokens
            merged.num_padded_tokens += part.num_padded_tokens
            merged.num_saved_tokens += part.num_saved_tokens
            merged._num_left_out += part._num_left_out
            for (kind, name), number in part._found.items():
                merged._enter(kind, name, number)
            merged._norms += part._norms
            merged._learning_rate = part._learning_rate
        return merged

    @property
    def loss(self) -> float:
        """That of the micro-batches together."""
        return self._found.get(("loss", ""), 0.0)

    def mean(self, name: str) -> float:
        """Over tokens; 0 when there were none."""
        return self._found.get(("sum", name), 0.0) / max(1, self._found.get(("count", name), 0))

    def metrics(self) -> dict[str, float]:
        """`actor/...` and, with a value head, `critic/...`; means over tokens and optimizer steps."""
        self._fetch()
        num_steps = max(1, len(self._norms))
        padded = self.num_padded_tokens
        counts, sums, maxima = self._named("count"), self._named("sum"), self._named("max")
        num_measured = counts.get("entropy", 0)
        num_sampled = num_measured + self._num_left_out
        metrics = {
            "actor/loss": self.loss / num_steps,
            "actor/grad_norm": sum(self._norms) / num_steps,
            "actor/lr": self._learning_rate,
            "actor/num_optimizer_steps": float(len(self._norms)),
            "actor/num_computed_tokens": float(padded),
            "actor/num_saved_tokens": float(self.num_saved_tokens),
            "actor/padding_fraction": 1 - self.num_real_tokens / padded if padded else 0.0,
            "actor/measured_share": num_measured / num_sampled if num_sampled else 1.0,
            "actor/pg_loss": 0.0,
            **{f"actor/{name}": total / num_steps for name, total in self._named("term").items()},
        }
        for name in sorted(sums):
            is_critic = name.startswith("critic_")
            section, short = ("critic" if is_critic else "actor"), name.removeprefix("critic_")
            if name in maxima:
                metrics[f"{section}/{short}_mean"] = self.mean(name)
                metrics[f"{section}/{short}_max"] = max(0.0, maxima[name])
            else:
                metrics[f"{section}/{short}"] = self.mean(name)
        for name, smallest in self._named("min").items():
            metrics[f"actor/{name}_min"] = smallest
            # Kish: of N tokens so weighted, this share says as much about a mean as all of them unweighted.
            squares = self._found["squares", name] * counts[name]
            metrics[f"actor/{name}_ess"] = sums[name] ** 2 / squares if squares else 0.0
        return metrics

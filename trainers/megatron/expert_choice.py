"""Routing replay: this rank's routers choose the experts that were chosen while sampling.

Megatron asks `router.router_replay` for a router's choice. Its own kind of it replays whole micro-batches;
this one also leaves tokens of which nothing was recorded to the router.

Shapes: T inputs that this rank holds, R routers of the model or all of its layers, K experts of a token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from megatron.core import parallel_state
from numpy.typing import NDArray
from torch import Tensor

from envsdk.contracts.failures import ConfigurationError
from envsdk.trainers.megatron.device import device


def replay_routing(gpt: Any, model_type: str) -> None:
    """Routers choose what `choose` gives from now on. ConfigurationError where there are none."""
    if not gpt.config.num_moe_experts:
        raise ConfigurationError(
            f"train_infer_correction.routing_replay: a {model_type} model has no router that chooses between "
            "experts; leave it out"
        )
    is_selected = gpt.config.recompute_granularity == "selective" and "moe" in gpt.config.recompute_modules
    for _, router in _routers(gpt):
        router.router_replay = _Choice(
            is_recomputed=is_selected or gpt.config.recompute_granularity == "full"
        )


def choose(gpt: Any, experts_TRK: NDArray[np.int16] | None) -> None:
    """What to choose in the next forward pass, and where that is computed again; -1 and None: their own."""
    freq = gpt.config.moe_layer_freq
    experts = None if experts_TRK is None else torch.from_numpy(experts_TRK).long().to(device())
    if experts is not None:
        if experts.shape[1] not in (len(freq), sum(freq)):
            raise ValueError(f"experts of {experts.shape[1]} layers for {sum(freq)} of {len(freq)}")
        if gpt.config.sequence_parallel:
            ranks = parallel_state.get_tensor_model_parallel_world_size()
            experts = experts.chunk(ranks)[parallel_state.get_tensor_model_parallel_rank()]
    for layer, router in _routers(gpt):
        if experts is not None:
            place = layer if experts.shape[1] == len(freq) else sum(freq[:layer])
            router.router_replay.given = experts[:, place]
        else:
            router.router_replay.given = None


def forget(gpt: Any) -> None:
    """What was given before and not computed again."""
    for _, router in _routers(gpt):
        router.router_replay.to_repeat.clear()


class _Choice:
    """One router's choice."""

    def __init__(self, *, is_recomputed: bool) -> None:
        self.given: Tensor | None = None
        self.to_repeat: list[Tensor | None] = []
        """Choices of forward passes that backward passes compute again, in the same order."""
        self._is_recomputed = is_recomputed

    def get_replay_topk(
        self,
        scores: Tensor,
        topk: int,
        num_groups: int | None,
        group_topk: int | None,
        default_compute_topk: Callable[..., tuple[Tensor, Tensor]],
    ) -> tuple[Tensor, Tensor]:
        """Scores of the chosen experts, and which they are. Megatron names and calls it."""
        given = self.given
        if self._is_recomputed and torch.is_grad_enabled():
            given = self.to_repeat.pop(0)
        elif self._is_recomputed:
            self.to_repeat.append(given)
        values, chosen = default_compute_topk(scores, topk, num_groups, group_topk)
        if given is None:
            return values, chosen
        chosen = torch.where(given < 0, chosen, given)
        return scores.gather(1, chosen), chosen


def _routers(gpt: Any) -> Iterator[tuple[int, Any]]:
    """The number of the layer in the model, and its router."""
    for layer in gpt.decoder.layers:
        if hasattr(layer.mlp, "router"):
            yield layer.layer_number - 1, layer.mlp.router

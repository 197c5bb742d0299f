"""The last pipeline stage: vocabulary and values at scored positions alone.

Shapes: T inputs that this rank holds, S of them scored, H hidden size.
"""

from __future__ import annotations

from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region
from torch import Tensor, nn


def add_value_head(gpt: nn.Module, hidden_size: int, device: torch.device) -> None:
    """Give a last stage its `value_head`, float32 and zero, the same on all tensor-parallel ranks."""
    head = nn.Linear(hidden_size, 1, device=device)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    gpt.add_module("value_head", head)


class ScoredHead:
    """Narrows what enters the output layer: ask -> the model's forward pass -> take_values.

    Under sequence parallelism the positions are gathered before they are chosen from, by the hook and
    not by the layer; the layer then adds up the gradients of the few chosen ones only.
    """

    def __init__(self, gpt: nn.Module) -> None:
        self._gpt: Any = gpt
        self._scored_S: Tensor | None = None
        self._values_S: Tensor | None = None
        layer: Any = self._gpt.output_layer
        self._gathers = layer.sequence_parallel
        if self._gathers:
            layer.sequence_parallel, layer.allreduce_dgrad = False, True
        layer.register_forward_pre_hook(self._narrow)

    def ask(self, scored_S: Tensor) -> None:
        """The positions, as indices into T, whose logits the next forward pass gives."""
        self._scored_S = scored_S

    def take_values(self) -> Tensor | None:
        """The value head's predictions `[S]` of the last forward pass, where there is a head."""
        values_S, self._values_S = self._values_S, None
        return values_S

    def _narrow(self, layer: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        hidden_T1H = inputs[0]
        assert self._scored_S is not None
        if self._gathers:
            # Every rank computes the full gradient of the chosen positions and takes its own part.
            hidden_T1H = gather_from_sequence_parallel_region(
                hidden_T1H,
                tensor_parallel_output_grad=False,
                group=parallel_state.get_tensor_model_parallel_group(),
            )
        hidden_S1H = hidden_T1H[self._scored_S]
        if hasattr(self._gpt, "value_head"):
            self._values_S = self._gpt.value_head(hidden_S1H[:, 0].float()).squeeze(-1)
        self._scored_S = None
        return (hidden_S1H, *inputs[1:])

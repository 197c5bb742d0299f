"""Which experts the routers of a mixture choose: recorded while sampling, and chosen again while training.

A router of `transformers` computes a number for each expert and takes the largest by one `topk` over them.
That call is met here, so that whatever a router makes of the numbers before and after still happens.

Shapes: N tokens, K chosen experts, E experts, R routers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class ExpertChoice:
    """The routers of one model: their choices in the last forward pass, or what they are to choose in it."""

    def __init__(self, model: Any) -> None:
        config = model.config.get_text_config()
        counts = (
            getattr(config, name, None) for name in ("num_experts", "n_routed_experts", "num_local_experts")
        )
        self._num_experts: int | None = next(filter(None, counts), None)
        kinds = _router_classes(model)
        routers = [(name, module) for name, module in model.named_modules() if type(module) in kinds]
        self.num_routers = len(routers)
        self._layers = [int(part) for name, _ in routers for part in name.split(".") if part.isdigit()]
        """Number of each router's layer in the model."""
        self._num_layers = int(config.num_hidden_layers)
        self._replayed: list[Tensor] = []
        self._made: dict[int, Tensor] = {}
        for number, (_, router) in enumerate(routers):
            router.forward = partial(self._choose, number, router.forward)

    def replay(self, experts_NRK: Tensor | None) -> None:
        """What to choose from now on, also in a backward pass that computes again; -1 and None: their own.

        Servers tell of every layer, also those without a router.
        """
        self._replayed = []
        if experts_NRK is not None:
            count = experts_NRK.shape[1]
            if count not in (self.num_routers, self._num_layers):
                raise ValueError(f"experts of {count} layers for {self.num_routers} of {self._num_layers}")
            places = range(self.num_routers) if count == self.num_routers else self._layers
            self._replayed = [experts_NRK[:, place].long() for place in places]

    def made(self) -> Tensor:
        """`[N, R, K]` of the last forward pass."""
        return torch.stack([self._made[number] for number in range(self.num_routers)], 1)

    def _choose(self, number: int, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        met = _Met(self._num_experts, self._replayed[number] if self._replayed else None)
        with met:
            found = forward(*args, **kwargs)
        assert met.chosen_NK is not None, "a router that takes its largest numbers by topk"
        self._made[number] = met.chosen_NK
        return found


class _Met(TorchFunctionMode):
    """Inside: the `topk` over all experts gives `replayed_NK`, where that is not negative."""

    def __init__(self, num_experts: int | None, replayed_NK: Tensor | None) -> None:
        super().__init__()
        self._num_experts = num_experts
        self._replayed_NK = replayed_NK
        self.chosen_NK: Tensor | None = None

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        # Routers with groups of experts also take the largest of each group, which may be one.
        if func not in (torch.topk, Tensor.topk) or args[0].ndim != 2:
            return found
        if args[0].shape[-1] != self._num_experts:
            return found
        self.chosen_NK = chosen_NK = found.indices
        if self._replayed_NK is None:
            return found
        self.chosen_NK = chosen_NK = torch.where(self._replayed_NK < 0, chosen_NK, self._replayed_NK)
        return torch.return_types.topk((args[0].gather(-1, chosen_NK), chosen_NK))


def _router_classes(model: Any) -> set[type[Any]]:
    """Those whose numbers `transformers` can tell."""
    found: set[type[Any]] = set()
    for module in model.modules():
        told = (getattr(module, "_can_record_outputs", None) or {}).get("router_logits", ())
        for each in told if isinstance(told, list | tuple) else (told,):
            kind: Any = getattr(each, "target_class", each)
            found.add(kind)
    return found

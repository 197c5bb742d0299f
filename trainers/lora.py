"""Training low-rank adapters alone, by PEFT: the model's own weights stay as they are.

M.weight + alpha / rank x B @ A, where A is random and B begins at 0   (Hu et al., "LoRA", 2021)

Ranks that shard the model shard its adapter too: all ranks read it together, since
reading gathers it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from envsdk.base.settings.problems import Problem
from envsdk.contracts.failures import ConfigurationError
from envsdk.trainers.process_group import full_tensor
from envsdk.weights.lora import A_SUFFIX, B_SUFFIX

if TYPE_CHECKING:
    from envsdk.trainers.training_args import LoRAArgs

_NAME = "default"
"""PEFT's, of the one adapter there is."""
_BASE = ".base_layer."


def problems_of(model_config: Any, args: LoRAArgs) -> Iterator[Problem]:
    """Why no model of this configuration can be adapted so, with keys in `strategy_args`."""
    with torch.device("meta"):
        yield from _problems(AutoModelForCausalLM.from_config(model_config), args)


def _problems(model: nn.Module, args: LoRAArgs) -> Iterator[Problem]:
    modules = dict(model.named_modules())
    yield from args.target_problems(modules, _linear_layers(model))
    embeddings: Any = model.get_input_embeddings()  # type: ignore[operator]
    for name, module in modules.items():
        if args.target_modules == "all-linear" or not f".{name}".endswith(
            tuple(f".{end}" for end in args.target_modules)
        ):
            continue
        if type(module) is not nn.Linear:
            why = f"is no linear layer ({type(module).__name__}); name others"
        elif module.weight is embeddings.weight:
            why = "computes with the embeddings' weight, which would be adapted there alone; name others"
        else:
            continue
        yield Problem((*args.path, "target_modules"), f"{name} {why}")
        return


class LoRA:
    """The adapter in a model. Made before anything else looks at the model's modules."""

    def __init__(self, model: nn.Module, args: LoRAArgs, *, seed: int) -> None:
        """Puts it in and freezes the rest. ConfigurationError for modules that cannot be adapted."""
        for problem in _problems(model, args):
            raise ConfigurationError(str(problem))
        targets = _linear_layers(model) if args.target_modules == "all-linear" else list(args.target_modules)
        config = LoraConfig(
            r=args.rank,
            lora_alpha=args.scaled_alpha,  # type: ignore[arg-type]
            target_modules=targets,
            lora_dropout=0.0,
        )
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            # In a container, for which PEFT does not take linear layers for experts by their names.
            inject_adapter_in_model(config, nn.Sequential(model))
        self._layers: dict[str, Any] = {
            name: module for name, module in model.named_modules() if isinstance(module, LoraLayer)
        }

    @staticmethod
    def halve(model: nn.Module) -> None:
        """Hold the matrices that do not learn in bfloat16, from which they came: nothing is rounded."""
        embeddings: Any = model.get_input_embeddings()  # type: ignore[operator]
        for module in model.modules():
            weight = module.weight if isinstance(module, nn.Linear) else None
            if weight is not None and not weight.requires_grad and weight is not embeddings.weight:
                weight.data = weight.data.bfloat16()

    def halves(self) -> Iterator[tuple[str, Tensor]]:
        """Under the names engines know (`envsdk.weights.lora`), the scaling multiplied into B."""
        for name, layer in self._layers.items():
            half_a, half_b = self._pair(layer)
            yield name + A_SUFFIX, half_a
            yield name + B_SUFFIX, half_b * layer.scaling[_NAME]

    def merged(self, name: str, weight: Tensor) -> tuple[str, Tensor] | None:
        """A weight as of the model without adapter, in full; None for a part of the adapter."""
        if ".lora_" in name:
            return None
        weight = full_tensor(weight).float()
        module, is_base, rest = name.partition(_BASE)
        if not is_base:
            return name, weight
        if rest == "weight":
            layer = self._layers[module]
            half_a, half_b = self._pair(layer)
            weight = weight + (half_b @ half_a * layer.scaling[_NAME]).to(weight)
        return f"{module}.{rest}", weight

    def _pair(self, layer: Any) -> tuple[Tensor, Tensor]:
        halves = layer.lora_A[_NAME], layer.lora_B[_NAME]
        a, b = (full_tensor(half.weight.detach()) for half in halves)
        return a, b


def _linear_layers(model: Any) -> list[str]:
    """Names of all but the output layer; PEFT's `all-linear` takes experts and their routers as well."""
    head = model.get_output_embeddings()
    return [
        name for name, module in model.named_modules() if type(module) is nn.Linear and module is not head
    ]

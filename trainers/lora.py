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

from envsdk.contracts.failures import ConfigurationError
from envsdk.trainers.process_group import full_tensor
from envsdk.weights.lora import A_SUFFIX, B_SUFFIX

if TYPE_CHECKING:
    from envsdk.trainers.training_args import LoRAArgs

_NAME = "default"
"""PEFT's, of the one adapter there is."""
_BASE = ".base_layer."


def problem_of(model_config: Any, args: LoRAArgs) -> str:
    """Why no model of this configuration can be adapted so; empty where it can."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(model_config)
        try:
            LoRA(model, args, seed=0)
        except ConfigurationError as error:
            return str(error)
    return ""


class LoRA:
    """The adapter in a model. Made before anything else looks at the model's modules."""

    def __init__(self, model: nn.Module, args: LoRAArgs, *, seed: int) -> None:
        """Puts it in and freezes the rest. ConfigurationError for modules that cannot be adapted."""
        adapted = _linear_layers(model)
        if problem := args.target_problem([name for name, _ in model.named_modules()], adapted):
            raise ConfigurationError(problem)
        targets = adapted if args.target_modules == "all-linear" else list(args.target_modules)
        config = LoraConfig(
            r=args.rank,
            lora_alpha=args.scaled_alpha,  # type: ignore[arg-type]
            target_modules=targets,
            lora_dropout=0.0,
        )
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            try:
                # In a container, for which PEFT does not take linear layers for experts by their names.
                inject_adapter_in_model(config, nn.Sequential(model))
            except ValueError as error:
                raise ConfigurationError(f"lora.target_modules: {error}") from error
        self._layers: dict[str, Any] = {
            name: module for name, module in model.named_modules() if isinstance(module, LoraLayer)
        }
        embeddings: Any = model.get_input_embeddings()  # type: ignore[operator]
        for name, layer in self._layers.items():
            kind = type(layer.get_base_layer())
            if kind is not nn.Linear:
                raise ConfigurationError(
                    f"lora.target_modules: {name} is no linear layer ({kind.__name__}); name others"
                )
            if layer.get_base_layer().weight is embeddings.weight:
                raise ConfigurationError(
                    f"lora.target_modules: {name} computes with the embeddings' weight, which would "
                    "be adapted there alone; name others"
                )

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

"""A Hugging Face causal language model, asked for a few positions only.

Shapes: B rows, T inputs, N scored positions, H hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from envsdk.base.store.model_files import require_model_folder
from envsdk.contracts.failures import ConfigurationError
from envsdk.trainers.attention import attention_of
from envsdk.trainers.packing import MicroBatch
from envsdk.trainers.training_args import TransformersArgs

if TYPE_CHECKING:
    from envsdk.trainers.lora import LoRA


class CausalLM:
    """Weights in float32, without dropout; optionally with a linear value head on the last hidden state.

    The vocabulary is projected at the asked positions alone: a hook narrows what enters the output
    embedding, so whatever a model does to its logits afterwards (scaling, soft-capping) still happens.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        with_value_head: bool,
        settings: TransformersArgs,
        device: torch.device | str = "cpu",
        lora: LoRA | None = None,
    ) -> None:
        """`lora` is in the model already."""
        self.lora = lora
        self.device = torch.device(device)
        self.model = cast(Any, model.to(self.device))
        self.dtype = torch.bfloat16 if settings.dtype == "bfloat16" else torch.float32
        """Precision of the forward pass."""
        self.autocast_dtype = torch.bfloat16 if settings.dtype == "bfloat16" else None
        """Precision of the forward pass where it is not that of the weights."""
        self.value_head: nn.Linear | None = None
        if with_value_head:
            self.value_head = nn.Linear(self.model.config.get_text_config().hidden_size, 1)
            # Zero: the first predictions are 0 and need no random state.
            nn.init.zeros_(self.value_head.weight)
            nn.init.zeros_(self.value_head.bias)
            self.value_head.to(self.device)
        self._positions_N: Tensor | None = None
        self._hidden_NH: Tensor | None = None
        self.model.get_output_embeddings().register_forward_pre_hook(self._keep_asked_positions)
        self.model.eval()
        if settings.gradient_checkpointing:
            self._checkpoint_without_dropout()

    @classmethod
    def load(
        cls,
        folder: Path,
        *,
        with_value_head: bool,
        settings: TransformersArgs,
        device: torch.device | str = "cpu",
        seed: int = 0,
    ) -> CausalLM:
        """Load a Hugging Face folder. ConfigurationError when there is none or it cannot be read.

        `seed` decides how an adapter (`settings.lora`) begins.
        """
        require_model_folder(folder)
        if problem := settings.attention_problem():
            raise ConfigurationError(f"attn_implementation: {problem}")
        transformers_logging.disable_progress_bar()
        try:
            model = AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=torch.float32,
                attn_implementation=None if settings.is_auto_attention else settings.attn_implementation,
                local_files_only=True,
                trust_remote_code=False,
            )
        except (ImportError, OSError, ValueError, KeyError) as error:
            raise ConfigurationError(f"pretrain: cannot load the model in {folder}: {error}") from error
        adapter = None
        if settings.lora is not None:
            from envsdk.trainers.lora import LoRA

            adapter = LoRA(model, settings.lora, seed=seed)
        return cls(model, with_value_head=with_value_head, settings=settings, device=device, lora=adapter)

    @property
    def vocab_size(self) -> int:
        return int(self.model.get_input_embeddings().num_embeddings)

    @property
    def attention(self) -> str:
        """What it computes attention with, in words."""
        return attention_of(self.model, dtype=self.dtype, device=self.device)

    def parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Every parameter once, under its Hugging Face name; the head's as `value_head.*`."""
        yield from self.model.named_parameters()
        if self.value_head is not None:
            yield from self.value_head.named_parameters(prefix="value_head")

    def modules(self) -> Iterator[nn.Module]:
        """Modules of the model and the value head."""
        yield from self.model.modules()
        if self.value_head is not None:
            yield from self.value_head.modules()

    def forward(self, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        """Logits `[N, V]` and last hidden states `[N, H]` at the batch's scored positions."""
        input_ids_BT = torch.from_numpy(batch.input_ids_BT).to(self.device)
        self._positions_N = torch.from_numpy(batch.positions_N).to(self.device)
        try:
            with torch.autocast(
                self.device.type, dtype=self.autocast_dtype, enabled=self.autocast_dtype is not None
            ):
                logits_1NV = self.model(input_ids=input_ids_BT, use_cache=False).logits
            hidden_NH = self._hidden_NH
        finally:
            self._positions_N = self._hidden_NH = None
        assert hidden_NH is not None
        return logits_1NV[0], hidden_NH

    def predict_values(self, hidden_NH: Tensor) -> Tensor:
        """The value head's predictions `[N]`."""
        if self.value_head is None:
            raise ConfigurationError("this trainer has no value head; it is built for adv_estimator: gae")
        values_N: Tensor = self.value_head(hidden_NH.float()).squeeze(-1)
        return values_N

    def _keep_asked_positions(
        self, module: nn.Module, inputs: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...] | None:
        if self._positions_N is None:
            return None
        hidden_BTH = inputs[0]
        self._hidden_NH = hidden_BTH.reshape(-1, hidden_BTH.shape[-1])[self._positions_N]
        return (self._hidden_NH.unsqueeze(0),)

    def _checkpoint_without_dropout(self) -> None:
        # transformers recomputes activations only in training mode, which would also switch dropout on.
        self.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        self.model.train()
        for module in self.model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
            if hasattr(module, "attention_dropout"):
                module.attention_dropout = 0.0

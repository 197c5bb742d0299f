"""A Hugging Face causal language model, asked for a few positions only.

Shapes: B rows, T inputs, N scored positions, H hidden size, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import logging as transformers_logging

from envsdk.algorithms.logits import (
    LogitTransform,
    ProjectedTokens,
    projected_tokens,
    token_logprobs_and_entropy,
)
from envsdk.base.processes.attention_kernels import leave_out_cudnn
from envsdk.base.settings.precision import Precision
from envsdk.base.store.expert_choice import ExpertChoice
from envsdk.base.store.language_model import load_language_model
from envsdk.base.store.model_files import require_model_folder, stored_dtype
from envsdk.contracts.failures import ConfigurationError
from envsdk.trainers.attention import attention_of, blocked_mask, take_place_of_sdpa
from envsdk.trainers.packing import MicroBatch, Tree
from envsdk.trainers.torch_optimizer import dither_of
from envsdk.trainers.training_args import TransformersArgs

if TYPE_CHECKING:
    from envsdk.trainers.lora import LoRA

_TRIED = (-1000.0, -30.0, -1.0, 0.0, 0.5, 7.0, 300.0)
"""Outputs of the head whose logits are looked at."""


class _HiddenStates(BaseModelOutput):  # type: ignore[misc]
    """What the layers give; all else that families ask for is None."""

    def __getattr__(self, name: str) -> None:
        return None


def transform_of(model: Any, head: nn.Module) -> LogitTransform | None:
    """How the model makes its logits of the head's products, found by trial; None: in another way."""
    config, base = model.config.get_text_config(), model.base_model
    if type(head) is not nn.Linear or head.bias is not None or base is model:
        return None
    scale = getattr(config, "logit_scale", None) or 1 / (getattr(config, "logits_scaling", None) or 1)
    transform = LogitTransform(scale, getattr(config, "final_logit_softcapping", None))
    products = torch.tensor([[_TRIED]])
    hidden = _HiddenStates(last_hidden_state=products.new_zeros(1, 1, head.in_features))
    base.forward, head.forward = lambda *_, **__: hidden, lambda _: products
    try:
        logits = model(input_ids=torch.zeros(1, 1, dtype=torch.long), use_cache=False).logits
    finally:
        del base.forward, head.forward
    return transform if torch.allclose(logits, transform(products.clone())) else None


class CausalLM:
    """Weights in float32, without dropout; optionally with a linear value head on the last hidden state.

    The vocabulary is projected at the asked positions alone: a hook narrows what enters the output
    embedding, so whatever a model does to its logits afterwards still happens. Where that is known (nothing,
    scaling, soft-capping), scores of tokens take the place of logits, of which there are only ever a few.
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
        leave_out_cudnn()
        self.lora = lora
        self.device = torch.device(device)
        self.model = cast(Any, model.to(self.device))
        self.use(settings.precision("float32"))
        self.value_head: nn.Linear | None = None
        if with_value_head:
            self.value_head = nn.Linear(self.model.config.get_text_config().hidden_size, 1)
            # Zero: the first predictions are 0 and need no random state.
            nn.init.zeros_(self.value_head.weight)
            nn.init.zeros_(self.value_head.bias)
            self.value_head.to(self.device)
        self._positions_N: Tensor | None = None
        self._hidden_NH: Tensor | None = None
        self._project: Callable[[Tensor, Tensor], ProjectedTokens] | None = None
        """Takes hidden states and the output embedding's weight while scores are asked for."""
        self._scores_1NK: Tensor | None = None
        head = self.model.get_output_embeddings()
        self.transform = transform_of(self.model, head)
        """None: logits are kept."""
        head.register_forward_pre_hook(self._keep_asked_positions)
        if self.transform is not None:
            head.forward = partial(self._logits_or_scores, head)
            self.model.register_forward_hook(self._put_scores)
        shares = settings.shares_prefixes(self.model.config.model_type)
        if shares:
            take_place_of_sdpa()
        self.pairs_per_token = self._pairs_per_token() if shares else 0.0
        """See `pack`; 0 where rows do not share lines."""
        self._choice: ExpertChoice | None = None
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
        for why in settings.model_problems(folder):
            raise ConfigurationError(str(why))
        if problem := settings.attention_problem():
            raise ConfigurationError(f"attn_implementation: {problem}")
        transformers_logging.disable_progress_bar()
        try:
            model = load_language_model(
                folder,
                dtype=torch.float32,
                attn_implementation=None if settings.is_auto_attention else settings.attn_implementation,
            )
        except (ImportError, OSError, ValueError, KeyError) as error:
            raise ConfigurationError(f"pretrain: cannot load the model in {folder}: {error}") from error
        adapter = None
        if settings.lora is not None:
            from envsdk.trainers.lora import LoRA

            adapter = LoRA(model, settings.lora, seed=seed)
            if settings.frozen_type(stored_dtype(folder)) == "bfloat16":
                adapter.halve(model)
        found = cls(model, with_value_head=with_value_head, settings=settings, device=device, lora=adapter)
        found.use(settings.precision(stored_dtype(folder)))
        return found

    def use(self, precision: Precision) -> None:
        """Compute in this precision from now on."""
        self.precision = precision
        self.dtype = torch.bfloat16 if precision.dtype == "bfloat16" else torch.float32
        """Precision of the forward pass."""
        self.autocast_dtype = None if self.dtype is torch.float32 else self.dtype
        """Precision of the forward pass where it is not that of the weights."""

    @torch.no_grad()
    def dither(self, seed: int) -> None:
        """Move weights that are bfloat16 numbers by up to half of the way to the next one, at random.

        Products round weights to bfloat16. Of weights on that grid, rounding takes back every update below
        half a step: after 60 steps on SmolLM2-135M 57 % of the update, and log-probabilities were off by 0.18
        nats in the mean. Between the grid's points, a share of the weights in proportion to the update moves
        on (dither). An adapter's weights are on no grid.
        """
        if self.saved_dtype == "float32":
            return
        generator = torch.Generator().manual_seed(seed)
        for weight in self.model.parameters():
            if weight.ndim > 1:
                weight += dither_of(weight, generator)

    @property
    def saved_dtype(self) -> str:
        """The type that a saved model is to be computed in. Rounding to bfloat16 is harmless after `dither`
        alone: not to a merged adapter."""
        return "bfloat16" if self.dtype is torch.bfloat16 and self.lora is None else "float32"

    @property
    def vocab_size(self) -> int:
        return int(self.model.get_input_embeddings().num_embeddings)

    @property
    def attention(self) -> str:
        """What it computes attention with, in words."""
        return attention_of(self.model, dtype=self.dtype, device=self.device)

    def replay_routing(self) -> None:
        """Routers choose the experts of each batch from now on. ConfigurationError where there are none."""
        self._choice = ExpertChoice(self.model)
        if self._choice.num_routers == 0:
            raise ConfigurationError(
                f"train_infer_correction.routing_replay: a {self.model.config.model_type} model has no "
                "router that chooses between experts; leave it out"
            )

    def parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Every parameter once, under its Hugging Face name; the head's as `value_head.*`."""
        yield from self.model.named_parameters()
        if self.value_head is not None:
            yield from self.value_head.named_parameters(prefix="value_head")

    def parts(self) -> list[nn.Module]:
        """The model and the value head."""
        return [self.model, *([] if self.value_head is None else [self.value_head])]

    def modules(self) -> Iterator[nn.Module]:
        """Modules of the model and the value head."""
        for part in self.parts():
            yield from part.modules()

    def forward(self, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        """Logits `[N, V]` and last hidden states `[N, H]` at the batch's scored positions."""
        input_ids_BT = torch.from_numpy(batch.input_ids_BT).to(self.device)
        self._positions_N = torch.from_numpy(batch.positions_N).to(self.device)
        if self._choice is not None:
            experts = batch.experts_BTRK
            self._choice.replay(
                None if experts is None else torch.from_numpy(experts).flatten(0, 1).to(self.device)
            )
        inputs = {} if batch.tree is None else self._masks_and_positions(batch.tree)
        try:
            with torch.autocast(
                self.device.type, dtype=self.autocast_dtype, enabled=self.autocast_dtype is not None
            ):
                logits_1NV = self.model(input_ids=input_ids_BT, use_cache=False, **inputs).logits
            hidden_NH = self._hidden_NH
        finally:
            self._positions_N = self._hidden_NH = self._scores_1NK = None
        assert hidden_NH is not None
        return logits_1NV[0], hidden_NH

    def scores(
        self,
        batch: MicroBatch,
        *,
        temperature: float = 1.0,
        entropy_gradient: bool = False,
        further_NK: NDArray[np.int32] | None = None,
    ) -> tuple[ProjectedTokens, Tensor]:
        """Scores of the targets, and last hidden states `[N, H]`; see `projected_tokens`."""
        targets_N = torch.from_numpy(batch.targets_N).to(self.device)
        settings: dict[str, Any] = {"temperature": temperature, "entropy_gradient": entropy_gradient}
        settings["support"] = batch.support_N
        further = (
            None if further_NK is None else torch.from_numpy(further_NK.astype(np.int64)).to(self.device)
        )
        if self.transform is None:
            logits_NV, hidden_NH = self.forward(batch)
            tops_N, _ = token_logprobs_and_entropy(logits_NV.detach(), logits_NV.argmax(-1), **settings)
            ids_NK = targets_N[:, None] if further is None else torch.cat([targets_N[:, None], further], -1)
            logprobs_NK, entropy_N = token_logprobs_and_entropy(logits_NV, ids_NK, **settings)
            return ProjectedTokens(logprobs_NK[:, 0], entropy_N, tops_N, logprobs_NK[:, 1:]), hidden_NH
        settings |= {"ids_N": targets_N, "dtype": self.dtype, "transform": self.transform}
        settings["further_NK"] = further
        self._project = partial(projected_tokens, **settings)
        try:
            scores_NK, hidden_NH = self.forward(batch)
        finally:
            self._project = None
        logprobs_N, entropy_N, tops_N = scores_NK[:, :3].unbind(-1)
        return ProjectedTokens(logprobs_N, entropy_N, tops_N, scores_NK[:, 3:]), hidden_NH

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

    def _logits_or_scores(self, head: nn.Linear, hidden_1NH: Tensor) -> Tensor:
        if self._project is None:
            return nn.functional.linear(hidden_1NH, head.weight)
        *scores, further_NK = self._project(hidden_1NH[0], head.weight)
        self._scores_1NK = torch.cat([torch.stack(scores, -1), further_NK], -1).unsqueeze(0)
        return hidden_1NH  # which the model takes for logits

    def _put_scores(self, module: nn.Module, inputs: object, output: Any) -> None:
        if self._scores_1NK is not None:
            output.logits = self._scores_1NK

    def _masks_and_positions(self, tree: Tree) -> dict[str, Any]:
        depths_BT = torch.from_numpy(tree.depths_BT).to(self.device)
        ends_BT = torch.from_numpy(tree.ends_BT).to(self.device)
        indices_T = torch.arange(ends_BT.shape[1], device=self.device)
        is_seen_BTT = (indices_T <= indices_T[:, None]) & (indices_T[:, None] < ends_BT[:, None, :])

        def mask(window: int | None) -> Tensor:
            if window is None:
                return blocked_mask(is_seen_BTT, self.dtype)
            is_near_BTT = depths_BT[:, :, None] - depths_BT[:, None, :] < window
            return blocked_mask(is_seen_BTT & is_near_BTT, self.dtype)

        config = self.model.config
        window, kinds = getattr(config, "sliding_window", None), getattr(config, "layer_types", None)
        windows = {"full_attention": None, "sliding_attention": window}
        masks = {kind: mask(windows[kind]) for kind in set(kinds)} if kinds else mask(window)
        return {"attention_mask": masks, "position_ids": depths_BT}

    def _pairs_per_token(self) -> float:
        """Operations of a layer for a token, 2 for each weight that it meets, over those for a pair, 4 for
        each channel, which take about twice as long (measured on a CPU). In blocks no pair is added."""
        config, embeddings = self.model.config, self.model.get_input_embeddings().weight
        if config._attn_implementation == "sdpa":
            return math.inf
        counts = (
            getattr(config, name, None) for name in ("num_experts", "num_local_experts", "n_routed_experts")
        )
        num_experts = next(filter(None, counts), None)
        share = config.num_experts_per_tok / num_experts if num_experts else 1.0
        num_met = sum(
            weight.numel() * (share if ".experts." in name else 1)
            for name, weight in self.model.base_model.named_parameters()
            if weight is not embeddings
        )
        head_width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return float(num_met / (4 * config.num_hidden_layers * config.num_attention_heads * head_width))

    def _checkpoint_without_dropout(self) -> None:
        # transformers recomputes activations only in training mode, which would also switch dropout on.
        self.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        self.model.train()
        for module in self.model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
            if hasattr(module, "attention_dropout"):
                module.attention_dropout = 0.0

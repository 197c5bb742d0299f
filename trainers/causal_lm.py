"""A Hugging Face causal language model, asked for a few positions only.

Shapes: B rows, T inputs, N scored positions, H hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from transformers.utils import logging as transformers_logging

from envsdk.algorithms.logits import ProjectedTokens, projected_tokens, token_logprobs_and_entropy
from envsdk.base.processes.attention_kernels import leave_out_cudnn
from envsdk.base.settings.precision import Precision
from envsdk.base.store.expert_choice import ExpertChoice
from envsdk.base.store.language_model import load_language_model
from envsdk.base.store.model_files import require_model_folder, stored_dtype
from envsdk.contracts.failures import ConfigurationError
from envsdk.trainers.attention import attention_of
from envsdk.trainers.packing import MicroBatch, Tree
from envsdk.trainers.torch_optimizer import dither_of
from envsdk.trainers.training_args import PLAIN_MODEL_TYPES, TransformersArgs

if TYPE_CHECKING:
    from envsdk.trainers.lora import LoRA


class CausalLM:
    """Weights in float32, without dropout; optionally with a linear value head on the last hidden state.

    The vocabulary is projected at the asked positions alone: a hook narrows what enters the output
    embedding, so whatever a model does to its logits afterwards (scaling, soft-capping) still happens.
    Where it does nothing, the output embedding gives the scores of tokens instead of their logits.
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
        head = self.model.get_output_embeddings()
        head.register_forward_pre_hook(self._keep_asked_positions)
        is_plain = self.model.config.model_type in PLAIN_MODEL_TYPES
        self._projects = is_plain and type(head) is nn.Linear and head.bias is None
        if self._projects:
            head.forward = partial(self._logits_or_scores, head)
        self.pairs_per_token = self._pairs_per_token() if is_plain else 0.0
        """See `pack`; 0 where the model's attention takes no mask."""
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

    def modules(self) -> Iterator[nn.Module]:
        """Modules of the model and the value head."""
        yield from self.model.modules()
        if self.value_head is not None:
            yield from self.value_head.modules()

    def forward(self, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        """Logits `[N, V]` and last hidden states `[N, H]` at the batch's scored positions."""
        input_ids_BT = torch.from_numpy(batch.input_ids_BT).to(self.device)
        self._positions_N = torch.from_numpy(batch.positions_N).to(self.device)
        if self._choice is not None:
            experts = batch.experts_BTRK
            self._choice.replay(
                None if experts is None else torch.from_numpy(experts).flatten(0, 1).to(self.device)
            )
        inputs = {} if batch.tree is None else self._mask_and_positions(batch.tree)
        try:
            with torch.autocast(
                self.device.type, dtype=self.autocast_dtype, enabled=self.autocast_dtype is not None
            ):
                logits_1NV = self.model(input_ids=input_ids_BT, use_cache=False, **inputs).logits
            hidden_NH = self._hidden_NH
        finally:
            self._positions_N = self._hidden_NH = None
        assert hidden_NH is not None
        return logits_1NV[0], hidden_NH

    def scores(
        self, batch: MicroBatch, *, temperature: float = 1.0, entropy_gradient: bool = False
    ) -> tuple[ProjectedTokens, Tensor]:
        """Scores of the targets, and last hidden states `[N, H]`; see `token_logprobs_and_entropy`."""
        targets_N = torch.from_numpy(batch.targets_N).to(self.device)
        settings: dict[str, Any] = {"temperature": temperature, "entropy_gradient": entropy_gradient}
        if not self._projects:
            logits_NV, hidden_NH = self.forward(batch)
            tops_N, _ = token_logprobs_and_entropy(logits_NV.detach(), logits_NV.argmax(-1), **settings)
            found = token_logprobs_and_entropy(logits_NV, targets_N, **settings)
            return ProjectedTokens(*found, tops_N), hidden_NH
        self._project = partial(projected_tokens, ids_N=targets_N, dtype=self.dtype, **settings)
        try:
            scores_N3, hidden_NH = self.forward(batch)
        finally:
            self._project = None
        return ProjectedTokens(*scores_N3.unbind(-1)), hidden_NH

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
        return torch.stack(self._project(hidden_1NH[0], head.weight), -1).unsqueeze(0)

    def _mask_and_positions(self, tree: Tree) -> dict[str, Tensor]:
        depths_BT = torch.from_numpy(tree.depths_BT).to(self.device)
        ends_BT = torch.from_numpy(tree.ends_BT).to(self.device)
        indices_T = torch.arange(ends_BT.shape[1], device=self.device)
        is_seen_BTT = (indices_T <= indices_T[:, None]) & (indices_T[:, None] < ends_BT[:, None, :])
        # A number of the forward pass's own type: attention would make one of it in every layer.
        mask_BTT = torch.zeros(is_seen_BTT.shape, dtype=self.dtype, device=self.device)
        mask_BTT.masked_fill_(~is_seen_BTT, torch.finfo(self.dtype).min)
        return {"attention_mask": mask_BTT.unsqueeze(1), "position_ids": depths_BT}

    def _pairs_per_token(self) -> float:
        """Operations of a layer for a token, 2 for each weight, over those for a pair, 4 for each channel,
        which take about twice as long (measured on a CPU)."""
        config = self.model.config
        kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
        if config.model_type == "mistral" and config.sliding_window is not None:
            kinds.add("sliding_attention")
        if kinds != {"full_attention"} or config._attn_implementation not in ("sdpa", "eager"):
            return 0.0
        layer = self.model.base_model.layers[0]
        return float(sum(p.numel() for p in layer.parameters()) / (4 * layer.self_attn.o_proj.in_features))

    def _checkpoint_without_dropout(self) -> None:
        # transformers recomputes activations only in training mode, which would also switch dropout on.
        self.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        self.model.train()
        for module in self.model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
            if hasattr(module, "attention_dropout"):
                module.attention_dropout = 0.0

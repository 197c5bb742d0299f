"""The embedded trainer: PyTorch and transformers, one process.

    rows of an optimizer step -> micro-batches under a token budget -> loss -> accumulated gradient

Shapes: B rows, T inputs, N scored (response) tokens of a micro-batch, H hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers.core_model_loading import revert_weight_conversion

from envsdk.algorithms.args import AlgorithmArgs
from envsdk.base.processes.memory import keep_few_kernels
from envsdk.contracts.failures import StorageError
from envsdk.contracts.held import Held
from envsdk.contracts.trainer import TrainerConfig
from envsdk.trainers.causal_lm import CausalLM
from envsdk.trainers.objective import TokenOutputs, TrainRow, teacher_tokens
from envsdk.trainers.offload import DeviceMemory, move_module
from envsdk.trainers.packing import MicroBatch, Row, pack
from envsdk.trainers.policy_trainer import PolicyTrainer, ScoreKind, validated_settings
from envsdk.trainers.pretrained_folder import write_pretrained
from envsdk.trainers.process_group import full_tensor
from envsdk.trainers.step_metrics import StepMetrics
from envsdk.trainers.torch_checkpoint import StoredCheckpoint, write_state, write_tensors
from envsdk.trainers.torch_optimizer import Optimizer
from envsdk.trainers.training_args import TorchStrategyConfig, TrainingArgs

_KERNELS = 64
"""Those of two micro-batches: hardly any two have the same size."""

Learn = Callable[[MicroBatch, StepMetrics], Tensor]
"""The loss of a micro-batch, a scalar to go backward from; a filler's weighs nothing."""


class TorchTrainer(PolicyTrainer):
    """Strategy `torch`: any Hugging Face causal language model, AdamW, float32 weights.

        trainer = TorchTrainer.create(TrainerConfig(model=folder, sequence_length=1024, seed=0))
        metrics = trainer.train_step(TrainBatch(step=0, sequences=sequences))

    The calls are those of `Trainer`, in this process.
    """

    def __init__(
        self,
        model: CausalLM,
        *,
        config: TrainerConfig,
        algorithm: AlgorithmArgs,
        training: TrainingArgs,
    ) -> None:
        super().__init__(config, algorithm)
        self.model = model
        self.training = training
        if algorithm.train_infer_correction.routing_replay:
            model.replay_routing()
        self.memory = DeviceMemory(model.device)
        self._held = Held.ALL
        self._optimizer = Optimizer(
            ((name, parameter) for name, parameter in model.parameters() if parameter.requires_grad),
            [model.model.get_input_embeddings(), model.model.get_output_embeddings()],
            training,
        )

    @classmethod
    def create(cls, config: TrainerConfig) -> Self:
        algorithm, training, strategy = validated_settings(config, TorchStrategyConfig)
        torch.set_num_threads(strategy.num_threads)
        keep_few_kernels(_KERNELS)
        model = CausalLM.load(
            config.model,
            with_value_head=config.with_value_head,
            settings=strategy,
            device=strategy.device,
            seed=config.seed,
        )
        model.dither(config.seed)
        return cls(model, config=config, algorithm=algorithm, training=training)

    @property
    def num_optimizer_steps(self) -> int:
        """Optimizer steps taken since the first `create`, resumed runs included."""
        return self._optimizer.num_steps

    @property
    def vocab_size(self) -> int:
        return self.model.vocab_size

    def kernels(self) -> Mapping[str, str]:
        return {"attention": self.model.attention, "products": str(self.model.precision)}

    def weights(self) -> Iterator[tuple[str, NDArray[Any]]]:
        """Each weight once, float32, as `save_pretrained` would store it; not the value head.

        A tied output embedding comes under the input embedding's name alone. Experts that are one tensor
        in memory come one by one, as they are on disk. An adapter is merged in.
        """
        for name, tensor in self._stored(lambda weight: weight.to("cpu", copy=True)):
            yield name, tensor.contiguous().numpy()

    @property
    def weight_device(self) -> str:
        return str(self.model.device) if self._held else "cpu"

    def hold(self, held: Held) -> None:
        if (held is Held.ALL) < (self._held is Held.ALL):
            self._optimizer.move(self.memory, on_device=False)
        if bool(held) is not bool(self._held):
            for module in self.model.parts():
                move_module(module, self.memory, on_device=bool(held))
        if (held is Held.ALL) > (self._held is Held.ALL):
            self._optimizer.move(self.memory, on_device=True)
        self._held = held
        self.memory.settle()

    def device_weights(self) -> Iterator[tuple[str, Tensor]]:
        return self._stored(lambda weight: weight)

    def _stored(self, place: Callable[[Tensor], Tensor]) -> Iterator[tuple[str, Tensor]]:
        """Weights under the names they have on disk, each first put where `place` puts it."""
        model = self.model.model
        state = model.state_dict()
        buffers = ((name, buffer) for name, buffer in model.named_buffers() if name in state)
        for name, tensor in self._without_adapter(chain(model.named_parameters(), buffers)):
            yield from revert_weight_conversion(model, {name: place(tensor.detach())}).items()

    def use_average(self, is_used: bool) -> None:
        self._optimizer.show_average(is_used)

    @property
    def has_adapter(self) -> bool:
        return self.model.lora is not None

    def adapter(self) -> Iterator[tuple[str, NDArray[Any]]]:
        assert self.model.lora is not None, "asked of a trainer that trains one"
        for name, half in self.model.lora.halves():
            yield name, half.to("cpu", copy=True).numpy()

    @torch.no_grad()
    def _without_adapter(self, named: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Weights, each in full, as those of a model without adapter."""
        for name, weight in named:
            if self.model.lora is None:
                yield name, full_tensor(weight)
            elif (found := self.model.lora.merged(name, weight)) is not None:
                yield found

    def save(self, folder: Path) -> None:
        """Weights, moments and schedule, synced to disk. StorageError names what could not be written."""
        digests = write_tensors(folder, self._optimizer.state())
        write_state(folder, digests, num_optimizer_steps=self._optimizer.num_steps)

    def load(self, folder: Path) -> None:
        """StorageError names a missing or damaged file, or one that belongs to another model."""
        checkpoint = StoredCheckpoint(folder)
        checkpoint.verify(checkpoint.files)
        self._restore(checkpoint)

    def _restore(self, checkpoint: StoredCheckpoint) -> None:
        for name, parameter in self._optimizer.parameters.items():
            stored = checkpoint.get(f"weight/{name}")
            if stored is None or stored.shape != parameter.shape:
                found = "missing" if stored is None else f"of shape {list(stored.shape)}"
                raise StorageError(
                    f"the checkpoint in {checkpoint.folder} is of another model: {name} is {found}, "
                    f"expected {list(parameter.shape)}"
                )
        self._optimizer.restore(checkpoint, checkpoint.num_optimizer_steps)

    def save_pretrained(self, folder: Path) -> None:
        """The value head is not part of it. StorageError names what could not be written."""
        self._write_pretrained(folder, dict(self._without_adapter(self.model.model.state_dict().items())))

    def _write_pretrained(self, folder: Path, state: Mapping[str, Tensor]) -> None:
        model, dtype = self.model.model, self.model.saved_dtype
        write_pretrained(folder, model=model, state=state, source=self.config.model, dtype=dtype)

    def _optimizer_step(self) -> tuple[float, float]:
        return self._optimizer.step()

    def _value_head_step(self) -> tuple[float, float]:
        return self._optimizer.step(only="value_head.")

    def _zero_grad(self) -> None:
        self._optimizer.zero_grad()

    def _snapshot(self) -> Callable[[], None]:
        copies = {name: tensor.clone() for name, tensor in self._optimizer.state().items()}
        num_steps = self._optimizer.num_steps
        return lambda: self._optimizer.restore(copies, num_steps)

    def _accumulate(self, rows: Sequence[TrainRow], tally: StepMetrics) -> None:
        def reinforce(micro: MicroBatch, tally: StepMetrics) -> Tensor:
            members = [rows[index] for index in micro.rows]
            if micro.is_filler:
                members = [replace(row, weight=0.0) for row in members]
            return self.objective(members, self._outputs(micro, members), tally)

        self._accumulate_with(reinforce, [row.row for row in rows], tally)

    def _accumulate_with(self, learn: Learn, rows: Sequence[Row], tally: StepMetrics) -> None:
        for micro in self._pack(rows):
            found = StepMetrics() if micro.is_filler else tally
            loss = learn(micro, found)
            loss.backward()  # type: ignore[no-untyped-call]
            found.add_micro_batch(
                loss,
                num_real_tokens=micro.num_real_tokens,
                num_padded_tokens=micro.input_ids_BT.size,
                num_saved_tokens=micro.num_saved_tokens,
            )

    def _outputs(self, micro: MicroBatch, rows: Sequence[TrainRow]) -> TokenOutputs:
        further_NK = teacher_tokens(rows, self.algorithm)
        scores, hidden_NH = self.model.scores(
            micro,
            temperature=self.algorithm.logprob_temperature,
            entropy_gradient=self.objective.entropy_gradient,
            further_NK=further_NK,
        )
        values_N = self.model.predict_values(hidden_NH) if self.model.value_head is not None else None
        return TokenOutputs(
            logprobs_N=scores.logprobs_N,
            entropy_N=scores.entropy_N,
            values_N=values_N,
            top_NK=None if further_NK is None else scores.further_NK,
        )

    @torch.no_grad()
    def _score(self, rows: Sequence[Row], kind: ScoreKind) -> list[NDArray[np.float32]]:
        found: dict[int, NDArray[np.float32]] = {}
        for micro in self._pack(rows):
            if kind is ScoreKind.VALUES:
                found_N = self.model.predict_values(self.model.forward(micro)[1])
            else:
                tokens, _ = self.model.scores(micro, temperature=self.algorithm.logprob_temperature)
                found_N = tokens.logprobs_N
            scores_N = found_N.float().cpu().numpy()
            ends = np.cumsum([len(rows[index].scored) for index in micro.rows])
            if not micro.is_filler:
                found |= zip(micro.rows, np.split(scores_N, ends[:-1]), strict=True)
        return self._of_all_ranks(found)

    def _pack(self, rows: Sequence[Row]) -> list[MicroBatch]:
        ranks = self.config.rank
        budget = self.training.max_tokens_per_microbatch
        return pack(
            rows,
            budget,
            rank=ranks.rank,
            world_size=ranks.world_size,
            pairs_per_token=self.model.pairs_per_token,
        )

    def _tensor(self, values: NDArray[Any]) -> Tensor:
        return torch.from_numpy(values).to(self.model.device)

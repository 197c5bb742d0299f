"""The trainer on Megatron-core: tensor, pipeline, context, expert and data parallelism.

    rows of an optimizer step -> each data-parallel rank its share -> packed micro-batches
        -> the pipeline schedule -> gradients added up over the ranks -> one step

Shapes: T inputs of a micro-batch that this rank holds, S of them scored, N scored tokens of all
context-parallel ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.pipeline_parallel import get_forward_backward_func
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from envsdk.algorithms.args import AlgorithmArgs
from envsdk.contracts.failures import ConfigurationError
from envsdk.contracts.held import Held
from envsdk.contracts.trainer import TrainerConfig
from envsdk.trainers.megatron import checkpoint, expert_choice, hf_weights, lora
from envsdk.trainers.megatron.args import MegatronStrategyConfig
from envsdk.trainers.megatron.device import RankMemory, chosen_attention, device, kernels_of, require_gpu
from envsdk.trainers.megatron.hf_config import read_config
from envsdk.trainers.megatron.model import build_model, initialize_parallelism
from envsdk.trainers.megatron.optimizer import ParallelOptimizer
from envsdk.trainers.megatron.packing import PackedBatch, PackingLayout, pack_rows
from envsdk.trainers.megatron.token_outputs import (
    ScoredHead,
    add_value_head,
    over_context,
    vocab_parallel_logprobs_and_entropy,
)
from envsdk.trainers.objective import TokenOutputs, TrainRow
from envsdk.trainers.packing import Row
from envsdk.trainers.policy_trainer import Found, PolicyTrainer, ScoreKind, validated_settings
from envsdk.trainers.pretrained_folder import write_pretrained
from envsdk.trainers.process_group import all_gather, on_first_rank
from envsdk.trainers.step_metrics import StepMetrics
from envsdk.trainers.training_args import TrainingArgs

_Use = Callable[[PackedBatch, TokenOutputs], Tensor]
"""The use of a micro-batch; the result is a scalar to go backward from."""


class MegatronTrainer(PolicyTrainer):
    """Strategy `megatron_train`: one object per rank; all ranks create it and make the same calls.

        rank = TrainerRank(rank=0, world_size=2, master_port=29500)
        trainer = MegatronTrainer.create(TrainerConfig(model=folder, sequence_length=1024, seed=0, rank=rank))

    The calls are those of `Trainer`, on every rank.
    """

    def __init__(
        self,
        chunks: Sequence[nn.Module],
        hf_config: Any,
        *,
        config: TrainerConfig,
        algorithm: AlgorithmArgs,
        training: TrainingArgs,
        strategy: MegatronStrategyConfig,
    ) -> None:
        super().__init__(config, algorithm)
        self.training = training
        self._hf_config, self._lora = hf_config, strategy.lora
        self._is_last_stage = parallel_state.is_pipeline_last_stage(ignore_virtual=True)
        self._models = [hf_weights.unwrapped(chunk) for chunk in chunks]
        self._attention = chosen_attention(
            strategy.attn_implementation, self._models[0].config, with_adapter=self.has_adapter
        )
        self._replays = algorithm.train_infer_correction.routing_replay
        if self._replays:
            for model in self._models:
                expert_choice.replay_routing(model, hf_config.model_type)
        if self._is_last_stage:
            if config.with_value_head:
                add_value_head(self._models[-1], hf_config.hidden_size, device())
            self._head = ScoredHead(self._models[-1])
        self._chunks = _data_parallel(chunks, strategy)
        self._optimizer = ParallelOptimizer(
            self._chunks,
            training,
            is_distributed=strategy.use_distributed_optimizer,
            dtype=self._models[0].config.params_dtype,
            overlap_param_gather=strategy.overlap_param_gather,
        )
        self._layout = _packing_layout(strategy)
        self._is_reporting_rank = (
            self._is_last_stage
            and parallel_state.get_tensor_model_parallel_rank() == 0
            and parallel_state.get_context_parallel_rank() == 0
        )
        """True on the one rank, among those with the same loss, that reports it."""
        self.memory = RankMemory(self._optimizer)

    @classmethod
    def create(cls, config: TrainerConfig) -> Self:
        algorithm, training, strategy = validated_settings(config, MegatronStrategyConfig)
        cls.check_device()
        hf_config = read_config(config.model)
        initialize_parallelism(strategy, config.rank, config.seed)
        chunks = build_model(hf_config, strategy)
        hf_weights.load(chunks, hf_weights.FolderWeights(config.model))
        if strategy.lora is not None:
            lora.adapt(chunks, strategy.lora, seed=config.seed)
        made = cls(
            chunks, hf_config, config=config, algorithm=algorithm, training=training, strategy=strategy
        )
        made._optimizer.dither(config.seed)
        return made

    @classmethod
    def check_device(cls) -> None:
        """ConfigurationError where the trainer cannot run."""
        require_gpu()

    @property
    def vocab_size(self) -> int:
        return int(self._hf_config.vocab_size)

    def kernels(self) -> Mapping[str, str]:
        return kernels_of(self._attention, self._models[0].config)

    @property
    def num_optimizer_steps(self) -> int:
        """Optimizer steps taken since the first `create`, resumed runs included."""
        return self._optimizer.num_steps

    def weights(self) -> Iterator[tuple[str, NDArray[Any]]]:
        """Each parameter once, float32, as `save_pretrained` would store it; not the value head.

        Collective: every rank goes through all of it. A tied output embedding comes under the input
        embedding's name alone. An adapter is merged in.
        """
        for name, tensor in self.device_weights():
            yield name, tensor.to("cpu", copy=True).numpy()

    @property
    def weight_device(self) -> str:
        return str(device())

    def device_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Collective, as `weights`."""
        with self.memory.holding(Held.WEIGHTS):
            self._optimizer.finish_param_gather()
            weights = hf_weights.export(self._chunks, self.vocab_size)
            if self._lora is not None:
                weights = lora.merged(self._chunks, self._lora, weights)
            for name, tensor in weights:
                yield name, tensor.float()

    @property
    def has_adapter(self) -> bool:
        return self._lora is not None

    def adapter(self) -> Iterator[tuple[str, NDArray[Any]]]:
        """Collective, as `weights`."""
        assert self._lora is not None, "asked of a trainer that trains one"
        with self.memory.holding(Held.WEIGHTS):
            self._optimizer.finish_param_gather()
            for name, half in lora.adapter_of(self._chunks, self._lora):
                yield name, half.cpu().numpy()

    def hold(self, held: Held) -> None:
        self.memory.hold(held)

    def save(self, folder: Path) -> None:
        """Weights, moments and schedule, each rank a share. StorageError names what could not be written."""
        with self.memory.holding(Held.ALL):
            checkpoint.save(
                folder,
                self._chunks,
                self._optimizer,
                vocab_size=self.vocab_size,
                hidden_size=self._hf_config.hidden_size,
                with_value_head=self.config.with_value_head,
            )

    def load(self, folder: Path) -> None:
        """StorageError names a missing or damaged file, or one that belongs to another model."""
        with self.memory.holding(Held.ALL):
            checkpoint.load(folder, self._chunks, self._optimizer)

    def save_pretrained(self, folder: Path) -> None:
        """The value head is not part of it. StorageError names what could not be written."""
        state: dict[str, Tensor] = {}
        for name, weight in self.weights():
            if dist.get_rank() == 0:
                state[name] = torch.from_numpy(weight)

        def write() -> None:
            with torch.device("meta"):
                model = AutoModelForCausalLM.from_config(
                    self._hf_config, dtype=torch.float32, trust_remote_code=False
                )
            # Rounding to bfloat16 is not harmless to a merged adapter.
            own = str(self._models[0].config.params_dtype).removeprefix("torch.")
            dtype = "float32" if self.has_adapter else own
            write_pretrained(folder, model=model, state=state, source=self.config.model, dtype=dtype)

        on_first_rank(write)

    def close(self) -> None:
        if dist.is_initialized():
            parallel_state.destroy_model_parallel()
            dist.destroy_process_group()

    def _optimizer_step(self) -> tuple[float, float]:
        return self._optimizer.step()

    def _value_head_step(self) -> tuple[float, float]:
        module = getattr(self._models[-1], "value_head", None)
        head = set() if module is None else set(module.parameters())
        return self._optimizer.step(only=lambda parameter: parameter in head)

    def _zero_grad(self) -> None:
        self._optimizer.zero_grad()

    def _snapshot(self) -> Callable[[], None]:
        return self._optimizer.snapshot()

    def _accumulate(self, rows: Sequence[TrainRow], tally: StepMetrics) -> None:
        def learn(micro: PackedBatch, outputs: TokenOutputs) -> Tensor:
            found = tally if self._is_reporting_rank else StepMetrics()
            loss = self.objective([rows[index] for index in micro.rows], outputs, found)
            found.add_micro_batch(
                loss, num_real_tokens=micro.num_real_tokens, num_padded_tokens=micro.num_tokens
            )
            return loss

        self._run([row.row for row in rows], learn)

    @torch.no_grad()
    def _score(self, rows: Sequence[Row], kind: ScoreKind) -> list[NDArray[np.float32]]:
        if kind is ScoreKind.VALUES and not self.config.with_value_head:
            raise ConfigurationError("this trainer has no value head; it is built for adv_estimator: gae")
        found: dict[int, NDArray[np.float32]] = {}

        def keep(micro: PackedBatch, outputs: TokenOutputs) -> Tensor:
            scores = outputs.logprobs_N if kind is ScoreKind.LOGPROBS else outputs.values_N
            assert scores is not None
            ends = np.cumsum([len(rows[index].scored) for index in micro.rows])
            if self._is_reporting_rank:
                found.update(zip(micro.rows, np.split(scores.cpu().numpy(), ends[:-1]), strict=True))
            return scores.sum()

        self._run(rows, keep, forward_only=True)
        return self._of_all_ranks(found)

    def _all_gather(self, found: Found) -> list[Found]:
        return all_gather(found)

    def _run(self, rows: Sequence[Row], use: _Use, *, forward_only: bool = False) -> None:
        """All rows through the model, in this rank's share of micro-batches and by the pipeline schedule."""
        batches = pack_rows(rows, self.training.max_tokens_per_microbatch, self._layout)
        if not batches:
            return
        if self._replays:
            for model in self._models:
                expert_choice.forget(model)

        def forward_step(iterator: Iterator[PackedBatch], chunk: Any) -> tuple[Tensor, Any]:
            """Logits `[1, S, V]` on the last stage, hidden states before it; and the loss of them, in the
            form in which the schedules want it: itself, a number of tokens, anything."""
            micro = next(iterator)
            if self._is_last_stage:
                self._head.ask(_on_device(micro.scored_S))
            if self._replays:
                expert_choice.choose(hf_weights.unwrapped(chunk), micro.experts_TRK)
            inputs = (_on_device(each)[None] for each in (micro.input_ids_T, micro.positions_T))
            output: Tensor = chunk(*inputs, None, packed_seq_params=_packed(micro))

            def loss(logits_1SV: Tensor) -> tuple[Tensor, Tensor, None]:
                outputs = self._outputs(micro, logits_1SV[0])
                found = use(micro, outputs) if micro.rows else _nothing(outputs)
                return found, torch.zeros((), dtype=torch.int, device=found.device), None

            return output, loss

        iterators = [iter(batches) for _ in self._chunks]
        get_forward_backward_func()(
            forward_step_func=forward_step,
            data_iterator=iterators if len(iterators) > 1 else iterators[0],
            model=self._chunks if len(self._chunks) > 1 else self._chunks[0],
            num_microbatches=len(batches),
            seq_length=max(batch.num_tokens for batch in batches),
            micro_batch_size=1,
            forward_only=forward_only,
        )

    def _outputs(self, micro: PackedBatch, logits_SV: Tensor) -> TokenOutputs:
        logprobs_S, entropy_S = vocab_parallel_logprobs_and_entropy(
            logits_SV,
            _on_device(micro.targets_S),
            vocab_size=self.vocab_size,
            group=parallel_state.get_tensor_model_parallel_group(),
            temperature=self.algorithm.logprob_temperature,
            entropy_gradient=self.objective.entropy_gradient,
            support=micro.support_S,
        )
        values_S = self._head.take_values()
        parts_KS = torch.stack([logprobs_S, entropy_S] + ([] if values_S is None else [values_S]))
        parts_KN = parts_KS
        if self._layout.context_size > 1:
            parts_KN = over_context(
                parts_KS,
                _on_device(micro.places_S),
                micro.num_scored,
                parallel_state.get_context_parallel_group(),
            )
        return TokenOutputs(
            logprobs_N=parts_KN[0],
            entropy_N=parts_KN[1],
            values_N=None if values_S is None else parts_KN[2],
        )


def _packed(micro: PackedBatch) -> PackedSeqParams:
    ends = _on_device(np.cumsum([0, *micro.lengths]).astype(np.int32))
    longest = max(micro.lengths)
    return PackedSeqParams(
        qkv_format="thd",
        cu_seqlens_q=ends,
        cu_seqlens_kv=ends,
        max_seqlen_q=longest,
        max_seqlen_kv=longest,
    )


def _nothing(outputs: TokenOutputs) -> Tensor:
    """The loss of a micro-batch without rows: a sum over no token, whose gradient reaches every weight."""
    loss = outputs.logprobs_N.sum()
    return loss if outputs.values_N is None else loss + outputs.values_N.sum()


def _data_parallel(chunks: Sequence[nn.Module], strategy: MegatronStrategyConfig) -> list[Any]:
    """The chunks, with gradients that are summed over the ranks: rows have the step's weights."""
    settings = DistributedDataParallelConfig(
        use_distributed_optimizer=strategy.use_distributed_optimizer,
        overlap_grad_reduce=strategy.overlap_grad_reduce,
        overlap_param_gather=strategy.overlap_param_gather,
        grad_reduce_in_fp32=True,
    )
    wrapped: list[Any] = []
    for chunk in chunks:
        config: Any = chunk.config
        config.calculate_per_token_loss = True  # the data-parallel sum is divided by nothing
        config.finalize_model_grads_func = lambda models, num_tokens=None, **groups: finalize_model_grads(
            models, None, **groups
        )
        wrapped.append(DistributedDataParallel(config, settings, chunk))
    if strategy.overlap_grad_reduce:
        waits = [chunk.no_sync for chunk in wrapped]
        for chunk in wrapped:
            chunk.config.no_sync_func = waits if len(waits) > 1 else waits[0]
    return wrapped


def _packing_layout(strategy: MegatronStrategyConfig) -> PackingLayout:
    is_interleaved = strategy.virtual_pipeline_model_parallel_size is not None
    return PackingLayout(
        data_rank=parallel_state.get_data_parallel_rank(),
        data_size=parallel_state.get_data_parallel_world_size(),
        context_rank=parallel_state.get_context_parallel_rank(),
        context_size=parallel_state.get_context_parallel_world_size(),
        length_multiple=strategy.tensor_model_parallel_size if strategy.sequence_parallel else 1,
        count_multiple=strategy.pipeline_model_parallel_size if is_interleaved else 1,
        same_length=is_interleaved,
    )


def _on_device(values: NDArray[Any]) -> Tensor:
    return torch.from_numpy(values).to(device())

"""The torch trainer on several ranks: weights, gradients and optimizer sharded by `fully_shard` (FSDP2).

    rows of an optimizer step -> each rank its share -> gradients added up over the ranks -> one step

Every rank goes through the model equally often (`packing.pack`): all ranks gather each layer together.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Self

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from envsdk.contracts.failures import ConfigurationError
from envsdk.contracts.trainer import TrainerConfig, TrainerRank
from envsdk.trainers.causal_lm import CausalLM
from envsdk.trainers.packing import Row, divide
from envsdk.trainers.policy_trainer import Found, ScoreKind, validated_settings
from envsdk.trainers.process_group import (
    all_gather,
    full_tensor,
    join_process_group,
    on_first_rank,
    raise_on_all_ranks,
)
from envsdk.trainers.torch_checkpoint import StoredCheckpoint, write_state, write_tensors
from envsdk.trainers.torch_trainer import TorchTrainer
from envsdk.trainers.training_args import FSDP2StrategyConfig


class Fsdp2Trainer(TorchTrainer):
    """Strategy `fsdp2_train`: one object per rank; all ranks create it and make the same calls.

        rank = TrainerRank(rank=0, world_size=2, master_port=29500)
        trainer = Fsdp2Trainer.create(TrainerConfig(model=folder, sequence_length=1024, seed=0, rank=rank))

    The calls are those of `Trainer`, on every rank.
    """

    @classmethod
    def create(cls, config: TrainerConfig) -> Self:
        algorithm, training, strategy = validated_settings(config, FSDP2StrategyConfig)
        shape = mesh_shape(strategy, config.rank)
        torch.set_num_threads(strategy.num_threads)
        model = CausalLM.load(
            config.model,
            with_value_head=config.with_value_head,
            settings=strategy,
            seed=config.seed,
        )
        device = join_process_group(config.rank)
        found = all_gather(model.precision)
        model.use(min(found, key=lambda precision: precision.dtype != "float32"))
        model.dither(config.seed)
        mesh = init_device_mesh(device.type, shape, mesh_dim_names=("replicate", "shard")[-len(shape) :])
        shard_model(model, mesh, device, strategy)
        return cls(model, config=config, algorithm=algorithm, training=training)

    def save(self, folder: Path) -> None:
        """Each rank gathers and writes an equal share of the full tensors."""
        ranks = self.config.rank
        state = self._optimizer.state()
        names = list(state)
        mine = set(divide([tensor.numel() for tensor in state.values()], ranks.world_size)[ranks.rank])
        tensors: dict[str, Tensor] = {}
        for index, name in enumerate(names):
            tensor = full_tensor(state[name])
            if index in mine:
                tensors[name] = tensor.cpu()
        part = f"-{ranks.rank + 1}-of-{ranks.world_size}" if ranks.world_size > 1 else ""
        written = raise_on_all_ranks(lambda: write_tensors(folder, tensors, part=part))
        digests = {name: digest for digests in all_gather(written) for name, digest in digests.items()}
        on_first_rank(lambda: write_state(folder, digests, num_optimizer_steps=self._optimizer.num_steps))

    def load(self, folder: Path) -> None:
        ranks = self.config.rank
        checkpoint = raise_on_all_ranks(lambda: StoredCheckpoint(folder))
        raise_on_all_ranks(lambda: checkpoint.verify(checkpoint.files[ranks.rank :: ranks.world_size]))
        raise_on_all_ranks(lambda: self._restore(checkpoint))

    def save_pretrained(self, folder: Path) -> None:
        state: dict[str, Tensor] = {}
        known = dict(self.model.model.named_parameters())
        kept = (
            (name, tensor)
            for name, tensor in self.model.model.state_dict().items()
            if not isinstance(tensor, DTensor) or name in known  # or it is tied, under its other name
        )
        for name, tensor in self._without_adapter(kept):
            if self.config.rank.rank == 0:
                state[name] = tensor.cpu()
        on_first_rank(lambda: self._write_pretrained(folder, state))

    def close(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()

    def _score(self, rows: Sequence[Row], kind: ScoreKind) -> list[NDArray[np.float32]]:
        scores = super()._score(rows, kind)
        # No backward pass follows that would free the gathered weights.
        for module in self.model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
        return scores

    def _all_gather(self, found: Found) -> list[Found]:
        return all_gather(found)


def mesh_shape(strategy: FSDP2StrategyConfig, rank: TrainerRank) -> tuple[int, ...]:
    """Number of ranks that shard one copy; before it the number of copies where there are several."""
    try:
        strategy.layout(rank.world_size)
    except ValueError as error:
        raise ConfigurationError(f"strategy_config: {error}") from error
    shard_size = strategy.shard_size or rank.world_size
    copies = rank.world_size // shard_size
    return (copies, shard_size) if copies > 1 else (shard_size,)


def shard_model(
    model: CausalLM, mesh: DeviceMesh, device: torch.device, strategy: FSDP2StrategyConfig
) -> None:
    """Shard each layer, then the rest, then the value head, and move this rank's part to `device`.

    The layers are what `transformers` says must not be split; a model that names none is gathered at once.
    """
    names = model.model._no_split_modules or ()
    half = MixedPrecisionPolicy(param_dtype=model.autocast_dtype, reduce_dtype=torch.float32)
    for module in list(model.model.modules()):
        if type(module).__name__ in names:
            fully_shard(
                module, mesh=mesh, mp_policy=half, reshard_after_forward=strategy.reshard_after_forward
            )
    fully_shard(model.model, mesh=mesh, mp_policy=half)
    if model.value_head is not None:
        fully_shard(model.value_head, mesh=mesh)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # A plain sum: the weights of the rows are those of the optimizer step.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    model.device, model.autocast_dtype = device, None

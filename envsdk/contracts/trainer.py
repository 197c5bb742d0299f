"""The trainer contract: batches in, metrics out, weights under Hugging Face names.

    create -> [load] -> (train_step | logprobs | weights | save | hold)* -> close

Trainers register under the entry-point group `envsdk.trainers`. Shapes: N sequences, T_i tokens
in sequence i; sequences are ragged, a trainer packs or pads them as it likes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envsdk.contracts.failures import ConfigurationError
from envsdk.contracts.held import Held
from envsdk.contracts.support import Support


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherScores:
    """What a teacher thinks of one sequence; nats, at temperature 1, 0 at the first token."""

    logprobs: NDArray[np.float32]
    """`[num_tokens]`, of the tokens themselves."""
    top_ids: NDArray[np.int32] | None = None
    """`[num_tokens, K]`: its likeliest tokens in the place of each (`distill_top_k`)."""
    top_logprobs: NDArray[np.float32] | None = None
    """`[num_tokens, K]`"""
    coef: float = 1.0
    """Its weight."""

    def take(self, places: NDArray[np.int64]) -> TeacherScores:
        """The scores at these places."""
        return TeacherScores(
            logprobs=self.logprobs[places],
            top_ids=None if self.top_ids is None else self.top_ids[places],
            top_logprobs=None if self.top_logprobs is None else self.top_logprobs[places],
            coef=self.coef,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSequence:
    """One token sequence to learn from; arrays are `[num_tokens]`."""

    ids: NDArray[np.int32]
    response_mask: NDArray[np.int8]
    """1 where the token was sampled and counts in the loss."""
    behavior_logprobs: NDArray[np.float32]
    """Under the policy that sampled the token; 0 where the mask is 0."""
    advantages: NDArray[np.float32]
    """Per token; 0 where the mask is 0."""
    returns: NDArray[np.float32] | None = None
    """Targets of the value head (`gae`); None otherwise."""
    proximal_logprobs: NDArray[np.float32] | None = None
    """Under the trainer's weights before the first step on this batch; computed by the trainer when None."""
    reference_logprobs: NDArray[np.float32] | None = None
    """Under the frozen reference model, where KL is asked for."""
    old_values: NDArray[np.float32] | None = None
    """Value head's predictions before the first step on this batch (`gae`)."""
    experts: NDArray[np.int16] | None = None
    """`[num_tokens, num_routers, num_chosen]`: see `TokenArrays.experts`. None: not recorded."""
    trajectory_id: str | None = None
    """The segments of one trajectory share it: they are one in a mean over sequences, and
    are learned in the same optimizer step. None: the sequence is a trajectory of its own."""
    support: Support | None = None
    """Which tokens could be drawn: log-probabilities are normalized over them."""
    teacher: TeacherScores | None = None
    """Where the loss distills (`distill_as: loss`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainBatch:
    """What one `train_step` consumes."""

    step: int
    """The step this batch is trained in, from 0."""
    sequences: Sequence[TrainSequence]
    critic_only: bool = False
    """Move the value head alone (`critic_warmup`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerRank:
    """Which of the processes of one trainer this is, and where they meet."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    """Among the ranks on the same machine: the index of its accelerator."""
    master_address: str = "127.0.0.1"
    """Where rank 0 listens."""
    master_port: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerConfig:
    """What every trainer is built from. The mappings are the validated sections of the YAML."""

    model: Path
    """Hugging Face folder."""
    sequence_length: int
    seed: int
    algorithm: Mapping[str, Any] = field(default_factory=dict)
    """`pg_variant, ppo_epochs, clip range, KL and entropy coefficients, loss_agg_mode` ..."""
    training_args: Mapping[str, Any] = field(default_factory=dict)
    """`learning_rate, weight_decay, warmup_steps, max_grad_norm, max_tokens_per_microbatch` ..."""
    strategy_config: Mapping[str, Any] = field(default_factory=dict)
    with_value_head: bool = False
    rank: TrainerRank = field(default_factory=TrainerRank)
    """Always the default for a trainer that runs in one process."""


class Trainer(ABC):
    """Learns. Synchronous: its host runs it in a process of its own.

    A trainer of several ranks is one object per process. Every rank gets the same calls with the same
    arguments in the same order, and may communicate with the others inside them; rank 0's answer counts.
    """

    @classmethod
    @abstractmethod
    def create(cls, config: TrainerConfig) -> Trainer:
        """Build and load. Raises ConfigurationError for bad settings or a missing model folder."""

    @abstractmethod
    def train_step(self, batch: TrainBatch) -> dict[str, float]:
        """Learn from one batch (`ppo_epochs` passes); returns metrics named `actor/...`, `critic/...`.

        Raises TrainerError when the loss or the gradient norm is not finite; the weights are then
        those from before the step.
        """

    @abstractmethod
    def logprobs(
        self,
        sequences: Sequence[NDArray[np.int32]],
        experts: Sequence[NDArray[np.int16] | None] = (),
        supports: Sequence[Support | None] = (),
    ) -> list[NDArray[np.float32]]:
        """Log-probability of each token given those before it, `[num_tokens]` each; the first is 0.

        `experts` of each sequence, as in `TrainSequence`, where routing is replayed. `supports`: which tokens
        could be drawn, of each sequence; given only where some is told.
        """

    @abstractmethod
    def values(self, sequences: Sequence[NDArray[np.int32]]) -> list[NDArray[np.float32]]:
        """Predictions of the value head, `[num_tokens]` each: entry t is the value of the tokens before t."""

    @abstractmethod
    def weights(self) -> Iterable[tuple[str, NDArray[Any]]]:
        """Current weights under Hugging Face names; copies that later steps do not change."""

    def kernels(self) -> Mapping[str, str]:
        """Kernels that it took, in words, by what they compute: `{"attention": "sdpa (flash)"}`."""
        return {}

    @property
    def weight_device(self) -> str:
        """Where `device_weights` are, as PyTorch names it."""
        return "cpu"

    def device_weights(self) -> Iterable[tuple[str, Any]]:
        """What `weights` gives, as arrays or as tensors on `weight_device`, for engines on cards.

        They may be the trainer's own memory: read them before the next `train_step`, and do not write there.
        """
        return self.weights()

    @property
    def has_adapter(self) -> bool:
        """It trains a LoRA adapter alone, all that engines with the ability `lora` need to be sent."""
        return False

    def adapter(self) -> Iterable[tuple[str, NDArray[Any]]]:
        """The adapter now, as engines take it (`envsdk.weights.lora`). Asked when `has_adapter`."""
        raise NotImplementedError

    def use_average(self, is_used: bool) -> None:
        """Whether `weights`, `device_weights`, `adapter` and `save_pretrained` give the moving average of the
        weights (`ema_decay`) from now on. Without an average this changes nothing."""
        return None

    def hold(self, held: Held) -> None:
        """Hold so much of the device from now on, where trainer and engines take turns: the rest is moved to
        main memory, and back, bit for bit. A new trainer holds `ALL`.

        `save`, `load` and the weights are there whatever is held; `logprobs` and `values` need `WEIGHTS`,
        `train_step` needs `ALL`.
        """
        raise ConfigurationError(
            f"offload: {type(self).__name__} cannot move its state off its device; set offload: none"
        )

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write weights, optimizer, schedule and random state into an existing empty folder."""

    @abstractmethod
    def load(self, folder: Path) -> None:
        """Read what `save` wrote: the next steps are bit for bit those the saver would have made, as far as
        the device repeats itself."""

    @abstractmethod
    def save_pretrained(self, folder: Path) -> None:
        """Write a Hugging Face folder (config, safetensors, tokenizer) that `transformers` loads."""

    def close(self) -> None:
        """Free everything. Idempotent."""
        return None

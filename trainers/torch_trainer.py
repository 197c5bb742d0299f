"""The embedded trainer: PyTorch and transformers, one process.

    batch -> rows (sequences that can matter) -> per epoch, per mini-batch:
        micro-batches under a token budget -> loss -> accumulated gradient -> one optimizer step

Within one `train_step` the proximal policy is the one before the first optimizer step. With a single
step its log-probabilities are the current ones, detached, at no cost; otherwise they are computed first.

Shapes: B rows, T inputs, N scored (response) tokens of a micro-batch, H hidden size, V vocabulary.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError
from torch import Tensor

from envsdk.algorithms.aggregation import sequence_weights
from envsdk.algorithms.args import AlgorithmArgs
from envsdk.algorithms.kl import kl_estimate
from envsdk.algorithms.logits import token_logprobs_and_entropy
from envsdk.algorithms.losses import policy_gradient_uses_proximal, policy_loss, value_loss
from envsdk.config.problems import describe
from envsdk.config.validation import problems_in
from envsdk.failures import ConfigurationError, StorageError, TrainerError
from envsdk.seeds import stable_seed
from envsdk.trainers.causal_lm import CausalLM
from envsdk.trainers.packing import MicroBatch, Row, make_row, pack
from envsdk.trainers.torch_args import TorchStrategyConfig, TorchTrainingArgs
from envsdk.trainers.torch_checkpoint import read_checkpoint, sync_to_disk, write_checkpoint
from envsdk.trainers.torch_optimizer import Optimizer
from envsdk.training import TrainBatch, Trainer, TrainerConfig, TrainSequence

TOKENIZER_FILES = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template*",
    "vocab.*",
    "merges.txt",
    "*.model",
)
"""What `save_pretrained` copies from the folder the model was loaded from."""

Settings = TypeVar("Settings", bound=BaseModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class _TrainRow:
    """One sequence that takes part in an optimizer step; arrays are `[num_scored]`."""

    row: Row
    weight: float
    """Of each of its tokens in the loss; set by `loss_agg_mode` over the whole optimizer step."""
    fields: Mapping[str, NDArray[np.float32]]
    """`advantages, behavior, [proximal], [reference], [returns], [old_values]`."""


class _Tally:
    """Sums of per-token numbers over micro-batches and steps: add -> add ... -> metrics."""

    def __init__(self) -> None:
        self.loss = 0.0
        self.num_real = 0
        self.num_padded = 0
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}
        self._maxima: dict[str, float] = {}
        self._norms: list[float] = []
        self._learning_rate = 0.0

    def add(self, name: str, values_N: Tensor, *, with_max: bool = False) -> None:
        self._sums[name] = self._sums.get(name, 0.0) + float(values_N.double().sum())
        self._counts[name] = self._counts.get(name, 0) + values_N.numel()
        if with_max:
            self._maxima[name] = max(self._maxima.get(name, 0.0), float(values_N.max()))

    def add_step(self, grad_norm: float, learning_rate: float) -> None:
        self._norms.append(grad_norm)
        self._learning_rate = learning_rate

    def mean(self, name: str) -> float:
        """Over tokens; 0 when there were none."""
        return self._sums.get(name, 0.0) / max(1, self._counts.get(name, 0))

    def metrics(self) -> dict[str, float]:
        """`actor/...` and, with a value head, `critic/...`; means over tokens and optimizer steps."""
        num_steps = max(1, len(self._norms))
        metrics = {
            "actor/loss": self.loss / num_steps,
            "actor/grad_norm": sum(self._norms) / num_steps,
            "actor/lr": self._learning_rate,
            "actor/num_optimizer_steps": float(len(self._norms)),
            "actor/padding_fraction": 1 - self.num_real / self.num_padded if self.num_padded else 0.0,
        }
        for name in sorted(self._sums):
            section, short = (
                ("critic", name.removeprefix("critic_")) if name.startswith("critic_") else ("actor", name)
            )
            if name in self._maxima:
                metrics[f"{section}/{short}_mean"] = self.mean(name)
                metrics[f"{section}/{short}_max"] = self._maxima[name]
            else:
                metrics[f"{section}/{short}"] = self.mean(name)
        return metrics


_Learn = Callable[[MicroBatch, Sequence[_TrainRow], Tensor, _Tally], Tensor]
_Score = Callable[[MicroBatch], Tensor]


class TorchTrainer(Trainer):
    """Strategy `torch`: any Hugging Face causal language model, AdamW, float32 weights.

        trainer = TorchTrainer.create(TrainerConfig(model=folder, sequence_length=1024, seed=0))
        metrics = trainer.train_step(TrainBatch(step=0, sequences=sequences))

    Draws no random number outside the mini-batch order, which is a hash of (seed, step, epoch): a
    resumed run repeats the original bit for bit.
    """

    def __init__(
        self,
        model: CausalLM,
        *,
        config: TrainerConfig,
        algorithm: AlgorithmArgs,
        training: TorchTrainingArgs,
    ) -> None:
        self.model = model
        self.algorithm = algorithm
        self.training = training
        self._config = config
        self._optimizer = Optimizer(
            model.parameters(),
            [model.model.get_input_embeddings(), model.model.get_output_embeddings()],
            training,
        )
        try:
            self._policy_loss = policy_loss(algorithm.pg_variant)
        except KeyError as error:
            raise ConfigurationError(str(error.args[0])) from None

    @classmethod
    def create(cls, config: TrainerConfig) -> Self:
        algorithm = _validated(AlgorithmArgs, config.algorithm, "algorithm")
        training = _validated(TorchTrainingArgs, config.training_args, "training_args")
        strategy = _validated(TorchStrategyConfig, config.strategy_config, "strategy_config")
        torch.set_num_threads(strategy.num_threads)
        model = CausalLM.load(config.model, with_value_head=config.with_value_head, strategy=strategy)
        return cls(model, config=config, algorithm=algorithm, training=training)

    @property
    def num_optimizer_steps(self) -> int:
        """Optimizer steps taken since the first `create`, resumed runs included."""
        return self._optimizer.num_steps

    def train_step(self, batch: TrainBatch) -> dict[str, float]:
        """One batch: `ppo_epochs` passes in mini-batches of `ppo_mini_batch_size` sequences.

        Sequences whose every advantage is 0 (a group without variance) are left out of the forward
        pass when no other term of the loss needs them: their gradient is exactly 0. They still count in
        the aggregation's denominators.
        """
        started = time.perf_counter()
        sequences = batch.sequences
        self._check(sequences)
        rows = [make_row(sequence.ids, sequence.response_mask) for sequence in sequences]
        needed = [self._has_gradient(sequence, row) for sequence, row in zip(sequences, rows, strict=True)]
        plan = self._optimizer_steps(batch)
        fields = [
            self._fields(sequence, row) if row is not None and need else {}
            for sequence, row, need in zip(sequences, rows, needed, strict=True)
        ]
        if len(plan) > 1 and policy_gradient_uses_proximal(self.algorithm):
            self._add_proximal_logprobs(rows, fields)
        # A step that fails half-way must leave the weights from before the first one.
        snapshot = _copies(self._optimizer.state()) if len(plan) > 1 else None
        num_steps = self._optimizer.num_steps

        tally = _Tally()
        try:
            for members in plan:
                lengths = [0 if (row := rows[index]) is None else len(row.scored) for index in members]
                weights = sequence_weights(self.algorithm.loss_agg_mode, lengths)
                step_rows = [
                    _TrainRow(row=row, weight=float(weight), fields=fields[index])
                    for index, weight in zip(members, weights, strict=True)
                    if (row := rows[index]) is not None and needed[index]
                ]
                self._accumulate(step_rows, tally, self._learn)
                norm, learning_rate = self._optimizer.step()
                tally.add_step(norm, learning_rate)
        except TrainerError as error:
            if snapshot is not None:
                self._optimizer.restore(snapshot, num_steps)
            raise TrainerError(
                f"step {batch.step}: {error}. The weights are those from before the step; look at the "
                "learning rate, the advantages and the log-probabilities of this batch"
            ) from error

        metrics = tally.metrics()
        metrics["actor/num_tokens"] = float(sum(len(row.scored) for row in rows if row is not None))
        metrics["actor/num_sequences"] = float(sum(row is not None for row in rows))
        metrics["actor/num_sequences_without_gradient"] = metrics["actor/num_sequences"] - sum(needed)
        metrics["actor/step_time_s"] = time.perf_counter() - started
        return metrics

    def sft_step(self, sequences: Sequence[tuple[NDArray[np.int32], NDArray[np.int8]]]) -> dict[str, float]:
        """One supervised step (behavior cloning): mean cross entropy of the tokens with mask 1.

        `sequences` are (ids `[num_tokens]`, mask `[num_tokens]`). Same packing, optimizer and schedule
        as `train_step`. Returns `sft/...`: `loss, accuracy, grad_norm, lr, num_tokens, step_time_s`.
        """
        started = time.perf_counter()
        rows = [row for ids, mask in sequences if (row := make_row(ids, mask)) is not None]
        num_tokens = sum(len(row.scored) for row in rows)
        tally = _Tally()
        self._accumulate(
            [_TrainRow(row=row, weight=1.0 / num_tokens, fields={}) for row in rows], tally, self._imitate
        )
        norm, learning_rate = self._optimizer.step()
        return {
            "sft/loss": tally.loss,
            "sft/accuracy": tally.mean("accuracy"),
            "sft/grad_norm": norm,
            "sft/lr": learning_rate,
            "sft/num_tokens": float(num_tokens),
            "sft/step_time_s": time.perf_counter() - started,
        }

    def logprobs(self, sequences: Sequence[NDArray[np.int32]]) -> list[NDArray[np.float32]]:
        return self._score_all_tokens(sequences, self._token_logprobs)

    def values(self, sequences: Sequence[NDArray[np.int32]]) -> list[NDArray[np.float32]]:
        """Aligned with `logprobs`: entry t is the value of the tokens before t, the state in which token t
        was chosen; the first is 0. ConfigurationError without a value head.
        """
        return self._score_all_tokens(sequences, self._token_values)

    def weights(self) -> Iterator[tuple[str, NDArray[Any]]]:
        """Each parameter once, float32, as `save_pretrained` would store it; not the value head.

        A tied output embedding comes under the input embedding's name alone.
        """
        for name, parameter in self.model.model.named_parameters():
            yield name, parameter.detach().to("cpu", copy=True).numpy()

    def save(self, folder: Path) -> None:
        """Weights, moments and schedule, synced to disk. StorageError names what could not be written."""
        state = self._optimizer.state()
        write_checkpoint(
            folder,
            {
                "weights.safetensors": {
                    name.removeprefix("weight/"): tensor
                    for name, tensor in state.items()
                    if name.startswith("weight/")
                },
                "optimizer.safetensors": {
                    name: tensor for name, tensor in state.items() if not name.startswith("weight/")
                },
            },
            {"num_optimizer_steps": self._optimizer.num_steps},
        )

    def load(self, folder: Path) -> None:
        """StorageError names a missing or damaged file, or one that belongs to another model."""
        files, state = read_checkpoint(folder)
        tensors = {f"weight/{name}": tensor for name, tensor in files["weights.safetensors"].items()}
        tensors |= files["optimizer.safetensors"]
        for name, parameter in self._optimizer.parameters.items():
            stored = tensors.get(f"weight/{name}")
            if stored is None or stored.shape != parameter.shape:
                found = "missing" if stored is None else f"of shape {list(stored.shape)}"
                raise StorageError(
                    f"{folder / 'weights.safetensors'} is of another model: {name} is {found}, "
                    f"expected {list(parameter.shape)}"
                )
        self._optimizer.restore(tensors, state["num_optimizer_steps"])

    def save_pretrained(self, folder: Path) -> None:
        """The value head is not part of it. StorageError names what could not be written."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self.model.model.save_pretrained(folder)
            for pattern in TOKENIZER_FILES:
                for source in sorted(self._config.model.glob(pattern)):
                    if source.is_file() and source.resolve().parent != folder.resolve():
                        shutil.copyfile(source, folder / source.name)
            for path in folder.iterdir():
                sync_to_disk(path)
            sync_to_disk(folder)
        except OSError as error:
            raise StorageError(f"cannot write a model into {folder}: {error}") from error

    def _optimizer_steps(self, batch: TrainBatch) -> list[list[int]]:
        """Which sequences each optimizer step takes, in order; the last mini-batch may be smaller."""
        count = len(batch.sequences)
        size = self.algorithm.ppo_mini_batch_size or count
        steps: list[list[int]] = []
        for epoch in range(self.algorithm.ppo_epochs):
            generator = np.random.default_rng(stable_seed(self._config.seed, "minibatch", batch.step, epoch))
            order = generator.permutation(count) if size < count else np.arange(count)
            steps.extend(order[start : start + size].tolist() for start in range(0, count, size))
        return steps

    def _has_gradient(self, sequence: TrainSequence, row: Row | None) -> bool:
        if row is None:
            return False
        others = self.algorithm.kl_loss_coef > 0 or self.algorithm.entropy_loss_coef != 0
        return others or self.model.value_head is not None or bool(np.any(sequence.advantages[row.scored]))

    def _fields(self, sequence: TrainSequence, row: Row) -> dict[str, NDArray[np.float32]]:
        fields = {
            "advantages": sequence.advantages,
            "behavior": sequence.behavior_logprobs,
            "proximal": sequence.proximal_logprobs,
            "reference": sequence.reference_logprobs if self.algorithm.kl_loss_coef > 0 else None,
        }
        if self.model.value_head is not None:
            fields |= {"returns": sequence.returns, "old_values": sequence.old_values}
        return {name: values[row.scored] for name, values in fields.items() if values is not None}

    def _add_proximal_logprobs(
        self, rows: Sequence[Row | None], fields: Sequence[dict[str, NDArray[np.float32]]]
    ) -> None:
        missing = [index for index, known in enumerate(fields) if known and "proximal" not in known]
        scored = self._score(
            [row for index in missing if (row := rows[index]) is not None], self._token_logprobs
        )
        for index, logprobs in zip(missing, scored, strict=True):
            fields[index]["proximal"] = logprobs

    def _accumulate(self, rows: Sequence[_TrainRow], tally: _Tally, learn: _Learn) -> None:
        """Add the gradient of all rows; TrainerError, gradients cleared, when a loss is not finite."""
        for micro in pack([row.row for row in rows], self.training.max_tokens_per_microbatch):
            members = [rows[index] for index in micro.rows]
            lengths = [len(member.row.scored) for member in members]
            weights_N = self._tensor(np.repeat([member.weight for member in members], lengths))
            loss = learn(micro, members, weights_N, tally)
            if not torch.isfinite(loss):
                self._optimizer.zero_grad()
                raise TrainerError(f"the loss is {float(loss.detach())}")
            loss.backward()  # type: ignore[no-untyped-call]
            tally.loss += float(loss.detach())
            tally.num_real += micro.num_real_tokens
            tally.num_padded += micro.input_ids_BT.size

    def _learn(
        self, micro: MicroBatch, members: Sequence[_TrainRow], weights_N: Tensor, tally: _Tally
    ) -> Tensor:
        """The objective of one micro-batch; those of all micro-batches add up to the step's loss."""
        args = self.algorithm
        logits_NV, hidden_NH = self.model.forward(micro)
        logprobs_N, entropy_N = token_logprobs_and_entropy(
            logits_NV,
            torch.from_numpy(micro.targets_N).to(logits_NV.device),
            temperature=args.logprob_temperature,
            entropy_gradient=args.entropy_loss_coef != 0,
        )
        behavior_N = self._field(members, "behavior")
        proximal_N = self._field(members, "proximal", default=logprobs_N.detach())
        policy = self._policy_loss(
            logprobs=logprobs_N,
            proximal_logprobs=proximal_N,
            behavior_logprobs=behavior_N,
            advantages=self._field(members, "advantages"),
            args=args,
        )
        loss = (weights_N * policy.loss).sum()
        tally.add("pg_loss", policy.loss.detach())
        if args.entropy_loss_coef != 0:
            loss = loss - args.entropy_loss_coef * (weights_N * entropy_N).sum()
        if args.kl_loss_coef > 0:
            kl_N = kl_estimate(logprobs_N, self._field(members, "reference"), args.kl_loss_type)
            loss = loss + args.kl_loss_coef * (weights_N * kl_N).sum()
            tally.add("kl", kl_N.detach())
        if self.model.value_head is not None:
            returns_N = self._field(members, "returns")
            values_N = self.model.predict_values(hidden_NH)
            old_values_N = self._field(members, "old_values", default=values_N.detach())
            critic_N = value_loss(
                values=values_N, old_values=old_values_N, returns=returns_N, clip=args.value_clip
            )
            loss = loss + args.value_loss_coef * (weights_N * critic_N).sum()
            tally.add("critic_loss", critic_N.detach())
            tally.add("critic_value", values_N.detach())
            tally.add("critic_return", returns_N)
        gap_N = (proximal_N - behavior_N).abs()
        tally.add("entropy", entropy_N.detach())
        tally.add("clip_fraction", policy.clipped)
        tally.add("ratio", policy.ratio, with_max=True)
        tally.add("approx_kl", policy.ratio - 1 - policy.ratio.log())
        tally.add("behavior_weight", policy.behavior_weight, with_max=True)
        tally.add("off_policy_fraction", (gap_N > 0.01).to(gap_N.dtype))
        tally.add("logprob_gap", gap_N, with_max=True)
        return loss

    def _imitate(
        self, micro: MicroBatch, members: Sequence[_TrainRow], weights_N: Tensor, tally: _Tally
    ) -> Tensor:
        logits_NV, _ = self.model.forward(micro)
        targets_N = torch.from_numpy(micro.targets_N).to(logits_NV.device)
        tally.add("accuracy", (logits_NV.detach().argmax(-1) == targets_N).float())
        loss_N = torch.nn.functional.cross_entropy(logits_NV.float(), targets_N, reduction="none")
        return (weights_N * loss_N).sum()

    def _token_logprobs(self, batch: MicroBatch) -> Tensor:
        logits_NV, _ = self.model.forward(batch)
        targets_N = torch.from_numpy(batch.targets_N).to(logits_NV.device)
        return token_logprobs_and_entropy(
            logits_NV, targets_N, temperature=self.algorithm.logprob_temperature
        )[0]

    def _token_values(self, batch: MicroBatch) -> Tensor:
        return self.model.predict_values(self.model.forward(batch)[1])

    def _score_all_tokens(
        self, sequences: Sequence[NDArray[np.int32]], score: _Score
    ) -> list[NDArray[np.float32]]:
        rows = [make_row(ids, np.ones(len(ids), np.int8)) for ids in sequences]
        results = [np.zeros(len(ids), np.float32) for ids in sequences]
        filled = [index for index, row in enumerate(rows) if row is not None]
        for index, scores in zip(
            filled, self._score([row for row in rows if row is not None], score), strict=True
        ):
            results[index][1:] = scores
        return results

    @torch.no_grad()
    def _score(self, rows: Sequence[Row], score: _Score) -> list[NDArray[np.float32]]:
        """One number per scored token of each row, in the order of the rows."""
        results: dict[int, NDArray[np.float32]] = {}
        for micro in pack(rows, self.training.max_tokens_per_microbatch):
            scores_N = score(micro).float().cpu().numpy()
            ends = np.cumsum([len(rows[index].scored) for index in micro.rows])
            results |= zip(micro.rows, np.split(scores_N, ends[:-1]), strict=True)
        return [results[index] for index in range(len(rows))]

    def _field(self, members: Sequence[_TrainRow], name: str, default: Tensor | None = None) -> Tensor:
        """One field of all members `[N]`; the default's entries for members without it."""
        if default is None:
            return self._tensor(np.concatenate([member.fields[name] for member in members]))
        parts = torch.split(default, [len(member.row.scored) for member in members])
        return torch.cat(
            [
                self._tensor(member.fields[name]) if name in member.fields else part
                for member, part in zip(members, parts, strict=True)
            ]
        )

    def _tensor(self, values: NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.asarray(values, np.float32)).to(self.model.device)

    def _check(self, sequences: Sequence[TrainSequence]) -> None:
        """What would fail silently or far from its cause."""
        vocab_size = self.model.vocab_size
        for index, sequence in enumerate(sequences):
            length = len(sequence.ids)
            if length > self._config.sequence_length:
                raise TrainerError(
                    f"sequence {index} has {length} tokens, more than sequence_length: "
                    f"{self._config.sequence_length}"
                )
            if length and not 0 <= int(sequence.ids.min()) <= int(sequence.ids.max()) < vocab_size:
                raise TrainerError(
                    f"sequence {index} has a token id outside the vocabulary [0, {vocab_size})"
                )
            required: dict[str, NDArray[Any] | None] = {
                "response_mask": sequence.response_mask,
                "behavior_logprobs": sequence.behavior_logprobs,
                "advantages": sequence.advantages,
            }
            if self.algorithm.kl_loss_coef > 0:
                required["reference_logprobs"] = sequence.reference_logprobs
            if self.model.value_head is not None:
                required["returns"] = sequence.returns
            for name, values in required.items():
                if values is None:
                    raise TrainerError(f"sequence {index} has no {name}, which the loss needs")
                if len(values) != length:
                    raise TrainerError(f"sequence {index} has {length} tokens but {len(values)} {name}")


def _validated(kind: type[Settings], values: Mapping[str, Any], section: str) -> Settings:
    try:
        return kind.model_validate(dict(values))
    except ValidationError as error:
        problems = list(problems_in(error, kind))
        raise ConfigurationError(describe(problems, source=section, origin=lambda _: "")) from error


def _copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in tensors.items()}

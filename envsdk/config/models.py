"""The keys of a run's YAML file, typed.

Fields are the keys: `RunConfig` is the file's top level, every nested model one of its sections.
Types and ranges of single keys are here; what several keys must agree on is in `checks`. The
models are frozen: a run never rewrites what its user wrote. Derived numbers are properties.

Strict: `"8"` is no integer and `true` is no number. An unknown key is an error everywhere but in
`env_config`, `model_args`, `training_args` and `strategy_config`: those belong to a plug-in and are checked
against what it declares.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
)

from envsdk.algorithms.args import AlgorithmArgs, AlgorithmKeys
from envsdk.algorithms.group_filters import GroupFilterEntries, as_entry
from envsdk.algorithms.task_samplers.contract import TaskSamplerEntry
from envsdk.algorithms.task_samplers.prefixes import PrefixArgs
from envsdk.base.display.scores import MAX_FAILED_SHARE
from envsdk.base.settings.validation import NAME_PATTERN
from envsdk.config.env_models import CustomEnv, EnvManagerArgs, ValEnvManagerArgs
from envsdk.config.job_models import BufferArgs, ExplorerArgs, Mode, ServeArgs, SynchronizerArgs
from envsdk.config.prices import Prices
from envsdk.config.ray_models import RayArgs
from envsdk.config.rlvr_models import RewardArgs, ValidationArgs
from envsdk.config.role_models import ActorInfer, ActorTrain, Opponent, Reference, Teacher
from envsdk.config.section import MOST, Count, GeneratingArgs, Section, Tag, distinct, split_evenly
from envsdk.contracts import run_limits

EMBEDDED_DEFAULT = "embedded_default"
"""Value of `pretrain` that stands for the tiny warm-started policy."""

FolderPath = Annotated[Path, Field(strict=False)]


class WarmStartArgs(Section):
    """The tiny policy behind `pretrain: embedded_default`, and how it is warm-started."""

    hidden_size: PositiveInt = 128
    """Width of the model."""
    num_layers: PositiveInt = 4
    """Depth of the model."""
    num_heads: PositiveInt = 4
    """Attention heads; divides `hidden_size`."""
    pieces: list[Annotated[str, Field(min_length=1)]] = Field(default_factory=list)
    """Regular expressions of texts that become single tokens, besides the words: names and fixed phrases."""
    demonstrator: Annotated[str, Field(min_length=1)] = "oracle"
    """Who plays the demonstrations: `oracle`, or another policy without a model, by name or dotted name."""
    num_episodes: PositiveInt = 5000
    """Demonstrations to collect, over all tags."""
    epsilon: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Share of the demonstrator's moves that are random."""
    epochs: PositiveInt = 1
    """Passes over the demonstrations."""
    batch_size: PositiveInt = 16
    """Demonstrations per step of imitation; segments, where a tag's `context` makes several of each."""
    learning_rate: PositiveFloat = 2e-3
    """Peak, after warm-up."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seed of the demonstrations, the initial weights and the order of training."""


def _number_or_auto(value: Any) -> Any:
    """One message in place of one per type of the union."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if value == "auto" or (is_number and math.isfinite(value) and value >= 0):
        return value
    raise ValueError("must be a finite number of at least 0, or auto")


DEFAULT_WAIT_SHARE = 0.1
"""Default of `max_wait_share`."""


class RunConfig(AlgorithmKeys, Section):
    """One run: the top level of the YAML file. The algorithm's keys are those of `AlgorithmKeys`."""

    exp_name: Annotated[str, Field(pattern=NAME_PATTERN, max_length=200)]
    """Name of the run's folder under `output_dir`: letters, digits, `.`, `_` and `-`."""
    mode: Mode = "both"
    """Which program of a job this is: `both` plays and trains; `train` and `explore` do one of the two,
    joined by `buffer`; `bench` evaluates and `serve` serves the weights that the trainer publishes."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 42
    """Everything random follows from it."""
    output_dir: FolderPath = Path("runs")
    """Where run folders go."""
    resume: str = "auto"
    """`auto` continues the newest complete checkpoint, `never` starts anew; or a checkpoint folder."""

    async_generation_ratio: Annotated[
        Annotated[float, Field(ge=0, le=1000)] | Literal["auto"], BeforeValidator(_number_or_auto)
    ] = 0.0
    """Alpha: batches that generation may run ahead of training. 0 is synchronous; fractions are fine; `auto`:
    as few as `max_wait_share` needs."""
    max_staleness: NonNegativeInt | None = None
    """Weight versions that a trained sample may be behind the trainer; `async_generation_ratio` rounded up
    when absent. Twice as many throw little away under a long tail."""
    max_wait_share: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Share of its time that the trainer may wait for rollouts, with `async_generation_ratio: auto`; 0.1
    when absent."""
    rollout_batch_size: Count
    """Trajectories per training step; prompts, where `num_return_sequences_in_group` is given."""
    num_return_sequences_in_group: PositiveInt | None = None
    """Responses to each prompt; advantages are relative to their group."""
    val_batch_size: Annotated[NonNegativeInt, Field(le=MOST)]
    """Trajectories per evaluation; 0: none is made."""
    prompt_length: PositiveInt | None = None
    """Longest prompt of prompt data, in tokens; rows with longer ones are left out."""
    response_length: PositiveInt | None = None
    """Longest response to one, in tokens."""
    sequence_length: Annotated[int, Field(ge=2)]
    """Longest trajectory, prompts and replies together, in tokens."""
    max_steps: PositiveInt
    """Training steps."""
    save_steps: NonNegativeInt = 10
    """Steps between checkpoints; 0 saves only at the end."""
    max_ckpt_to_keep: NonNegativeInt = 3
    """Newest checkpoints that stay, besides the best; 0: all."""
    eval_steps: NonNegativeInt = 10
    """Steps between evaluations; 0 evaluates only before and after."""
    metric_for_best_model: str | None = None
    """Metric of evaluations, such as `val/success/mean`: the weights with its best value are kept as
    `checkpoints/best`, in `mode: both`. When absent, there is no best checkpoint."""
    greater_is_better: bool = True
    """Whether larger values of that metric are better."""
    early_stopping_patience: PositiveInt | None = None
    """Evaluations in a row without a new best value after which the run ends early; null: it never does."""
    max_failed_share: Annotated[float, Field(ge=0, le=1)] = MAX_FAILED_SHARE
    """An evaluation of which a larger share of episodes failed ends the run or the command with an error,
    once its results are written; 1: none does."""
    logging_steps: PositiveInt = 1
    """Steps between lines of metrics."""
    validation: Literal["pause", "overlap"] | ValidationArgs = "pause"
    """Whether training generation is suspended while an evaluation runs; or the held-out prompts."""
    use_additional_prompts: bool = False
    """Whether more groups are started than a batch needs; the first complete ones are trained on."""
    max_additional_running_prompts: NonNegativeInt = 16
    """How many more."""
    is_num_return_sequences_expand: bool | None = None
    """Whether each member of a group is a request of its own, on any engine. False: the first requests of a
    group go to one engine, which computes their prompt once. Null: false with one engine, true with several,
    where it keeps long replies of a group from queueing at one of them."""
    weight_update: Literal["continue", "restart", "finish"] = "continue"
    """What happens to a reply that is being sampled when new weights arrive."""
    model_update_buffer_size_mb: PositiveInt = 32
    """Size of the buckets that weights travel to the engines in, in MiB; at most two are on their way."""
    model_update_transport: Literal[
        "auto", "shared_memory", "object_store", "broadcast", "cuda_ipc", "nccl"
    ] = "auto"
    """How weights reach the engines. `auto` is `cuda_ipc` when all engines take weights on the card of the
    trainer's first rank, and `nccl` when each has a card of its own; otherwise `shared_memory` when all are
    on its node (`object_store` where that is no Linux); `object_store` when another node has several of them,
    which then share one copy there; and `broadcast` otherwise."""
    model_update_dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision that float32 weights are sent in. `bfloat16` halves the bytes; engines that sample in it lose
    nothing."""
    model_update_delta: bool = False
    """Send engines what has changed since the weights that they have, exactly and compressed. It takes a copy
    of the weights in main memory at both ends, and saves bytes where few change: in bfloat16, at small
    learning rates."""

    group_filters: Annotated[GroupFilterEntries, AfterValidator(distinct)] = Field(default_factory=list)
    """Groups that one of these drops are left out, and others played instead: `zero_variance` (equal
    rewards), `uniform_success` (solved always or never), `mean_filter`, `std_filter`, an entry point in
    `envsdk.group_filters`, or `package.module:function`. By name, or as a section with `name`, `tags` and the
    filter's settings."""
    max_filtered_groups: PositiveInt | None = None
    """Groups they may drop between two batches before the run ends with an error; 10 batches' worth when
    absent."""

    task_sampler: Annotated[TaskSamplerEntry, BeforeValidator(as_entry)] = Field(
        default_factory=TaskSamplerEntry
    )
    """Which tasks training plays: `uniform` (each tag by its share, its tasks in order), `weighted`,
    `difficulty`, `learnability`, `easy_to_hard`, `prioritized`, an entry point in `envsdk.task_samplers`, or
    `package.module:Class`. By name, or as a section with `name` and the sampler's settings."""

    batch_mixture: Literal["as_finished", "stratified"] = "as_finished"
    """Which groups a batch takes: those that are complete first, or of each tag its share by
    `num_groups_partition`, for which it waits. Shares that are no whole groups come out over several
    batches."""

    prefix_sampling: PrefixArgs | None = None
    """Where groups begin: those of tags that nearly always fail from a replayed part of a successful episode,
    those that always pass from one of a failed episode, so long that about half of them pass. Absent: all
    begin at the beginning."""

    pretrain: str = EMBEDDED_DEFAULT
    """Folder of a Hugging Face model, its name on the hub, or a registered name such as `smollm2`, which are
    fetched once; or `embedded_default`: the tiny policy described by `warm_start`."""
    trackers: Annotated[list[str], AfterValidator(distinct)] = Field(
        default_factory=lambda: ["jsonl", "tensorboard"]
    )
    """Where metrics and episodes go: `jsonl`, `tensorboard`, `wandb`, `mlflow`, `trackio`, `otel`, an entry
    point in `envsdk.trackers`, or `package.module:Class`."""
    tracker_args: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Settings of trackers, by the tracker's name."""
    prices: Prices | None = None
    """What tokens and machines cost; absent, only what was used is reported."""

    custom_envs: Annotated[dict[Tag, CustomEnv], Field(min_length=1)]
    """Tags by name."""
    rewards: dict[Tag, RewardArgs] = Field(default_factory=dict)
    """Domains of prompts by name, each with the reward of its responses. A domain is also a tag."""
    train_env_manager: EnvManagerArgs
    """Environments that training plays in."""
    val_env_manager: ValEnvManagerArgs
    """Environments that evaluations play in."""
    actor_train: ActorTrain = Field(default_factory=ActorTrain)
    """The policy that learns."""
    actor_infer: ActorInfer = Field(default_factory=ActorInfer)
    """The policy that plays."""
    opponents: dict[str, Opponent] = Field(default_factory=dict)
    """Models that play against the policy, by the names that `players` of tags have for them."""
    teachers: dict[Tag, Teacher] = Field(default_factory=dict)
    """Models that the policy learns from, by name (`distill_as`)."""
    reference: Reference = Field(default_factory=Reference)
    """The frozen policy of KL terms."""
    warm_start: WarmStartArgs = Field(default_factory=WarmStartArgs)
    """The tiny policy behind `pretrain: embedded_default`."""
    device_memory_gib: PositiveFloat | None = None
    """Memory of each accelerator, in GiB: a run that cannot fit is refused. When absent, that of this
    machine's smallest GPU, where it has one and `ray.address` is absent."""
    ray: RayArgs = Field(default_factory=RayArgs)
    """The Ray runtime."""
    buffer: BufferArgs = Field(default_factory=BufferArgs)
    """What stands between explorers and trainer, where they are programs of their own."""
    explorer: ExplorerArgs = Field(default_factory=ExplorerArgs)
    """This explorer (`mode: explore`)."""
    synchronizer: SynchronizerArgs = Field(default_factory=SynchronizerArgs)
    """How weights come from the trainer to the other programs."""
    serve: ServeArgs = Field(default_factory=ServeArgs)
    """The endpoint of `mode: serve`."""

    @property
    def run_folder(self) -> Path:
        """Where everything this run writes goes."""
        return self.output_dir.expanduser() / self.exp_name

    @property
    def env_managers(self) -> Mapping[str, EnvManagerArgs]:
        """The managers of training and of evaluations, by key."""
        return {"train_env_manager": self.train_env_manager, "val_env_manager": self.val_env_manager}

    @property
    def has_automatic_depth(self) -> bool:
        """Whether the run finds by itself how far generation runs ahead."""
        return self.async_generation_ratio == "auto"

    @property
    def largest_depth(self) -> float:
        """Batches that generation may ever run ahead of training."""
        ratio = self.async_generation_ratio
        return float(self.max_staleness or 1) if ratio == "auto" else ratio

    @property
    def first_depth(self) -> float:
        """Batches that generation may run ahead at the start."""
        return min(1.0, self.largest_depth) if self.has_automatic_depth else self.largest_depth

    @property
    def wait_share(self) -> float | None:
        """`max_wait_share`, or its default; None where the depth is given."""
        return (self.max_wait_share or DEFAULT_WAIT_SHARE) if self.has_automatic_depth else None

    @property
    def staleness_bound(self) -> int:
        """Weight versions a delivered sample may be behind the trainer."""
        return run_limits.staleness_bound(self.largest_depth, self.max_staleness)

    @property
    def capacity(self) -> int:
        """Trajectories leased or waiting at the same time, spares not counted."""
        return run_limits.capacity(self.largest_depth, self.train_batch_size)

    @property
    def train_batch_size(self) -> int:
        """Trajectories in one training batch."""
        return self.rollout_batch_size * (self.num_return_sequences_in_group or 1)

    @property
    def shares_prompts(self) -> bool:
        """Whether the first requests of a group go to one engine."""
        infer, given = self.actor_infer, self.is_num_return_sequences_expand
        return (infer.max_engines or infer.num_engines) == 1 if given is None else not given

    @property
    def num_train_groups(self) -> int:
        """Groups in one training batch."""
        return self.train_batch_size // self.train_env_manager.group_size

    @property
    def evaluates_average(self) -> bool:
        """Whether evaluations play the moving average of the weights."""
        return bool(self.actor_train.training_args.get("ema_decay"))

    @property
    def validation_overlaps(self) -> bool:
        """Whether training episodes are played during an evaluation."""
        given = self.validation
        return (given.mode if isinstance(given, ValidationArgs) else given) == "overlap"

    @property
    def val_generating_args(self) -> GeneratingArgs:
        """How replies of evaluations are sampled."""
        shared, given = self.actor_infer.generating_args, self.validation
        own = (given if isinstance(given, ValidationArgs) else self.val_env_manager).generating_args
        return shared if own is None else shared.with_own(own)

    @property
    def filtered_groups_limit(self) -> int:
        """`max_filtered_groups`, or what stands for it when it is absent."""
        return self.max_filtered_groups or 10 * self.num_train_groups

    @property
    def val_groups_per_tag(self) -> Mapping[str, int]:
        """Tasks of one evaluation by tag, in proportion to the groups of `val_env_manager`."""
        manager = self.val_env_manager
        groups = manager.groups_per_tag
        shares = split_evenly(self.val_batch_size // manager.group_size, list(groups.values()))
        return dict(zip(groups, shares, strict=True))

    @property
    def algorithm(self) -> AlgorithmArgs:
        """The algorithm's keys, with the temperature that replies are sampled at."""
        keys = {name: getattr(self, name) for name in AlgorithmKeys.model_fields}
        return AlgorithmArgs(**keys, temperature=self.actor_infer.generating_args.temperature)

    def as_dict(self) -> dict[str, Any]:
        """All keys with plain values, in the order of reading: the run, its algorithm, its sections."""
        values = self.model_dump(mode="json")
        own = [name for name in values if name not in AlgorithmKeys.model_fields]
        keys = [name for name in own if not isinstance(values[name], dict)]
        sections = [name for name in own if name not in keys]
        return {name: values[name] for name in (*keys, *AlgorithmKeys.model_fields, *sections)}

    def max_response_tokens(self, tag: str, *, val: bool = False) -> int:
        """Longest reply to one turn of `tag`, in training or in evaluations."""
        own = self.custom_envs[tag].max_tokens_per_step
        generating = self.val_generating_args if val else self.actor_infer.generating_args
        return own if own is not None else generating.max_new_tokens

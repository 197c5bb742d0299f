"""The keys of the three roles, typed: the policy that learns, the one that plays, and the frozen one."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
)

from envsdk.config.rlvr_models import DataArgs
from envsdk.config.section import GeneratingArgs, Section, Tag, distinct

_INTEGER = r"\s*([+-]?\d{1,9})\s*"
_RANGE = re.compile(
    rf"\s*list\s*\(\s*range\s*\({_INTEGER}(?:,{_INTEGER}(?:,{_INTEGER})?)?,?\s*\)\s*\)\s*", re.ASCII
)
_LISTED = re.compile(r"\s*list\s*\(\s*\[\s*(\d{1,9}(?:\s*,\s*\d{1,9})*)\s*\]\s*\)\s*", re.ASCII)

MAX_INDICES = 1 << 20
"""Longer lists are a slip of the keyboard, not a cluster."""


def parse_index_list(value: Any) -> Any:
    """A list for `list(range(stop))`, `list(range(start, stop))`, `list(range(start, stop, step))` and
    `list([0, 1, 6, 7])`.

    Any other string is an error; what is no string is returned as it is, for the type to judge.

    >>> parse_index_list("list(range(0, 8, 2))")
    [0, 2, 4, 6]
    """
    if not isinstance(value, str):
        return value
    listed = _LISTED.fullmatch(value)
    if listed is not None:
        return [int(each) for each in listed[1].split(",")]
    match = _RANGE.fullmatch(value)
    if match is None:
        raise ValueError("write [0, 1, 2, 3] or list(range(0,4)); nothing else is evaluated")
    arguments = [int(group) for group in match.groups() if group is not None]
    if len(arguments) == 3 and arguments[2] == 0:
        raise ValueError("the step of range() is 0")
    indices = range(*arguments)
    if not 0 < len(indices) <= MAX_INDICES:
        raise ValueError(f"range() holds {len(indices)} numbers; 1 to {MAX_INDICES} are fine")
    return list(indices)


DeviceMapping = Annotated[
    list[NonNegativeInt] | None,
    BeforeValidator(parse_index_list),
    AfterValidator(lambda v: v and distinct(v)),
]


class StrategyArgs(Section):
    """Which plug-in does the work, and its own settings."""

    strategy_name: str
    """Entry point, or `package.module:Class`."""
    strategy_config: dict[str, Any] = Field(default_factory=dict)
    """Settings of the plug-in, which checks them."""


class TrainerStrategy(StrategyArgs):
    """Which trainer does the work, and its own settings."""

    strategy_name: str = "torch"
    """Entry point in `envsdk.trainers`, or `package.module:Class`."""


class EngineStrategy(StrategyArgs):
    """Which engine does the work, and its own settings."""

    strategy_name: str = "embedded"
    """Entry point in `envsdk.engines`, or `package.module:Class`."""


class Role(Section):
    """What the three roles share."""

    model_args: dict[str, Any] = Field(default_factory=dict)
    """Settings of the plug-in that are about the model; joined with `strategy_config`."""
    device_mapping: DeviceMapping = None
    """Accelerators of a plug-in that runs on several, as a list or as `list(range(0,4))`."""
    offload: Literal["none", "optimizer", "all"] | None = None
    """What is moved off the devices while another role has its turn there."""
    strategy_args: StrategyArgs
    """Which plug-in, and its own settings."""

    @property
    def settings(self) -> dict[str, Any]:
        """What the plug-in is given: `model_args` and `strategy_config` together."""
        return {**self.model_args, **self.strategy_args.strategy_config}


class TrainerRole(Role):
    """What the two roles of a trainer share."""

    device_mapping: DeviceMapping = None
    """One process per entry, on that accelerator where there are any, as a list or as
    `list(range(0,4))`; one process when absent."""
    strategy_args: TrainerStrategy = Field(default_factory=TrainerStrategy)
    """Which trainer, and its own settings."""

    @property
    def num_ranks(self) -> int:
        """Processes of the trainer."""
        return len(self.device_mapping) if self.device_mapping else 1


class ActorTrain(TrainerRole):
    """The policy that learns."""

    offload: Literal["none", "optimizer", "all"] | None = None
    """What goes to main memory while another role has its turn on the same devices: nothing, gradients and
    optimizer, or the weights too. When absent: `all` beside engines, else `none`."""
    data_args: DataArgs | None = None
    """Files of prompts that the domains of `rewards` take their rows from."""

    training_args: dict[str, Any] = Field(default_factory=dict)
    """Optimizer and step size: settings of the trainer, which checks them."""


class ActorInfer(Role):
    """The policy that plays."""

    strategy_args: EngineStrategy = Field(default_factory=EngineStrategy)
    """Which engine, and its own settings."""
    generating_args: GeneratingArgs = Field(default_factory=GeneratingArgs)
    """How replies are sampled."""
    offload: Literal["none", "all"] | None = None
    """Whether engines give back weights and KV cache while another role has its turn on the same devices.
    When absent: `all` beside a trainer, else `none`."""
    infer_batch_size: PositiveInt = 128
    """Requests one engine decodes together."""
    device_mapping: DeviceMapping = None
    """Accelerators, shared out evenly between `max_engines` engines in their order, as a list or as
    `list(range(0,4))`; absent, each engine chooses its own."""
    num_engines: Annotated[PositiveInt, Field(le=10_000)] = 1
    """Copies of the model that answer side by side."""
    min_engines: PositiveInt | None = None
    """Fewest of them when there is little to do; `num_engines` when absent."""
    max_engines: Annotated[PositiveInt, Field(le=10_000)] | None = None
    """Most of them when requests queue up; `num_engines` when absent."""
    max_queued_per_engine: Annotated[float, Field(gt=0, lt=16)] = 8.0
    """With more requests waiting per engine for ten seconds, one more is started, up to `max_engines`. Below
    16: no more wait at an engine whose KV cache is full."""
    engine_idle_s: PositiveFloat = 300.0
    """When for so many seconds all requests would have filled less than half of one engine fewer, one is
    drained and ended, down to `min_engines`."""
    max_engine_restarts: NonNegativeInt = 3
    """How often in a row an engine that died, broke or hung is started again. Five minutes of service
    clear the count; the run continues while one engine is left."""
    engine_timeout_s: PositiveFloat = 60.0
    """An engine that shows no sign of life for so many seconds hangs, and is replaced."""
    engine_stall_s: PositiveFloat = 300.0
    """The same for one that has requests and computes nothing."""
    slow_engine_ratio: Annotated[float, Field(ge=0)] = 10.0
    """An engine that is so many times slower than the others for two minutes, whatever its load, is drained
    and started again; 0: none is."""

    @property
    def engines_between(self) -> tuple[int, int]:
        """Fewest and most engines."""
        return self.min_engines or self.num_engines, self.max_engines or self.num_engines


class Opponent(Section):
    """A model that plays against the policy and is not trained. One engine answers for it."""

    pretrain: str | None = None
    """Folder of its model, a checkpoint or a run, on every node that plays; or a model's name. The run's
    `pretrain` when absent."""
    refresh_steps: PositiveInt | None = None
    """Training steps after which it gets the weights of the run's newest checkpoint, a multiple of
    `save_steps`: a past version of the policy. It never changes when absent."""
    strategy_args: EngineStrategy | None = None
    """Which engine, and its own settings; that of `actor_infer` when absent."""
    device_mapping: DeviceMapping = None
    """Accelerators of the engine, as a list or as `list(range(0,4))`; absent, it chooses its own."""


class Teacher(Section):
    """A model with the policy's tokenizer, which scores what the policy writes: likelier text is better."""

    pretrain: str
    """Folder of its model, a checkpoint or a run; or a model's name."""
    tags: list[Tag] | None = None
    """Tags whose episodes it scores; those that no other teacher names when absent."""
    coef: NonNegativeFloat = 1.0
    """Weight of the divergence from it."""
    strategy_args: StrategyArgs = Field(default_factory=TrainerStrategy)
    """What scores, and its own settings: a trainer, which computes prompts that sequences share once, or an
    engine that scores prompts."""
    device_mapping: DeviceMapping = None
    """Accelerators of the trainer, one process each, or that of the engine, as a list."""
    infer_batch_size: PositiveInt = 32
    """Sequences that an engine scores together."""


class Reference(TrainerRole):
    """The frozen policy that KL terms compare with; loaded only when one is asked for."""

    offload: Literal["none", "all"] | None = None
    """Whether its weights go to main memory while another role has its turn on the same devices. When absent:
    `all` beside engines, else `none`."""

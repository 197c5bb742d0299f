"""The keys of a job whose trainer and explorers are programs of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, NonNegativeInt, PositiveFloat, PositiveInt

from envsdk.base.settings.validation import NAME_PATTERN
from envsdk.config.section import Section, distinct

Mode = Literal["both", "train", "explore", "bench", "serve"]


class ExperienceBufferArgs(Section):
    """The database in which groups wait for the trainer, and how it chooses among them."""

    name: str | None = None
    """A label; `path` says which buffer it is."""
    storage_type: Literal["sql", "queue", "file"] = "sql"
    """All three are a database: what it holds outlives every program."""
    path: str | None = None
    """A database's URL, such as `postgresql://user@host/name`, or a SQLite file; when absent, `buffer.db` in
    the run's folder."""
    selection: Literal["oldest", "freshest", "priority"] = "oldest"
    """Which ready groups a batch takes first. `priority`: those used least, and of these the freshest."""
    max_uses: PositiveInt = 1
    """How many batches may hold the same group, while it is within the bound on staleness."""
    cool_down_steps: NonNegativeInt = 0
    """Steps that a group rests between two of its uses."""
    mixture: dict[str, PositiveFloat] = Field(default_factory=dict)
    """Shares of a batch, by tag or by explorer; when absent, what comes is taken. When the buffer is full
    and nobody plays what is lacking, others make it up."""
    mixture_by: Literal["tag", "explorer"] = "tag"
    """What the names of `mixture` are."""


class TrainerInput(Section):
    """What the trainer learns from."""

    experience_buffer: ExperienceBufferArgs = Field(default_factory=ExperienceBufferArgs)
    """The database between explorers and trainer."""


class BufferArgs(Section):
    """What stands between explorers and trainer (`mode: train`, `mode: explore`)."""

    trainer_input: TrainerInput = Field(default_factory=TrainerInput)
    """What the trainer learns from."""
    lease_s: PositiveFloat = 30.0
    """A program that is not heard for so long counts as dead, and what it played is played by others."""
    retry_s: PositiveFloat = 300.0
    """How long a program tries again while the database is away, before it ends with an error."""
    patience_s: PositiveFloat = 3600.0
    """How long explorers wait for a trainer that is gone, and the trainer for explorers, before they end with
    an error."""


class ExplorerArgs(Section):
    """One explorer of a job (`mode: explore`)."""

    name: Annotated[str, Field(pattern=NAME_PATTERN, max_length=100)] = "explorer"
    """Its name; no two explorers of a job have the same at a time."""
    may_differ: Annotated[list[str], AfterValidator(distinct)] = Field(default_factory=list)
    """Tags that this explorer plays with rows, prompts, rewards or limits of its own, where other programs of
    the job have a tag of the same name. Other differences end it."""


class SynchronizerArgs(Section):
    """How weights come from the trainer to the other programs."""

    sync_method: Literal["checkpoint", "memory", "nccl"] = "checkpoint"
    """`checkpoint`: through a folder that all can read. `memory`: through shared memory, on one machine.
    `nccl`: over the network, to each program that asks. Its bytes go by TCP, because trainers give their
    weights in memory of the CPU."""
    sync_interval: PositiveInt = 1
    """Steps between two publications of weights. Versions, and with them staleness, count publications."""
    sync_timeout: PositiveFloat = 1200.0
    """Seconds after which a program without the weights is named in the output, and not waited for."""
    path: Annotated[Path, Field(strict=False)] | None = None
    """Folder of the published weights (`checkpoint`); when absent, `weights` in the run's folder."""


class ServeArgs(Section):
    """The endpoint of `mode: serve`. Clients give the token in the environment variable
    `ENVSDK_ENDPOINT_TOKEN`, or the one that is made up and shown."""

    name: Annotated[str, Field(pattern=NAME_PATTERN, max_length=100)] = "policy"
    """What requests give as `model`. No two programs that serve a job have the same at a time."""
    host: str = "127.0.0.1"
    """Address to serve on. Anything but loopback sends the token and all texts unencrypted: only in a network
    you trust."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    """0 takes a free one."""
    out: Annotated[Path, Field(strict=False)] | None = None
    """Where ended sessions go as trajectories; without it nothing is kept."""

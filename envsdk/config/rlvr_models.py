"""The keys of prompts with verifiable rewards, typed. `rlvr.py` says what follows from them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, NonNegativeFloat, PositiveFloat, PositiveInt

from envsdk.config.section import GeneratingArgs, Section


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class DataArgs(Section):
    """Files of prompts (`actor_train.data_args`, `validation.data_args`)."""

    file_name: Annotated[list[str], Field(min_length=1), BeforeValidator(_as_list)]
    """JSONL, JSON or Parquet files, folders of them, or data sets by name; one or a list."""
    dataset_dir: str | None = None
    """Folder that relative names in `file_name` are looked up in, where they are not found as they stand."""
    domain_interleave_probs: dict[str, NonNegativeFloat] | None = None
    """Share of each domain among the prompts; in proportion to their rows when absent."""
    prompt: str | None = None
    """Column of the prompt, where the files' format is not recognized."""
    messages: str | None = None
    """Column of the prompt as a chat."""
    columns: dict[str, str] = Field(default_factory=dict)
    """Standard name -> column, for other fields, such as `ground_truth`."""
    shuffle: bool = True
    """Whether each epoch has an order of its own, which follows from `seed`."""
    preprocessing_num_workers: PositiveInt = 1
    """Processes that read the files once, before the run."""
    template: str | None = None
    """ROLL's name of a chat template; the model's own is used."""


class ValGeneratingArgs(GeneratingArgs):
    """How held-out prompts are answered."""

    max_new_tokens: PositiveInt | None = None  # type: ignore[assignment]
    """Longest response; `actor_infer.generating_args.max_new_tokens` when absent."""
    num_return_sequences: PositiveInt = 1
    """Responses to each prompt."""


class ValidationArgs(Section):
    """The held-out prompts, and how they are answered."""

    data_args: DataArgs
    """Their files."""
    generating_args: ValGeneratingArgs = Field(default_factory=ValGeneratingArgs)
    """How their responses are sampled."""
    mode: Literal["pause", "overlap"] = "pause"
    """Whether training generation is suspended while an evaluation runs."""


class QueryFilter(Section):
    """Which groups of a domain are worth training on (`rewards.DOMAIN.query_filter_config`)."""

    type: Literal["no_filter", "mean_filter", "std_filter"] = "no_filter"
    """`mean_filter` keeps groups whose mean score lies between two bounds, `std_filter` those whose scores
    differ."""
    filter_args: dict[str, float] = Field(default_factory=dict)
    """The bounds of the filter."""


class RewardArgs(Section):
    """How the responses of one domain are scored. Other keys are settings of the reward function."""

    model_config = ConfigDict(extra="allow")

    worker_cls: str
    """Reward function: an entry point in `envsdk.rewards`, or `package.module:Class`."""
    tag_included: list[str] = Field(default_factory=list)
    """Values of the rows' `tag` that belong to this domain; the domain's own name when empty."""
    world_size: PositiveInt = 1
    """Worker processes that score, shared out between the processes that play."""
    infer_batch_size: PositiveInt = 1
    """Responses that are scored together, by functions that are able to."""
    timeout_s: PositiveFloat | None = None
    """Deadline for scoring one response; the reward function's own when absent."""
    query_filter_config: QueryFilter = Field(default_factory=QueryFilter)
    """Which groups are trained on."""

    @property
    def settings(self) -> dict[str, Any]:
        """What the reward function itself is given."""
        return dict(self.model_extra or {})

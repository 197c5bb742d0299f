"""The keys of environments, typed: tags, and the managers that play them."""

from __future__ import annotations

import math
from collections import Counter
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from envsdk.config.section import Count, Names, OwnGeneratingArgs, Section, interleave, split_evenly
from envsdk.contracts import run_limits
from envsdk.contracts.players import POLICY, player_names


def _checked_players(given: Any) -> Any:
    names = [*given, *given.values()] if isinstance(given, dict) else given
    if given is not None and not (isinstance(names, list) and all(isinstance(each, str) for each in names)):
        raise ValueError("must be a list of players, or a mapping from roles to players")
    return given


class StructuredOutput(Section):
    """What the text of a reply must be; exactly one of these. The engine samples nothing else."""

    regex: str | None = None
    """Regular expression that the text matches from start to end; without look-around and back references."""
    json_schema: dict[str, Any] | None = None
    """The text is JSON that this schema allows."""
    choices: Annotated[list[str], Field(min_length=1)] | None = None
    """The text is one of these."""

    @model_validator(mode="after")
    def _is_of_one_kind(self) -> Self:
        given = [name for name in type(self).model_fields if getattr(self, name) is not None]
        if len(given) != 1:
            names = " and ".join(given) or "none of them"
            raise ValueError(f"takes one of regex, json_schema and choices, but {names} is given")
        return self


class EnvManagerArgs(Section):
    """How many environments play, and on what (`train_env_manager`, `val_env_manager`)."""

    num_env_groups: Count
    """Groups that run at the same time."""
    group_size: Count = 1
    """Episodes of the same task; advantages are relative to their group."""
    tags: Names
    """Names from `custom_envs`."""
    num_groups_partition: list[PositiveInt] | None = None
    """Groups per tag, in the order of `tags`; an equal split when absent."""
    max_env_num_per_worker: Count | None = None
    """Environments hosted by one worker process; when absent an eighth of all, at least 64, at most 1024."""
    min_workers: PositiveInt | None = None
    """Fewest worker processes when there is little to play. With this or `max_workers`, each hosts exactly
    `max_env_num_per_worker` environments, so that their number follows that of the workers."""
    max_workers: PositiveInt | None = None
    """Most of them when episodes wait for an environment and the trainer for episodes."""
    worker_idle_s: PositiveFloat = 300.0
    """When for so many seconds no episode waited and one worker fewer would have had a fifth of its
    environments to spare, one finishes its episodes and ends, down to `min_workers`."""
    max_node_cpu: Annotated[float, Field(gt=0, le=1)] = 0.9
    """With more than this share of its CPU in use, a node gets no further worker; 1: CPU is not looked at."""
    group_size_redundancy: NonNegativeInt = 0
    """Spare members per group: the first `group_size` finished count, the rest are cancelled."""
    num_groups_redundancy: NonNegativeInt = 0
    """Spare groups per batch: the first complete ones count, the rest are cancelled."""
    min_group_size: PositiveInt | None = None
    """A group left with fewer by failures is run again; when absent, half of `group_size`, rounded up, and at
    least 2 where there are 2."""
    max_group_attempts: PositiveInt = 8
    """Tries of one member (after staleness, failures, lost workers) before it counts as failed, or its group
    is given up."""
    episode_deadline_s: PositiveFloat = 600.0
    """An episode that takes longer is ended and recorded as failed."""
    turn_timeout_s: PositiveFloat = 120.0
    """How long one reply of the policy is waited for."""
    env_manager_cls: str = "TrajEnvManager"
    """Entry point in `envsdk.env_managers`, or `package.module:Class`."""

    @property
    def num_envs_per_group(self) -> int:
        """Slots of one group, its spares included."""
        return self.group_size + self.group_size_redundancy

    @property
    def envs_per_worker(self) -> int:
        """`max_env_num_per_worker`, or what stands for it when it is absent."""
        return self.max_env_num_per_worker or run_limits.envs_per_worker(self._num_envs_of_groups)

    @property
    def num_envs(self) -> int:
        """Environment slots that the run begins with."""
        if self.has_worker_range:
            return self.num_workers * self.envs_per_worker
        return self._num_envs_of_groups

    @property
    def max_envs(self) -> int:
        """Environment slots of the most workers."""
        if self.has_worker_range:
            return self.workers_between[1] * self.envs_per_worker
        return self.num_envs

    @property
    def has_worker_range(self) -> bool:
        """Whether the file says between which numbers the workers are."""
        return self.min_workers is not None or self.max_workers is not None

    @property
    def num_workers(self) -> int:
        """Worker processes that the run begins with: as many as the groups need, within `workers_between`."""
        fewest, most = self.workers_between
        return min(max(self._workers_for_groups, fewest), most)

    @property
    def workers_between(self) -> tuple[int, int]:
        """Fewest and most worker processes."""
        needed = self._workers_for_groups
        fewest = self.min_workers or min(needed, self.max_workers or needed)
        return fewest, self.max_workers or max(needed, fewest)

    @property
    def _workers_for_groups(self) -> int:
        return math.ceil(self._num_envs_of_groups / self.envs_per_worker)

    @property
    def _num_envs_of_groups(self) -> int:
        return self.num_env_groups * self.num_envs_per_group

    @property
    def required_group_size(self) -> int:
        """`min_group_size`, or what stands for it when it is absent."""
        return run_limits.required_group_size(self.group_size, self.min_group_size)

    @property
    def groups_per_tag(self) -> dict[str, int]:
        """Groups that run at the same time, by tag."""
        partition = self.num_groups_partition or split_evenly(self.num_env_groups, [1] * len(self.tags))
        return dict(zip(self.tags, partition, strict=True))

    @property
    def envs_per_tag(self) -> dict[str, int]:
        """Environment slots that the run begins with, by tag."""
        if self.has_worker_range:
            return dict(Counter(interleave(self.groups_per_tag, self.num_envs)))
        return {tag: groups * self.num_envs_per_group for tag, groups in self.groups_per_tag.items()}


class ValEnvManagerArgs(EnvManagerArgs):
    """How many environments evaluations play, on what, and how replies are sampled there."""

    generating_args: OwnGeneratingArgs | None = None
    """How replies of evaluations are sampled; as in training when absent."""


COMPACT_PROMPT = (
    "The conversation is about to be cut. Write down what you must remember of it to continue: the goal, "
    "what you did, what you found, and what to do next."
)


class TurnCurriculumArgs(Section):
    """A limit on the turns of training episodes that grows (`custom_envs.TAG.turn_curriculum`)."""

    start: PositiveInt
    """Turns at first."""
    add: PositiveInt
    """How many more, each time."""
    every: PositiveInt
    """Batches' worth of started groups, of all tags, between two times."""


class CustomEnv(Section):
    """One tag: an environment with its configuration, prompts and limits."""

    env_type: str
    """Registered environment id; `envsdk envs` lists them."""
    env_config: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the environment's constructor."""
    demonstration_config: dict[str, Any] = Field(default_factory=dict)
    """Those that differ in the demonstrations of `warm_start`."""
    demonstration_weight: PositiveInt = 1
    """How many demonstrations there are of each of its groups, compared with other tags."""
    max_steps: PositiveInt | None = None
    """Turns before the episode is truncated; the environment's own limit when absent."""
    turn_curriculum: TurnCurriculumArgs | None = None
    """Training episodes are truncated earlier at first, by a limit that grows up to `max_steps`; none when
    absent."""
    max_tokens_per_step: PositiveInt | None = None
    """Longest reply; `actor_infer.generating_args.max_new_tokens` when absent."""
    agent_system_template: str = ""
    """System prompt, shown as it is; the environment's own when absent, none when empty."""
    agent_template: str = "{observation}"
    """User message of each turn: `{observation}`, `{turn_idx}`, `{actions_left}`, `{max_response_length}`."""
    players: Annotated[list[str] | dict[str, str] | None, BeforeValidator(_checked_players)] = None
    """Who plays the roles of an environment of several players: a list, which moves on by one role from task
    to task, or a mapping by role. `policy` is trained; others are `random`, `oracle`, another policy by name,
    or one of `opponents`. The policy plays all roles when absent."""
    context: Literal["append", "window", "step", "compact"] = "append"
    """What a prompt shows: all turns, the last `context_window` ones, this one alone, or the turns since the
    last summary. All but `append` make several segments of an episode."""
    context_window: PositiveInt | None = None
    """How many turns, this one included, with `context: window`."""
    compact_at: PositiveInt | None = None
    """With `context: compact`: tokens of a segment from which on the policy is asked for a summary, which
    begins the next segment."""
    compact_prompt: str = COMPACT_PROMPT
    """User message that asks for it."""
    max_episode_tokens: PositiveInt | None = None
    """Tokens of all segments of an episode, each counted once, from which on no turn begins: the episode is
    truncated. No limit when absent; `sequence_length` bounds each segment."""
    structured_output: StructuredOutput | None = None
    """What the text of each reply must be, where the engine is able to (`embedded`, `vllm`)."""
    isolation: Literal["inline", "thread", "async", "process"] | None = None
    """Where `reset` and `step` run; as the environment asks when absent."""
    start_timeout_s: PositiveFloat | None = None
    """Deadline for importing and constructing the environment; the environment's own when absent."""
    reset_timeout_s: PositiveFloat | None = None
    """Deadline of `reset`, once the environment is there; the environment's own when absent."""
    step_timeout_s: PositiveFloat | None = None
    """Deadline of one `step`; the environment's own when absent."""
    env_manager_cls: str | None = None
    """Overrides the manager's `env_manager_cls` for this tag."""

    @model_validator(mode="after")
    def _goes_with_its_context(self) -> Self:
        if self.players is not None and self.context == "compact":
            raise ValueError("context: compact takes no players, since a summary is nobody's turn")
        for key, kind in (("context_window", "window"), ("compact_at", "compact")):
            is_given = getattr(self, key) is not None
            if is_given and self.context != kind:
                raise ValueError(f"{key} has no effect with context={self.context}; set context: {kind}")
            if not is_given and self.context == kind:
                raise ValueError(f"context: {kind} needs {key}")
        return self

    @model_validator(mode="after")
    def _players_include_the_policy(self) -> Self:
        if self.players is not None and POLICY not in self.player_names:
            raise ValueError(f"players: none of them is {POLICY}, the player that is trained; name it")
        return self

    @property
    def demonstrated(self) -> Self:
        """The tag as demonstrations of the warm start play it."""
        config = {**self.env_config, **self.demonstration_config}
        limit = self.demonstration_config.get("max_steps", self.max_steps)
        return self.model_copy(update={"env_config": config, "max_steps": limit})

    @property
    def player_names(self) -> list[str]:
        """The names in `players`, each once."""
        return player_names(self.players or ())

    @property
    def shown_turns(self) -> int:
        """How many turns a prompt shows; 0: all."""
        return 1 if self.context == "step" else self.context_window or 0

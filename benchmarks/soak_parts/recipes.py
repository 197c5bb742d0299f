"""What the jobs of a soak do: small runs of every kind, as run files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.soak_parts.plan import ENVIRONMENT, EXPLORER, SANDBOX, Fault

MAIN = "run"
"""The program whose end is the job's."""
ENV_IDS = ("soak/Lake-v1", "soak/SWE-v1")

_HEAD = """
exp_name: {name}
output_dir: {runs}
seed: {seed}
async_generation_ratio: {alpha}
max_staleness: {bound}
max_steps: {steps}
save_steps: 4
pretrain: embedded_default
"""

_LAKES = """
eval_steps: 10
rollout_batch_size: 16
val_batch_size: {val}
sequence_length: 256
entropy_loss_coef: 0.01
warm_start: {{num_episodes: 50}}
custom_envs:
  Apart:
    env_type: soak/Lake-v1
    isolation: process
    step_timeout_s: 2
    env_config: {{size: 3, legend: false, invalid_penalty: 0.1}}
    max_steps: 3
    agent_system_template: Go.
  Inside:
    env_type: soak/Lake-v1
    isolation: inline
    step_timeout_s: 2
    env_config: {{size: 3, legend: false, invalid_penalty: 0.1}}
    max_steps: 3
    agent_system_template: Go.
train_env_manager:
  tags: [Apart, Inside]
  num_env_groups: 4
  group_size: 4
  max_env_num_per_worker: 8
  turn_timeout_s: 30
  episode_deadline_s: 60
val_env_manager: {{tags: [Inside], num_env_groups: 4, turn_timeout_s: 30, episode_deadline_s: 60}}
"""

_PROMPTS = """
eval_steps: 10
rollout_batch_size: 4
num_return_sequences_in_group: 4
prompt_length: 64
response_length: 8
warm_start:
  num_episodes: 200
  epsilon: 0.5
  pieces: [' ?\\\\boxed\\{{', '\\}}']
rewards:
  sums: {{worker_cls: "soak_env:SoakSums", tag_included: [sums], timeout_s: 2}}
  comparisons: {{worker_cls: "soak_env:SoakComparisons", tag_included: [comparisons], timeout_s: 2}}
validation: {{data_args: {{file_name: generated:arithmetic_val}}}}
val_batch_size: 8
"""

_REPOSITORIES = """
eval_steps: 1000
rollout_batch_size: 8
val_batch_size: 0
sequence_length: 512
warm_start:
  num_episodes: 8
  epochs: 1
  pieces: ['^(?:diff --git|[-+@ ]).*\\n', '^echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT.*']
custom_envs:
  SWE:
    env_type: soak/SWE-v1
    step_timeout_s: 20
    env_config: {{split: train, instructions: false, shown_output: 400, command_timeout_s: 10, max_steps: 2}}
    max_tokens_per_step: 24
    agent_system_template: Repair the repository.
train_env_manager:
  tags: [SWE]
  num_env_groups: 4
  group_size: 2
  max_env_num_per_worker: 4
  turn_timeout_s: 30
  episode_deadline_s: 60
"""

_ENGINES = """
actor_train: {{training_args: {{learning_rate: 1.0e-3}}{data}}}
actor_infer:
  num_engines: 2
  engine_timeout_s: 8
  max_engine_restarts: 100
  generating_args: {{max_new_tokens: {tokens}}}
"""


@dataclass(frozen=True)
class Recipe:
    """One kind of job: a run file, and the programs that work on it."""

    text: str
    tokens: int = 3
    data: str = ""
    explorers: Sequence[str] = ()
    """Names of programs beside the trainer; without any, one program does all."""
    common: Sequence[str] = ()
    """Overrides of every program."""
    absent: frozenset[str] = frozenset({SANDBOX, EXPLORER})
    """Targets that such a job does not have."""

    def file(self, settings: Mapping[str, object]) -> str:
        """The run file."""
        return (_HEAD + self.text + _ENGINES).format(tokens=self.tokens, data=self.data, **settings)

    def programs(self) -> dict[str, list[str]]:
        """Overrides by the program's name; the first is the one whose end is the job's."""
        if not self.explorers:
            return {MAIN: list(self.common)}
        explorers = {name: ["mode=explore", f"explorer.name={name}", *self.common] for name in self.explorers}
        return {MAIN: ["mode=train", *self.common], **explorers}

    def may_have(self, fault: Fault) -> bool:
        """Whether this fault can happen to such a job."""
        return fault.target not in self.absent


RECIPES = {
    "agentic": Recipe(_LAKES),
    "rlvr": Recipe(
        _PROMPTS,
        tokens=8,
        data=", data_args: {file_name: generated:arithmetic_train}",
        absent=frozenset({SANDBOX, EXPLORER, ENVIRONMENT}),
    ),
    "swe": Recipe(_REPOSITORIES, tokens=24, absent=frozenset({ENVIRONMENT, EXPLORER})),
    "explorers": Recipe(
        _LAKES, explorers=("first", "second"), common=("buffer.lease_s=8",), absent=frozenset({SANDBOX})
    ),
}

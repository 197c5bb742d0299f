"""Files of projects that are not translated: recognized, and answered with where their names stand."""

from __future__ import annotations

import re
from collections.abc import Mapping

OTHERS: Mapping[str, tuple[str, str]] = {
    "verl": (
        r"actor_rollout_ref:| *_target_: verl\.| *- (pkg://verl\b|ppo_\w*trainer\b|\w+@actor_rollout_ref)",
        r"verl\.(trainer|experimental|recipe)|\bactor_rollout_ref\.",
    ),
    "OpenRLHF": (
        r"(actor_num_nodes|vllm_num_engines|n_samples_per_prompt|prompt_data):"
        r"|data:\n(?: .*\n)*? +prompt_dataset:",
        r"\bopenrlhf\.",
    ),
    "NeMo RL": (
        r"defaults: *[\"']?[./\w-]+\.yaml|policy:.*^(grpo|sft|dpo|ppo|rm|distillation|loss_fn|checkpointing):"
        r"|(grpo|sft|dpo|ppo|rm|distillation|loss_fn|checkpointing):.*^policy:",
        r"\bnemo_rl\b|\bexamples/run_(grpo|sft|dpo|ppo|rm|distillation)\w*\.py",
    ),
    "SkyRL": (r"(agent_cls|trainer):.*^generator:|generator:.*^trainer:", r"\bskyrl(_train)?\."),
    "AReaL": (r"experiment_name:.*^trial_name:|trial_name:.*^experiment_name:", r"\bareal\b"),
    "slime": (r"(hf_checkpoint|num_rollout|rollout_num_gpus):", r"\bslime\b|--actor-num-gpus-per-node"),
    "TRL": (
        r"(dataset_name|num_generations|max_completion_length|reward_funcs):|model_name_or_path:(?!.*^stage:)",
        r"\btrl (grpo|sft|dpo|rloo)\b|^\s*(from|import) trl\b",
    ),
    "Accelerate": (r"(compute_environment|distributed_type):", r"\baccelerate launch\b"),
}
"""Project -> how a line of its files begins that ours, ROLL's and Trinity's do not have, and what its scripts
call."""
_OURS = r"(custom_envs|train_env_manager|rewards|actor_train|actor_infer|extends):"
_SCRIPTS = (".sh", ".bash", ".slurm", ".py", ".toml", ".ipynb")


def said_of_other_project(suffix: str, text: str) -> str | None:
    """What is said of a file of another project, or of a script; None where it may be one of ours."""
    is_script = suffix in _SCRIPTS
    if not is_script and re.search(rf"^{_OURS}", text, re.M):
        return None
    for name, (line, call) in OTHERS.items():
        if re.search(call if is_script else f"^({line})", text, re.M if is_script else re.M | re.S):
            what = "script" if is_script else "file"
            return (
                f"is a {what} for {name}. Its settings have other names here, which docs/coming-from.md "
                "lists; start from a shipped example, such as rlvr_async.yaml or agentic_async.yaml"
            )
    return "is a script: give the YAML file that it names" if is_script else None

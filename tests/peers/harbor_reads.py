"""What Harbor makes of the task folders on standard input, as lines of JSON: run by a Python that has it."""

import json
import sys
import warnings
from pathlib import Path

from harbor.models.task.artifacts import normalize_artifact_entries
from harbor.models.task.task import Task
from harbor.models.task.verifier_mode import (
    resolve_step_verifier_mode,
    resolve_task_verifier_mode,
    resolve_verifier_environment_definition,
)
from harbor.models.trial.config import AgentConfig, EnvironmentConfig, VerifierConfig
from harbor.trial.network_policy import resolve_trial_network_plan

warnings.simplefilter("ignore")


def stage(task: Task, step) -> dict:
    config, paths = task.config, task.paths
    agent, verifier = (step.agent, step.verifier) if step else (config.agent, config.verifier)
    mode = resolve_step_verifier_mode(config, step) if step else resolve_task_verifier_mode(config)
    definition = resolve_verifier_environment_definition(config, paths, step)
    plan = resolve_trial_network_plan(
        config, AgentConfig(), EnvironmentConfig(), VerifierConfig(), step, verifier_mode=mode
    )
    timeout = agent.timeout_sec if agent.timeout_sec is not None else config.agent.timeout_sec
    folders = [paths.tests_dir, *([paths.step_tests_dir(step.name)] if step else [])]
    artifacts = normalize_artifact_entries([*config.artifacts, *(step.artifacts if step else [])])
    solution = paths.discovered_step_solve_path_for(step.name, config.environment.os) if step else None
    solution = solution or paths.discovered_solve_path_for(config.environment.os)
    return {
        "name": step.name if step else "",
        "instruction": (task.step_instruction(step.name) if step else task.instruction).strip("\n"),
        "timeout_s": timeout,
        "user": agent.user if agent.user is not None else config.agent.user,
        "agent_network": plan.agent_phase.network_mode.value,
        "verifier_network": plan.verifier_phase.network_mode.value,
        "mode": mode.value,
        "verifier_timeout_s": verifier.timeout_sec,
        "verifier_env": {**config.verifier.env, **verifier.env},
        "verifier_user": verifier.user if verifier.user is not None else config.verifier.user,
        "verifier_image": definition and definition.config.docker_image,
        "verifier_context": str(definition.directory)
        if definition and not definition.config.docker_image
        else None,
        "verifier_os": definition and definition.config.os.value,
        "verifier_memory_mb": definition and definition.config.memory_mb,
        "bundled": bool(definition and definition.bundled_tests),
        "tests": [str(each) for each in folders if each.is_dir()],
        "artifacts": [[each.source, each.exclude, each.service] for each in artifacts],
        "collect": [
            [each.command, each.service, each.timeout_sec, each.user]
            for each in [*config.verifier.collect, *(verifier.collect if step else [])]
        ],
        "gates": {}
        if not step or step.min_reward is None
        else step.min_reward
        if isinstance(step.min_reward, dict)
        else {"reward": step.min_reward},
        "solution": solution and str(solution.parent),
        "healthcheck": step.healthcheck and step.healthcheck.model_dump() if step else None,
    }


for line in sys.stdin:
    folder = Path(line.rstrip("\n"))
    try:
        task = Task(folder)
        env = task.config.environment
        said = {
            "name": task.name,
            "schema": task.config.schema_version,
            "strategy": task.config.multi_step_reward_strategy
            and task.config.multi_step_reward_strategy.value,
            "stages": [stage(task, step) for step in task.config.steps or [None]],
            "environment": {
                key: getattr(env, key)
                for key in (
                    "docker_image",
                    "cpus",
                    "memory_mb",
                    "storage_mb",
                    "gpus",
                    "gpu_types",
                    "env",
                    "skills_dir",
                    "workdir",
                    "build_timeout_sec",
                )
            }
            | {
                "os": env.os.value,
                "healthcheck": env.healthcheck and env.healthcheck.model_dump(),
            },
            "solution_env": task.config.solution.env,
            "metadata": json.loads(json.dumps(task.config.metadata, default=str)),
        }
    except Exception as error:  # noqa: BLE001 (whatever it refuses by)
        said = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(said), flush=True)

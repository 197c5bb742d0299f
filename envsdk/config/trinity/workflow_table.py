"""The table of Trinity's workflows and reward functions, and what becomes of each. Pure data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What plays a task."""

    PROMPTS = "rewards, agent_system_template"
    """A prompt and its response, which a reward scores."""
    ENVIRONMENT = "custom_envs, train_env_manager"
    """An environment of ours."""
    TOOLS = "custom_envs: envsdk/ToolUse-v1 over envsdk/Prompts-v1, train_env_manager"
    """A prompt with tools to call before the response."""
    REFUSED = ""


@dataclass(frozen=True, slots=True)
class Workflow:
    """One workflow."""

    kind: Kind
    says: str
    """What it becomes and what differs; of one that is refused, what is missing and what to do."""
    args: tuple[str, ...] = ()
    """`workflow_args` that are translated."""


_FORM = "asks for the form <think>, <answer> in other words than Trinity's"
_LAKES = (
    "one tag for each size of the rows (2 to 5 where they are not here), with the rows' mean p; lakes are "
    "drawn from envsdk's seeds, and a move stands in <answer> rather than in ```"
)
_HOUSES = (
    "envsdk/ALFWorld-v1: the official games where the rows or ALFWORLD_DATA say where they are, else "
    "generated ones; a failure is worth 0 rather than -0.1; an episode is one sequence"
)
_REACT = (
    "up to {} replies, each a call of execute_python_code (in a sandbox) or the answer; math of the boxed "
    "answer; an episode is one sequence; each task's row is drawn from a seed"
)
_RULER = (
    "the judge scores each response alone, from 0 to 10, where Trinity's ranks those of a group in one "
    "request"
)
_DISTILLS = (
    "distillation is not there: train on the teacher's responses with `envsdk collect` and `envsdk sft`"
)
_AGENT = (
    "runs an agent of your own: let it ask the policy over OpenAI's protocol (docs/agent-of-your-own.md), or "
    "write it as an environment (docs/writing-an-environment.md)"
)
_NO_ENV = (
    "{} has no counterpart here: wrap it as an environment (docs/writing-an-environment.md), and start from "
    "agentic_async.yaml"
)

WORKFLOWS: Mapping[str, Workflow] = {
    "simple_workflow": Workflow(Kind.PROMPTS, "math and the form think, answer"),
    "math_workflow": Workflow(Kind.PROMPTS, f"math and 0.1 more or less for the form think, answer; {_FORM}"),
    "math_boxed_workflow": Workflow(
        Kind.PROMPTS, "math of the boxed answer", ("use_base", "with_think", "format_score_coef")
    ),
    "BOTSMathBoxedWorkflow": Workflow(
        Kind.PROMPTS, "math of the boxed answer", ("use_base", "with_think", "format_score_coef")
    ),
    "math_eval_workflow": Workflow(Kind.PROMPTS, "as math_workflow: one reward for training and evaluation"),
    "math_rm_workflow": Workflow(
        Kind.PROMPTS, f"with math_verify_reward of rm_gallery_reward: math; otherwise a judge; {_FORM}"
    ),
    "tool_call_workflow": Workflow(
        Kind.PROMPTS,
        "the reward tool_calls, after one <think>; the model's own template describes the row's tools",
    ),
    "rubric_judge_workflow": Workflow(
        Kind.PROMPTS,
        "a judge that rates by the row's rubric; a reply of it without a rating masks the episode",
    ),
    "rubric_judge_openai_workflow": Workflow(
        Kind.PROMPTS,
        "a judge that rates by the row's rubric, at the address in the variable that the file names",
        ("judge_model_name", "judge_api_base_url_env", "judge_api_key_env"),
    ),
    "math_ruler_workflow": Workflow(Kind.PROMPTS, f"{_RULER}; {_FORM}"),
    "frozen_lake_workflow": Workflow(
        Kind.ENVIRONMENT, _LAKES, ("env_max_steps", "agent_max_steps", "is_slippery", "desc")
    ),
    "FrozenLakeWorkflow": Workflow(
        Kind.ENVIRONMENT, _LAKES, ("env_max_steps", "agent_max_steps", "is_slippery", "desc")
    ),
    "alfworld_workflow": Workflow(Kind.ENVIRONMENT, _HOUSES, ("max_env_steps",)),
    "step_wise_alfworld_workflow": Workflow(Kind.ENVIRONMENT, _HOUSES, ("max_env_steps",)),
    "webshop_workflow": Workflow(
        Kind.ENVIRONMENT,
        "envsdk/WebShop-v1 with human goals and 15 replies; a generated catalogue unless env_config.data_dir "
        "names a store; training plays the goals of upstream's split; to buy nothing is worth 0 rather than "
        "-0.1",
    ),
    "agentscope_react_workflow": Workflow(Kind.TOOLS, _REACT.format(10), ("type",)),
    "agentscope_react_math_workflow": Workflow(Kind.TOOLS, _REACT.format(10)),
    "agentscopev0_react_math_workflow": Workflow(Kind.TOOLS, _REACT.format(5)),
    "agentscope_v1_react_search_workflow": Workflow(
        Kind.TOOLS,
        "replies that call the tools of Trinity's MCP server for search, started by npx; a judge says "
        "whether the answer matches; a conversation longer than sequence_length is cut off and not left out",
        ("max_turns", "search_client_type", "max_model_tokens"),
    ),
    "math_trainable_ruler_workflow": Workflow(
        Kind.REFUSED,
        "trains the policy as a judge of its own responses, too, which is not there: take "
        "math_ruler_workflow, with rewards.*.base_url=run for the policy as a judge that is not trained",
    ),
    "bots_ref_eval_collect_math_boxed_workflow": Workflow(
        Kind.REFUSED,
        "collects how often each task is solved and trains nothing: `envsdk evaluate` with "
        "--samples-per-task",
    ),
    "agentscope_workflow_adapter": Workflow(Kind.REFUSED, _AGENT),
    "agentscope_workflow_adapter_v1": Workflow(Kind.REFUSED, _AGENT),
    "email_search_workflow": Workflow(
        Kind.REFUSED,
        "searches a mailbox by tools: give them as functions or an MCP server to envsdk/ToolUse-v1 over "
        "envsdk/Prompts-v1, with the reward `judge` (docs/tools.md)",
    ),
    "RAFT_alfworld_workflow": Workflow(Kind.REFUSED, "take alfworld_workflow with algorithm_type: grpo"),
    "RAFT_reflect_alfworld_workflow": Workflow(
        Kind.REFUSED, "take alfworld_workflow with algorithm_type: grpo"
    ),
    "sciworld_workflow": Workflow(Kind.REFUSED, _NO_ENV.format("ScienceWorld")),
    "sudoku_workflow": Workflow(Kind.REFUSED, _NO_ENV.format("Sudoku of several turns")),
    "intercode_sql_workflow": Workflow(Kind.REFUSED, _NO_ENV.format("InterCode")),
    "Learn2AskWorkflow": Workflow(Kind.REFUSED, f"is code of its example: {_AGENT}"),
    "on_policy_distill_workflow": Workflow(Kind.REFUSED, _DISTILLS),
    "on_policy_distill_math_workflow": Workflow(Kind.REFUSED, _DISTILLS),
}
"""A dotted name stands for its last part, and `async_NAME` for NAME."""
OLD_NAMES: Mapping[str, str] = {
    "toolcall_workflow": "tool_call_workflow",
    "as_react_workflow": "agentscope_react_workflow",
    "agentscope_v1_react_math_workflow": "agentscope_react_math_workflow",
    "BOTSRefEvalCollectMathBoxedWorkflow": "bots_ref_eval_collect_math_boxed_workflow",
}

REWARDS: Mapping[str, str] = {
    "math_reward": "math and 0.1 more or less for the form think, answer",
    "math_boxed_reward": "math of the boxed answer",
    "math_dapo_reward": "math, 1 or -1; the penalty on long responses counts 4 characters for a token",
    "accuracy_reward": "math",
    "format_reward": "format, 0.1 or -0.1",
    "rm_gallery_reward": "math, for math_verify_reward",
    "countdown_reward": "countdown",
}
"""Reward function -> the reward here."""


def workflow_named(name: str) -> Workflow:
    """What becomes of a workflow; one that the table does not have is refused."""
    kind = plain_name(name)
    if kind in WORKFLOWS:
        return WORKFLOWS[kind]
    known = [each for each, workflow in WORKFLOWS.items() if workflow.kind is not Kind.REFUSED]
    return Workflow(Kind.REFUSED, f"is not there; there are {', '.join(known)}. Code of your own {_AGENT}")


def plain_name(name: str) -> str:
    """The name that the table has."""
    last = name.rpartition(".")[2].removeprefix("async_")
    return OLD_NAMES.get(last, last)

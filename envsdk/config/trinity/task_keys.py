"""Rows of the table for task sets (`buffer.explorer_input`) and the sizes of a step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from envsdk.config.foreign.row import Convert, Row, converted, no_effect, refused
from envsdk.config.trinity import tasks as t
from envsdk.config.trinity import workflows as w
from envsdk.config.trinity.workflow_table import REWARDS, WORKFLOWS, Kind, plain_name

FOLLOWS = "follows from other keys"

_INPUT = "buffer.explorer_input"
_SECTIONS = (_INPUT, f"{_INPUT}.taskset", f"{_INPUT}.tasksets.*")
_SAMPLING = "actor_infer.generating_args"
_CHAT = "chats are rendered by the model's own template"
_STEPS = "from the number of rows, where neither buffer nor trainer has total_steps"
_READING = "rows are read from their files one at a time"


def _tasks(name: str, to: str, convert: Convert, reason: str = "") -> list[Row]:
    """A key of the task set, alone or the only one of a list."""
    return [
        converted(f"{_INPUT}.taskset.{name}", to, convert, reason),
        converted(f"{_INPUT}.tasksets.*.{name}", to, convert, reason),
    ]


def _no_tasks(names: str, reason: str, **more: Any) -> Iterator[Row]:
    for name in names.split():
        for section in ("taskset", "tasksets.*", "eval_tasksets.*"):
            yield from no_effect(f"{_INPUT}.{section}.{name}", reason, **more)


def _named(name: str) -> dict[str, Any]:
    return {"applies": lambda v, p: isinstance(v, str) and plain_name(v) == name, "condition": name}


def _workflows() -> Iterator[Row]:
    """Each workflow with what becomes of it; `kinds.py` says of a refused one alone what is missing."""
    for name, workflow in WORKFLOWS.items():
        for section in _SECTIONS:
            key = f"{section}.default_workflow_type"
            if workflow.kind is Kind.REFUSED:
                yield refused(key, workflow.says, **_named(name))
            else:
                yield converted(key, workflow.kind, w.task_set, workflow.says, **_named(name))


TASK_ROWS: tuple[Row, ...] = (
    converted(
        "buffer.batch_size", "rollout_batch_size", t.rollout_batch_size, "train_batch_size goes before"
    ),
    converted(
        "buffer.train_batch_size",
        "rollout_batch_size",
        t.rollout_batch_size,
        "experiences / repeat_times: prompts of a step",
    ),
    converted("buffer.total_steps", "max_steps", t.max_steps, "", applies=lambda v, p: v is not None),
    *no_effect("buffer.total_steps", "says nothing"),
    converted("buffer.total_epochs", "max_steps", t.max_steps, _STEPS),
    *_tasks(
        "path",
        "actor_train.data_args.file_name, rewards, custom_envs.*",
        w.task_set,
        "of a folder: the files of the split",
    ),
    *_tasks("name", "rewards.*, custom_envs.*", w.task_set),
    *_tasks("format.prompt_key", "actor_train.data_args.prompt", t.columns),
    *_tasks("format.response_key", "actor_train.data_args.columns.ground_truth", t.columns),
    *_tasks("format.system_prompt", "custom_envs.*.agent_system_template", w.task_set),
    *_workflows(),
    *[
        converted(f"{section}.default_reward_fn_type", f"rewards: {here}", w.task_set, "", **_named(name))
        for name, here in REWARDS.items()
        for section in _SECTIONS
    ],
    *_tasks("workflow_args", "rewards", w.task_set),
    *_tasks("reward_fn_args", "rewards", w.task_set),
    *[
        converted(f"{section}.default_{name}", "rewards", w.task_set)
        for name in ("workflow_type", "reward_fn_type")
        for section in _SECTIONS
    ],
    *[
        row
        for name in ("temperature", "top_p", "top_k", "max_tokens")
        for row in _tasks(f"rollout_args.{name}", _SAMPLING, t.sampling)
    ],
    *_tasks("data_selector.selector_type", "actor_train.data_args.shuffle", t.shuffle),
    *_tasks("task_selector.selector_type", "actor_train.data_args.shuffle", t.shuffle),
    *_no_tasks(
        "data_selector.seed data_selector.feature_keys data_selector.kwargs task_selector.seed "
        "task_selector.feature_keys task_selector.kwargs",
        "the order follows from seed",
    ),
    converted(
        f"{_INPUT}.eval_tasksets.*.path",
        "validation.data_args",
        w.eval_set,
        "several sets are played as one; of a folder: the files of the split",
    ),
    converted(f"{_INPUT}.eval_tasksets.*.format", "validation.data_args, agent_system_template", w.eval_set),
    *[
        converted(f"{_INPUT}.eval_tasksets.*.{name}", "validation.generating_args", w.eval_set)
        for name in ("rollout_args", "repeat_times")
    ],
    *[
        converted(f"{_INPUT}.eval_tasksets.*.{name}", "", w.eval_workflow, "as in training")
        for name in ("default_workflow_type", "default_reward_fn_type", "workflow_args", "reward_fn_args")
    ],
    converted(f"{_INPUT}.default_eval_workflow_type", "", w.eval_workflow, "as in training"),
    *_no_tasks(
        "storage_type",
        "prompts are read from files",
        applies=lambda v, p: v in ("file", "queue"),
        condition="file",
    ),
    *[
        refused(
            f"{_INPUT}.{section}.storage_type", "only file is there: export the table to JSONL or Parquet"
        )
        for section in ("taskset", "tasksets.*", "eval_tasksets.*")
    ],
    *_no_tasks("split subset_name", "is part of path's conversion"),
    *_no_tasks("rollout_args.logprobs", "they are always recorded"),
    *_no_tasks("rollout_args.n", "follows from algorithm.repeat_times"),
    *no_effect(f"{_INPUT}.eval_tasksets.*.name", "held-out prompts are named after the task set"),
    *no_effect(f"{_INPUT}.eval_tasksets", "no file is named", applies=lambda v, p: not v, condition="empty"),
    *no_effect(f"{_INPUT}.tasksets", "no file is named", applies=lambda v, p: not v, condition="empty"),
    *no_effect(
        f"{_INPUT}.taskset.repeat_times {_INPUT}.tasksets.*.repeat_times", "is algorithm.repeat_times"
    ),
    *_no_tasks(
        "format.prompt_type format.messages_key format.tools_key format.chat_template format.enable_thinking "
        "format.chosen_key format.rejected_key format.enable_concatenated_multi_turn",
        _CHAT,
    ),
    *[
        row
        for name, reason in (
            ("system_prompt_key", "is not there: put a system message into the rows' `messages`"),
            ("reply_prefix", "is not there: a reply begins where the model begins it"),
            ("workflow_key", "is not there: rows with a `tag` belong to domains of `rewards` (docs/rlvr.md)"),
            (
                "reward_fn_key",
                "is not there: rows with a `tag` belong to domains of `rewards` (docs/rlvr.md)",
            ),
        )
        for section in ("taskset", "tasksets.*")
        for row in (
            refused(
                f"{_INPUT}.{section}.format.{name}",
                reason,
                applies=lambda v, p: bool(v),
                condition="with a value",
            ),
            *no_effect(f"{_INPUT}.{section}.format.{name}", "says nothing"),
        )
    ],
    *_no_tasks("enable_progress_bar max_retry_times max_retry_interval", _READING),
    *_no_tasks("index is_eval batch_size total_epochs total_steps ray_namespace", FOLLOWS),
)

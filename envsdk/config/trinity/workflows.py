"""Conversions of Trinity's workflows: a domain of `rewards`, an environment, or prompts with tools."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from envsdk.base.settings.problems import KeyPath, Problem
from envsdk.config.foreign.row import AtKey, Place, Row
from envsdk.config.rlvr import PROMPTS_ENV, VAL_SUFFIX
from envsdk.config.trinity import tasks
from envsdk.config.trinity.workflow_table import Kind, plain_name, table, workflow_named, workflows

Ours = Mapping[str, Any]
TaskSet = Mapping[str, Any]
Tags = Mapping[str, dict[str, Any]]
"""Tags by name, as in `custom_envs`."""

_THINK_THEN_ANSWER = r".*?<think>.*?</think>\s*<answer>.*?</answer>\s*$"
_THINK_FIRST = r"\s*<think>.*?</think>"
_TO: Mapping[Kind, str] = {
    Kind.PROMPTS: "rewards, agent_system_template",
    Kind.ENVIRONMENT: "custom_envs, train_env_manager",
    Kind.TOOLS: "custom_envs: envsdk/ToolUse-v1 over envsdk/Prompts-v1, train_env_manager",
}
_SECTIONS = tuple(f"buffer.explorer_input{section}" for section in ("", ".taskset", ".tasksets.*"))
_PYTHON = "envsdk.adapters.tools.python_code:execute_python_code"
_SEARCH: Mapping[str, str] = {"tavily": "tavily-mcp@latest", "searxng": "mcp-searxng"}
_CHARACTERS = 4
"""Characters of a token, about: a reward sees no tokens."""
_UNREAD_TASKS = 100
"""Tasks of an evaluation whose rows are not here."""


def task_set(value: Any, place: Place) -> Ours:
    """Everything that follows from the task set and its workflow."""
    return played(place) if tasks.is_played(place) else {**tasks.files(value, place), **_domain(place)}


def eval_set(value: Any, place: Place) -> Ours:
    """The evaluation sets."""
    if tasks.is_played(place):
        return task_set(value, place)
    return tasks.eval_files(value, place)


def eval_workflow(value: Any, place: Place) -> Ours:
    """Held-out prompts have the reward of the domain that they belong to."""
    if tasks.is_played(place):
        return task_set(value, place)
    for each in [] if place.get("rewards") else tasks.evaluation(place):
        if _reward(each, place, is_eval=True) != _reward(tasks.training(place), place):
            raise ValueError(
                "is scored in another way than training: held-out prompts have the domain's reward"
            )
    return {}


def workflow_problem(data: Mapping[str, Any]) -> Problem | None:
    """What is said of a file whose tasks are played by a workflow that is not there."""
    section: KeyPath = ("buffer", "explorer_input")
    for inside in ((*section, "taskset"), (*section, "tasksets", 0), section):
        given: Any = data
        for part in inside:
            is_item = isinstance(part, int) and isinstance(given, list) and bool(given)
            is_there = isinstance(given, Mapping) and part in given
            given = given[part] if is_item or is_there else None
        name = given.get("default_workflow_type") if isinstance(given, Mapping) else None
        if isinstance(name, str):
            found = workflow_named(name)
            is_refused = found.kind is Kind.REFUSED
            path = (*inside, "default_workflow_type")
            return Problem(path, f"{plain_name(name)}: {found.says}") if is_refused else None
    return None


def played(place: Place) -> Ours:
    """Tags with their environments, and how many of them play at the same time."""
    training, held_out = tasks.training(place), tasks.evaluation(place)
    tags: dict[str, dict[str, Any]] = dict(_tags(training, place, suffix=""))
    num_tasks = tasks.batch_size(place) or 1
    ahead = 0 if tasks.is_synchronous(place) else 1
    ours: dict[str, Any] = {
        "train_env_manager.tags": list(tags),
        "train_env_manager.num_env_groups": max(len(tags), num_tasks * (1 + ahead)),
    }
    if held_out:
        of_val: dict[str, dict[str, Any]] = {}
        for each in held_out:
            of_val |= _tags({**_inherited(training), **each}, place, suffix=VAL_SUFFIX)
        repeats = {each.get("repeat_times") or 1 for each in held_out}
        if len(repeats) > 1:
            raise AtKey("repeat_times", "the evaluation sets differ in it: keep one number")
        if list(of_val.values()) == list(tags.values()):
            of_val = tags  # the split alone tells their tasks apart
        groups = max(len(of_val), sum(tasks.count(each) or _UNREAD_TASKS for each in held_out))
        ours |= {
            "val_env_manager.tags": list(of_val),
            "val_env_manager.num_env_groups": groups,
            "val_env_manager.group_size": min(repeats),
            "val_batch_size": groups * min(repeats),
        }
        tags = tags | of_val
    for tag, env in tags.items():
        ours |= {f"custom_envs.{tag}.{name}": each for name, each in env.items() if name != "env_config"}
        ours |= {f"custom_envs.{tag}.env_config.{name}": each for name, each in env["env_config"].items()}
    return ours


def _inherited(training: TaskSet) -> dict[str, Any]:
    """What an evaluation set leaves to the training set."""
    names = ("name", "default_workflow_type", "workflow_args", "format")
    return {name: training[name] for name in names if name in training}


def _tags(taskset: TaskSet, place: Place, *, suffix: str) -> Iterator[tuple[str, dict[str, Any]]]:
    kind = tasks.workflow_of(taskset, place)
    args = _args(taskset, kind)
    system = tasks.system_prompt(taskset)
    for name, env in _ENVIRONMENTS[kind](taskset, place, args, bool(suffix)).items():
        if system:
            env["agent_system_template"] = system
        yield f"{tasks.name_of(taskset)}{name}{suffix}", env


def _args(taskset: TaskSet, kind: str) -> dict[str, Any]:
    args = taskset.get("workflow_args") or {}
    known = workflow_named(kind).args
    if unknown := [str(name) for name in args if name not in known]:
        raise AtKey("workflow_args", f"has {', '.join(unknown)}, which is not there for {kind}")
    return dict(args)


def _lakes(taskset: TaskSet, place: Place, args: Mapping[str, Any], is_eval: bool) -> Tags:
    if args.get("desc") is not None:
        raise AtKey("workflow_args", "desc: lakes are drawn; leave it out")
    rows = tasks.rows_of(taskset) or []
    sizes = sorted({row["size"] for row in rows if isinstance(row.get("size"), int) and row["size"] > 1})
    chances = [row["p"] for row in rows if isinstance(row.get("p"), float)]
    config = {
        "p": round(sum(chances) / len(chances), 3) if chances else 0.725,
        "is_slippery": args.get("is_slippery", False),
        "random_start": True,
        "random_goal": True,
        "min_distance": 1,
    }
    turns = args.get("agent_max_steps", 10)
    return {
        f"-{size}": {
            "env_type": "envsdk/FrozenLake-v1",
            "env_config": {**config, "size": size, "max_steps": max(turns, 2 * (size - 1))},
        }
        for size in sizes or range(2, 6)
    }


def _houses(taskset: TaskSet, place: Place, args: Mapping[str, Any], is_eval: bool) -> Tags:
    config = {"max_steps": args.get("max_env_steps", 30), "split": "valid_seen" if is_eval else "train"}
    column = (taskset.get("format") or {}).get("prompt_key", "game_file")
    for row in tasks.rows_of(taskset) or []:
        folder, found, _ = str(row.get(column)).partition("/json_2.1.1/")
        if found:
            config["data_dir"] = folder
            break
    return {"": {"env_type": "envsdk/ALFWorld-v1", "env_config": config}}


def _shops(taskset: TaskSet, place: Place, args: Mapping[str, Any], is_eval: bool) -> Tags:
    config = {
        "observation_mode": "text_rich",
        "explain_invalid": True,
        "max_steps": 15,
        "split": "test" if is_eval else "train",
    }
    return {"": {"env_type": "envsdk/WebShop-v1", "env_config": config}}


def _reacting(turns: int) -> _Environment:
    def convert(taskset: TaskSet, place: Place, args: Mapping[str, Any], is_eval: bool) -> Tags:
        if args.get("type", "gsm8k") != "gsm8k":
            raise AtKey("workflow_args", f"type: {args['type']} is not there: gsm8k is")
        config = {"tools": [_PYTHON], "max_steps": turns}
        return _with_tools(taskset, "python", {"worker_cls": "math", "extract": ["boxed"]}, config, is_eval)

    return convert


def _searching(taskset: TaskSet, place: Place, args: Mapping[str, Any], is_eval: bool) -> Tags:
    client = args.get("search_client_type", "searxng")
    if client not in _SEARCH:
        raise AtKey("workflow_args", f"search_client_type: {client} is not there: take tavily or searxng")
    config = {
        "mcp_servers": {"search": {"command": ["npx", "-y", _SEARCH[client]]}},
        "max_steps": args.get("max_turns", 10),
    }
    return _with_tools(taskset, "search", _judge(place, "match"), config, is_eval)


def _with_tools(
    taskset: TaskSet, prompt: str, reward: Mapping[str, Any], config: Mapping[str, Any], is_eval: bool
) -> Tags:
    """Prompts whose responses may be preceded by calls."""
    columns = {name.removeprefix("columns."): each for name, each in tasks.columns_of(taskset).items()}
    asked = {"files": tasks.files_of(taskset), "columns": columns, "reward": dict(reward)}
    return {
        "": {
            "env_type": "envsdk/ToolUse-v1",
            "env_config": {"env": PROMPTS_ENV, "env_config": asked, "tool_list": "template", **config},
            "agent_system_template": table().prompts[prompt],
        }
    }


_Environment = Callable[[TaskSet, Place, Mapping[str, Any], bool], Tags]
_ENVIRONMENTS: Mapping[str, _Environment] = {
    "frozen_lake_workflow": _lakes,
    "FrozenLakeWorkflow": _lakes,
    "alfworld_workflow": _houses,
    "step_wise_alfworld_workflow": _houses,
    "webshop_workflow": _shops,
    "agentscope_react_workflow": _reacting(10),
    "agentscope_react_math_workflow": _reacting(10),
    "agentscopev0_react_math_workflow": _reacting(5),
    "agentscope_v1_react_search_workflow": _searching,
}


def _domain(place: Place) -> Ours:
    """Workflow and reward function of the task set as a domain of `rewards`, where the user gives none."""
    name = tasks.domain(place)
    is_given = bool(place.get("rewards", name, "worker_cls"))
    prompt = ""
    settings: dict[str, Any] = {}
    if not is_given:
        prompt, settings = _reward(tasks.training(place), place)
    ours = {f"rewards.{name}.{key}": each for key, each in settings.items()}
    asks = {name: tasks.system_prompt(tasks.training(place)) or prompt}
    if held_out := tasks.evaluation(place):
        asks[f"{name}{VAL_SUFFIX}"] = tasks.system_prompt(held_out[0]) or prompt
    if tasks.workflow_of(tasks.training(place), place) == "tool_call_workflow":
        # Its rows have a system message of their own, which would replace this one.
        return ours | {
            f"custom_envs.{tag}.agent_template": f"{{observation}}\n\n{t}" for tag, t in asks.items()
        }
    return ours | {f"custom_envs.{tag}.agent_system_template": text for tag, text in asks.items() if text}


def _reward(taskset: TaskSet, place: Place, *, is_eval: bool = False) -> tuple[str, dict[str, Any]]:
    """The workflow's own system prompt, and what scores its responses."""
    kind = tasks.workflow_of(taskset, place, is_eval=is_eval)
    function = taskset.get("default_reward_fn_type") or place.get(
        "buffer", "explorer_input", "default_reward_fn_type"
    )
    found = workflow_named(kind)
    if found.kind is not Kind.PROMPTS:
        raise AtKey("default_workflow_type", f"{kind}: {found.says}")
    if function is not None and function not in table().rewards:
        raise AtKey(
            "default_reward_fn_type",
            f"the reward {function} is not there; there are {', '.join(table().rewards)}. Write it as a "
            f"class of a few lines (docs/rewards.md), and set "
            f"rewards.{tasks.domain(place)}.worker_cls=package.module:Class",
        )
    args, settings = _args(taskset, kind), dict(taskset.get("reward_fn_args") or {})
    named = settings.pop("reward_name", None)
    penalty = _overlong(settings)
    if settings:
        raise AtKey(
            "reward_fn_args",
            f"has {', '.join(map(str, settings))}, which is not there for {function or kind}",
        )
    own = table().prompts[found.asks] if found.asks else ""
    asks_for_box = found.asks == "boxed"
    match kind:
        case "tool_call_workflow":
            return own, {"worker_cls": "tool_calls", "require_think": True}
        case "rubric_judge_workflow" | "rubric_judge_openai_workflow":
            return "", _judge(place, "rubric", args)
        case "math_ruler_workflow":
            return own, _judge(place, "score")
        case "math_rm_workflow" if named != "math_verify_reward":
            raise AtKey(
                "default_workflow_type",
                "a reward model is a server that you start: take the reward `judge` (docs/rewards.md)",
            )
    if function == "countdown_reward":
        return "", {"worker_cls": "countdown"}
    if function == "format_reward":
        return "", {"worker_cls": "format", "met": 0.1, "missed": -0.1}
    if function == "math_dapo_reward":
        shift = {"form": {"worker_cls": "format", "tags": [], "met": -1.0, "missed": -1.0}}  # 1 or -1
        return own if asks_for_box else "", _sum(2.0, {**shift, **penalty})
    if asks_for_box or function == "math_boxed_reward":
        with_think, missed = args.get("with_think", False), args.get("format_score_coef", 0.1)
        form = {"worker_cls": "format", "pattern": _THINK_FIRST, "met": 0.0, "missed": -missed}
        own = "" if not asks_for_box else table().prompts["think_boxed"] if with_think else own
        return own, _sum(1.0, {"form": form} if with_think else {}, extract=["boxed"])
    if function in ("accuracy_reward", "rm_gallery_reward"):
        return own, {"worker_cls": "math"}
    form = {"worker_cls": "format", "pattern": _THINK_THEN_ANSWER, "met": 0.1, "missed": -0.1}
    return own, _sum(1.0, {"form": form})


def _sum(weight: float, others: Mapping[str, Any], **answer: Any) -> dict[str, Any]:
    if not others and weight == 1:
        return {"worker_cls": "math", **answer}
    return {
        "worker_cls": "sum",
        "parts": {"answer": {"worker_cls": "math", "weight": weight, **answer}, **others},
    }


def _overlong(settings: dict[str, Any]) -> dict[str, Any]:
    """DAPO's penalty on long responses, taken out of `reward_fn_args`."""
    is_on = settings.pop("enable_overlong_penalty", False)
    names = ("penalty_factor", "max_response_length", "cache_length")
    factor, longest, buffer = (settings.pop(name, None) for name in names)
    if not is_on:
        return {}
    if not isinstance(longest, int) or not isinstance(buffer, int):
        raise AtKey("reward_fn_args", "enable_overlong_penalty needs max_response_length and cache_length")
    lengths = {"max_length": _CHARACTERS * longest, "buffer": _CHARACTERS * buffer}
    return {"length": {"worker_cls": "length", "weight": 1.0 if factor is None else factor, **lengths}}


def _judge(place: Place, prompt: str, args: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The reward `judge`: the file's first auxiliary model, at an address that it does not have."""
    others = place.get("explorer", "auxiliary_models") or [{}]
    first = others[0] if isinstance(others, list) and isinstance(others[0], Mapping) else {}
    model = (args or {}).get("judge_model_name") or first.get("model_path")
    ours: dict[str, Any] = {"worker_cls": "judge", "prompt": prompt, **({"model": model} if model else {})}
    if args is not None and args.get("judge_model_name"):
        ours["api_key_env"] = args.get("judge_api_key_env", "OPENAI_API_KEY")
        if address := os.environ.get(args.get("judge_api_base_url_env", "OPENAI_BASE_URL")):
            ours["base_url"] = address
    return ours


def asks_judge(value: Any, place: Place) -> bool:
    """Whether the workflow has a judge."""
    return workflow_named(tasks.workflow_of(tasks.training(place), place)).has_judge


def pending_keys(data: Mapping[str, Any]) -> dict[KeyPath, str]:
    """What this machine lacks for the tasks: files, the steps that follow from their rows, and a judge."""
    place = Place((), data, True)
    found = tasks.pending_keys(data)
    try:
        if asks_judge(None, place):
            found |= _without_address(place)
    except ValueError:
        pass  # reported where the key is converted
    return found


def _without_address(place: Place) -> dict[KeyPath, str]:
    """The key of each judge that has no address: what to do."""
    names = [tasks.domain(place)]
    path: tuple[str, ...] = ("rewards", "", "base_url")
    or_itself = ", or `run` for the policy itself"
    if tasks.is_played(place):
        names += [f"{tasks.name_of(each)}{VAL_SUFFIX}" for each in tasks.evaluation(place)]
        path, or_itself = ("custom_envs", "", "env_config", "env_config", "reward", "base_url"), ""
    args = tasks.training(place).get("workflow_args")
    keys = [tuple(part or name for part in path) for name in names]
    return {
        key: "is missing: start the judge's model, for example with `vllm serve MODEL --port 8001`, and give "
        f"http://HOST:8001/v1{or_itself}"
        for key in keys
        if not place.get(*key) and "base_url" not in _judge(place, "", args)
    }


def rows() -> Iterator[Row]:
    """What becomes of each workflow and reward function; of a refused one `kinds.py` alone says what is
    missing."""
    for name, workflow in workflows().items():
        is_refused = workflow.kind is Kind.REFUSED
        convert = None if is_refused else task_set
        to = "" if is_refused else _TO[workflow.kind]
        yield from _named("workflow_type", name, to, convert=convert, reason=workflow.says)
    for name, here in table().rewards.items():
        yield from _named("reward_fn_type", name, f"rewards: {here}", convert=task_set)


def _named(key: str, name: str, to: str, **more: Any) -> Iterator[Row]:
    applies = partial(_is_named, name=name)
    for section in _SECTIONS:
        yield Row(
            key=f"{section}.default_{key}",
            to=to,
            is_refused=more["convert"] is None,
            applies=applies,
            condition=name,
            **more,
        )


def _is_named(value: Any, place: Place, name: str) -> bool:
    return isinstance(value, str) and plain_name(value) == name

"""Conversions of Trinity's task sets, workflows and rewards: prompts with verifiable rewards."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from envsdk.config.foreign.row import Place
from envsdk.config.rlvr import VAL_SUFFIX, count_rows
from envsdk.settings.problems import KeyPath, Problem

Ours = Mapping[str, Any]

TASKSET = "buffer.explorer_input.taskset"
_FILES = "actor_train.data_args"
_SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".parquet")
_THINK_THEN_ANSWER = r".*?<think>.*?</think>\s*<answer>.*?</answer>\s*$"
_THINK_FIRST = r"\s*<think>.*?</think>"
_PROMPTS: Mapping[str, str] = {
    "tags": (
        "Think the problem through first, inside <think> and </think>. Then give the answer alone, inside "
        "<answer> and </answer>."
    ),
    "boxed": r"Reason step by step, and put the final answer within \boxed{}.",
    "think_boxed": (
        "Think the problem through first, inside <think> and </think>. Then give the final answer within "
        r"\boxed{}."
    ),
}
"""What is asked for where the file has no system prompt, and the workflow has one of its own."""
_MATH = ("math_workflow", "math_eval_workflow", "math_rm_workflow")
_BOXED = ("math_boxed_workflow",)
_WORKFLOWS = (*_MATH, *_BOXED, "simple_workflow")
_ENVIRONMENTS: Mapping[str, str] = {
    "frozen_lake_workflow": "FrozenLake",
    "alfworld_workflow": "ALFWorld",
    "step_wise_alfworld_workflow": "ALFWorld",
    "webshop_workflow": "WebShopEnv",
}
_REWARDS = (
    "math_reward",
    "math_boxed_reward",
    "math_dapo_reward",
    "accuracy_reward",
    "format_reward",
    "rm_gallery_reward",
)


def tasksets(place: Place) -> list[Mapping[str, Any]]:
    """The task sets of training."""
    given = place.get("buffer", "explorer_input", default={})
    given = given if isinstance(given, Mapping) else {}
    one, several = given.get("taskset"), given.get("tasksets") or []
    found = [one] if isinstance(one, Mapping) else several if isinstance(several, list) else []
    return [each for each in found if isinstance(each, Mapping)]


def _training(place: Place) -> Mapping[str, Any]:
    found = tasksets(place)
    if len(found) > 1:
        raise ValueError("several task sets are not there: name their files in one (path: a folder)")
    return found[0] if found else {}


def _evaluation(place: Place) -> list[Mapping[str, Any]]:
    given = place.get("buffer", "explorer_input", "eval_tasksets", default=[])
    return [each for each in given or [] if isinstance(each, Mapping)]


def domain(place: Place) -> str:
    """The name of the task set, as that of a domain and a tag."""
    name = _training(place).get("name") or "taskset"
    return re.sub(r"[^A-Za-z0-9_-]+", "-", str(name)).strip("-") or "taskset"


def files(value: Any, place: Place) -> Ours:
    """`path`, `subset_name` and `split` of the task set."""
    return {f"{_FILES}.file_name": _files_of(_training(place))}


def taskset(value: Any, place: Place) -> Ours:
    """The task set as prompt data, with what scores the responses."""
    return {**files(value, place), **reward(value, place)}


def columns(value: Any, place: Place) -> Ours:
    return {f"{_FILES}.{name}": each for name, each in _columns(_training(place)).items()}


def shuffle(value: Any, place: Place) -> Ours:
    kind = (
        value
        if isinstance(value, str)
        else value.get("selector_type", "sequential")
        if isinstance(value, Mapping)
        else None
    )
    if kind not in ("sequential", "shuffle", "random"):
        raise ValueError(
            f"{kind} is not there: take sequential or shuffle; group_filters drop easy and hard tasks"
        )
    return {f"{_FILES}.shuffle": kind != "sequential"}


def sampling(value: Any, place: Place) -> Ours:
    """`rollout_args` of the task set over `model`'s."""
    return {
        f"actor_infer.generating_args.{name}": each
        for name, each in _sampling(_training(place), place).items()
    }


def eval_files(value: Any, place: Place) -> Ours:
    """All evaluation sets are one: their files are played together, and each is scored as training is."""
    sets = _evaluation(place)
    different = [
        name
        for name in ("format", "rollout_args", "repeat_times")
        if len({str(e.get(name)) for e in sets}) > 1
    ]
    if different:
        raise ValueError(
            f"the evaluation sets differ in {' and '.join(different)}, and held-out prompts have one of "
            "each: keep one set, or evaluate the others with `envsdk evaluate`"
        )
    ours: dict[str, Any] = {
        "validation.data_args.file_name": [file for each in sets for file in _files_of(each)]
    }
    ours |= {f"validation.data_args.{name}": each for name, each in _columns(sets[0]).items()}
    ours |= {f"validation.generating_args.{name}": each for name, each in _sampling(sets[0], place).items()}
    repeat = sets[0].get("repeat_times")
    return ours | ({"validation.generating_args.num_return_sequences": repeat} if repeat else {})


def eval_workflow(value: Any, place: Place) -> Ours:
    """Held-out prompts have the reward of the domain that they belong to."""
    for each in [] if place.get("rewards") else _evaluation(place):
        if _reward(each, place, is_eval=True) != _reward(_training(place), place):
            raise ValueError(
                "is scored in another way than training: held-out prompts have the domain's reward"
            )
    return {}


class _About(ValueError):
    """What is wrong with one of the keys that say how responses are scored."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


def reward(value: Any, place: Place) -> Ours:
    """Workflow and reward function of the task set as a domain of `rewards`, where the user gives none."""
    name = domain(place)
    is_given = bool(place.get("rewards", name, "worker_cls"))
    prompt = ""
    settings: dict[str, Any] = {}
    if not is_given:
        try:
            prompt, settings = _reward(_training(place), place)
        except _About as error:
            if error.key == place.path[-1]:
                raise
    ours = {f"rewards.{name}.{key}": each for key, each in settings.items()}
    asks = {name: _system_prompt(_training(place)) or prompt}
    if _evaluation(place):
        asks[f"{name}{VAL_SUFFIX}"] = _system_prompt(_evaluation(place)[0]) or prompt
    return ours | {f"custom_envs.{tag}.agent_system_template": text for tag, text in asks.items() if text}


def _reward(taskset: Mapping[str, Any], place: Place, *, is_eval: bool = False) -> tuple[str, dict[str, Any]]:
    """The workflow's own system prompt, and what scores its responses."""
    shared = place.get("buffer", "explorer_input", default={})
    names = ("default_workflow_type", "default_eval_workflow_type")[: 1 + is_eval]
    workflow = taskset.get(names[0]) or next((shared[each] for each in names[::-1] if shared.get(each)), None)
    function = taskset.get("default_reward_fn_type") or shared.get("default_reward_fn_type")
    kind = str(workflow or "simple_workflow").removeprefix("async_")
    if kind not in _WORKFLOWS:
        raise _About("default_workflow_type", _no_workflow(kind))
    if function is not None and function not in _REWARDS:
        raise _About(
            "default_reward_fn_type",
            f"the reward {function} is not there: write it as a class of a few lines (docs/rewards.md), and "
            f"set rewards.{domain(place)}.worker_cls=package.module:Class",
        )
    own = dict(taskset.get("workflow_args") or {})
    settings = dict(taskset.get("reward_fn_args") or {})
    own.pop("use_base", None)
    with_think, penalty = own.pop("with_think", False), own.pop("format_score_coef", 0.1)
    named = settings.pop("reward_name", None)
    if settings.pop("enable_overlong_penalty", False):
        raise _About(
            "reward_fn_args",
            "enable_overlong_penalty counts tokens, and no reward here does: set it to false, or give "
            f"rewards.{domain(place)} with `worker_cls: sum` and `length`, which counts characters or words",
        )
    for name in ("penalty_factor", "max_response_length", "cache_length"):
        settings.pop(name, None)
    if own or settings:
        raise _About(
            "workflow_args" if own else "reward_fn_args",
            f"has {', '.join(map(str, own or settings))}, which is not there for {kind}",
        )
    if kind == "math_rm_workflow" and (function, named) != ("rm_gallery_reward", "math_verify_reward"):
        raise _About(
            "default_workflow_type",
            "a reward model is a server that you start: take the reward `judge` (docs/rewards.md)",
        )
    if function == "format_reward":
        return "", {"worker_cls": "format", "met": 0.1, "missed": -0.1}
    if function == "math_dapo_reward":
        boxed = _PROMPTS["boxed"] if kind in _BOXED else ""
        return boxed, _sum(2.0, {"tags": [], "met": -1.0, "missed": -1.0})  # 1 or -1
    if kind in _BOXED or function == "math_boxed_reward":
        form = {"pattern": _THINK_FIRST, "met": 0.0, "missed": -penalty} if with_think else {}
        prompt = "" if kind not in _BOXED else _PROMPTS["think_boxed" if with_think else "boxed"]
        return prompt, _sum(1.0, form, extract=["boxed"])
    if function in ("accuracy_reward", "rm_gallery_reward"):
        return _PROMPTS["tags"] if kind == "math_rm_workflow" else "", {"worker_cls": "math"}
    prompt = _PROMPTS["tags"] if kind in _MATH else ""
    return prompt, _sum(1.0, {"pattern": _THINK_THEN_ANSWER, "met": 0.1, "missed": -0.1})


def _sum(weight: float, form: Mapping[str, Any], **answer: Any) -> dict[str, Any]:
    if not form and weight == 1:
        return {"worker_cls": "math", **answer}
    parts: dict[str, Any] = {"answer": {"worker_cls": "math", "weight": weight, **answer}}
    if form:
        parts["form"] = {"worker_cls": "format", **form}
    return {"worker_cls": "sum", "parts": parts}


def workflow_problem(data: Mapping[str, Any]) -> Problem | None:
    """What is said of a file whose tasks are played by a workflow that is not there."""
    section: KeyPath = ("buffer", "explorer_input")
    for inside in ((*section, "taskset"), (*section, "tasksets", 0), section):
        given: Any = data
        for part in inside:
            is_there = (
                part in given if isinstance(given, Mapping) else isinstance(given, list) and bool(given)
            )
            given = given[part] if is_there else None
        kind = given.get("default_workflow_type") if isinstance(given, Mapping) else None
        if isinstance(kind, str):
            kind = kind.removeprefix("async_")
            path = (*inside, "default_workflow_type")
            return None if kind in _WORKFLOWS else Problem(path, _no_workflow(kind))
    return None


def _no_workflow(kind: str) -> str:
    if kind in _ENVIRONMENTS:
        tag = _ENVIRONMENTS[kind]
        return (
            f"{kind} plays an environment, whose tasks are not in a file here: start from agentic_async.yaml "
            f"with the tag {tag}"
        )
    if "ruler" in kind or "judge" in kind:
        return (
            f"{kind} asks another model for rewards: take the reward `judge`, which asks a server "
            "(docs/rewards.md)"
        )
    return (
        f"the workflow {kind} is not there; there are math_workflow, math_boxed_workflow and "
        "simple_workflow. A workflow of several turns is an environment here "
        "(docs/writing-an-environment.md) or an agent of your own (docs/agent-of-your-own.md)"
    )


def _system_prompt(taskset: Mapping[str, Any]) -> str:
    given = taskset.get("format")
    return str(given.get("system_prompt") or "") if isinstance(given, Mapping) else ""


def _columns(taskset: Mapping[str, Any]) -> dict[str, Any]:
    given = taskset.get("format")
    given = given if isinstance(given, Mapping) else {}
    ours: dict[str, Any] = {}
    if (prompt := given.get("prompt_key")) is not None:
        ours["prompt"] = prompt
    if (truth := given.get("response_key")) is not None and truth != "reward_model.ground_truth":
        if "." in str(truth):
            raise ValueError(
                f"{truth}: a column in a column is only read in verl's reward_model.ground_truth"
            )
        ours["columns.ground_truth"] = truth
    return ours


def _sampling(taskset: Mapping[str, Any], place: Place) -> dict[str, Any]:
    own = taskset.get("rollout_args")
    own = own if isinstance(own, Mapping) else {}
    names = {"temperature": "temperature", "top_p": "top_p", "top_k": "top_k", "max_tokens": "max_new_tokens"}
    ours: dict[str, Any] = {}
    for theirs, name in names.items():
        value = own.get(theirs)
        if value is None and theirs != "max_tokens":
            value = place.get("model", theirs)
        if value is not None:
            ours[name] = (
                0 if theirs == "top_k" and value == -1 else float(value) if theirs == "top_p" else value
            )
    return ours


def _files_of(taskset: Mapping[str, Any]) -> list[str]:
    """The files of a task set: of a folder, those of its subset whose names begin with the split's."""
    path, subset, split = (taskset.get(name) for name in ("path", "subset_name", "split"))
    if path is None:
        raise ValueError("names no file: give path")
    folder = Path(str(path)).expanduser()
    if not folder.is_dir() or any((folder / f"dataset_{each}.json").is_file() for each in ("info", "dict")):
        return [str(path)]
    inner = folder / str(subset) if subset and (folder / str(subset)).is_dir() else folder
    for where in (inner, inner / "data"):
        inside = sorted(where.iterdir()) if where.is_dir() else []
        rows = [each for each in inside if each.name.endswith(_SUFFIXES)]
        named = [each for each in rows if each.name.startswith(str(split or "train"))]
        if rows:
            return [str(each) for each in named or rows]
    return [str(inner)]


def batch_size(place: Place) -> int | None:
    """Prompts of a training step: from the experiences that are trained on, or else from the tasks played."""
    tasks, experiences = place.get("buffer", "batch_size"), place.get("buffer", "train_batch_size")
    repeat = place.get("algorithm", "repeat_times", default=1)
    if isinstance(experiences, int) and experiences > 0 and isinstance(repeat, int) and repeat > 0:
        if experiences % repeat == 0:
            return experiences // repeat
        if not isinstance(tasks, int):
            raise ValueError(
                f"{experiences} is not divisible by algorithm.repeat_times={repeat}: a step trains on "
                f"complete groups; use {experiences // repeat * repeat or repeat}"
            )
    return tasks if isinstance(tasks, int) else None


def rollout_batch_size(value: Any, place: Place) -> Ours:
    if not value:
        return {}
    prompts = batch_size(place)
    return {"rollout_batch_size": value if prompts is None else prompts}


def num_steps(place: Place) -> int | None:
    """Training steps: as given, or from the epochs and the rows; None where the rows are not here."""
    for key in (("max_steps",), ("buffer", "total_steps"), ("trainer", "total_steps")):
        if isinstance(given := place.get(*key), int):
            return given
    prompts, rows = batch_size(place), _num_rows(place)
    epochs = place.get("buffer", "total_epochs", default=1)
    if rows is None or not prompts or not isinstance(epochs, int):
        return None
    return max(1, math.floor(epochs * rows / prompts))


def _num_rows(place: Place) -> int | None:
    given = place.get("actor_train", "data_args", "file_name")
    names = [given] if isinstance(given, str) else given or _files_of(_training(place))
    if missing(names):
        return None
    found = {key.removeprefix("columns."): each for key, each in _columns(_training(place)).items()}
    rows = count_rows({"files": list(names), "columns": found})
    if rows is None:
        raise ValueError(
            f"the rows of {', '.join(names)} cannot be counted, and total_epochs needs their number: give "
            "buffer.total_steps, and see `envsdk reward` for what is wrong with them"
        )
    return rows


def missing(names: Sequence[str]) -> list[str]:
    """Those of the files that are not on this machine."""
    return [
        name
        for name in names
        if not str(name).startswith("generated:")
        and not Path(str(name)).expanduser().exists()
        and "*" not in str(name)
    ]


def max_steps(value: Any, place: Place) -> Ours:
    steps = num_steps(place)
    return {"max_steps": 1 if steps is None else steps}


def pending_keys(data: Mapping[str, Any]) -> dict[KeyPath, str]:
    """Files that are not on this machine, and the number of steps that follows from their rows."""
    place = Place((), data, True)
    found: dict[KeyPath, str] = {}
    try:
        given = place.get("actor_train", "data_args", "file_name")
        names = [given] if isinstance(given, str) else given or _files_of(_training(place))
        steps = num_steps(place)
    except ValueError:
        return {}  # reported where the key is converted
    if absent := missing(names):
        found[("actor_train", "data_args", "file_name")] = (
            f"{', '.join(map(str, absent))} is not on this machine: fetch it with `hf download NAME "
            "--repo-type dataset --local-dir DIR`, and give buffer.explorer_input.taskset.path=DIR"
        )
        if steps is None:
            found[("max_steps",)] = "follows from total_epochs and the number of rows, which are not here yet"
    return found

"""Conversions of Trinity's task sets: files, columns, sampling, and the sizes that follow from them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from envsdk.base.settings.problems import KeyPath
from envsdk.base.store.hub import hub_folder, is_hub_name, known_folder
from envsdk.config.foreign.row import AtKey, Place
from envsdk.config.rlvr import count_rows
from envsdk.config.trinity.workflow_table import Kind, plain_name, workflow_named
from envsdk.contracts.failures import ConfigurationError
from envsdk.rewards.prompt_data.files import jsonl_files

Ours = Mapping[str, Any]

_FILES = "actor_train.data_args"
_SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".parquet")


def tasksets(place: Place) -> list[Mapping[str, Any]]:
    """The task sets of training."""
    given = place.mapping("buffer", "explorer_input")
    one, several = given.get("taskset"), given.get("tasksets") or []
    found = [one] if isinstance(one, Mapping) else several if isinstance(several, list) else []
    return [each for each in found if isinstance(each, Mapping)]


def training(place: Place) -> Mapping[str, Any]:
    found = tasksets(place)
    if len(found) > 1:
        raise ValueError("several task sets are not there: name their files in one (path: a folder)")
    return found[0] if found else {}


def evaluation(place: Place) -> list[Mapping[str, Any]]:
    given = place.get("buffer", "explorer_input", "eval_tasksets", default=[])
    return [each for each in given or [] if isinstance(each, Mapping)]


def domain(place: Place) -> str:
    """The name of the task set, as that of a domain and a tag."""
    return name_of(training(place))


def name_of(taskset: Mapping[str, Any]) -> str:
    name = taskset.get("name") or "taskset"
    return re.sub(r"[^A-Za-z0-9_-]+", "-", str(name)).strip("-") or "taskset"


def workflow_of(taskset: Mapping[str, Any], place: Place, *, is_eval: bool = False) -> str:
    """The name of the workflow that plays a task set."""
    shared = place.get("buffer", "explorer_input", default={})
    names = ("default_workflow_type", "default_eval_workflow_type")[: 1 + is_eval]
    given = taskset.get(names[0]) or next((shared[each] for each in names[::-1] if shared.get(each)), None)
    return plain_name(str(given or "simple_workflow"))


def workflow_kind(place: Place) -> Kind:
    sets = tasksets(place)
    return workflow_named(workflow_of(sets[0], place)).kind if sets else Kind.PROMPTS


def is_played(place: Place) -> bool:
    """Whether the tasks are episodes of an environment, not prompts of a domain."""
    return workflow_kind(place) in (Kind.ENVIRONMENT, Kind.TOOLS)


def files(value: Any, place: Place) -> Ours:
    """`path`, `subset_name` and `split` of the task set."""
    return {f"{_FILES}.file_name": files_of(training(place))}


def columns(value: Any, place: Place) -> Ours:
    return (
        {}
        if is_played(place)
        else {f"{_FILES}.{name}": each for name, each in columns_of(training(place)).items()}
    )


def selector(value: Any, place: Place) -> Ours:
    """The order of the rows, and who chooses among them."""
    features, given = place.beside("feature_keys", default=[]), place.beside("kwargs", default={})
    if value in ("sequential", "shuffle", "random"):
        return {} if is_played(place) else {f"{_FILES}.shuffle": value != "sequential"}
    if is_played(place):
        raise ValueError(f"{value} chooses among rows of prompts: take sequential for an environment")
    ours: dict[str, Any] = {f"{_FILES}.shuffle": False}
    if value == "difficulty_based":
        target, temperature = given.get("target_reward", 1.0), given.get("tau", 1.0)
        return ours | {"task_sampler": {"name": "difficulty", "target": target, "temperature": temperature}}
    if value == "offline_easy2hard" and features:
        order = {"name": "easy_to_hard", "columns": list(features), "higher_is": "easier"}
        return ours | {"task_sampler": order}
    raise ValueError(
        f"{value} is not there: take sequential, shuffle, difficulty_based, or offline_easy2hard with "
        "feature_keys"
    )


def sampling(value: Any, place: Place) -> Ours:
    """`rollout_args` of the task set over `model`'s."""
    return {
        f"actor_infer.generating_args.{name}": each
        for name, each in _sampling(training(place), place).items()
    }


def eval_files(value: Any, place: Place) -> Ours:
    """All evaluation sets are one: their files are played together, and each is scored as training is."""
    sets = evaluation(place)
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
        "validation.data_args.file_name": [file for each in sets for file in files_of(each)]
    }
    ours |= {f"validation.data_args.{name}": each for name, each in columns_of(sets[0]).items()}
    ours |= {f"validation.generating_args.{name}": each for name, each in _sampling(sets[0], place).items()}
    repeat = sets[0].get("repeat_times")
    return ours | ({"validation.generating_args.num_return_sequences": repeat} if repeat else {})


def system_prompt(taskset: Mapping[str, Any]) -> str:
    given = taskset.get("format")
    return str(given.get("system_prompt") or "") if isinstance(given, Mapping) else ""


def columns_of(taskset: Mapping[str, Any]) -> dict[str, Any]:
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


def files_of(taskset: Mapping[str, Any]) -> list[str]:
    """The files of a task set: of a folder, those of its subset whose names begin with the split's."""
    path, subset, split = (taskset.get(name) for name in ("path", "subset_name", "split"))
    if path is None:
        raise ValueError("names no file: give path")
    folder = known_folder(str(path), "dataset")
    if folder is None:
        return [str(path)]
    inner = folder / str(subset) if subset and (folder / str(subset)).is_dir() else folder
    for where in (inner, inner / "data"):
        inside = sorted(where.iterdir()) if where.is_dir() else []
        rows = [each for each in inside if each.name.endswith(_SUFFIXES)]
        named = [each for each in rows if each.name.startswith(str(split or "train"))]
        if rows:
            return [str(each) for each in named or rows]
    return [str(inner)]


def rows_of(taskset: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """The rows of a task set that is no prompts; None where its files are not here, or cannot be read."""
    try:
        names = files_of(taskset)
        if missing(names):
            return None
        paths = [path for name in names for path, _ in jsonl_files(name)]
        lines = [line for path in paths for line in path.read_text(encoding="utf-8").splitlines()]
        rows = [json.loads(line) for line in lines if line.strip()]
    except (ValueError, OSError, ConfigurationError):
        return None
    return [row for row in rows if isinstance(row, dict)]


def count(taskset: Mapping[str, Any]) -> int | None:
    rows = rows_of(taskset)
    return None if rows is None else len(rows)


def batch_size(place: Place) -> int | None:
    """Prompts of a training step: from the experiences that are trained on, or else from the tasks played."""
    tasks, experiences = place.get("buffer", "batch_size"), place.get("buffer", "train_batch_size")
    if tasks and is_played(place):
        return int(tasks)  # an experience may be a turn there
    repeat = repeat_times(place)
    if experiences:
        if experiences % repeat == 0:
            return int(experiences // repeat)
        if not tasks:
            raise AtKey(
                "train_batch_size",
                f"{experiences} is not divisible by algorithm.repeat_times={repeat}: a step trains on "
                f"complete groups; use {experiences // repeat * repeat or repeat}",
            )
    return int(tasks) if tasks else None


def rollout_batch_size(value: Any, place: Place) -> Ours:
    if value is None:
        return {}
    if not (size := batch_size(place) or value):
        raise ValueError("0 stands for batch_size times repeat_times, and batch_size is absent: give one")
    return {"rollout_batch_size": size * repeat_times(place) if is_played(place) else size}


def repeat_times(place: Place) -> int:
    return place.get("algorithm", "repeat_times") or 1


def group_size(value: Any, place: Place) -> Ours:
    return {"train_env_manager.group_size" if is_played(place) else "num_return_sequences_in_group": value}


def is_synchronous(place: Place) -> bool:
    """Whether weights are never older than the step that they play for."""
    given = place.mapping("synchronizer")
    interval = given.get("trainer_sync_interval") or given.get("sync_interval")
    is_alone = place.get("mode", default="both") in ("both", "colocate")
    return is_alone and interval in (None, 1) and not given.get("sync_offset")


def num_steps(place: Place) -> int | None:
    """Training steps: as given, or from the epochs and the rows; None where the rows are not here."""
    for key in (("max_steps",), ("buffer", "total_steps"), ("trainer", "total_steps")):
        if isinstance(given := place.get(*key), int):
            return given
    prompts, rows = batch_size(place), _num_rows(place)
    epochs = place.get("buffer", "total_epochs") or 1
    if rows is None or not prompts:
        return None
    return max(1, math.floor(epochs * rows / prompts))


def _num_rows(place: Place) -> int | None:
    given = place.get("actor_train", "data_args", "file_name")
    if is_played(place):
        return count(training(place))
    names = [given] if isinstance(given, str) else given or files_of(training(place))
    if missing(names):
        return None
    found = {key.removeprefix("columns."): each for key, each in columns_of(training(place)).items()}
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
        str(name)
        for name in names
        if not str(name).startswith("generated:")
        and not Path(str(name)).expanduser().exists()
        and "*" not in str(name)
    ]


def max_steps(value: Any, place: Place) -> Ours:
    steps = num_steps(place)
    return {"max_steps": 1 if steps is None else steps}


def default_of_prompts(value: Any, place: Place, usual: Any) -> Any:
    return None if is_played(place) else usual


def pending_keys(data: Mapping[str, Any]) -> dict[KeyPath, str]:
    """Files that are not on this machine, and the number of steps that follows from their rows."""
    place = Place((), data, True)
    try:
        steps, (path, absent) = num_steps(place), _absent_files(place)
    except ValueError:
        return {}  # reported where the key is converted
    found: dict[KeyPath, str] = {}
    if absent and path:
        found[path] = (
            f"{', '.join(absent)} is not on this machine: fetch it with `hf download NAME "
            "--repo-type dataset --local-dir DIR`, and give buffer.explorer_input.taskset.path=DIR"
        )
    if absent and steps is None:
        found[("max_steps",)] = (
            "follows from total_epochs and the number of rows, which are not here yet: give "
            "buffer.total_steps"
        )
    return found


def _absent_files(place: Place) -> tuple[KeyPath, list[str]]:
    """The key whose files are not on this machine, and these; no key where an environment needs none.

    Raises ValueError for what is reported where the key is converted.
    """
    given = place.get("actor_train", "data_args", "file_name")
    absent = missing([given] if isinstance(given, str) else given or files_of(training(place)))
    if not is_played(place):
        return ("actor_train", "data_args", "file_name"), absent
    if workflow_kind(place) is Kind.ENVIRONMENT:
        return (), absent
    return ("custom_envs", domain(place), "env_config", "env_config", "files"), absent


def fetch_data_sets(data: Mapping[str, Any]) -> dict[KeyPath, str]:
    """Download the data sets of the hub whose rows the run asks; what stands against it, by key."""
    try:
        path, absent = _absent_files(Place((), data, True))
    except ValueError:
        return {}
    found: dict[KeyPath, str] = {}
    for name in filter(is_hub_name, absent if path else ()):
        try:
            hub_folder(name, "dataset")
        except ConfigurationError as error:
            found[path] = f"{error}, or give buffer.explorer_input.taskset.path=DIR"
    return found

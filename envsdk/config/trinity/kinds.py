"""Which files are Trinity-RFT's, and which of them envsdk has no way to run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from envsdk.base.settings.problems import KeyPath, Problem
from envsdk.config.foreign.row import Place
from envsdk.config.trinity.tasks import tasksets
from envsdk.config.trinity.workflows import workflow_problem

SECTIONS = frozenset(
    [
        "algorithm",
        "model",
        "cluster",
        "buffer",
        "explorer",
        "trainer",
        "synchronizer",
        "monitor",
        "log",
        "data_processor",
        "service",
    ]
)

_MARKS: tuple[tuple[str, str], ...] = (
    ("algorithm", "algorithm_type"),
    ("buffer", "explorer_input"),
    ("buffer", "batch_size"),
    ("buffer", "train_batch_size"),
    ("buffer", "total_epochs"),
    ("buffer", "total_steps"),
    ("cluster", "gpu_per_node"),
    ("explorer", "rollout_model"),
    ("explorer", "runner_per_model"),
    ("trainer", "algorithm_type"),
    ("data", "dataset_path"),
    ("data", "format_config"),
)
"""Keys that only Trinity's files have. `mode`, `buffer.trainer_input`, `explorer.name` and `synchronizer` are
ours too."""
_OURS = ("rollout_batch_size", "train_env_manager", "custom_envs", "rewards")
"""Keys that Trinity's files never have, and some of which every file of ours has, or a file it extends."""

_FIRST_RELEASE: tuple[tuple[str, str], ...] = (
    ("trainer", "algorithm_type"),
    ("trainer", "sft_warmup_iteration"),
    ("trainer", "sft_warmup_steps"),
    ("data", "dataset_path"),
    ("data", "format_config"),
    ("buffer", "train_dataset"),
    ("synchronizer", "sync_iteration_interval"),
)
_IS_OLD = (
    "is a key of Trinity-RFT 0.1; files of 0.2 and later are read. Take the example of the same name from a "
    "newer release, or write `data` as buffer.explorer_input.taskset (dataset_path: path, train_split: "
    "split, format_config: format), trainer.algorithm_type as algorithm.algorithm_type, "
    "explorer.repeat_times as algorithm.repeat_times, buffer.train_dataset as "
    "buffer.trainer_input.experience_buffer, and leave trainer.trainer_config_path out"
)
_IMAGES = "is for images or video, and envsdk trains on text alone: take a file for a text model"
_BOTH_LOSSES = (
    "{} trains on a file of demonstrations beside its own experiences, which is not there: imitate them "
    "first (`envsdk sft`), then train the result with algorithm_type: grpo"
)
_OTHER_ALGORITHMS: Mapping[str, str] = {
    "sft": "{} is `envsdk sft`, which trains on collected episodes and on files of chats",
    "cpt": "{} (training on plain text) is not there; for chats there is `envsdk sft`",
    "dpo": "{} is not there: train with rewards, or imitate the chosen answers with `envsdk sft`",
    "raft": "{} is not there: collect episodes and imitate the best (`envsdk collect`, `envsdk sft`)",
    "mix": _BOTH_LOSSES,
    "mix_chord": _BOTH_LOSSES,
    "jsd": "{} is not there: take on_policy_distill",
    "sapo": "{} is not there: take gspo",
}
_IMAGE_KEYS = ("image_key", "video_key")
_IMAGE_WORKFLOW = re.compile(r"(^|_)mm_workflow$")
_IMAGE_MODEL = re.compile(r"(?i)(^|[/._-])(vl|omni)([._-]|$)")


def is_trinity_file(data: Mapping[str, Any]) -> bool:
    """Whether a file, before overrides, has a key that only Trinity's files have, and none that shows that it
    is one of ours."""
    if any(key in data for key in _OURS):
        return False
    return any(isinstance(data.get(top), Mapping) and name in data[top] for top, name in _MARKS)


def kind_problems(data: Mapping[str, Any]) -> list[Problem]:
    """Why the file as a whole cannot be used: one problem, at the key that shows it; none if it can."""
    place = Place((), data, True)
    for top, old in _FIRST_RELEASE:
        if place.get(top, old) is not None:
            return [Problem((top, old), _IS_OLD)]
    if data.get("stages"):
        return [
            Problem(
                ("stages",),
                "stages are not there: make each one a file; a first stage that imitates is `envsdk sft`, "
                "whose folder the next one takes as model.model_path",
            )
        ]
    for path, value in _leaves(data, ()):
        name = path[-1]
        if (
            (name in _IMAGE_KEYS and value)
            or (name == "enable_multimodal" and value is True)
            or (name == "default_workflow_type" and _IMAGE_WORKFLOW.search(str(value)))
            or (path == ("model", "model_path") and _IMAGE_MODEL.search(str(value)))
        ):
            return [Problem(path, _IMAGES)]
    kind = place.get("algorithm", "algorithm_type")
    if kind in _OTHER_ALGORITHMS:
        return [Problem(("algorithm", "algorithm_type"), _OTHER_ALGORITHMS[str(kind)].format(kind))]
    if (problem := workflow_problem(data)) is not None:
        return [problem]
    for name, reason in (
        ("tinker", "training by Tinker's service is not there: take fsdp2 or megatron on GPUs of your own"),
        (
            "external_model",
            "to evaluate a model behind an API, take `envsdk evaluate` with an OpenAI endpoint",
        ),
    ):
        if place.get("model", name, "enable"):
            return [Problem(("model", name, "enable"), reason)]
    if not tasksets(place):
        section = ("buffer", "explorer_input")
        for inside in (section, (*section, "taskset"), (*section, "tasksets")):
            given = place.get(*inside)
            if given and not (inside == section and isinstance(given, Mapping)):
                what = "must be a list of sections" if inside[-1] == "tasksets" else "must be a section"
                return [Problem(inside, f"{what} with keys, not {given!r}")]
        reason = (
            "is missing: the trainer, too, says what is played; copy the section from the explorer's file"
        )
        return [Problem((*section, "taskset"), reason)]
    return []


def _leaves(value: Any, path: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    if isinstance(value, Mapping):
        for name, below in value.items():
            yield from _leaves(below, (*path, name))
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for i, below in enumerate(value):
            yield from _leaves(below, (*path, i))
    elif path:
        yield path, value

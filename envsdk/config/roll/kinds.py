"""Which files are ROLL's, and which of them envsdk has no pipeline for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from envsdk.base.settings.problems import KeyPath, Problem
from envsdk.config.foreign.row import value_at

_MARKS: tuple[tuple[str, ...], ...] = (
    ("reward_pretrain",),
    ("hydra",),
    ("checkpoint_config",),
    ("num_gpus_per_node",),
    ("actor_train", "training_args", "per_device_train_batch_size"),
    ("student_train",),
    ("actor_infer", "generating_args", "num_beams"),
)
"""Keys that no file of ours needs. One of them makes a file ROLL's: names that both have mean ROLL's then."""

_ABSENT = object()
_NO_IMAGES = (
    "is for images, video or audio, and envsdk trains on text alone: take a file for a text model; nothing"
    " of this one can be used here"
)
_DISTILLS = (
    "distills on given answers, which envsdk does not: imitate them with `envsdk sft`, or take "
    "student_train, student_infer and teacher, where the student writes them itself"
)
_OTHER_KINDS: Mapping[str, str] = {
    "sft_train": (
        "belongs to supervised fine-tuning: take `envsdk sft`, which trains on collected episodes "
        "and on files of chats"
    ),
    "chosen_key": (
        "belongs to DPO, which envsdk does not have: train with rewards (`rewards`), or imitate the "
        "chosen answers with `envsdk sft`"
    ),
    "student": _DISTILLS,
    "student_pretrain": _DISTILLS,
    "diffusion": "trains a model of images or video; envsdk trains on text alone",
}
_MEDIA_KEY = re.compile(r"(image|video|audio)(_|$)")
_MEDIA_MODEL = re.compile(r"(?i)(^|[/._-])(vl|omni|wan\d?)([._-]|$)")
_MEDIA_CLASS = re.compile(r"DetectionRewardWorker|VideoR1RewardWorker|\.vl_|VLTraj|deepeyes", re.IGNORECASE)


def is_roll_file(data: Mapping[str, Any]) -> bool:
    """Whether the file has a key that only ROLL's files have."""
    return any(value_at(data, path, _ABSENT) is not _ABSENT for path in _MARKS)


def kind_problems(data: Mapping[str, Any]) -> list[Problem]:
    """Why the file as a whole cannot be used: one problem, at the key that shows it; none if it can."""
    for path, value in _leaves(data):
        is_media = (
            (
                _MEDIA_KEY.match(str(path[-1])) is not None
                and path[-2:-1] in (("data_args",), ("limit_mm_per_prompt",))
            )
            or (path[-1] in ("pretrain", "student_pretrain") and _matches(_MEDIA_MODEL, value))
            or (path[-1] in ("worker_cls", "env_manager_cls", "env_type") and _matches(_MEDIA_CLASS, value))
        )
        if is_media:
            return [Problem(path, _NO_IMAGES)]
    return [Problem((key,), reason) for key, reason in _OTHER_KINDS.items() if key in data][:1]


def _matches(pattern: re.Pattern[str], value: Any) -> bool:
    return isinstance(value, str) and pattern.search(value) is not None


def _leaves(data: Mapping[str, Any], prefix: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    for name, value in data.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, (*prefix, name))
        else:
            yield (*prefix, name), value

"""ROLL's keys of rewards as values of ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envsdk.base.settings.problems import KeyPath
from envsdk.config.foreign.row import Place

_REWARDS = "roll.pipeline.rlvr.rewards."
_D = "rewards.*"


def is_worker(value: Any, place: Place, name: str) -> bool:
    """Whether the domain has this worker of ROLL's."""
    worker = str(place.section(2).get("worker_cls"))
    return worker.startswith(_REWARDS) and worker.endswith(name)


def is_rolls(value: Any, place: Place) -> bool:
    return str(place.section(2).get("worker_cls")).startswith("roll.")


def cross_think(value: Any, place: Place) -> Mapping[str, Any]:
    kind = place.beside("reward_type", default="soft")
    if kind not in ("soft", "loose", "strict"):
        raise ValueError(f"reward_type {kind!r} is not there: use soft, loose or strict")
    parts = {
        "choice": {"worker_cls": "choice", "reward_type": kind},
        "repetition": {"worker_cls": "repetition", "ngram_size": 3, "weight": 0.5},
    }
    return {f"{_D}.worker_cls": "sum", f"{_D}.parts": parts}


def judge(value: Any, place: Place) -> Mapping[str, Any]:
    model = place.beside("judge_model_name") or place.beside("model_args", default={}).get(
        "model_name_or_path"
    )
    return {
        f"{_D}.worker_cls": "judge",
        f"{_D}.prompt": "match",
        **({f"{_D}.model": model} if model else {}),
    }


def pending_keys(data: Mapping[str, Any]) -> dict[KeyPath, str]:
    """Keys that training needs, and that one of ROLL's files says otherwise or not at all: what to do."""
    rewards = data.get("rewards")
    return {
        ("rewards", name, "base_url"): (
            "is missing: start the judge's model, for example with `vllm serve MODEL --port 8001`, and give "
            f"rewards.{name}.judge_api_url=http://HOST:8001/v1"
        )
        for name, reward in (rewards.items() if isinstance(rewards, Mapping) else ())
        if isinstance(reward, Mapping)
        and str(reward.get("worker_cls")).endswith("LLMJudgeRewardWorker")
        and not (reward.get("judge_api_url") or reward.get("base_url"))
    }


def judge_sampling(value: Any, place: Place) -> Mapping[str, Any]:
    given = value if isinstance(value, Mapping) else {}
    ours = {"max_tokens": given.get("max_new_tokens"), "temperature": given.get("temperature")}
    extra = {name: given[name] for name in ("top_p", "top_k") if name in given}
    found = {f"{_D}.{name}": each for name, each in ours.items() if each is not None}
    return found | ({f"{_D}.extra_body": extra} if extra else {})


def named(value: Any, place: Place, name: str, reward_type: str | None = None) -> Mapping[str, Any]:
    """A reward of ours in the worker's place."""
    own = {} if reward_type is None else {f"{_D}.reward_type": reward_type}
    return {f"{_D}.worker_cls": name, **own}

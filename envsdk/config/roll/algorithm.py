"""ROLL's keys of the algorithm as values of ours."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from envsdk.config.foreign.row import NULL, Place, read_data


def estimator(value: Any, place: Place) -> Mapping[str, Any]:
    """ROLL normalizes rewards, clips them, pays them at the end of the sequence, and then sums them up; in
    ours some estimators normalize by themselves."""
    mean, std = _statistics(place)
    if value == "gigpo":
        return _gigpo(mean, std, place)
    if value in ("grpo", "reinforce") and _is_grpo(mean, std, place):
        return {"adv_estimator": "grpo", "grpo_normalize_std": std == "group"}
    common = {"reward_normalize_mean": mean, "reward_normalize_std": std}
    if value == "step_reinforce":
        gamma = place.get("step_reward_gamma", default=0.95)
        common |= {"discount_level": "turn", "gamma": gamma, "reward_level": "return"}
    elif not place.has_prompts:
        common |= {"reward_level": "trajectory"}
    if value not in ("grpo", "reinforce", "agentic_reinforce", "step_reinforce"):
        return {"adv_estimator": value, **common}
    level = {"discount_level": "turn" if value == "agentic_reinforce" else "token"}
    return {"adv_estimator": "reinforce", "reinforce_baseline": "none", **level, **common}


def _gigpo(mean: str, std: str, place: Place) -> Mapping[str, Any]:
    step, episode = (place.get(f"{name}_reward_weight", default=1.0) for name in ("step", "episode"))
    if not isinstance(step, int | float) or not isinstance(episode, int | float) or episode <= 0:
        raise ValueError("gigpo needs step_reward_weight and a positive episode_reward_weight")
    if mean != "group" or std not in ("group", "none"):
        raise ValueError(
            "gigpo compares within the group here: set reward_normalization to grouping: traj_group_id and "
            "method: mean or mean_std"
        )
    return {
        "adv_estimator": "gigpo",
        "gigpo_step_weight": step / episode,
        "grpo_normalize_std": std == "group",
        "gamma": place.get("step_reward_gamma", default=0.95),
    }


def _is_grpo(mean: str, std: str, place: Place) -> bool:
    """Whether the advantage is the normalized reward itself, on every token."""
    return (
        mean == "group"
        and std in ("group", "none")
        and _group_size(place) != 1
        and place.get("gamma", default=1) == 1
        and has_no_kl_reward(None, place)
        and not reward_clip_acts(place.get("reward_clip"), place)
    )


def reward_clip_acts(value: Any, place: Place) -> bool:
    """Whether any reward, normalized as ROLL does, can lie beyond `reward_clip`. Of n numbers none is farther
    than (n - 1) / sqrt(n) sample deviations from their mean."""
    size = _group_size(place)
    if (
        not isinstance(value, int | float)
        or not isinstance(size, int)
        or _statistics(place) != ("group",) * 2
    ):
        return bool(value)
    return value != 0 and value < (size - 1) / math.sqrt(max(1, size))


def has_idle_reward_clip(value: Any, place: Place) -> bool:
    return place.get("adv_estimator") != "gigpo" and not reward_clip_acts(value, place)


def clips_gigpo(value: Any, place: Place) -> bool:
    return place.get("adv_estimator") == "gigpo" and isinstance(value, int | float) and value > 0


def gigpo_clip(value: Any, place: Place) -> Mapping[str, Any]:
    """ROLL clips the sum of both parts, which is the advantage before it is whitened."""
    if place.get("whiten_advantages"):
        raise ValueError("beside gigpo and whiten_advantages it is not there: leave one of the two out")
    clip = place.get("advantage_clip")
    return {} if isinstance(clip, int | float) and clip <= value else {"advantage_clip": value}


def lacks_baseline(value: Any, place: Place) -> bool:
    """Whether a file's `grpo` compares nothing: ROLL takes a baseline from `reward_normalization` alone."""
    return value == "grpo" and not place.has_prompts and _statistics(place)[0] == "none"


def _group_size(place: Place) -> Any:
    size = place.get("num_return_sequences_in_group")
    return size or place.get("train_env_manager", "group_size", default=1)


def _statistics(place: Place) -> tuple[str, str]:
    """What rewards are compared with: of `none`, `group`, `batch`, `tag`."""
    if place.has_prompts:
        if place.get("adv_estimator") == "grpo":
            return "group", "group"
        found = [place.get(f"norm_{part}_type") or "none" for part in ("mean", "std")]
        if "running" in found:
            raise ValueError(
                "running statistics are not there: a reward would depend on when it was earned; "
                "set norm_mean_type and norm_std_type to batch or group"
            )
        return _known(found, {"none": "none", "group": "group", "batch": "tag"})
    section = place.mapping("reward_normalization")
    grouping, method = section.get("grouping") or "batch", section.get("method") or "identity"
    if grouping not in ("batch", "tags", "traj_group_id"):
        raise ValueError(
            f"reward_normalization.grouping: {grouping} is not there: traj_group_id, tags or batch"
        )
    given = "batch" if grouping == "batch" else "group"
    whole = {"mean_std": (given, given), "asym_clip": (given, given)}
    by_method = {"identity": ("none", "none"), "mean": (given, "none"), **whole}
    if str(method) not in by_method:
        known = ", ".join(by_method)
        raise ValueError(f"reward_normalization.method: {method} is not there: one of {known}")
    found = [
        section.get(f"norm_{part}_type") or default
        for part, default in zip(("mean", "std"), by_method[method], strict=True)
    ]
    group = {"batch": "batch", "tags": "tag"}.get(grouping, "group")
    mean, std = _known(found, {"none": "none", "batch": "batch", "group": group})
    if place.get("adv_estimator") != "step_reinforce" and _group_size(place) == 1:
        mean, std = ("none" if each == "group" else each for each in (mean, std))
    return mean, std


def _known(found: Sequence[Any], words: Mapping[str, str]) -> tuple[str, str]:
    unknown = [each for each in found if not isinstance(each, str) or each not in words]
    if unknown:
        raise ValueError(f"norm_mean_type, norm_std_type: {unknown[0]} is not there: batch, group or null")
    mean, std = (words[each] for each in found)
    return mean, std


def default_estimator(value: Any, place: Place) -> Mapping[str, Any]:
    """The keys of the estimator where the file names none."""
    return {} if place.get("adv_estimator") else estimator("gae", place)


def no_value_clip(value: Any, place: Place) -> Any:
    return NULL


def has_no_kl_reward(value: Any, place: Place) -> bool:
    return not place.get("add_token_level_kl") or place.get("init_kl_coef", default=0.2) == 0


def kl_penalty(value: Any, place: Place) -> Mapping[str, Any]:
    known = {"kl": "k1", "mse": "k2", "k3": "k3"}
    if value not in known:
        raise ValueError(f"{value} is not there: use kl, mse or k3")
    return {"kl_reward_type": known[value]}


def dual_clip(value: Any, place: Place) -> Mapping[str, Any]:
    clip = place.get("pg_clip", default=0.2)
    return {"dual_clip": 1 + 2 * clip if value and isinstance(clip, int | float) else None}


def pg_clip(value: Any, place: Place) -> Mapping[str, Any]:
    return {} if place.get("use_pg_clip_range") else {"pg_clip_low": value, "pg_clip_high": value}


def importance_sampling(value: Any, place: Place) -> Mapping[str, Any]:
    if value not in ("token", "seq"):
        raise ValueError(f"{value!r} is neither token nor seq")
    return {"pg_variant": "segment_ppo"} if value == "seq" else {}


def pg_variant(value: Any, place: Place) -> Mapping[str, Any]:
    def own(name: str, default: Any) -> Any:
        return place.get("actor_train", name, default=place.get(name, default=default))

    known = read_data("envsdk.config.roll", "losses.toml").get(str(value), {})
    args = {key: own(*each) if isinstance(each, list) else each for key, each in known.items()}
    return {"pg_variant": value, **({"pg_args": args} if args else {})}


def ratio_type(value: Any, place: Place) -> Mapping[str, Any]:
    if value not in ("token", "segment"):
        raise ValueError(f"{value!r} is neither token nor segment")
    variant = place.get("actor_train", "pg_variant") or place.get("pg_variant") or "ppo"
    if value == "segment" and variant != "ppo":
        raise ValueError(f"segment is there for pg_variant ppo, not for {variant}: leave one of the two out")
    return {"pg_variant": "segment_ppo"} if value == "segment" else {}


def rl_loss_coef(value: Any, place: Place) -> Mapping[str, Any]:
    if value == 0 and "use_topr_neg_loss_coef" in place.data:
        return {"pg_variant": "topr"}
    if value != 1:
        raise ValueError(
            f"is {value}: scale actor_train.training_args.learning_rate instead, and leave it out"
        )
    return {}


def is_true(value: Any, place: Place) -> Mapping[str, Any]:
    if value is not True:
        raise ValueError("false is not there: weights have no gradient; leave it out")
    return {}

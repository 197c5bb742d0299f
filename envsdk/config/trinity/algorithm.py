"""Conversions of Trinity's `algorithm` section."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envsdk.config.foreign.row import Convert, Place, read_data

Ours = Mapping[str, Any]

_TABLE = read_data("envsdk.config.trinity", "functions.toml")
_TYPES: Mapping[str, tuple[str, str, str]] = _TABLE["types"]
_ESTIMATORS: Mapping[str, str] = _TABLE["estimators"]


def algorithm(value: Any, place: Place) -> Ours:
    """Everything that follows from `algorithm_type`, unless the file names the functions itself."""
    if value not in _TYPES:
        raise ValueError(f"{value} is not there; there are {', '.join(_TYPES)}")
    if place.get("algorithm", "advantage_fn") is not None and value == "ppo":
        raise ValueError("ppo has its own advantage, from a value head: leave advantage_fn out, or take grpo")
    ours: dict[str, Any] = {}
    for name, convert in CONVERSIONS.items():
        if not any(place.beside(f"{name}{end}") is not None for end in ("", "_args")):
            ours |= convert(None, place)
    return ours


def advantage(value: Any, place: Place) -> Ours:
    if place.get("adv_estimator") is not None:
        return {}  # given on top of the file
    name, args = _function(place, "advantage", 0)
    ours: dict[str, Any] = {}
    if name in ("grpo", "grpo_verl", "step_wise_grpo"):
        level = args.pop("std_cal_level", None) or "group"
        if level not in _TABLE["levels"]:
            raise ValueError(f"std_cal_level: {level} is neither group nor batch")
        ours |= _TABLE["levels"][level]
        if (threshold := args.pop("std_threshold", None)) is not None:
            ours["group_filters"] = [{"name": "std_filter", "std_threshold": threshold}]
    elif name == "gigpo":
        ours["grpo_normalize_std"] = args.pop("fnorm", "none") == "std"
    elif name == "on_policy_distill":
        others = place.get("explorer", "auxiliary_models") or [{}]
        if len(others) != 1 or not others[0].get("model_path"):
            raise ValueError("on_policy_distill needs one model in explorer.auxiliary_models: the teacher")
        ours["teachers.teacher.coef"] = float(args.pop("kl_coef", 1.0))
        ours["teachers.teacher.pretrain"] = str(others[0]["model_path"])
    return ours | _said(
        "advantage",
        name,
        args,
        "take grpo, rloo, opmd, asymre, reinforce, reinforceplusplus, gigpo or ppo; or write one "
        "(docs/how-to-add.md) and set adv_estimator=package.module:function",
    )


def policy_loss(value: Any, place: Place) -> Ours:
    if place.get("pg_variant") is not None:
        return {}  # given on top of the file
    name, args = _function(place, "policy_loss", 1)
    mode = args.pop("loss_agg_mode", None) or place.get("algorithm", "loss_agg_mode")
    # Of Trinity's experiences, one for each turn, those of an episode weigh as much as one.
    by_turns = (place.get("algorithm", "advantage_fn_args") or {}).get("enable_step_norm") is True
    usual = "seq-mean-token-mean" if name == "gspo" or by_turns else "token-mean"
    ours: dict[str, Any] = {"loss_agg_mode": mode or usual}
    ratio = "behavior" if _uses_rollout_logprobs(place) else "proximal"
    if name in ("opmd", "rec", "sppo") or ratio == "proximal":
        ours["train_infer_correction.is_weight.enabled"] = False  # Trinity's stale tokens have no weight
    ours |= {"pg_variant": name, "pg_args": {} if name == "opmd" else {"ratio_over": ratio}}
    if name == "ppo":
        clip = _or(args.pop("clip_range", None), 0.2)
        for side in ("low", "high"):
            ours[f"pg_clip_{side}"] = _or(args.pop(f"clip_range_{side}", None), clip)
    elif name == "sppo":
        bound = args.pop("epsilon", 0.3)
        ours["pg_args"] |= {"clip_low": bound / (1 + bound), "clip_high": bound}
    elif name == "rec":
        sides = str(args.pop("clip_mode", "none")).removesuffix("-side")
        if sides not in ("one", "two", "none"):
            raise ValueError(f"clip_mode: {sides} is not there: take one-side, two-side or none")
        ours["pg_args"]["sides"] = sides
    said = _said(
        "policy_loss",
        name,
        args,
        "take ppo, gspo, cispo, topr, opmd, rec or sppo; or write one (docs/how-to-add.md) and set "
        "pg_variant=package.module:function",
    )
    ours["pg_args"] |= said.pop("pg_args", {})
    if name == "cispo" and ours["pg_args"]["clip_low"] > 1:
        ours["pg_args"]["clip_low"] = None
    if name == "rec" and ours["pg_args"]["sides"] == "none":
        return {key: each for key, each in ours.items() if key != "pg_args"} | {"pg_variant": "vanilla"}
    return ours | said


def kl_loss(value: Any, place: Place) -> Ours:
    name, args = _function(place, "kl_loss", 2)
    coef = _coef(name, args)
    return {"kl_loss_coef": coef, "kl_loss_type": _estimator(name)} if coef else {"kl_loss_coef": 0.0}


def kl_penalty(value: Any, place: Place) -> Ours:
    name, args = _function(place, "kl_penalty", None)
    coef = _coef(name, args)
    return {"init_kl_coef": coef, "kl_reward_type": _estimator(name)} if coef else {"init_kl_coef": 0.0}


def entropy(value: Any, place: Place) -> Ours:
    name, args = _function(place, "entropy_loss", None, usual="default")
    coef = args.pop("entropy_coef", 0.0)
    _only(args)
    if name not in ("default", "basic", "none"):
        raise ValueError(f"{name} is not there: take default or none")
    return {"entropy_loss_coef": 0.0 if name == "none" else coef}


CONVERSIONS: Mapping[str, Convert] = {
    "advantage_fn": advantage,
    "policy_loss_fn": policy_loss,
    "kl_loss_fn": kl_loss,
    "kl_penalty_fn": kl_penalty,
    "entropy_loss_fn": entropy,
}
"""The functions of an algorithm, each with a name and arguments."""


def optimizer_kind(value: Any, place: Place) -> Ours:
    if str(value).lower() not in ("adam", "adamw"):
        raise ValueError(f"{value} is not there: trainers have AdamW; leave it out")
    return {}


def _uses_rollout_logprobs(place: Place) -> bool:
    """Whether ratios have the log-probabilities of the rollout below, as is usual, or recomputed ones."""
    verl = place.get(
        "trainer", "trainer_config", "algorithm", "rollout_correction", "bypass_mode", default=True
    )
    return place.get("algorithm", "bypass_old_logprobs", default=True) is not False and verl is not False


def _function(place: Place, kind: str, index: int | None, usual: str = "none") -> tuple[str, dict[str, Any]]:
    """Name and arguments of the algorithm's function of this kind."""
    type_ = place.get("algorithm", "algorithm_type", default="ppo")
    if index is not None:
        usual = _TYPES.get(str(type_), _TYPES["grpo"])[index]
    name = place.get("algorithm", f"{kind}_fn") or usual
    args = place.get("algorithm", f"{kind}_fn_args") or {}
    if not isinstance(args, Mapping):
        raise ValueError(f"algorithm.{kind}_fn_args takes a mapping")
    return str(name), dict(args)


def _said(kind: str, name: str, args: dict[str, Any], others: str) -> dict[str, Any]:
    """What the table says of a function, and of the arguments that are left of it: all must be known."""
    known = _TABLE[kind].get(name)
    if known is None:
        raise ValueError(f"{name} is not there: {others}")
    known = _TABLE[kind][known.get("same_as", name)]
    for each in known.get("ignored", ()):
        args.pop(each, None)
    ours: dict[str, Any] = known.get("set", {}) | _taken(known.get("take", {}), args)
    if "pg_args" in known:
        ours["pg_args"] = _taken(known["pg_args"], args)
    _only(args, **known.get("only", {}), **dict.fromkeys(known.get("unset", ())))
    return ours


def _taken(pairs: Mapping[str, Any], args: dict[str, Any]) -> dict[str, Any]:
    return {key: args.pop(*pair) if isinstance(pair, list) else pair for key, pair in pairs.items()}


def _coef(name: str, args: dict[str, Any]) -> float:
    coef = args.pop("kl_coef", 0.001)
    _only(args, adaptive=False)
    return 0.0 if name == "none" else coef


def _estimator(name: str) -> str:
    if name not in _ESTIMATORS:
        raise ValueError(f"{name} is not there: take k1, k2, k3, low_var_kl or none")
    return _ESTIMATORS[name]


def _or(value: Any, other: Any) -> Any:
    return other if value is None else value


def _only(args: dict[str, Any], **allowed: Any) -> None:
    """No argument is left but these, with these values."""
    for name, value in allowed.items():
        if (given := args.pop(name, value)) not in (value, None):
            raise ValueError(f"{name}: {given} is not there; leave it out, or {value!r}")
    if args:
        raise ValueError(f"has {', '.join(map(str, args))}, which this algorithm does not take here")

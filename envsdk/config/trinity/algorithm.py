"""Conversions of Trinity's `algorithm` section."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envsdk.config.foreign.row import Convert, Place

Ours = Mapping[str, Any]

_FUNCTIONS: Mapping[str, tuple[str, str, str]] = {
    "ppo": ("ppo", "ppo", "k2"),
    "grpo": ("grpo", "ppo", "k2"),
    "grpo_verl": ("grpo_verl", "ppo", "k2"),
    "dapo": ("grpo", "ppo", "none"),
    "reinforceplusplus": ("reinforceplusplus", "ppo", "k2"),
    "rloo": ("rloo", "ppo", "k2"),
    "opmd": ("opmd", "opmd", "k2"),
    "topr": ("reinforce", "topr", "k2"),
    "cispo": ("grpo", "cispo", "k2"),
    "gspo": ("grpo", "gspo", "k2"),
    "multi_step_grpo": ("step_wise_grpo", "ppo", "k2"),
    "asymre": ("asymre", "opmd", "none"),
    "sppo": ("opmd", "sppo", "none"),
    "rec": ("rec", "rec", "k2"),
    "gigpo": ("gigpo", "ppo", "k2"),
    "on_policy_distill": ("on_policy_distill", "ppo", "none"),
}
"""Type -> its advantage, policy loss and KL loss, where the file names none."""
_ESTIMATORS = {"k1": "k1", "k2": "k2", "k3": "k3", "low_var_kl": "k3"}


def algorithm(value: Any, place: Place) -> Ours:
    """Everything that follows from `algorithm_type`, unless the file names the functions itself."""
    if value not in _FUNCTIONS:
        raise ValueError(f"{value} is not there; there are {', '.join(_FUNCTIONS)}")
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
    match name:
        case "grpo" | "grpo_verl" | "step_wise_grpo":
            level = args.pop("std_cal_level", None) or "group"
            threshold = args.pop("std_threshold", None)
            _drop(args, "epsilon")
            _drop(args, "enable_step_norm")
            _only(args, duplicate_experiences=False, rank_penalty=None)
            if level == "group":
                ours: dict[str, Any] = {"adv_estimator": "grpo", "grpo_normalize_std": True}
            elif level == "batch":
                ours = {
                    "adv_estimator": "reinforce",
                    "reinforce_baseline": "none",
                    "reward_normalize_mean": "group",
                    "reward_normalize_std": "batch",
                }
            else:
                raise ValueError(f"std_cal_level: {level} is neither group nor batch")
            if threshold is not None:
                ours["group_filters"] = [{"name": "std_filter", "std_threshold": threshold}]
        case "ppo":
            ours = {
                "adv_estimator": "gae",
                "gamma": args.pop("gamma", 1.0),
                "lambd": args.pop("lam", 1.0),
            }
        case "reinforceplusplus":
            ours = {"adv_estimator": "reinforce_plus_plus", "gamma": args.pop("gamma", 1.0)}
        case "reinforce":
            ours = {"adv_estimator": "reinforce", "reinforce_baseline": "none"}
        case "rloo":
            ours = {"adv_estimator": "rloo"}
        case "opmd" | "opmd_verl":
            _drop(args, "tau")
            _only(args, opmd_baseline="mean")
            ours = {"adv_estimator": "grpo", "grpo_normalize_std": False}
        case "asymre":
            shift = args.pop("baseline_shift", -0.1)
            ours = {"adv_estimator": "grpo", "grpo_normalize_std": False, "adv_args.baseline_shift": shift}
        case "rec":
            _drop(args, "epsilon")
            _only(args, drop=None, std_normalize=False)
            ours = {"adv_estimator": "grpo", "grpo_normalize_std": False}
        case "gigpo":
            _drop(args, "epsilon", "step_reward_key", "env_state_hash_key")
            ours = {
                "adv_estimator": "gigpo",
                "gigpo_step_weight": args.pop("omega", 1.0),
                "gamma": args.pop("gamma", 1.0),
                "grpo_normalize_std": args.pop("fnorm", "none") == "std",
            }
        case "on_policy_distill":
            ours = dict(_taught(place, args.pop("kl_coef", 1.0)))
        case _:
            raise ValueError(
                f"{name} is not there: take grpo, rloo, opmd, asymre, reinforce, reinforceplusplus, gigpo or "
                "ppo; or "
                "write one (docs/how-to-add.md) and set adv_estimator=package.module:function"
            )
    _only(args)
    return ours


def policy_loss(value: Any, place: Place) -> Ours:
    if place.get("pg_variant") is not None:
        return {}  # given on top of the file
    name, args = _function(place, "policy_loss", 1)
    mode = args.pop("loss_agg_mode", None) or place.get("algorithm", "loss_agg_mode")
    # Of Trinity's experiences, one for each turn, those of an episode weigh as much as one.
    by_turns = (place.get("algorithm", "advantage_fn_args") or {}).get("enable_step_norm") is True
    usual = "seq-mean-token-mean" if name == "gspo" or by_turns else "token-mean"
    ours: dict[str, Any] = {"loss_agg_mode": mode or usual}
    behind = {"ratio_over": "behavior"} if _uses_rollout_logprobs(place) else {"ratio_over": "proximal"}
    if name in ("opmd", "rec", "sppo") or behind["ratio_over"] == "proximal":
        ours["train_infer_correction.is_weight.enabled"] = False  # Trinity's stale tokens have no weight
    match name:
        case "ppo":
            clip = args.pop("clip_range", None)
            clip = 0.2 if clip is None else clip
            ours |= {
                "pg_variant": "ppo",
                "pg_args": behind,
                "pg_clip_low": _or(args.pop("clip_range_low", None), clip),
                "pg_clip_high": _or(args.pop("clip_range_high", None), clip),
                "dual_clip": args.pop("clip_ratio_c", 3.0),
            }
            _drop(args, "delta_sequence_masking")
            _only(args, enable_sequence_masking=False, fallback_to_policy_gradient=False)
        case "gspo":
            low, high = args.pop("clip_range_low", 3e-4), args.pop("clip_range_high", 4e-4)
            ours |= {"pg_variant": "gspo", "pg_args": {**behind, "clip_low": low, "clip_high": high}}
        case "cispo":
            low, high = args.pop("clip_range_low", 1.0), args.pop("clip_range_high", 0.28)
            _drop(args, "mask_clip_range_low", "mask_clip_range_high")
            _only(args, enable_mask_clip=False)
            own = {**behind, "clip_low": None if low > 1 else low, "clip_high": high}
            ours |= {"pg_variant": "cispo", "pg_args": own}
        case "topr":
            _only(args, advantage_threshold=0.0)
            ours |= {"pg_variant": "topr", "pg_args": {**behind, "level": "token"}}
        case "opmd":
            ours |= {"pg_variant": "opmd", "pg_args": {"tau": args.pop("tau", 1.0)}}
        case "sppo":
            bound = args.pop("epsilon", 0.3)
            own = {"sides": "two", "clip_low": bound / (1 + bound), "clip_high": bound}
            ours |= {"pg_variant": "rec", "pg_args": {**behind, **own}}
        case "rec":
            low, high = args.pop("epsilon_low", 0.2), args.pop("epsilon_high", 0.2)
            sides = str(args.pop("clip_mode", "none")).removesuffix("-side")
            if sides not in ("one", "two", "none"):
                raise ValueError(f"clip_mode: {sides} is not there: take one-side, two-side or none")
            _drop(args, "epsilon_low_prime", "epsilon_high_prime", "regularizer_coef", "temp")
            _only(args, weight="none", regularizer="none")
            own = {"sides": sides, "clip_low": low, "clip_high": high}
            is_clipped = {"pg_variant": "rec", "pg_args": {**behind, **own}}
            ours |= {"pg_variant": "vanilla"} if sides == "none" else is_clipped
        case _:
            raise ValueError(
                f"{name} is not there: take ppo, gspo, cispo, topr, opmd, rec or sppo; or write one "
                "(docs/how-to-add.md) and set pg_variant=package.module:function"
            )
    _only(args)
    return ours


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


def _taught(place: Place, coef: Any) -> Ours:
    others = place.get("explorer", "auxiliary_models") or [{}]
    if len(others) != 1 or not others[0].get("model_path"):
        raise ValueError("on_policy_distill needs one model in explorer.auxiliary_models: the teacher")
    return {
        "adv_estimator": "reinforce",
        "distill_reward_coef": 0.0,
        "teachers.teacher.pretrain": str(others[0]["model_path"]),
        "teachers.teacher.coef": float(coef),
        "teachers.teacher.strategy_args.strategy_name": "vllm",
    }


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
        usual = _FUNCTIONS.get(str(type_), _FUNCTIONS["grpo"])[index]
    name = place.get("algorithm", f"{kind}_fn") or usual
    args = place.get("algorithm", f"{kind}_fn_args") or {}
    if not isinstance(args, Mapping):
        raise ValueError(f"algorithm.{kind}_fn_args takes a mapping")
    return str(name), dict(args)


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


def _drop(args: dict[str, Any], *names: str) -> None:
    for name in names:
        args.pop(name, None)


def _only(args: dict[str, Any], **allowed: Any) -> None:
    """No argument is left but these, with these values."""
    for name, value in allowed.items():
        if (given := args.pop(name, value)) not in (value, None):
            raise ValueError(f"{name}: {given} is not there; leave it out, or {value!r}")
    if args:
        raise ValueError(f"has {', '.join(map(str, args))}, which this algorithm does not take here")

"""Checks of rewards, advantages, aggregation and group filters against one another, and notes about them."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import ValidationError

from envsdk.algorithms import loss_settings
from envsdk.algorithms.estimator_contract import EstimatorArgs
from envsdk.algorithms.loss_settings import corrected_twice
from envsdk.algorithms.policy_loss_args import PolicyLossArgs
from envsdk.base.settings.nearest import suggest
from envsdk.base.settings.problems import Problem
from envsdk.config import plugins
from envsdk.config.models import RunConfig
from envsdk.config.sampling_support import support_problem
from envsdk.contracts.failures import ConfigurationError

COMPARING_FILTERS = ("zero_variance", "uniform_success")


def advantage_problems(config: RunConfig) -> Iterator[Problem]:
    """Combinations that fail, do nothing, or do not do what they say."""
    estimator = plugins.estimator_settings(config.adv_estimator)
    if estimator is not None:
        yield from _group_size(config, estimator)
        yield from _without_effect(config, estimator)
        yield from _state_hashes(config, estimator)
    yield from _kl_penalty(config)
    yield from _corrected_twice(config)
    yield from _filtered_tags(config)
    if config.loss_agg_mode == "seq-mean-token-sum-norm" and config.loss_agg_length is None:
        yield Problem(
            ("loss_agg_mode",),
            "seq-mean-token-sum-norm divides by loss_agg_length, which is missing; set it to the longest "
            f"response you expect, for example {config.sequence_length}",
        )
    if config.critic_warmup and config.critic_warmup >= config.max_steps:
        yield Problem(
            ("critic_warmup",),
            f"{config.critic_warmup} steps are all of max_steps={config.max_steps}, so the policy would "
            "never learn; use fewer",
        )


def _group_size(config: RunConfig, estimator: type[EstimatorArgs]) -> Iterator[Problem]:
    if config.train_env_manager.group_size > 1:
        return
    key = ("train_env_manager", "group_size")
    if estimator.compares_groups:
        yield Problem(
            key,
            f"adv_estimator={config.adv_estimator} compares the members of a group, and a group of 1 leaves "
            "nothing to compare; use 2 or more, or adv_estimator=reinforce",
        )
    for name in ("reward_normalize_mean", "reward_normalize_std"):
        if getattr(config, name) == "group" and config.reward_level != "return":
            yield Problem(
                (name,),
                "a group of 1 has no statistics of its own; use tag or batch, or "
                "train_env_manager.group_size of 2 or more",
            )
    for index, entry in enumerate(config.group_filters):
        if entry.name in COMPARING_FILTERS:
            yield Problem(
                ("group_filters", index),
                "a group of 1 never varies, so every group would be dropped; leave it out, or set "
                "train_env_manager.group_size to 2 or more",
            )
    if config.difficulty_weight == "learnability":
        yield Problem(
            ("difficulty_weight",),
            "a group of 1 is solved always or never, so every weight would be 0; use none, or "
            "train_env_manager.group_size of 2 or more",
        )


def _without_effect(config: RunConfig, estimator: type[EstimatorArgs]) -> Iterator[Problem]:
    """Keys that are set and have no effect."""
    name = config.adv_estimator
    if config.critic_warmup and not estimator.needs_values:
        yield Problem(
            ("critic_warmup",),
            f"has no effect with adv_estimator={name}, which has no critic; leave it out, or use gae",
        )
    if config.discount_level is not None and not estimator.reads_discount_level:
        yield Problem(
            ("discount_level",),
            f"has no effect with adv_estimator={name}; leave it out, or use reinforce or "
            "reinforce_plus_plus (for gae there is gae_level)",
        )
    if config.reward_level == "return" and name != "reinforce":
        yield Problem(
            ("reward_level",),
            f"return is for adv_estimator=reinforce, not for {name}, which compares or estimates returns "
            "itself; use turn or trajectory",
        )
    if config.loss_agg_length is not None and config.loss_agg_mode != "seq-mean-token-sum-norm":
        yield Problem(
            ("loss_agg_length",),
            f"has no effect with loss_agg_mode={config.loss_agg_mode}; leave it out, or use "
            "seq-mean-token-sum-norm",
        )
    if config.max_filtered_groups is not None and not config.group_filters:
        yield Problem(
            ("max_filtered_groups",), "has no effect without group_filters; name one, or leave this out"
        )


def _filtered_tags(config: RunConfig) -> Iterator[Problem]:
    played = config.train_env_manager.tags
    for index, entry in enumerate(config.group_filters):
        for place, tag in enumerate(entry.tags or ()):
            if tag not in played:
                hint = suggest(tag, played, known="train_env_manager.tags")
                yield Problem(
                    ("group_filters", index, "tags", place), f"`{tag}` is not played in training; {hint}"
                )


def _kl_penalty(config: RunConfig) -> Iterator[Problem]:
    if config.target_kl is not None and config.init_kl_coef == 0:
        yield Problem(
            ("target_kl",),
            "adapts the weight of the KL penalty by factors, from init_kl_coef on, which is 0 and would stay "
            "so; set init_kl_coef, for example to 0.01",
        )
    if config.target_kl is None and config.kl_horizon != RunConfig.model_fields["kl_horizon"].default:
        yield Problem(("kl_horizon",), "has no effect without target_kl; set that too, or leave this out")


def _state_hashes(config: RunConfig, estimator: type[EstimatorArgs]) -> Iterator[Problem]:
    if not estimator.needs_state_hashes:
        return
    for index, tag in enumerate(config.train_env_manager.tags):
        if tag not in config.custom_envs:
            continue
        env_type = config.custom_envs[tag].env_type
        try:
            constructor = plugins.environment_class(plugins.environment_spec(env_type))
        except ConfigurationError:
            continue  # the check of tags reports it
        abilities = getattr(constructor, "abilities", None)
        if abilities is None or "state_hash" not in abilities():
            yield Problem(
                ("train_env_manager", "tags", index),
                f"adv_estimator={config.adv_estimator} compares actions taken in the same state, and "
                f"`{env_type}` has no state_hash() to tell states apart; implement it, leave the tag out, or "
                "use grpo",
            )


def _corrected_twice(config: RunConfig) -> Iterator[Problem]:
    model = plugins.settings_model("policy_losses", config.pg_variant, "pg_args")
    if model is None or not issubclass(model, PolicyLossArgs):
        return  # A loss that only its own module describes; the trainer checks it when it starts.
    try:
        own = model.model_validate(config.pg_args)
    except ValidationError:
        return  # `_plugin_settings` says so.
    twice = corrected_twice(config, own)
    if twice is not None:
        yield Problem(("train_infer_correction", "is_weight", "enabled"), twice)


def algorithm_notes(config: RunConfig, *, at_start: bool = False) -> list[str]:
    """Sentences about what the policy loss of this run does not do; see `loss_settings.notes`.

    `at_start` leaves out that a ratio is 1 by construction, which is so by default and harms nothing.
    """
    infer = config.actor_infer
    sampling = infer.generating_args.sampling
    mini_batch = config.ppo_mini_batch_size or config.train_batch_size
    found = loss_settings.notes(
        config,
        one_optimizer_step=not at_start and config.ppo_epochs == 1 and mini_batch >= config.train_batch_size,
        max_staleness=config.staleness_bound,
        unknown_support=_unknown_support(config),
    )
    if infer.settings.get("logprobs") == "raw" and sampling.temperature not in (0, 1):
        found.append(
            "actor_infer records raw log-probabilities, those of temperature 1, while replies are sampled "
            f"and the trainer computes at temperature {sampling.temperature:g}: set logprobs: sampling"
        )
    longest = infer.generating_args.max_new_tokens
    found += [
        f"custom_envs.{tag}: replies end after actor_infer.generating_args.max_new_tokens={longest}, before "
        f"max_tokens_per_step={env.max_tokens_per_step}: raise the former, or lower the latter"
        for tag, env in config.custom_envs.items()
        if env.max_tokens_per_step is not None and env.max_tokens_per_step > longest
    ]
    return found


_WHOLE = {"top_p": 1, "top_k": 0, "min_p": 0}
"""Sampling that leaves no token out."""


def _unknown_support(config: RunConfig) -> str:
    problem, left_out = support_problem(config), "leaves out tokens that the trainer counts"
    if problem is None and any(env.structured_output is not None for env in config.custom_envs.values()):
        return f"structured_output {left_out} (with a top_k the engine tells which)"
    if not problem:
        return ""
    sampling = config.actor_infer.generating_args.sampling
    name, whole = next(each for each in _WHOLE.items() if getattr(sampling, each[0]) != each[1])
    return f"{name}={getattr(sampling, name):g} {left_out} ({problem}; set {name}={whole})"

"""Notes about a run's algorithm: all of them in `--explain`, and when a run starts those to act upon."""

from __future__ import annotations

from envsdk.algorithms import loss_settings
from envsdk.config.models import RunConfig
from envsdk.config.sampling_support import support_problem


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

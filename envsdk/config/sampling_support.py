"""Whether a run's trainer normalizes over the tokens that its engine could draw (`contracts.support`)."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from envsdk.config import plugins
from envsdk.config.models import RunConfig
from envsdk.engines.settings import EngineSettings


def support_problem(config: RunConfig) -> str | None:
    """Why it does not, where `top_k`, `top_p` or `min_p` leave tokens out; empty where it does.

    None: no token is left out.
    """
    sampling = config.actor_infer.generating_args.sampling
    if not sampling.is_truncated:
        return None
    trainer = config.actor_train.strategy_args.strategy_name
    trainer_settings = plugins.settings_model("trainers", trainer, "strategy_config")
    if not getattr(trainer_settings, "takes_support", False):
        return f"the trainer `{trainer}` does not normalize over them"
    others = [config.val_generating_args.sampling] if config.val_batch_size else []
    settings = known_settings(config)
    if settings is None:
        return "the engine does not tell them"
    return settings.support_problem(sampling, *others)


def keeps_support(config: RunConfig) -> bool:
    """Whether it does, and the engine is asked."""
    return support_problem(config) == ""


def engine_settings(config: RunConfig) -> dict[str, Any]:
    """What the policy's engines are given."""
    given, own = config.actor_infer.settings, known_settings(config)
    if own is not None and "return_sampling_mask" in type(own).model_fields and keeps_support(config):
        return {"return_sampling_mask": True, **given}
    return given


def known_settings(config: RunConfig) -> EngineSettings | None:
    """The settings of the policy's engines; None where they are wrong, or of an engine of others."""
    infer = config.actor_infer
    model = plugins.settings_model("engines", infer.strategy_args.strategy_name, "strategy_config")
    if model is None or not issubclass(model, EngineSettings):
        return None
    try:
        return model.model_validate(infer.settings)
    except ValidationError:  # which a check of the configuration reports
        return None

"""Checks of `teachers`: each tag has at most one, in a trainer or in an engine that scores prompts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from envsdk.base.plugins import plugin_names
from envsdk.base.settings.nearest import suggest
from envsdk.base.settings.problems import KeyPath, Problem
from envsdk.config import plugins
from envsdk.config.models import RunConfig
from envsdk.engines.settings import EngineSettings


def teachers_by_tag(config: RunConfig) -> Mapping[str, str]:
    """Name of the teacher of each training tag that has one: one without `tags` has those of no other."""
    named = {tag: name for name, teacher in config.teachers.items() for tag in teacher.tags or ()}
    others = [name for name, teacher in config.teachers.items() if teacher.tags is None]
    rest = dict.fromkeys(config.train_env_manager.tags, others[0]) if others else {}
    return rest | named


def teacher_problems(config: RunConfig) -> Iterator[Problem]:
    """Problems of `teachers` and of the keys that say how they are learned from."""
    if config.distill_top_k and config.distill_as == "advantage":
        yield Problem(
            ("distill_top_k",),
            "an advantage is that of the sampled token alone: set distill_as to `loss`, or leave this out",
        )
    if config.distill_as == "loss" and not config.teachers:
        yield Problem(
            ("distill_as",), "`loss` learns from `teachers`, and there are none: name one, or leave this out"
        )
    is_recorded = config.actor_infer.settings.get("logprobs") != "none"
    if config.teachers and config.distill_as == "advantage" and not is_recorded:
        yield Problem(
            ("distill_as",), "`advantage` needs the sampler's log-probabilities, which `logprobs: none` lacks"
        )
    trainer = config.actor_train.strategy_args.strategy_name
    strategy = plugins.settings_model("trainers", trainer, "strategy_config")
    if config.teachers and config.distill_top_k and not getattr(strategy, "scores_several", False):
        yield Problem(
            ("distill_top_k",),
            f"`{trainer}` computes the sampled tokens alone: leave it out, or take `torch` or `fsdp2_train`",
        )
    seen: dict[str | None, str] = {}
    for name, teacher in config.teachers.items():
        path: KeyPath = ("teachers", name)
        if teacher.tags == []:
            yield Problem(
                (*path, "tags"),
                "[] is no tag, so this teacher would score nothing: name tags, or leave this out for those "
                "of no other teacher",
            )
        for tag in teacher.tags if teacher.tags is not None else (None,):
            if tag is not None and tag not in config.train_env_manager.tags:
                hint = suggest(tag, config.train_env_manager.tags, known="tags of train_env_manager")
                yield Problem((*path, "tags"), f"unknown tag `{tag}`; {hint}")
            if (before := seen.setdefault(tag, name)) != name:
                what = "without `tags`" if tag is None else f"of `{tag}`"
                yield Problem((*path, "tags"), f"`{before}` is the teacher {what} already: give each its own")
        engine = teacher.strategy_args.strategy_name
        is_engine = engine in plugin_names(plugins.ENGINES)
        if config.distill_top_k and not is_engine:
            told = f"`{engine}` tells of no other tokens: take an engine for `{name}`"
            yield Problem(("distill_top_k",), told)
        if is_engine and len(teacher.device_mapping or ()) > 1:
            yield Problem(
                (*path, "device_mapping"),
                "a teacher's engine has one accelerator: start a server for a larger one, and name it as "
                "`base_url` of `sglang`",
            )
        settings = plugins.settings_model("engines", engine, "strategy_config")
        if settings is not None and issubclass(settings, EngineSettings) and not settings.scores_prompts:
            yield Problem(
                (*path, "strategy_args", "strategy_name"),
                f"`{engine}` does not score prompts: take `embedded`, `vllm` or `sglang`",
            )

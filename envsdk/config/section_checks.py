"""Checks of sections: players, opponents, teachers, the keys of a job, the best checkpoint, prompts and
rewards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from envsdk.base.plugins import plugin_names
from envsdk.base.settings.nearest import suggest
from envsdk.base.settings.problems import KeyPath, Problem
from envsdk.base.settings.validation import problems_in
from envsdk.config import plugins
from envsdk.config.env_models import CustomEnv
from envsdk.config.models import RunConfig
from envsdk.config.plugins import POLICIES, arguments, is_importable
from envsdk.config.rlvr import PROMPTS_ENV
from envsdk.config.rlvr_models import ValidationArgs
from envsdk.contracts.failures import ConfigurationError
from envsdk.contracts.players import POLICY
from envsdk.engines.settings import EngineSettings
from envsdk.rewards.loading import reward_class, settings_of

BUILT_IN = ("oracle", "random")


def player_problems(path: KeyPath, env: CustomEnv, models: Iterable[str]) -> Iterator[Problem]:
    """Problems of a tag's players, which may be `models`."""
    known = (POLICY, *BUILT_IN, *models, *plugin_names(POLICIES))
    for name in env.player_names:
        if name not in known and not is_importable(name):
            hint = suggest(name, known, known="players")
            said = f"there is no player {name!r} and `opponents` has none; {hint}"
            yield Problem((*path, "players"), said)


def opponent_problems(config: RunConfig) -> Iterator[Problem]:
    """Problems of the models that play against the policy."""
    asked = {name for env in config.custom_envs.values() for name in env.player_names}
    for name, opponent in config.opponents.items():
        path, every = ("opponents", name), opponent.refresh_steps
        if name in (POLICY, *BUILT_IN) or "/" in name:
            yield Problem(path, f"`{name}` is no name for an opponent; choose another, without a slash")
        elif name not in asked:
            yield Problem(path, "no tag has it among its players; name it there, or leave it out")
        if every is None:
            continue
        if opponent.pretrain is not None:
            yield Problem((*path, "pretrain"), "the run's checkpoints are what it plays; leave it out")
        if config.mode != "both":
            yield Problem((*path, "refresh_steps"), f"mode: {config.mode} has no checkpoints; leave it out")
        if not config.save_steps or every % config.save_steps:
            yield Problem(
                (*path, "refresh_steps"),
                f"its weights are those of checkpoints: take a multiple of save_steps, {config.save_steps}",
            )


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


_BUFFER = ("buffer", "trainer_input", "experience_buffer")


def job_problems(config: RunConfig) -> Iterator[Problem]:
    """Keys that do nothing where they stand, or name what is not there."""
    buffer, interval = config.buffer.trainer_input.experience_buffer, config.synchronizer.sync_interval
    if config.mode == "both" and interval > 1:
        yield Problem(
            ("synchronizer", "sync_interval"),
            f"{interval}, but `mode: both` publishes weights after every step; leave it out, or start the "
            "trainer and explorers as programs of their own (mode: train, mode: explore)",
        )
    if config.mode == "bench" and not config.val_batch_size:
        yield Problem(("val_batch_size",), "0, so that `mode: bench` has no held-out tasks to play")
    if buffer.cool_down_steps and buffer.max_uses == 1:
        yield Problem(
            (*_BUFFER, "cool_down_steps"), "does nothing while max_uses is 1: each group is used once"
        )
    if buffer.mixture and buffer.mixture_by == "tag":
        for name in buffer.mixture.keys() - set(config.train_env_manager.tags):
            hint = suggest(name, config.train_env_manager.tags, known="tags of train_env_manager")
            yield Problem((*_BUFFER, "mixture", name), f"no explorer plays this tag; {hint}")
    for name in config.explorer.may_differ:
        if name not in config.train_env_manager.tags:
            hint = suggest(name, config.train_env_manager.tags, known="tags of train_env_manager")
            yield Problem(("explorer", "may_differ"), f"{name!r} is no tag that this explorer plays; {hint}")
    if config.synchronizer.path is not None and config.synchronizer.sync_method != "checkpoint":
        yield Problem(
            ("synchronizer", "path"),
            f"does nothing with `sync_method: {config.synchronizer.sync_method}`; leave it out",
        )
    if config.buffer.retry_s < config.buffer.lease_s:
        yield Problem(
            ("buffer", "retry_s"),
            f"{config.buffer.retry_s:g} is below lease_s {config.buffer.lease_s:g}: a program would give up "
            "before the others count it as gone",
        )


_AVERAGE = ("actor_train", "training_args", "ema_decay")
_FOUND_BY_PLAYING = ("val/env/", "val/calls/", "val/players/", "val/num_turns_mean")
"""Metrics whose names the first evaluation shows."""


def selection_problems(config: RunConfig) -> Iterator[Problem]:
    """Problems of selection by a held-out metric."""
    metric, patience = config.metric_for_best_model, config.early_stopping_patience
    tags = ["mean", *config.val_env_manager.tags]
    known = [f"val/{name}/{tag}" for name in ("success", "reward") for tag in tags]
    if metric is not None and metric not in known and not metric.startswith(_FOUND_BY_PLAYING):
        hint = suggest(metric, known, known="metrics of evaluations")
        yield Problem(("metric_for_best_model",), f"no evaluation of this run has `{metric}`; {hint}")
    required = {
        "metric_for_best_model": metric,
        "eval_steps above 0": config.eval_steps,
        "val_batch_size above 0": config.val_batch_size,
    }
    if patience is not None and not all(required.values()):
        needed = next(name for name, value in required.items() if not value)
        yield Problem(("early_stopping_patience",), f"it needs {needed}; set that, or leave this out")
    if not config.evaluates_average:
        return
    if config.mode == "train":
        yield Problem(_AVERAGE, "mode: train publishes the weights themselves to `bench`; leave it out")
    if config.validation_overlaps:
        yield Problem(_AVERAGE, "training would play the averaged weights too; take `validation: pause`")
    if config.actor_train.strategy_args.strategy_name == "megatron_train":
        yield Problem(_AVERAGE, "`megatron_train` keeps no average; take `torch` or `fsdp2_train`")


def prompt_problems(config: RunConfig) -> Iterator[Problem]:
    """What is wrong with prompts, domains and rewards, as far as the file shows it."""
    yield from _domains(config)
    yield from _group_size(config)
    yield from _val_sampling(config)
    for path, reward in reward_sections(config).items():
        yield from _reward(path, reward)


def reward_sections(config: RunConfig) -> dict[KeyPath, dict[str, Any]]:
    """The rewards of all tags that ask prompts, by the key to mend."""
    found: dict[KeyPath, dict[str, Any]] = {}
    for tag, env in config.custom_envs.items():
        reward = arguments(env).get("reward") if env.env_type == PROMPTS_ENV else None
        reward = {"worker_cls": reward} if isinstance(reward, str) else reward
        if isinstance(reward, dict):
            domain = next((name for name in (tag, tag.removesuffix("_val")) if name in config.rewards), None)
            path = ("custom_envs", tag, "env_config", "reward") if domain is None else ("rewards", domain)
            found.setdefault(path, reward)
    return found


def _domains(config: RunConfig) -> Iterator[Problem]:
    files = config.actor_train.data_args
    if files is None:
        return
    path: KeyPath = ("actor_train", "data_args", "domain_interleave_probs")
    shares = files.domain_interleave_probs or {}
    for name in shares:
        if name not in config.rewards:
            hint = suggest(name, config.rewards, known="domains in rewards")
            yield Problem((*path, name), f"no such domain; {hint}")
    if shares and not any(shares.values()):
        yield Problem(path, "leaves no domain any prompts; give one of them a share above 0")


def _val_sampling(config: RunConfig) -> Iterator[Problem]:
    if isinstance(config.validation, ValidationArgs) and config.val_env_manager.generating_args is not None:
        yield Problem(
            ("val_env_manager", "generating_args"),
            "validation.generating_args says how held-out prompts are answered; keep one of the two",
        )


def _group_size(config: RunConfig) -> Iterator[Problem]:
    asked, played = config.num_return_sequences_in_group, config.train_env_manager.group_size
    if asked is not None and asked != played:
        yield Problem(
            ("train_env_manager", "group_size"),
            f"{played} is not num_return_sequences_in_group={asked}, which says the same; leave one out",
        )


def _reward(path: KeyPath, reward: dict[str, Any]) -> Iterator[Problem]:
    try:
        kind = reward_class(str(reward.get("worker_cls")))
    except ConfigurationError as error:
        yield Problem((*path, "worker_cls"), str(error))
        return
    if kind.Args is None:
        return
    try:
        kind.Args.model_validate(settings_of(reward))
    except ValidationError as error:
        for problem in problems_in(error, kind.Args):
            yield Problem((*path, *problem.path), problem.message)

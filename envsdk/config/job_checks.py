"""Checks of the keys of a job whose trainer and explorers are programs of their own."""

from __future__ import annotations

from collections.abc import Iterator

from envsdk.base.settings.nearest import suggest
from envsdk.base.settings.problems import Problem
from envsdk.config.models import RunConfig

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

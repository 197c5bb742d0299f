"""What a run needs and this machine does not have: the model, packages, devices, memory."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from pydantic import ValidationError

from envsdk.base import registry
from envsdk.base.plugins import plugin_names
from envsdk.base.settings.nearest import did_you_mean
from envsdk.base.settings.problems import Problem
from envsdk.base.store.best import why_no_best
from envsdk.base.store.hub import is_hub_name, is_model_name, known_folder
from envsdk.base.store.model_files import (
    is_model_folder,
    model_problem,
    newest_model,
)
from envsdk.base.store.named_models import GROUP, is_named_model, named_model
from envsdk.config import plugins
from envsdk.config.device_memory import card_bytes, memory_problems
from envsdk.config.models import EMBEDDED_DEFAULT, RunConfig
from envsdk.contracts.failures import ConfigurationError

_RUNS = Path("runs")
"""Where runs are unless `output_dir` says otherwise."""


def machine_problems(config: RunConfig, *, for_training: bool = True) -> list[Problem]:
    """What the run needs and this machine does not have: the model, packages, devices, memory."""
    checks: tuple[Callable[[RunConfig], Iterator[Problem]], ...] = (_model, _packages, _attention, _devices)
    if for_training:
        checks += (_download, _other_models, _card)
    return [problem for each in checks for problem in each(config)]


def _model(config: RunConfig) -> Iterator[Problem]:
    if config.pretrain == EMBEDDED_DEFAULT:
        return
    folder = known_folder(config.pretrain)
    if folder is None:
        if why := why_no_best(Path(config.pretrain)):
            yield Problem(("pretrain",), why)
        elif not is_model_name(config.pretrain):
            names = [EMBEDDED_DEFAULT, *plugin_names(GROUP)]
            yield Problem(
                ("pretrain",),
                f"there is no folder {Path(config.pretrain).expanduser()}; give the folder of a Hugging Face "
                f"model, its name on the hub, or one of {', '.join(names)}."
                f"{did_you_mean(config.pretrain, names)}",
            )
    elif not is_model_folder(folder):
        yield Problem(("pretrain",), f"{folder} holds no config.json: it is no Hugging Face model folder")
    elif problem := model_problem(folder):
        yield Problem(("pretrain",), problem)


def _download(config: RunConfig) -> Iterator[Problem]:
    name = config.pretrain
    if not is_model_name(name) or known_folder(name) is not None:
        return
    yield Problem(("pretrain",), _not_here(name))


def _other_models(config: RunConfig) -> Iterator[Problem]:
    """Models of teachers and opponents that are not there."""
    for section, models in (("teachers", config.teachers), ("opponents", config.opponents)):
        for name, model in models.items():
            if model.pretrain is not None and (problem := _other_model_problem(config, model.pretrain)):
                yield Problem((section, name, "pretrain"), problem)


def _other_model_problem(config: RunConfig, pretrain: str) -> str:
    path = Path(pretrain).expanduser()
    if is_named_model(pretrain) or newest_model(path) is not None:
        return ""
    absolute = path.absolute()
    if any(absolute.is_relative_to(runs.expanduser().absolute()) for runs in (_RUNS, config.output_dir)):
        return f"there is no run or checkpoint {path} with a model: train it first"
    if path.exists():
        return f"{path} holds no config.json: it is no model, no checkpoint and no run"
    if is_hub_name(pretrain):
        return "" if known_folder(pretrain) is not None else _not_here(pretrain)
    return f"there is no folder {path}; give a model's, a checkpoint's or a run's"


def _not_here(name: str) -> str:
    coming = "downloaded"
    if is_named_model(name):
        model = named_model(name)
        coming = f"made from {model.source} ({model.title}, license {model.license})"
    return f"{name} is not on this machine: it is {coming} when the run starts"


def _packages(config: RunConfig) -> Iterator[Problem]:
    """What the environments of the tags that are played need."""
    played = {tag for manager in config.env_managers.values() for tag in manager.tags}
    for tag in sorted(played & config.custom_envs.keys()):
        env = config.custom_envs[tag]
        with suppress(ConfigurationError):  # `_tags` says so.
            spec = plugins.environment_spec(env.env_type)
            if commands := registry.missing(spec):
                needs = f"what `{env.env_type}` needs is not installed: `{'`, `'.join(commands)}`"
                yield Problem(("custom_envs", tag, "env_type"), needs)
            elif problem := registry.lacks(spec, env.env_config):
                yield Problem(("custom_envs", tag, "env_config"), problem)


def _attention(config: RunConfig) -> Iterator[Problem]:
    """Packages of kernels that are asked for by name. A cluster's machines may have them."""
    key = "attn_implementation"
    for section in plugins.settings_sections(config):
        if key not in section.values or config.ray.address is not None:
            continue
        try:
            settings = section.model.model_validate(dict(section.values))
        except ValidationError:
            continue  # `_plugin_settings` says so.
        if isinstance(settings, plugins.ChoosesAttention) and (problem := settings.attention_problem()):
            yield Problem(section.also.get(key, (*section.path, key)), problem)


def total_memory() -> int:
    """Bytes of main memory of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _card(config: RunConfig) -> Iterator[Problem]:
    """What this machine's GPUs cannot hold. The stated size of other ones is judged by `check`."""
    if config.device_memory_gib is None and (size := card_bytes(config)) is not None:
        yield from memory_problems(config, size)


def _devices(config: RunConfig) -> Iterator[Problem]:
    """Devices by name, checked before a process that would use them is started."""
    is_here = config.ray.address is None and find_spec("torch") is not None
    for section in plugins.settings_sections(config):
        device = str(section.values.get("device", "cpu"))
        if not is_here or not re.fullmatch(r"cuda(:[0-9]+)?", device):
            continue
        import torch

        if int(device.partition(":")[2] or 0) >= (there := torch.cuda.device_count()):
            path = section.also.get("device", (*section.path, "device"))
            yield Problem(path, f"`{device}`, but PyTorch finds {there} GPUs on this machine")

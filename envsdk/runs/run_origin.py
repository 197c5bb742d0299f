"""The seed and the model that a run began with. A run that is continued must keep both.

origin.json in the run's folder: written when the run begins, compared each time it is continued
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from envsdk.base.store.atomic import write_json_atomically
from envsdk.base.store.hub import hub_folder
from envsdk.base.store.model_files import content_digest
from envsdk.config.models import EMBEDDED_DEFAULT, RunConfig
from envsdk.contracts.failures import ConfigurationError, StorageError

FILE_NAME = "origin.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOrigin:
    """The content of `origin.json`."""

    seed: int
    pretrain: str
    """As configured."""
    warm_start: dict[str, Any]
    """The section of that name, where `pretrain` is the tiny policy; else empty."""
    model: str
    """Folder of the model."""
    content: str
    """`content_digest` of that folder."""


def model_of_run(config: RunConfig, *, has_begun: bool) -> Path:
    """Folder of the model that the run begins, or began, with; the tiny policy is made where it is missing.

    `has_begun`: the run's folder holds batches or a checkpoint. ConfigurationError when those are of another
    seed or another model than `config` asks for: the checkpoint has the policy, but its tokenizer and the
    reference policy come from this folder.
    """
    file = config.run_folder / FILE_NAME
    if not (has_begun and file.is_file()):
        model = initial_model(config)
        write_json_atomically(file, asdict(_origin(config, model)))
        return model
    began = _read(file)
    check_seed(config, began.seed)
    is_tiny = config.pretrain == EMBEDDED_DEFAULT
    if is_tiny and began.pretrain != EMBEDDED_DEFAULT:
        raise _another_model(config, began)
    if is_tiny:
        _check_warm_start(config, began)
        if content_digest(Path(began.model)) == began.content:
            return Path(began.model)
    model = initial_model(config)
    if content_digest(model) != began.content:
        raise _another_model(config, began)
    return model


def initial_model(config: RunConfig) -> Path:
    """Folder of the model that `config` names; downloaded, or made where it is the tiny policy."""
    if config.pretrain != EMBEDDED_DEFAULT:
        return hub_folder(config.pretrain).resolve()
    from envsdk.trainers.warm_start.prepare import prepare_policy

    return prepare_policy(config)


def model_of_job(config: RunConfig) -> Path:
    """`initial_model` for a program beside the trainer: of a job that has begun, the tiny policy is there."""
    file = config.run_folder / FILE_NAME
    if config.pretrain == EMBEDDED_DEFAULT and file.is_file():
        began = _read(file)
        if content_digest(Path(began.model)) == began.content:
            return Path(began.model)
    return initial_model(config)


def check_seed(config: RunConfig, began_with: int) -> None:
    """ConfigurationError when the run in the folder has another seed than `config`."""
    if began_with != config.seed:
        raise ConfigurationError(
            f"seed: {config.seed}, but the run in {config.run_folder} has seed {began_with}; "
            f"set that to continue it, or choose another exp_name"
        )


def _origin(config: RunConfig, model: Path) -> RunOrigin:
    is_tiny = config.pretrain == EMBEDDED_DEFAULT
    return RunOrigin(
        seed=config.seed,
        pretrain=config.pretrain,
        warm_start=config.warm_start.model_dump(mode="json") if is_tiny else {},
        model=str(model),
        content=content_digest(model),
    )


def _read(file: Path) -> RunOrigin:
    try:
        return RunOrigin(**json.loads(file.read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise StorageError(
            f"{file} is damaged ({error}); remove it to continue the run with the model that is configured"
        ) from error


def _check_warm_start(config: RunConfig, began: RunOrigin) -> None:
    for key, value in config.warm_start.model_dump(mode="json").items():
        before = began.warm_start.get(key, value)
        if before != value:
            raise ConfigurationError(
                f"warm_start.{key}: {value}, but the policy that the run in {config.run_folder} began with "
                f"was made with {before}; set that to continue it, or choose another exp_name"
            )


def _another_model(config: RunConfig, began: RunOrigin) -> ConfigurationError:
    if config.pretrain != began.pretrain:
        return ConfigurationError(
            f"pretrain: {config.pretrain}, but the run in {config.run_folder} began with another model, "
            f"{began.pretrain}; set that to continue it, or choose another exp_name"
        )
    return ConfigurationError(
        f"pretrain: {config.pretrain} is not what it was when the run in {config.run_folder} began with it "
        f"(then in {began.model}): its files changed, or the tiny policy was made anew by other code; "
        "put that model back to continue, or choose another exp_name"
    )

"""ROLL's own functions, from a clone that the environment variable ENVSDK_ROLL names.

ROLL is no package. Modules that its files import and that are not here (engines, video, queues) are stood in
for by empty ones: nothing that is compared calls them.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from torch import Tensor

ROLL = os.environ.get("ENVSDK_ROLL", "")
if not (Path(ROLL) / "roll").is_dir() or not ROLL:
    pytest.skip("needs a clone of ROLL: ENVSDK_ROLL=FOLDER", allow_module_level=True)


class _Absent(ModuleType):
    """Has every name, which stands for nothing."""

    __path__: Sequence[str] = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock(name=f"{self.__name__}.{name}")


class _AbsentModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Asked last: finds what nothing else found, for files of ROLL."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        frame: Any = sys._getframe(1)
        while frame is not None and "importlib" in frame.f_code.co_filename:
            frame = frame.f_back
        is_asked_by_roll = frame is not None and frame.f_code.co_filename.startswith(ROLL)
        is_inside = isinstance(sys.modules.get(fullname.rpartition(".")[0]), _Absent)
        if not is_inside and (fullname.startswith("roll.") or not is_asked_by_roll):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: Any) -> ModuleType:
        return _Absent(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def _imported(name: str) -> Any:
    finder, here = _AbsentModules(), Path.cwd()
    sys.path.insert(0, ROLL)
    sys.meta_path.append(finder)
    os.environ.setdefault("ROLL_LOG_DIR", str(here / "build" / "roll-logs"))
    try:
        return importlib.import_module(name)
    finally:
        sys.meta_path.remove(finder)
        sys.path.remove(ROLL)


functionals = _imported("roll.utils.functionals")
agentic = _imported("roll.pipeline.agentic.utils")
protocol = _imported("roll.distributed.scheduler.protocol")
_base = _imported("roll.configs.base_config")
_CONFIGS = {
    "agentic": _imported("roll.pipeline.agentic.agentic_config").AgenticConfig,
    "rlvr": _imported("roll.pipeline.rlvr.rlvr_config").RLVRConfig,
}
_WORKERS = {
    kind: tuple(_imported(f"roll.pipeline.{module}") for module in modules)
    for kind, modules in {
        "agentic": ("agentic.agentic_actor_worker", "agentic.agentic_actor_pg_worker"),
        "rlvr": ("rlvr.actor_worker", "rlvr.actor_pg_worker"),
    }.items()
}
"""The worker that clips as PPO does, and the one that reads `pg_variant`."""
functionals.current_platform.device_type = "cpu"  # ROLL knows no machine without accelerators
KL = SimpleNamespace(value=0.0, update=lambda current, n_steps: None)


def config(keys: dict[str, Any], kind: str, group_size: int) -> SimpleNamespace:
    """A file's keys over ROLL's defaults; what ROLL derives from them with devices and models is left out."""
    defaults = {name: each.default for name, each in _CONFIGS[kind].__dataclass_fields__.items()}
    given = {**defaults, **keys, "enable_old_logprobs_recompute": False}
    section = keys.get("train_infer_correction") or {}
    given["train_infer_correction"] = _base.TrainInferCorrectionConfig(
        filters=[_base.TrainInferFilterConfig(**each) for each in section.get("filters", ())]
    )
    given["actor_train"] = SimpleNamespace(**(keys.get("actor_train") or {}))
    given["actor_infer"] = SimpleNamespace(generating_args=SimpleNamespace(num_return_sequences=group_size))
    given["reward_normalization"] = agentic.RewardNormalizationConfig(
        **(keys.get("reward_normalization") or {})
    )
    return SimpleNamespace(**given)


def agentic_advantages(settings: SimpleNamespace, tensors: dict[str, Tensor], labels: dict[str, Any]) -> Any:
    """ROLL's batch after the steps of its agentic pipeline."""
    batch = protocol.DataProto.from_dict(tensors, non_tensors=labels, meta_info={"metrics": {}})
    batch = agentic.compute_discounted_returns(batch, settings.adv_estimator, settings.step_reward_gamma)
    batch, _ = agentic.get_agentic_response_level_mask(batch, settings)
    batch, _ = agentic.compute_response_level_rewards(batch, settings)
    batch, _ = functionals.compute_token_reward(batch, settings, KL)
    return agentic.agentic_compute_advantage(batch, **_estimation(settings))


def rlvr_advantages(settings: SimpleNamespace, tensors: dict[str, Tensor], labels: dict[str, Any]) -> Any:
    """ROLL's batch of one domain after the steps of its RLVR pipeline."""
    batch = protocol.DataProto.from_dict(tensors, non_tensors=labels, meta_info={"metrics": {}})
    batch, _ = functionals.get_sample_level_mask(batch, settings)
    batch, _ = functionals.reward_postprocess(batch, settings, {})
    batch, _ = functionals.compute_token_reward(batch, settings, KL)
    mask_BT = batch.batch["final_response_mask"].clone()
    return functionals.compute_advantage(batch, **_estimation(settings), response_mask=mask_BT)


def _estimation(settings: SimpleNamespace) -> dict[str, Any]:
    names = ("gamma", "lambd", "adv_estimator", "advantage_clip", "whiten_advantages", "whiten_rewards")
    return {name: getattr(settings, name) for name in names} | {"pipeline_config": settings}


def loss(
    settings: SimpleNamespace,
    kind: str,
    tensors: dict[str, Tensor],
    labels: dict[str, Any],
    current_BT: Tensor,
) -> Tensor:
    """The loss of ROLL's worker, of tensors whose first column is no token but for `response_mask`."""
    has_variant = hasattr(settings.actor_train, "pg_variant")
    module = _WORKERS[kind][has_variant]
    worker = object.__new__(module.ActorPGWorker if has_variant and kind == "rlvr" else module.ActorWorker)
    worker.__dict__ |= {
        "pipeline_config": settings,
        "strategy": SimpleNamespace(
            op_compute_log_probs=lambda **_: current_BT,
            op_compute_entropy=lambda **_: torch.zeros_like(current_BT),
        ),
        "get_old_log_probs_with_cache": lambda data, _: data.batch["old_log_probs"],
        "logger": functionals.logger,
        "_pg_config_cache": {},
        **dict.fromkeys(
            ("_pg_variant_logged", "_topr_sample_logged", "_cispo_config_logged", "_kimi15_config_logged"),
            True,
        ),
    }
    mask_BT = tensors.get("final_response_mask", tensors["response_mask"][:, 1:])
    names = ("response_mask", "final_response_mask")
    data = protocol.DataProto.from_dict(
        {**tensors, "input_ids": tensors["response_mask"].long()},
        non_tensors=labels,
        meta_info={
            "batch_num_tokens": dict.fromkeys(names, mask_BT.sum()),
            "global_valid_samples": dict.fromkeys(names, (mask_BT.sum(1) > 0).sum()),
        },
    )
    found: Tensor = worker.loss_func(data, current_BT)[0]
    return found

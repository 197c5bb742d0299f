"""What a run is charged for: its machines, and what its earlier processes spent."""

from __future__ import annotations

import os

from envsdk.config.models import RunConfig
from envsdk.tracking import read_metrics
from envsdk.tracking.cost import TOTAL, CostMeter
from envsdk.tracking.jsonl import FILE_NAME


def cost_meter(config: RunConfig, first_step: int) -> CostMeter:
    """The meter of a run that begins or continues at `first_step`."""
    roles = (config.actor_train, config.actor_infer, config.reference)
    devices = {device for role in roles for device in role.device_mapping or ()}
    return CostMeter(
        config.prices,
        num_gpus=len(devices),
        num_cpus=config.ray.num_cpus or os.cpu_count() or 1,
        total=_spent_before(config, first_step),
    )


def _spent_before(config: RunConfig, first_step: int) -> float:
    file = config.run_folder / FILE_NAME
    if not first_step or not file.is_file():
        return 0.0
    return max((row.get(TOTAL, 0.0) for row in read_metrics(file) if row["step"] < first_step), default=0.0)

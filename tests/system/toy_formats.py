"""Formats of data sets, as a plug-in would have them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from envsdk.contracts.failures import ConfigurationError
from envsdk.contracts.trajectory import Trajectory
from envsdk.rollouts.datasets.formats import RowFormat
from envsdk.rollouts.datasets.reading import DataSet, TagRecord


class Predictions(RowFormat):
    """One file in all, as SWE-bench wants it; solved episodes alone."""

    name = "predictions"
    file_name = "predictions.jsonl"

    def check(self, tags: Mapping[str, TagRecord]) -> None:
        for record in tags.values():
            if not record.env_type.startswith("toys/"):
                raise ConfigurationError(f"--format predictions: tag {record.tag} is no toy")

    def rows(self, trajectory: Trajectory, tag: TagRecord, dataset: DataSet) -> Iterable[dict[str, Any]]:
        if trajectory.success:
            assert dataset.manifest is not None
            yield {
                "instance_id": f"{tag.tag}-{trajectory.task.index}",
                "model_name_or_path": dataset.manifest.config["policy"],
                "model_patch": trajectory.turns[-1].reply,
            }

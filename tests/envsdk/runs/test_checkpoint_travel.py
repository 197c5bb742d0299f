"""Checkpoints of ranks on machines that do not share the run's folder. The machines are folders here."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from envsdk.base.store.travel import DriverFiles
from envsdk.contracts.trainer import TrainerConfig, TrainerRank
from envsdk.runs import trainer_group
from envsdk.runs.trainer_group import TrainerGroup, TrainerHost, TrainerSpec


class Machine:
    """One rank's process, whose machine shares the run's folder or not; in place of Ray's actor."""

    def __init__(self, cache: Path, rank: int, node: str, *, shares: bool) -> None:
        host = TrainerHost("", TrainerConfig(model=Path(), sequence_length=8, seed=0))
        host._rank = TrainerRank(rank=rank, world_size=3, local_rank=0)
        self._host, self._cache, self._rank, self._node, self._shares = host, cache, rank, node, shares

    def __getattr__(self, method: str) -> Any:
        class Method:
            @staticmethod
            async def remote(*args: Any) -> Any:
                return self._do(method, *args)

        return Method

    def _do(self, method: str, *args: Any) -> Any:
        if method == "save":
            (args[0] / "trainer").mkdir(exist_ok=True)
            (args[0] / "trainer" / f"weights-{self._rank}").write_bytes(bytes(2500 + self._rank))
            return None
        if method == "node_id":
            return self._node
        if method == "place_to_write" and not self._shares:
            args = (Path("/elsewhere"), *args[1:])
        trainer_group.cache_folder = lambda: self._cache  # type: ignore[attr-defined]
        return getattr(self._host, method)(*args)


def test_what_ranks_wrote_on_other_machines_is_in_the_drivers_folder_when_save_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer_group, "cache_folder", None)
    monkeypatch.setattr(trainer_group, "CHUNK_BYTES", 1000)
    monkeypatch.setattr(trainer_group, "check_placement", lambda role, rule: None)
    folder, cache = tmp_path / "step_000004", tmp_path / "cache"
    folder.mkdir()
    spec = TrainerSpec(
        key="actor_train",
        strategy_name="",
        config=TrainerConfig(model=Path(), sequence_length=8, seed=0),
        device_mapping=[0, 1, 2],
        uses_accelerators=False,
        driver_files=DriverFiles(reader=object()),  # type: ignore[arg-type]
    )
    group = TrainerGroup(spec, all_mappings=[])
    group._hosts = [
        Machine(cache, 0, "here", shares=True),
        Machine(cache, 1, "there", shares=False),
        Machine(cache, 2, "there", shares=False),
    ]
    group._hosts[2]._host._rank = TrainerRank(rank=2, world_size=3, local_rank=1)
    asyncio.run(group.save(folder))
    written = {path.name: path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    assert written == {f"weights-{rank}": 2500 + rank for rank in range(3)}
    assert not list((cache / "outgoing").iterdir())

"""Layers that several programs share."""

from __future__ import annotations

import os
from pathlib import Path

from envsdk.rewards.sandbox.bubblewrap.layers import Layers


class Slower(Layers):
    """A program that another one overtakes, after it has seen what there is."""

    def _last_use(self, name: str) -> float:
        Layers(self.folder, 0)._evict("three")
        return super()._last_use(name)


async def fill(layer: Path) -> None:
    (layer / "root").mkdir()


async def test_programs_that_make_room_at_once_do_not_trip_over_each_other(tmp_path: Path) -> None:
    for name in ("one", "two"):
        await Layers(tmp_path, 1 << 30).make(name, fill)
        (tmp_path / name / "size").write_text("100")
    await Slower(tmp_path, 0).make("three", fill)
    assert sorted(os.listdir(tmp_path)) == ["three", "three.lock"]

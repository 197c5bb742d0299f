"""`envsdk buffer` and what the viewer reads, on PostgreSQL: `make test-postgres`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from envsdk.base.store.trajectories import read_trajectories
from envsdk.buffer import tables
from envsdk.buffer.command import main
from envsdk.buffer.connecting import open_engine
from envsdk.buffer.history import read_history
from envsdk.buffer.inspection import inspect
from envsdk.buffer.places import opened
from tests.envsdk.buffer.buffer_jobs import GROUP_SIZE, play

URL = os.environ.get("ENVSDK_POSTGRES", "")
pytestmark = [
    pytest.mark.postgres,
    pytest.mark.skipif(not URL, reason="needs a server of PostgreSQL: make test-postgres"),
]


def test_the_command_and_the_viewer_see_the_same_on_both_databases(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = open_engine(URL)
    tables.metadata.drop_all(engine)
    assert main([URL]) == 1
    assert "is no buffer: it has no table `job`" in capsys.readouterr().err
    found = []
    for place in (URL, str(tmp_path / "buffer.db")):
        play(place)
        with opened(place) as reader:
            content = inspect(reader, now=0.0).to_json()
            found.append((content, read_history(reader, num_times=37)))
    for content, _ in found:
        for program in content["programs"]:
            program.pop("pid")
    assert found[0] == found[1]

    assert main([URL, "--verify", "--export", str(tmp_path / "all.parquet")]) == 0
    assert len(read_trajectories(tmp_path / "all.parquet")) == 7 * GROUP_SIZE
    capsys.readouterr()
    assert main([URL, "--drop", "--state", "leased", "--state", "taken", "--vacuum", "--verify"]) == 0
    out = capsys.readouterr().out
    assert "dropped 1 group that was leased" in out
    assert "2 groups stayed" in out
    assert "removed the trajectories of 4 groups" in out
    assert main([URL, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["groups"]["taken"]["groups"] == 2
    tables.metadata.drop_all(engine)
    engine.dispose()

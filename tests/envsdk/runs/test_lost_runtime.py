"""Each program that starts or joins Ray ends with one message when Ray dies."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from envsdk import Rollouts
from envsdk.config import load_config
from envsdk.config.loading import LoadedConfig
from envsdk.config.ray_models import RayArgs
from envsdk.explorers import bench, start
from envsdk.runs import rollouts
from envsdk.runs import run as single_program
from tests.by_day import by_day


class Begun(Exception):
    """Ray would be started."""


def roll_out(loaded: LoadedConfig) -> None:
    with Rollouts(loaded):
        pass


PROGRAMS: list[tuple[str, Callable[[LoadedConfig], None], object, str]] = [
    ("both", single_program.run, single_program, "same command continues from them"),
    ("explore", start.explore, start, "same command starts this explorer again"),
    ("bench", bench.run, bench, "same command continues with the newest version"),
    ("both", roll_out, rollouts, "continue from the newest `state` that your program saved"),
]


@pytest.mark.parametrize(
    ("mode", "program", "module", "advice"), by_day([PROGRAMS[0], PROGRAMS[3]], PROGRAMS)
)
def test_a_program_whose_ray_dies_says_so_once_and_how_to_go_on(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    program: Callable[[LoadedConfig], None],
    module: object,
    advice: str,
) -> None:
    given: list[Sequence[str]] = []

    def ray_runtime(_: RayArgs, *, if_lost: Sequence[str] = (), **_say: object) -> None:
        given.append(if_lost)
        raise Begun

    monkeypatch.setattr(module, "ray_runtime", ray_runtime)
    for name in ("model_of_job", "begin"):
        made = tmp_path if name == "model_of_job" else (tmp_path, [])
        monkeypatch.setattr(module, name, lambda *_, made=made: made, raising=False)
    overrides = [f"output_dir={tmp_path}", f"mode={mode}", "exp_name=run"]
    with pytest.raises(Begun):
        program(load_config("agentic_async.yaml", overrides))
    ((*command,),) = given
    assert command, "nothing would be said"
    ended = subprocess.run(
        [*command, "Ray's head is gone"], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert ended.stderr.startswith("error: Ray's head is gone. The ")
    assert advice in ended.stderr
    assert ended.stderr.count("error") == 1

"""examples/start_explorers.py, around programs that only come and go."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "examples" / "start_explorers.py"
PROGRAM = """
import signal, sys, time
from pathlib import Path

how, name = sys.argv[1], sys.argv[-1].removeprefix("explorer.name=")
Path(f"{name}.started").touch()

def stop(*_):
    Path(f"{name}.stopped").touch()
    sys.exit(130)

signal.signal(signal.SIGTERM, stop)
if how == "waits":
    while not Path("trainer.done").exists():
        time.sleep(0.01)
elif how == "trains":
    while len(list(Path().glob("explorer*.started"))) < 2:
        time.sleep(0.01)
    Path("trainer.done").touch()
elif how == "hangs":
    time.sleep(600)
else:
    sys.exit(int(how))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where `python -m envsdk.train` is that program."""
    (tmp_path / "envsdk").mkdir()
    (tmp_path / "envsdk" / "__init__.py").touch()
    (tmp_path / "envsdk" / "train.py").write_text(PROGRAM)
    return tmp_path


def start(folder: Path, trainer: str, explorer: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, str(SCRIPT), trainer, explorer, "2", "seed=1"], cwd=folder)


def stopped(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.stopped"))


@pytest.mark.parametrize(
    ("trainer", "explorer", "code", "ended"),
    [
        pytest.param("trains", "waits", 0, [], id="all_is_well"),
        pytest.param("3", "hangs", 3, ["explorer1", "explorer2"], id="the_trainer_fails"),
        pytest.param("hangs", "2", 2, ["seed=1"], id="all_explorers_fail"),
    ],
)
def test_programs_end_in_order_and_the_first_failure_is_the_exit_code(
    folder: Path, trainer: str, explorer: str, code: int, ended: list[str]
) -> None:
    process = start(folder, trainer, explorer)
    assert process.wait(timeout=120) == code
    # One that was stopped before its handler was there cannot say so.
    assert set(stopped(folder)) <= set(ended)


def test_a_signal_stops_the_trainer_and_then_the_explorers(folder: Path) -> None:
    process = start(folder, "hangs", "waits")
    while len(list(folder.glob("*.started"))) < 3:
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=120) != 0

"""A script without a guard is named, and starts no processes without end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import asyncio
from envsdk.rewards.reward import RewardError, Sample
from envsdk.rewards.workers import RewardWorkers

async def main():
    workers = RewardWorkers("tests.envsdk.rewards.unruly_rewards:Unruly", {})
    try:
        await workers.score(Sample(response="yes", row={"ground_truth": "yes"}))
    except RewardError as error:
        print("masked:", error)
    finally:
        await workers.close()

asyncio.run(main())
"""


def test_a_script_without_a_guard_ends_and_says_why(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    root = Path(__file__).parents[4]
    ran = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        cwd=root,
        env={"PYTHONPATH": str(root), "PATH": "/usr/bin:/bin"},
        timeout=120,
        check=False,
    )
    assert 'if __name__ == "__main__"' in ran.stdout + ran.stderr

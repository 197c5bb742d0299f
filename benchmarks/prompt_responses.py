"""What a response to a prompt costs beside the model: scheduler, worker, engine host and reward on Ray.

    python benchmarks/prompt_responses.py [--json FILE] [--reward exact] [--envs 512] [--responses 20000]

As orchestration.py, with `envsdk/Prompts-v1` over a generated file: each response is an episode of one turn,
scored by the reward function. CPU time, user and system, of all processes over the number of responses.

The exit code is 1 when the goal is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from orchestration import measure, write_toy_tokenizer

from envsdk.config.ray_models import RayArgs
from envsdk.envs.prompts import SPEC
from envsdk.managers.env_host import EnvBlueprint
from envsdk.managers.ray_runtime import ray_runtime
from envsdk.managers.traj_env_manager import TagSetup

MAX_CPU_MS_PER_RESPONSE = 0.5
NUM_ROWS = 10_000


def write_rows(path: Path) -> Path:
    """Prompts that the toy tokenizer knows."""
    rows = (
        {"id": str(i), "prompt": f"P _ _ G turn {i % 6}", "ground_truth": str(i % 7), "tag": "prompts"}
        for i in range(NUM_ROWS)
    )
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--reward", default="exact", help="name of a reward function (default exact)")
    parser.add_argument(
        "--envs", type=int, default=512, help="responses at once, in one worker (default 512)"
    )
    parser.add_argument("--responses", type=int, default=20_000, help="responses to measure (default 20000)")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    load_average = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder, ray_runtime(RayArgs()):
        model = write_toy_tokenizer(Path(folder))
        rows = write_rows(Path(folder) / "rows.jsonl")
        setup = TagSetup(
            tag="prompts",
            blueprint=EnvBlueprint(
                spec=SPEC,
                env_config={"files": str(rows), "reward": options.reward, "shuffle": True},
                isolation=SPEC.isolation,
            ),
            max_turns=1,
            max_new_tokens=8,
        )
        result = asyncio.run(
            measure(options.envs, options.responses, model, setup=setup, per_worker=options.envs)
        )
    print(
        f"{options.envs} at once, {result.num_turns} responses scored by {options.reward}, "
        f"load average {load_average:.1f}\n"
        f"  responses/s               {result.turns_per_s:8.0f}\n"
        f"  CPU per response          {result.cpu_ms_per_turn:8.3f} ms"
    )
    for kind, cost_ms in result.cpu_ms_by_kind.items():
        print(f"    {kind:<24}{cost_ms:8.3f} ms")
    is_met = result.cpu_ms_per_turn <= MAX_CPU_MS_PER_RESPONSE
    print(
        f"\n{'PASS' if is_met else 'FAIL'}  CPU per response {result.cpu_ms_per_turn:.3f} ms <= "
        f"{MAX_CPU_MS_PER_RESPONSE}"
    )
    if options.json:
        options.json.write_text(json.dumps(asdict(result) | {"load_average": load_average}, indent=2))
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())

"""SmolLM2-135M learns word problems by envsdk and by TRL's GRPOTrainer, one after the other on this machine.

    python benchmarks/real_model [--steps 20] [--seeds 42 43 44] [--trl PYTHON] [--trl-parts 8]
                                 [--device cuda:0] [--json FILE]

Same weights, prompts, reward, learning rate, 16 prompts x 8 responses a step. Wall time, CPU time and peak
memory (PSS; on a GPU what the card holds) are those of all processes of a command, from its start to its end.
Both models are evaluated by the same command on the same 256 held-out rows. `--trl` names the Python of an
environment with envsdk and trl 1.16 (`make bench-trl` makes one and runs this); without it envsdk runs
alone. `--trl-parts` is how many backward passes TRL takes for a batch: 1 is its own default, and needs 19 GB.

The exit code is 1 when a goal is missed: a quarter of TRL's wall time and memory, at no lower accuracy.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean

import psutil
import torch

from envsdk.base.store.hub import hub_folder

HERE = Path(__file__).parent
CONFIG = HERE.parents[1] / "examples/rlvr_smollm2.yaml"
LOOK_EVERY_S = 0.5
MAX_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class Cost:
    """What a command took; its own processes and all that it started."""

    wall_s: float
    cpu_s: float
    peak_gb: float


def card_bytes(device: str) -> int:
    """What all processes together hold of a GPU; 0 of a CPU."""
    return torch.cuda.device_memory_used(device) if device.startswith("cuda") else 0


def run(command: list[str], log: Path, device: str = "cpu") -> Cost:
    """Run it to its end, its output in `log`; ends this program with the last of it where it fails."""
    idle = card_bytes(device)
    began, cpu_s, peak = time.monotonic(), {}, 0
    with log.open("w") as output:
        child = psutil.Popen(command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        while child.poll() is None:
            pss = 0
            for process in [child, *child.children(recursive=True)]:
                try:
                    times = process.cpu_times()
                    cpu_s[process.pid, process.create_time()] = times.user + times.system
                    pss += process.memory_full_info().pss
                except psutil.Error:
                    continue
            peak = max(peak, card_bytes(device) - idle if device.startswith("cuda") else pss)
            time.sleep(LOOK_EVERY_S)
    if child.returncode:
        sys.exit(f"{' '.join(command)}\nended with {child.returncode}:\n{log.read_text()[-2000:]}")
    return Cost(time.monotonic() - began, sum(cpu_s.values()), peak / 1e9)


def on(device: str, *roles: str) -> list[str]:
    """Overrides that put roles of a run on a device."""
    return [f"{role}.strategy_args.strategy_config.device={device}" for role in roles]


def envsdk_run(model: Path, steps: int, seed: int, out: Path, device: str) -> tuple[Cost, Path]:
    """What the run cost, and the model that it saved."""
    command = [sys.executable, "-m", "envsdk.train", str(CONFIG), f"pretrain={model}", f"seed={seed}"]
    cost = run(
        [*command, f"output_dir={out}", "exp_name=run", f"max_steps={steps}", f"save_steps={steps}",
         "eval_steps=0", *on(device, "actor_train", "actor_infer")],
        out / "envsdk.log", device,
    )  # fmt: skip
    return cost, out / f"run/checkpoints/step_{steps:06d}"


def trl_run(
    python: str, model: Path, steps: int, seed: int, out: Path, parts: int, device: str
) -> tuple[Cost, Path]:
    """The same of TRL's."""
    command = [
        python,
        str(HERE / "trl_run.py"),
        str(model),
        str(steps),
        str(seed),
        str(out),
        str(parts),
        device,
    ]
    return run(command, out / "trl.log", device), out / "model"


def accuracy(model: Path, out: Path, device: str) -> float:
    """Share of the held-out rows that it answers right, sampled at temperature 1."""
    result = out / "accuracy.json"
    command = [sys.executable, "-m", "envsdk", "evaluate", str(CONFIG), "--model", str(model)]
    run(
        [
            *command,
            "--episodes",
            "256",
            "--out",
            str(out / "log"),
            "--json",
            str(result),
            *on(device, "actor_infer"),
        ],
        out / "evaluate.log",
    )
    return float(json.loads(result.read_text())["total"]["success_rate"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seeds", type=int, nargs="+", default=[42])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--trl", metavar="PYTHON")
    parser.add_argument("--trl-parts", type=int, default=8, metavar="N")
    parser.add_argument(
        "--device", default="cpu", help="a torch device for trainers and engines (default cpu)"
    )
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    model = hub_folder(options.model)
    rows = []
    print(f"{'':8} {'seed':>4} {'wall s':>8} {'CPU s':>8} {'peak GB':>8} {'held out':>9}", flush=True)
    for seed in options.seeds:
        for name in ["envsdk", *(["trl"] if options.trl else [])]:
            with tempfile.TemporaryDirectory() as folder:
                out = Path(folder)
                if name == "envsdk":
                    cost, trained = envsdk_run(model, options.steps, seed, out, options.device)
                else:
                    cost, trained = trl_run(
                        options.trl, model, options.steps, seed, out, options.trl_parts, options.device
                    )
                share = accuracy(trained, out, options.device)
            rows.append({"name": name, "seed": seed, "held_out": share, **asdict(cost)})
            print(
                f"{name:8} {seed:4} {cost.wall_s:8.0f} {cost.cpu_s:8.0f} {cost.peak_gb:8.1f} {share:9.1%}",
                flush=True,
            )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2), encoding="utf-8")
    if not options.trl:
        return 0
    means = {
        (name, key): mean(float(row[key]) for row in rows if row["name"] == name)
        for name in ("envsdk", "trl")
        for key in ("wall_s", "cpu_s", "peak_gb", "held_out")
    }
    shares = {key: means["envsdk", key] / means["trl", key] for key in ("wall_s", "cpu_s", "peak_gb")}
    print("of TRL's: " + ", ".join(f"{key} {share:.2f}" for key, share in shares.items()))
    missed = max(shares["wall_s"], shares["peak_gb"]) > MAX_SHARE
    return int(missed or means["envsdk", "held_out"] < means["trl", "held_out"])


if __name__ == "__main__":
    sys.exit(main())

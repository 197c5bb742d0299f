"""Start a trainer and its explorers on this machine, and end them in order.

    python examples/start_explorers.py agentic_trainer.yaml agentic_explorer.yaml 2 [KEY=VALUE ...]

The number is that of the explorers; KEY=VALUE go to every program. The trainer prints here, explorer N into
explorerN.log. Explorers end by themselves when the trainer has finished. Ctrl-C or SIGTERM stops the trainer
with a checkpoint and then the explorers; the same command continues. The exit code is that of the first
program that failed, or 0.
"""

import argparse
import signal
import subprocess
import sys
import time


def main(trainer_file: str, explorer_file: str, number: int, overrides: list[str]) -> int:
    """Returns the exit code."""
    train = [sys.executable, "-m", "envsdk.train"]
    names = [f"explorer{index + 1}" for index in range(number)]
    logs = {name: open(f"{name}.log", "ab") for name in names}  # noqa: SIM115 - theirs from then on
    # In sessions of their own: Ctrl-C comes to this program alone, which knows the order.
    trainer = subprocess.Popen([*train, trainer_file, *overrides], start_new_session=True)
    explorers: dict[str, subprocess.Popen[bytes]] = {}
    for name, log in logs.items():
        command = [*train, explorer_file, *overrides, f"explorer.name={name}"]
        explorers[name] = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_number, lambda *_: trainer.terminate())

    failed: dict[str, int] = {}
    while trainer.poll() is None:
        for name, explorer in explorers.items():
            if explorer.poll() and name not in failed:
                failed[name] = explorer.returncode
                print(f"{name} ended with exit code {explorer.returncode}: see {name}.log", flush=True)
                if len(failed) == len(explorers):
                    trainer.terminate()
        time.sleep(0.2)
    if trainer.returncode:
        for explorer in explorers.values():
            explorer.terminate()
    codes = [explorer.wait() for explorer in explorers.values()]
    return next(filter(None, [*failed.values(), trainer.returncode, *codes]), 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="a trainer and its explorers on this machine")
    parser.add_argument("trainer_file", metavar="TRAINER_FILE")
    parser.add_argument("explorer_file", metavar="EXPLORER_FILE")
    parser.add_argument("number", metavar="EXPLORERS", type=int)
    parser.add_argument("overrides", metavar="KEY=VALUE", nargs="*", default=[])
    try:
        sys.exit(main(**vars(parser.parse_args())))
    except OSError as error:
        sys.exit(f"error: {error}")

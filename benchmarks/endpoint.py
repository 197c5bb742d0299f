"""What a request over the endpoint costs its server, in CPU time, by the number of turns before it.

    python benchmarks/endpoint.py

The engine is `mock` and answers at once, so that what is left is HTTP, JSON, the chat template, tokenizing
and recording. CPU time of the server's main thread, which does all of it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx2
import psutil

from envsdk.trainers.warm_start.tiny_policy import build_tokenizer, write_tokenizer

TOKEN = "benchmark-of-the-endpoint"
LENGTH = 32768
OBSERVATION = "P_O_\n____\nO__O\n___G\nUp: edge. Down: ice. Left: edge. Right: ice. Goal: Right 3 Down 3."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--turns", type=int, default=10)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_tokenizer(folder, build_tokenizer([OBSERVATION, "<answer>Up</answer>"]), sequence_length=LENGTH)
        (folder / "config.json").write_text(json.dumps({"max_position_embeddings": LENGTH}))
        reply = "actor_infer.strategy_args.strategy_config.num_tokens=4"
        engine = "actor_infer.strategy_args.strategy_name=mock"
        settings = [engine, reply, f"sequence_length={LENGTH}"]
        command = [sys.executable, "-m", "envsdk.serve", name, *settings, "--port", "0"]
        server = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env={**os.environ, "ENVSDK_ENDPOINT_TOKEN": TOKEN}
        )
        try:
            assert server.stdout is not None
            found = re.search(r"http://\S+:\d+", server.stdout.readline())
            assert found
            measure(found[0], psutil.Process(server.pid), arguments.episodes, arguments.turns)
        finally:
            server.terminate()
            server.wait()


def measure(url: str, server: psutil.Process, num_episodes: int, num_turns: int) -> None:
    """Play episodes one after another and print the server's CPU time by turn."""
    by_turn: dict[int, list[float]] = {}
    with httpx2.Client(headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60) as http:
        for episode in range(-5, num_episodes):  # the first ones warm up
            session = http.post(f"{url}/sessions", content=b"{}").json()
            messages: list[dict[str, str]] = []
            for turn in range(num_turns):
                messages.append({"role": "user", "content": OBSERVATION})
                body = json.dumps({"model": "policy", "messages": messages}).encode()
                before = cpu_s(server)
                answer = http.post(f"{session['base_url']}/chat/completions", content=body).json()
                if episode >= 0:
                    by_turn.setdefault(turn + 1, []).append(cpu_s(server) - before)
                messages.append(answer["choices"][0]["message"])
            http.post(f"{url}/sessions/{session['id']}/end", content=b"{}").raise_for_status()
    shown = (
        range(1, num_turns + 1) if num_turns <= 10 else [2**power for power in range(num_turns.bit_length())]
    )
    for turn, seconds in by_turn.items():
        if turn not in shown:
            continue
        print(f"turn {turn:2}: {1e3 * statistics.mean(seconds):.2f} ms")


def cpu_s(process: psutil.Process) -> float:
    """CPU seconds of a process's main thread."""
    return int(Path(f"/proc/{process.pid}/schedstat").read_text().split()[0]) * 1e-9


if __name__ == "__main__":
    main()

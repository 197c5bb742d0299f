"""What a request over the endpoint costs its server, in CPU time, by the number of turns before it.

    python benchmarks/endpoint.py
    python benchmarks/endpoint.py --protocol messages --turns 128 --against OTHER_CHECKOUT

The engine is `mock` and answers at once, so that what is left is HTTP, JSON, the chat template, tokenizing
and recording. CPU time of the server's process; the other checkout's server plays each episode too, next to
it in time. The last column is what parsing the requests' JSON takes alone.
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
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import psutil

from envsdk.trainers.warm_start.tiny_policy import build_tokenizer, write_tokenizer

TOKEN = "benchmark-of-the-endpoint"
LENGTH = 32768
PATHS = {"chat": "chat/completions", "messages": "messages", "responses": "responses"}
FIELDS = {"chat": "messages", "messages": "messages", "responses": "input"}
OBSERVATION = "P_O_\n____\nO__O\n___G\nUp: edge. Down: ice. Left: edge. Right: ice. Goal: Right 3 Down 3."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--protocol", choices=PATHS, default="chat")
    parser.add_argument("--against", type=Path, help="another checkout")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        write_tokenizer(folder, build_tokenizer([OBSERVATION, "<answer>Up</answer>"]), sequence_length=LENGTH)
        (folder / "config.json").write_text(json.dumps({"max_position_embeddings": LENGTH}))
        checkouts = [Path(__file__).parents[1], *([arguments.against] if arguments.against else [])]
        servers = [stack.enter_context(serving(folder, checkout.resolve())) for checkout in checkouts]
        measure(servers, arguments.protocol, arguments.episodes, arguments.turns)


@contextmanager
def serving(folder: Path, checkout: Path) -> Iterator[tuple[str, psutil.Process]]:
    """A server of this checkout: its address and process."""
    strategy = "actor_infer.strategy_args"
    engine = [f"{strategy}.strategy_name=mock", f"{strategy}.strategy_config.num_tokens=4"]
    command = [sys.executable, "-m", "envsdk.serve", str(folder), *engine, f"sequence_length={LENGTH}"]
    environment = {**os.environ, "ENVSDK_ENDPOINT_TOKEN": TOKEN}
    environment["PYTHONPATH"] = f"{checkout}:{os.environ.get('PYTHONPATH', '')}"
    server = subprocess.Popen(
        [*command, "--port", "0"], stdout=subprocess.PIPE, text=True, env=environment, cwd=checkout
    )
    try:
        assert server.stdout is not None
        found = re.search(r"http://\S+:\d+", server.stdout.readline())
        assert found
        yield found[0], psutil.Process(server.pid)
    finally:
        server.terminate()
        server.wait()


def measure(
    servers: Sequence[tuple[str, psutil.Process]], protocol: str, num_episodes: int, num_turns: int
) -> None:
    """Play episodes one after another and print the servers' CPU time by turn."""
    taken: dict[int, list[list[float]]] = {}
    parsing: dict[int, list[float]] = {}
    with httpx2.Client(headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60) as http:
        for episode in range(-5, num_episodes):  # the first ones warm up
            for number, (url, server) in enumerate(servers):
                session = http.post(f"{url}/sessions", content=b"{}").json()
                messages: list[dict[str, Any]] = []
                for turn in range(1, num_turns + 1):
                    messages.append({"role": "user", "content": OBSERVATION})
                    asked = {"model": "policy", FIELDS[protocol]: messages}
                    asked |= {"max_tokens": 99} if protocol == "messages" else {}
                    body = json.dumps(asked).encode()
                    before = cpu_s(server)
                    answer = http.post(f"{session['base_url']}/{PATHS[protocol]}", content=body).json()
                    if episode >= 0:
                        taken.setdefault(turn, [[] for _ in servers])[number].append(cpu_s(server) - before)
                        parsing.setdefault(turn, []).append(parse_s(body))
                    messages += said(answer)
                http.post(f"{url}/sessions/{session['id']}/end", content=b"{}").raise_for_status()
    powers = [2**power for power in range(num_turns.bit_length())]
    for turn in taken if num_turns <= 10 else powers:
        means = [f"{1e3 * statistics.median(seconds):.2f} ms" for seconds in taken[turn]]
        print(
            f"turn {turn:3}:",
            "  against ".join(means),
            f"  JSON {1e3 * statistics.median(parsing[turn]):.2f} ms",
        )


def said(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """The reply as the client sends it back."""
    if "choices" in answer:
        return [answer["choices"][0]["message"]]
    return answer.get("output") or [{"role": "assistant", "content": answer["content"]}]


def parse_s(body: bytes) -> float:
    """CPU seconds of this thread."""
    before = time.thread_time()
    json.loads(body)
    return time.thread_time() - before


def cpu_s(process: psutil.Process) -> float:
    """CPU seconds of all threads of a process."""
    tasks = Path(f"/proc/{process.pid}/task").glob("*/schedstat")
    return sum(int(each.read_text().split()[0]) for each in tasks) * 1e-9


if __name__ == "__main__":
    main()

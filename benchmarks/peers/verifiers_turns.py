"""What verifiers 0.3 costs per turn, as orchestration.py measures it: run by its `--verifiers PYTHON`.

    PYTHON benchmarks/peers/verifiers_turns.py --envs 1024 --turns 5120

The environment answers the same five times, the model answers at once, and the reward is 0. Everything is
in one process, without Ray. Prints JSON: CPU time per turn (user and system), turns, seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from typing import Any

import verifiers as vf
from datasets import Dataset
from verifiers.clients import Client
from verifiers.types import Response, ResponseMessage

NUM_TURNS = 5


class Trivial(vf.MultiTurnEnv):
    """Five turns of nothing."""

    async def env_response(self, messages: Any, state: Any, **_: Any) -> Any:
        return [vf.UserMessage(content="P _ _ G turn")]


class Instant(Client):
    """Answers at once."""

    async def get_response(self, prompt: Any, model: str, *_: Any, **__: Any) -> Any:
        await asyncio.sleep(0)
        message = ResponseMessage(content="P _ _ G", finish_reason="stop", is_truncated=False)
        return Response(id="instant", created=0, model=model, message=message)

    def setup_client(self, config: Any) -> Any:
        raise NotImplementedError

    async def to_native_tool(self, tool: Any) -> Any:
        raise NotImplementedError

    async def to_native_prompt(self, messages: Any) -> Any:
        raise NotImplementedError

    async def get_native_response(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    async def raise_from_native_response(self, response: Any) -> None:
        raise NotImplementedError

    async def from_native_response(self, response: Any) -> Any:
        raise NotImplementedError

    async def close(self) -> None:
        return None


async def reward(completion: Any, **_: Any) -> float:
    return 0.0


async def measure(num_envs: int, num_turns: int) -> dict[str, float]:
    rows = Dataset.from_list([{"question": "P _ _ G turn 0", "answer": ""}])
    env = Trivial(dataset=rows, rubric=vf.Rubric(funcs=[reward]), max_turns=NUM_TURNS)
    row = dict(env.get_dataset()[0])
    client = Instant(object())
    left = 0

    async def play() -> None:
        nonlocal left
        while left > 0:
            left -= NUM_TURNS
            await env.run_rollout(dict(row), client, "model", {})

    async def stretch(turns: int) -> None:
        nonlocal left
        left = turns
        await asyncio.gather(*(play() for _ in range(num_envs)))

    await stretch(num_turns // 8)
    began, cpu = time.perf_counter(), time.process_time()
    await stretch(num_turns)
    seconds, spent = time.perf_counter() - began, time.process_time() - cpu
    return {"cpu_ms_per_turn": spent * 1000 / num_turns, "num_turns": num_turns, "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--envs", type=int, default=1024)
    parser.add_argument("--turns", type=int, default=5120)
    options = parser.parse_args()
    print(json.dumps(asyncio.run(measure(options.envs, options.turns))))


if __name__ == "__main__":
    main()

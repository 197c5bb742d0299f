"""A program for `test_vllm`: starts an engine, tells vLLM's processes, and waits to be killed."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import psutil

from envsdk.engines.engine import EngineConfig
from envsdk.engines.vllm.engine import VLLMEngine


async def main() -> None:
    folder, settings = Path(sys.argv[1]), json.loads(sys.argv[2])
    engine = VLLMEngine.create(
        EngineConfig(model=folder, sequence_length=64, max_running=2, strategy_config=settings)
    )
    await engine.start()
    found = psutil.Process().children(recursive=True)
    print("PIDS", *(child.pid for child in found if "VLLM" in " ".join(child.cmdline())), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())

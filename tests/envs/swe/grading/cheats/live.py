"""Finds the tasks in which each cheat is alive: plain pytest pays it. Written to live.json, which is kept.

python -m tests.envs.swe.grading.cheats.live [KIND ...]
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence

from envsdk.rewards.sandbox import SandboxBackend, open_backend
from tests.envs.swe.grading.cheats import LIVE, live_in, makers
from tests.envs.swe.grading.plain import grade_plainly
from tests.envs.swe.grading.subjects import subjects

ENOUGH = 3
NEVER = {"resources", "patches"}
"""Kinds that live by what they do to the grading, not by passing tests."""


async def search(kind: str, name: str, backend: SandboxBackend) -> list[str]:
    """Up to ENOUGH tasks, of different repositories while there are any."""
    found: list[str] = []
    everyone = list(subjects().values())
    start = sum(map(ord, name))
    for at in range(len(everyone)):
        subject = everyone[(start + at * 11) % len(everyone)]
        plain = await grade_plainly(subject.task, makers()[kind, name](subject), backend, timeout_s=10)
        found += [subject.name] * plain.resolved
        if len(found) == ENOUGH or (not found and at >= len(everyone) * 2 // 3):
            break
    print(f"{kind}: {name}: {', '.join(found) or 'nowhere'}", flush=True)
    return found


async def main(kinds: Sequence[str]) -> None:
    backend, slots, found = open_backend("bubblewrap"), asyncio.Semaphore(3), dict(live_in())

    async def one(kind: str, name: str) -> None:
        async with slots:
            found[f"{kind}: {name}"] = await search(kind, name, backend)

    await asyncio.gather(*(one(*key) for key in makers() if key[0] in kinds))
    await backend.aclose()
    known = {f"{kind}: {name}" for kind, name in makers()}
    LIVE.write_text(
        json.dumps({name: found[name] for name in sorted(found) if name in known}, indent=1) + "\n"
    )


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:] or sorted({kind for kind, _ in makers()} - NEVER)))

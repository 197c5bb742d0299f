"""Many environments that start at once read their file once."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

from envsdk.rewards.prompt_data.opening import open_prompts
from envsdk.rewards.prompt_data.prompts import PromptSource


def test_threads_that_open_one_source_at_the_same_time_share_it(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"{n}+1="}) + "\n" for n in range(5_000)))
    together = Barrier(8)

    def opened(_: int) -> int:
        together.wait()
        return id(open_prompts(PromptSource(files=[str(path)])))

    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(opened, range(8)))) == 1

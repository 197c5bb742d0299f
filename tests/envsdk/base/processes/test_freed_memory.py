from __future__ import annotations

import os
import subprocess
import sys

import pytest

from envsdk.base.processes.memory import keep_few_kernels

VARIABLES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
PRODUCTS = """
import sys
from pathlib import Path
import torch
from envsdk.base.processes.memory import give_back_freed, keep_few_kernels

def held():
    give_back_freed()
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Anonymous:"))

if sys.argv[1] == "few":
    keep_few_kernels(8)
torch.set_num_threads(1)
matrix = torch.zeros(64, 64).bfloat16()
torch.zeros(1000, 64).bfloat16() @ matrix
before = held()
for rows in range(100, 200):
    torch.zeros(rows, 64).bfloat16() @ matrix
print(held() - before)
"""


def test_a_variable_that_the_user_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLES[0], "7")
    monkeypatch.setenv(VARIABLES[1], "1")  # so that it is taken back
    monkeypatch.delenv(VARIABLES[1])
    keep_few_kernels(99)
    assert [os.environ[name] for name in VARIABLES] == ["7", "99"]


def test_memory_does_not_grow_with_the_sizes_of_products() -> None:
    grown = {}
    env = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    for which in ("few", "all"):
        done = subprocess.run(
            [sys.executable, "-c", PRODUCTS, which], check=True, capture_output=True, text=True, env=env
        )
        grown[which] = int(done.stdout)
    if grown["all"] < 10_000:
        pytest.skip("this processor multiplies bfloat16 without code of its own for each size")
    assert grown["few"] < grown["all"] / 5

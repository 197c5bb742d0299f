"""The notebook of the examples runs from top to bottom, with an event loop under way as in a notebook."""

from __future__ import annotations

import ast
import inspect
import json
import sys
import types
from pathlib import Path

import pytest

from envsdk import Trajectories

NOTEBOOK = Path(__file__).parents[2] / "examples" / "first_steps.ipynb"


async def test_every_cell_of_the_notebook_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType("first_steps")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        if cell["cell_type"] == "code":
            code = compile(
                "".join(cell["source"]), cell["id"], "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True
            )
            result = eval(code, module.__dict__)
            if inspect.isawaitable(result):
                await result
    results = [value for value in vars(module).values() if isinstance(value, Trajectories)]
    assert [len(each.failed) for each in results] == [0, 0, 0]
    assert results[-1].success_rate == 1.0


def test_the_notebook_holds_no_outputs() -> None:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    assert all(not cell.get("outputs") for cell in cells)
    assert len({cell["id"] for cell in cells}) == len(cells)

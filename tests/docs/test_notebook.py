"""The notebook runs from top to bottom, in a running event loop as in Jupyter."""

from __future__ import annotations

import ast
import asyncio
import json
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).parents[2] / "examples" / "first_steps.ipynb"


async def execute(source: str, names: dict[str, Any]) -> Any:
    """Run a cell; the value of its last line, where that is an expression."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    for code in (
        compile(tree, "cell", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT),
        last and compile(ast.Expression(last.value), "cell", "eval", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT),
    ):
        value = eval(code, names) if code is not None else None
        if asyncio.iscoroutine(value):
            value = await value
    return value


async def test_the_notebook_runs_from_top_to_bottom() -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    values = []
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            values.append(await execute("".join(cell["source"]), names))
    assert len(names["trajectories"]) == 16
    assert len(names["played"].groups) == 20
    assert 0 < max(names["solved"]) <= 8
    assert values[-1] == 1.0
    assert not names["guesses"].failed

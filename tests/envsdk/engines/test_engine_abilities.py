"""The table of abilities in docs/choosing-an-engine.md, against the engines themselves.

    python tests/envsdk/engines/test_engine_abilities.py

rewrites the table.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import fields
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, cast

import pytest
from tiny_models import save_tiny

from envsdk.engines.embedded import EmbeddedEngine
from envsdk.engines.engine import EngineAbilities, EngineConfig
from envsdk.engines.mock import MockEngine
from envsdk.engines.openai.engine import OpenAIEngine
from envsdk.engines.sglang.engine import SGLangEngine
from envsdk.engines.vllm.engine import VLLMEngine
from envsdk.engines.vllm.settings import VLLMSettings
from envsdk.testing.engine_structures import write_tokenizer

PAGE = Path(__file__).parents[3] / "docs" / "choosing-an-engine.md"
BEGIN, END = "<!-- abilities: begin -->", "<!-- abilities: end -->"


def config(folder: Path, **settings: Any) -> EngineConfig:
    return EngineConfig(model=folder, sequence_length=64, strategy_config=settings)


ABILITIES: dict[str, Callable[[Path], EngineAbilities]] = {
    "embedded": lambda folder: EmbeddedEngine.create(config(folder)).abilities,
    "mock": lambda folder: MockEngine.create(config(folder)).abilities,
    "openai": lambda folder: (
        OpenAIEngine.create(config(folder, base_url="http://127.0.0.1:1/v1", model="m")).abilities
    ),
    "sglang": lambda folder: SGLangEngine.create(config(folder)).abilities,
    # vLLM itself is not asked.
    "vllm": lambda folder: (
        VLLMEngine.on(cast(Any, None), config=config(folder), settings=VLLMSettings()).abilities
    ),
}
"""Of each engine as it is without settings that need not be given."""


def table(folder: Path) -> str:
    names = sorted(ABILITIES)
    abilities = {name: ABILITIES[name](folder) for name in names}
    lines = [
        "| | " + " | ".join(f"`{name}`" for name in names) + " |",
        "| --- |" + " --- |" * len(names),
    ]
    for ability in fields(EngineAbilities):
        cells = ["yes" if getattr(abilities[name], ability.name) else "" for name in names]
        lines.append(f"| `{ability.name}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def model_folder(folder: Path) -> Path:
    save_tiny("qwen3", folder)
    write_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("model"))


def test_the_page_has_the_abilities_of_every_engine_that_ships(folder: Path) -> None:
    assert ABILITIES.keys() == {entry.name for entry in entry_points(group="envsdk.engines")}
    written = PAGE.read_text().partition(BEGIN)[2].partition(END)[0].strip()
    assert written == table(folder)


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        made = table(model_folder(Path(temporary)))
    before, _, rest = PAGE.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n\n{made}\n\n{END}{after}")


if __name__ == "__main__":
    main()

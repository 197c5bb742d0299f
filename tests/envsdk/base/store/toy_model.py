"""A package with a named model, `toy`, registered by an entry point as any package would."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from envsdk.base import plugins

MODULE = """
import os
from envsdk.contracts.named_model import NamedModel
from envsdk.trainers.warm_start.tiny_policy import build_tokenizer, write_tokenizer

def make(folder):
    with open(os.environ["TOY_MADE"], "a") as log:
        log.write("made\\n")
    if os.environ.get("TOY_FAILS"):
        (folder / "config.json").write_text("{}")
        raise ValueError("no such weights")
    (folder.parent / "scratch").write_text("left behind")
    config = '{"model_type": "qwen3", "max_position_embeddings": 64, "vocab_size": 1000}'
    (folder / "config.json").write_text(config)
    (folder / "weights.txt").write_text("0123456789")
    write_tokenizer(folder, build_tokenizer(["one two"]), sequence_length=64)

TOY = NamedModel(
    title="Toy-0M", license="CC0-1.0", source="toy-weights 3.1", caveat="it is small", recipe="1", make=make
)
NOT_ONE = make
"""
ENTRY_POINTS = "[envsdk.models]\ntoy = toy_models:TOY\nno_model = toy_models:NOT_ONE\n"


class Toy:
    """Where its package lies, and how often the model was made."""

    def __init__(self, folder: Path) -> None:
        self.package = folder / "package"
        self.log = folder / "made"
        self.cache = folder / "cache"
        information = self.package / "toy_models-1.dist-info"
        information.mkdir(parents=True)
        (information / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-models\nVersion: 1\n")
        (information / "entry_points.txt").write_text(ENTRY_POINTS)
        (self.package / "toy_models.py").write_text(MODULE)

    @property
    def num_made(self) -> int:
        return self.log.read_text().count("made") if self.log.exists() else 0


@contextmanager
def registered(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Toy]:
    """The model under its name, with a cache of its own."""
    toy = Toy(folder)
    monkeypatch.syspath_prepend(toy.package)
    monkeypatch.setenv("TOY_MADE", str(toy.log))
    monkeypatch.setenv("ENVSDK_CACHE", str(toy.cache))
    plugins._entry_points.cache_clear()
    try:
        yield toy
    finally:
        plugins._entry_points.cache_clear()

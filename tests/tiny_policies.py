"""Policies with random weights, small enough to be made by a test."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from envsdk.trainers.warm_start.tiny_policy import build_tokenizer, write_random_model, write_tokenizer


def write_tiny_policy(
    folder: Path,
    texts: Sequence[str],
    *,
    hidden_size: int = 16,
    num_heads: int = 2,
    sequence_length: int = 256,
    seed: int = 0,
) -> Path:
    """One layer, with a tokenizer of the words in `texts`; returns the folder."""
    folder.mkdir(exist_ok=True)
    tokenizer = build_tokenizer(texts)
    write_tokenizer(folder, tokenizer, sequence_length=sequence_length)
    write_random_model(
        folder,
        tokenizer,
        hidden_size=hidden_size,
        num_layers=1,
        num_heads=num_heads,
        sequence_length=sequence_length,
        seed=seed,
    )
    return folder


def both_games(folder: Path) -> Path:
    """A policy with a tokenizer of FrozenLake and Sokoban."""
    texts = ["P___\nOO__\n#XV_", "<answer>Right</answer>", "<answer>Up</answer>"]
    return write_tiny_policy(folder, texts, hidden_size=32, num_heads=4)

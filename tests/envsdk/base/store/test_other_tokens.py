"""Two models write the same tokens, or it is said which differ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from envsdk.base.store.model_files import other_tokens
from envsdk.contracts.failures import ConfigurationError


def folder_with(folder: Path, vocab: Any, added: dict[str, int]) -> Path:
    folder.mkdir()
    tokens = [{"id": number, "content": text} for text, number in added.items()]
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocab}, "added_tokens": tokens}))
    return folder


def test_vocabularies_are_compared_and_not_files(tmp_path: Path) -> None:
    one = folder_with(tmp_path / "one", {"a": 0, "b": 1, "<end>": 2}, {"<end>": 2})
    same = folder_with(tmp_path / "same", [["a", -1.5], ["b", -2.0]], {"<end>": 2})
    other = folder_with(tmp_path / "other", {"a": 0, "c": 1, "<end>": 3}, {"<end>": 3})
    assert other_tokens(one, same) == ""
    assert "3 tokens have other ids, such as '<end>'" in other_tokens(one, other)
    with pytest.raises(ConfigurationError, match="cannot read the tokenizer"):
        other_tokens(one, tmp_path)

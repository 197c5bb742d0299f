"""The generated arithmetic: right solutions, wrong mistakes, nothing in both splits."""

from __future__ import annotations

import importlib
import json
import re
import sys
from functools import partial
from itertools import islice
from pathlib import Path

import pytest

from envsdk.contracts.failures import ConfigurationError
from envsdk.rewards.prompt_data.generated import generated_file
from envsdk.rewards.prompt_data.generated_rows import arithmetic_rows
from envsdk.rewards.prompt_data.opening import open_prompts
from envsdk.rewards.prompt_data.prompts import PromptSource


def test_a_solution_ends_with_the_ground_truth_and_no_mistake_does() -> None:
    for row in arithmetic_rows("train", 600):
        answer = rf"\boxed{{{row['ground_truth']}}}"
        assert row["solution"].endswith(answer)
        assert row["mistakes"]
        assert not any(text.endswith(answer) for text in row["mistakes"])


def test_the_ground_truth_is_the_answer_of_the_prompt() -> None:
    for row in arithmetic_rows("val", 200):
        if row["tag"] == "sums":
            assert int(row["ground_truth"]) == sum(map(int, row["prompt"].removesuffix("=").split("+")))
        else:
            numbers = {letter: int(number) for letter, number in re.findall(r"([A-D]) (\d+)", row["prompt"])}
            assert row["ground_truth"] == max(numbers, key=lambda letter: numbers[letter])


def test_every_tag_has_every_difficulty_and_no_prompt_comes_twice_or_in_both_splits() -> None:
    train, val = list(arithmetic_rows("train", 4000)), list(arithmetic_rows("val", 300))
    for rows in (train, val):
        kinds = {(row["tag"], row["difficulty"]) for row in rows}
        assert kinds == {(tag, level) for tag in ("sums", "comparisons") for level in (1, 2, 3)}
    prompts = [row["prompt"] for row in [*train, *val]]
    assert len(set(prompts)) == len(prompts)


def test_the_file_is_written_once_and_holds_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVSDK_CACHE", str(tmp_path))
    path = generated_file("generated:arithmetic_val")
    written = path.stat().st_mtime_ns
    assert generated_file("generated:arithmetic_val") == path
    assert path.stat().st_mtime_ns == written
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) == 512
    assert [json.loads(line) for line in lines[:20]] == list(islice(arithmetic_rows("val", 512), 20))


def test_a_generator_that_changed_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVSDK_CACHE", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for prompt in ("before", "after"):
        (tmp_path / "toy_rows.py").write_text(f"def rows():\n    yield {{'prompt': {prompt!r}}}\n")
        monkeypatch.delitem(sys.modules, "toy_rows", raising=False)
        importlib.invalidate_caches()
        rows = importlib.import_module("toy_rows").rows
        monkeypatch.setattr("envsdk.rewards.prompt_data.generated.FILES", {"toys": partial(rows)})
        assert json.loads(generated_file("generated:toys").read_text()) == {"prompt": prompt}


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigurationError, match="did you mean `arithmetic_val`"):
        generated_file("generated:arithmetic_vla")


def test_generated_prompts_open_like_a_file_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENVSDK_CACHE", str(tmp_path))
    prompts = open_prompts(PromptSource(files=["generated:arithmetic_val"], tags=["comparisons"]))
    assert len(prompts) == 256
    assert prompts[0].messages[-1]["content"].startswith("Largest? A ")
    assert Path(prompts[0].place.rpartition(":")[0]).parent == tmp_path / "prompts"

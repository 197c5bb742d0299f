"""TRL's SFTTrainer learns from what `collect --format messages` writes, and what it learned plays here."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import gymnasium
import pytest

import envsdk
from envsdk.collect import collect
from envsdk.evaluate import evaluate

pytest.importorskip("trl", reason="needs TRL: make test-datasets")

pytestmark = [pytest.mark.system, pytest.mark.datasets]


def test_trl_fine_tunes_on_messages_and_the_model_plays_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: Path
) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    import datasets
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import SFTConfig, SFTTrainer

    demos, tuned = tmp_path / "demos", tmp_path / "tuned"
    collect("envsdk/FrozenLake-v1", demos, num_episodes=64, formats=["messages"], overrides=["size=3"])
    rows = datasets.load_dataset("json", data_files=str(demos / "messages" / "*.jsonl"), split="train")
    tokenizer = AutoTokenizer.from_pretrained(model)
    trainer = SFTTrainer(
        model=AutoModelForCausalLM.from_pretrained(model),
        args=SFTConfig(
            output_dir=str(tuned),
            max_steps=8,
            per_device_train_batch_size=8,
            learning_rate=1e-2,
            logging_steps=1,
            report_to=[],
            use_cpu=True,
            bf16=False,
            save_strategy="no",
            seed=0,
        ),
        train_dataset=rows,
        processing_class=tokenizer,
    )
    (tokens,) = trainer.train_dataset.select([0])["input_ids"]
    assert tokens == tokenizer.apply_chat_template(rows[0]["messages"], return_dict=False)

    trainer.train()
    losses = [record["loss"] for record in trainer.state.log_history if "loss" in record]
    assert len(losses) == 8
    assert losses[-1] < losses[0] - 1.0

    trainer.save_model(str(tuned))
    evaluation = evaluate("envsdk/FrozenLake-v1", model=tuned, num_episodes=4, overrides=["size=3"])
    assert evaluation.total.num_scored == 4


class VowelsWanted(envsdk.TextEnv):
    """Two turns: each is worth the share of the reply's characters that are vowels."""

    observation_space = action_space = gymnasium.spaces.Text(100)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.turn = 0
        return "go", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.turn += 1
        reward = sum(character in "aeiou" for character in action) / max(1, len(action))
        return "go", reward, self.turn == 2, False, {"success": reward > 0.5}


def test_trl_learns_by_grpo_from_groups_that_are_played_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    example = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "trl_grpo.py"))
    rewards = example["train"](
        str(model), VowelsWanted, 10, learning_rate=2e-2, sampling={"max_new_tokens": 4}
    )
    assert len(rewards) == 10
    assert sum(rewards[-3:]) / 3 > sum(rewards[:2]) / 2 + 0.2

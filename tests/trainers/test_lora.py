"""Adapters: what is trained, what engines are sent, and that both mean the same policy."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from envsdk.contracts.failures import ConfigurationError
from envsdk.contracts.trainer import TrainBatch
from envsdk.engines.embedded import EmbeddedEngine
from envsdk.engines.engine import EngineConfig
from envsdk.trainers.torch_trainer import TorchTrainer
from envsdk.trainers.training_args import TorchStrategyConfig
from envsdk.weights.lora import A_SUFFIX, B_SUFFIX
from tests.trainers.engine_replies import agreeing_replies

LORA = {"lora": {"rank": 4}}


@pytest.fixture
def trainer(model_folder, make_config):
    return TorchTrainer.create(
        make_config(model=model_folder, strategy_config=LORA, training_args={"learning_rate": 3e-2})
    )


def learn(trainer, sequences, step: int = 0):
    return trainer.train_step(TrainBatch(step=step, sequences=sequences))


def whole(trainer) -> dict[str, np.ndarray]:
    return dict(trainer.weights())


def test_an_adapter_begins_as_nothing_and_is_all_that_moves(
    trainer, model_folder, make_config, make_sequences
):
    plain = whole(TorchTrainer.create(make_config(model=model_folder)))
    before = whole(trainer)
    assert before.keys() == plain.keys()
    for name in plain:
        np.testing.assert_array_equal(before[name], plain[name])
    metrics = learn(trainer, make_sequences(4))
    assert metrics["actor/grad_norm"] > 0
    after = whole(trainer)
    adapted = {name.removesuffix(A_SUFFIX) for name, _ in trainer.adapter() if name.endswith(A_SUFFIX)}
    moved = {name for name in plain if not np.array_equal(after[name], plain[name])}
    assert moved == {f"{module}.weight" for module in adapted}
    assert all("proj" in name for name in moved)


def test_whole_weights_are_the_models_with_the_adapter_added(trainer, make_sequences):
    before = whole(trainer)
    learn(trainer, make_sequences(4))
    after, halves = whole(trainer), dict(trainer.adapter())
    assert len(halves) % 2 == 0
    for name in halves:
        if name.endswith(A_SUFFIX):
            module = name.removesuffix(A_SUFFIX)
            assert halves[name].shape[0] == 4
            added = halves[module + B_SUFFIX] @ halves[name]
            np.testing.assert_allclose(
                after[f"{module}.weight"], before[f"{module}.weight"] + added, atol=1e-6
            )


def test_a_run_goes_on_bit_for_bit_from_a_checkpoint_that_holds_the_adapter_alone(
    trainer, model_folder, make_config, make_sequences, tmp_path
):
    learn(trainer, make_sequences(4))
    trainer.save(tmp_path)
    again = TorchTrainer.create(
        make_config(model=model_folder, strategy_config=LORA, training_args={"learning_rate": 3e-2})
    )
    again.load(tmp_path)
    for each in (trainer, again):
        learn(each, make_sequences(4, seed=1), step=1)
    for (name, one), (other_name, other) in zip(trainer.adapter(), again.adapter(), strict=True):
        assert name == other_name
        np.testing.assert_array_equal(one, other)
    size = sum(file.stat().st_size for file in tmp_path.rglob("*.safetensors"))
    assert size < 3.5 * sum(half.nbytes for _, half in trainer.adapter())


def test_a_model_that_is_saved_has_the_adapter_merged_in(trainer, make_sequences, tmp_path):
    learn(trainer, make_sequences(4))
    trainer.save_pretrained(tmp_path)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).state_dict()
    for name, weight in whole(trainer).items():
        np.testing.assert_allclose(loaded[name].numpy(), weight, atol=1e-7)
    assert not any("lora" in name for name in loaded)


@pytest.mark.parametrize("sent", ["adapter", "weights"])
async def test_engine_and_trainer_mean_the_same_after_an_update(trainer, model_folder, make_sequences, sent):
    engine = EmbeddedEngine.create(EngineConfig(model=model_folder, sequence_length=256))
    await engine.start()
    try:
        for version in (1, 2):
            learn(trainer, make_sequences(4, seed=version), step=version)
            await engine.load_weights(dict(getattr(trainer, sent)()), version)
            prompts = [sequence.ids for sequence in make_sequences(6, seed=version)]
            await agreeing_replies(engine, trainer, prompts, version, max_new_tokens=30)
    finally:
        await engine.close()


async def test_an_engine_rounds_no_adapter_to_the_type_that_its_model_is_stored_in(
    model_folder, make_config, make_sequences, tmp_path
):
    stored = shutil.copytree(model_folder, tmp_path / "model")
    transformers.AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.bfloat16).save_pretrained(
        stored
    )
    trainer = TorchTrainer.create(
        make_config(
            model=stored,
            strategy_config={**LORA, "dtype": "float32"},
            training_args={"learning_rate": 1e-2},
        )
    )
    engine = EmbeddedEngine.create(
        EngineConfig(model=stored, sequence_length=256, strategy_config={"dtype": "float32"})
    )
    await engine.start()
    try:
        learn(trainer, make_sequences(4))
        await engine.load_weights(dict(trainer.adapter()), 1)
        prompts = [sequence.ids for sequence in make_sequences(6)]
        await agreeing_replies(engine, trainer, prompts, 1, max_new_tokens=30)
    finally:
        await engine.close()


def test_a_value_head_learns_beside_the_adapter(model_folder, make_config, make_sequences):
    trainer = TorchTrainer.create(make_config(model=model_folder, strategy_config=LORA, with_value_head=True))
    assert {name for name in trainer._optimizer.parameters if "lora_" not in name} == {
        "value_head.weight",
        "value_head.bias",
    }


@pytest.mark.parametrize(
    ("lora", "said"),
    [
        ({"rank": 0}, "rank"),
        ({"rank": 4, "target_modules": ["nobody"]}, "nobody"),
        ({"rank": 4, "target_modules": ["embed_tokens"]}, "embed_tokens"),
        ({"rank": 4, "target_modules": ["lm_head"]}, "lm_head computes with the embeddings' weight"),
        ({"ranks": 4}, "rank"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused_and_named(model_folder: Path, make_config, lora, said):
    with pytest.raises(ConfigurationError, match=said):
        TorchTrainer.create(make_config(model=model_folder, strategy_config={"lora": lora}))


def test_matrices_of_a_bfloat16_model_stay_so_and_learning_is_the_same(
    model_folder, make_config, make_sequences, tmp_path, monkeypatch
):
    model = transformers.AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.bfloat16)
    shutil.copytree(model_folder, tmp_path / "model")
    model.save_pretrained(tmp_path / "model")
    found = []
    for is_plain in (False, True):
        if is_plain:
            monkeypatch.setattr(TorchStrategyConfig, "frozen_type", lambda self, stored: "float32")
        config = make_config(model=tmp_path / "model", strategy_config=LORA | {"dtype": "bfloat16"})
        trainer = TorchTrainer.create(config)
        held = {p.dtype for name, p in trainer.model.parameters() if ".base_layer." in name}
        assert held == {torch.float32 if is_plain else torch.bfloat16}
        learn(trainer, make_sequences(4))
        found.append(whole(trainer))
    halved, plain = found
    for name, weight in plain.items():
        assert halved[name].dtype == np.float32
        np.testing.assert_array_equal(halved[name], weight)

"""Every family of models: trainer and embedded engine mean the same, before and after an update."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from plays import assert_close, play, play_on
from safetensors.torch import load_file, save_file

from envsdk.contracts.failures import ConfigurationError
from envsdk.contracts.trainer import TrainBatch
from envsdk.engines.embedded import EmbeddedEngine
from envsdk.engines.embedded.fast import FastDecoder
from envsdk.engines.embedded.generic import GenericDecoder
from envsdk.engines.engine import EngineConfig
from envsdk.trainers.torch_trainer import TorchTrainer
from envsdk.weights.folders import tensors_in
from envsdk.weights.shapes import shapes_in
from tests.by_day import by_day
from tests.trainers.engine_replies import agreeing_replies
from tests.trainers.families import FAMILIES, WITH_TOWERS, make_family, make_with_tower, save_family

LORA = {"lora": {"rank": 2}}
ADAPTED_BY_DAY = ["qwen3_5", "glm4_moe_lite", "gpt_oss", "gemma4_moe", "mistral"]
"""Layers of each kind: linear attention, latent attention, experts in both layouts, plain ones."""


@pytest.fixture(scope="module", params=list(FAMILIES))
def family(request, tmp_path_factory):
    return save_family(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture
def make_trainer(family, make_config):
    def make(**changes):
        training = {"learning_rate": 1e-2, "max_tokens_per_microbatch": 200}
        return TorchTrainer.create(make_config(model=family, **{"training_args": training, **changes}))

    return make


async def check_updates(trainer, folder, make_sequences, sent: str) -> None:
    engine = EmbeddedEngine.create(EngineConfig(model=folder, sequence_length=128, max_running=4))
    await engine.start()
    try:
        for version in (0, 1):
            if version:
                trainer.train_step(TrainBatch(step=0, sequences=make_sequences(4)))
                await engine.load_weights(dict(getattr(trainer, sent)()), version=version)
            prompts = [sequence.ids for sequence in make_sequences(5, seed=version)]
            await agreeing_replies(engine, trainer, prompts, version, max_new_tokens=12)
    finally:
        await engine.close()


async def test_engine_and_trainer_agree_before_and_after_an_update(family, make_trainer, make_sequences):
    await check_updates(make_trainer(), family, make_sequences, "weights")


def test_mistral_is_computed_like_llama_but_for_its_window(tmp_path):
    for name, kind in {"mistral": FastDecoder, "mistral_sliding": GenericDecoder}.items():
        folder = save_family(name, tmp_path / name)
        engine = EmbeddedEngine.create(EngineConfig(model=folder, sequence_length=64))
        assert type(engine.core.decoder) is kind


@pytest.mark.parametrize("family", by_day(ADAPTED_BY_DAY, FAMILIES), indirect=True)
async def test_engine_and_trainer_agree_on_an_adapter(family, make_trainer, make_sequences):
    await check_updates(make_trainer(strategy_config=LORA), family, make_sequences, "adapter")


def test_weights_have_the_names_and_shapes_of_the_folder(family, make_trainer, make_sequences):
    trainer = make_trainer()
    trainer.train_step(TrainBatch(step=0, sequences=make_sequences(2)))
    sent = {name: weight.shape for name, weight in trainer.weights()}
    assert sent == shapes_in(family)


def test_a_saved_model_is_the_one_that_was_trained(family, make_trainer, make_sequences, tmp_path):
    trainer = make_trainer()
    trainer.train_step(TrainBatch(step=0, sequences=make_sequences(2)))
    trainer.save_pretrained(tmp_path)
    ids = [sequence.ids for sequence in make_sequences(3)]
    again = TorchTrainer.create(replace(trainer.config, model=tmp_path))
    for one, other in zip(trainer.logprobs(ids), again.logprobs(ids), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_packed_rows_do_not_see_each_other(family, make_trainer, make_sequences):
    trainer = make_trainer()
    ids = [sequence.ids for sequence in make_sequences(6)]
    ids += [np.concatenate([ids[0], ids[1]]), ids[0][:-1]]
    model = transformers.AutoModelForCausalLM.from_pretrained(family).eval()
    for each, found in zip(ids, trainer.logprobs(ids), strict=True):
        with torch.no_grad():
            logits = model(torch.from_numpy(each.astype(np.int64))[None]).logits[0]
        alone = logits.log_softmax(-1)[np.arange(len(each) - 1), each[1:]]
        np.testing.assert_allclose(found[1:], alone.numpy(), atol=1e-4)


@pytest.mark.parametrize(
    ("name", "strategy"),
    by_day([("gpt_oss", {})], [(name, each) for name in FAMILIES for each in ({}, LORA)]),
)
def test_ranks_that_share_a_model_out_learn_what_one_process_learns(
    name, strategy, make_config, make_sequences, tmp_path
):
    training = {"learning_rate": 1e-3, "adam_epsilon": 1e-5, "max_tokens_per_microbatch": 100}
    config = make_config(model=save_family(name, tmp_path), training_args=training, strategy_config=strategy)
    ids = [sequence.ids for sequence in make_sequences(5)]
    calls = [
        ("train_step", TrainBatch(step=0, sequences=make_sequences(4))),
        ("logprobs", ids),
        ("adapter",) if strategy else ("weights",),
    ]
    found = play_on("fsdp2_train", 2, config, calls)
    assert_close(found, play("torch", config, calls), tolerance=2e-5)


@pytest.mark.parametrize("name", WITH_TOWERS)
async def test_beside_a_tower_the_language_model_is_trained_and_saved_with_the_tower_as_it_was(
    name, make_config, make_sequences, tmp_path
):
    folder = tmp_path / "whole"
    whole = make_with_tower(name)
    whole.save_pretrained(folder)
    trainer = TorchTrainer.create(make_config(model=folder, training_args={"learning_rate": 1e-2}))
    ids = make_sequences(1)[0].ids
    tensor = torch.from_numpy(ids.astype(np.int64))[None]
    with torch.no_grad():
        logits = whole(input_ids=tensor).logits[0].log_softmax(-1)
    expected = logits[np.arange(len(ids) - 1), ids[1:]].numpy()
    np.testing.assert_allclose(trainer.logprobs([ids])[0][1:], expected, atol=1e-4)
    assert {key: weight.shape for key, weight in trainer.weights()} == shapes_in(folder)
    await check_updates(trainer, folder, make_sequences, "weights")

    trainer.save_pretrained(tmp_path / "saved")
    again = TorchTrainer.create(replace(trainer.config, model=tmp_path / "saved"))
    np.testing.assert_allclose(again.logprobs([ids])[0], trainer.logprobs([ids])[0], atol=1e-5)
    before, after = dict(tensors_in(folder)), dict(tensors_in(tmp_path / "saved"))
    assert before.keys() == after.keys()
    towers = before.keys() - shapes_in(folder).keys()
    assert towers
    assert all(torch.equal(before[key], after[key]) for key in towers)


def test_heads_that_predict_tokens_ahead_are_not_asked_of_a_trainer(tmp_path):
    make_family("glm4_moe").save_pretrained(tmp_path)
    expected = shapes_in(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    ahead = {"model.layers.4.eh_proj.weight": torch.zeros(2, 2), "mtp.fc.weight": torch.zeros(2, 2)}
    save_file({**weights, **ahead}, tmp_path / "model.safetensors")
    assert shapes_in(tmp_path) == expected


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (transformers.T5Config(d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2), "model_type t5"),
        (
            transformers.BertConfig(
                hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
            ),
            "in BertLMHeadModel of model_type bert tokens see those after them",
        ),
        (transformers.Qwen3VLConfig(text_config={"num_hidden_layers": 1}), "model_type qwen3_vl"),
        (
            transformers.MixtralConfig(num_hidden_layers=1, hidden_size=32, num_attention_heads=4),
            "its files lack",
        ),
    ],
)
def test_a_model_that_is_no_decoder_of_text_is_refused_by_name(config, problem, make_config, tmp_path):
    config.save_pretrained(tmp_path)
    weights = {}
    if config.model_type == "bert":
        weights = transformers.BertForMaskedLM(config).state_dict()
    save_file(
        {key: value.clone() for key, value in weights.items()},
        tmp_path / "model.safetensors",
        {"format": "pt"},
    )
    with pytest.raises(ConfigurationError, match=problem):
        TorchTrainer.create(make_config(model=tmp_path))
    with pytest.raises(ConfigurationError, match=problem):
        EmbeddedEngine.create(EngineConfig(model=tmp_path, sequence_length=64))

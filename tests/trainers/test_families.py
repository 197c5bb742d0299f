"""Every family of models: trainer and embedded engine mean the same, before and after an update."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers

from envsdk.contracts.trainer import TrainBatch
from envsdk.engines.embedded import EmbeddedEngine
from envsdk.engines.engine import EngineConfig
from envsdk.trainers.torch_trainer import TorchTrainer
from envsdk.weights.shapes import shapes_in
from tests.trainers.engine_replies import agreeing_replies
from tests.trainers.families import FAMILIES, save_family

LORA = {"lora": {"rank": 2}}


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

"""The shipped example: what its tiny policy sees of a shop, as tokens."""

import pytest

from envsdk.base.store.trajectories import read_trajectories
from envsdk.collect import collect
from envsdk.config import load_config
from envsdk.contracts.chat import ChatTokenizer
from envsdk.envs.webshop import SPEC, WebShopEnv
from envsdk.envs.webshop.replies import format_reply
from envsdk.managers.wiring import tag_setups
from envsdk.trainers.warm_start.prepare import demonstrations_of
from envsdk.trainers.warm_start.tiny_policy import build_tokenizer, write_tokenizer


@pytest.fixture(scope="module")
def example():
    return load_config("agentic_webshop_async.yaml").config


@pytest.fixture(scope="module")
def trajectories(example, tmp_path_factory):
    folder = tmp_path_factory.mktemp("demonstrations")
    epsilon = example.warm_start.epsilon
    collection = collect(
        example, folder, num_episodes=300, policy="oracle", epsilon=epsilon, seed=example.seed
    )
    return [trajectory for shard in collection.shards for trajectory in read_trajectories(shard)]


@pytest.fixture(scope="module")
def chat(example, trajectories, tmp_path_factory):
    texts = [
        text for played in trajectories for turn in played.turns for text in (turn.observation, turn.reply)
    ]
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer = build_tokenizer(texts, pieces=[*example.warm_start.pieces, *SPEC.text_pieces])
    write_tokenizer(folder, tokenizer, sequence_length=example.sequence_length)
    return ChatTokenizer.load(folder)


def test_the_context_holds_demonstrations_to_their_end(example, trajectories, chat):
    setup = tag_setups(example, example.train_env_manager)["WebShop"]
    for trajectory in trajectories:
        (demo,) = demonstrations_of(trajectory, chat, setup.shown, example.sequence_length)
        (whole,) = demonstrations_of(trajectory, chat, setup.shown, 10**6)
        assert len(demo.ids) == len(whole.ids)


def test_a_value_that_is_asked_for_is_the_token_that_is_clicked(example, chat):
    env = WebShopEnv(**example.custom_envs["WebShop"].env_config)
    num_values = 0
    for seed in range(50):
        observation, info = env.reset(seed=seed)
        for value in env.store.goal("synthetic", info["goal"]).options.values():
            _, clicked, _ = chat.encode(format_reply(f"click[{value}]", "tag"))
            assert clicked in chat.encode(observation)
            num_values += 1
    assert num_values > 50

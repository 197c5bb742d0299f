import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import envsdk
from envsdk.collect import collect
from envsdk.config import load_config
from envsdk.contracts.failures import ConfigurationError
from envsdk.envs.webshop import WebShopEnv
from envsdk.envs.webshop.oracle import best_options
from envsdk.envs.webshop.shopper import Shopper
from envsdk.testing import TextEnvSuite

SMALL = {"num_products": 200}


class TestWebShop(TextEnvSuite):
    max_examples = 15

    def make_env(self):
        return envsdk.make("envsdk/WebShop-v1", **SMALL)


class TestRichWebShopWithSyntheticGoals(TextEnvSuite):
    max_examples = 3

    def make_env(self):
        return WebShopEnv(
            **SMALL,
            goals="synthetic",
            observation_mode="text_rich",
            action_format="text",
            show_attributes=True,
            strict_options=True,
            explain_invalid=True,
            invalid_penalty=0.1,
            page_size=4,
        )


class TestRecordedWebShop(TextEnvSuite):
    """On the recorded catalogue, whose odd products no oracle can always buy in full."""

    max_examples = 3
    oracle_always_solves = False

    @pytest.fixture(autouse=True)
    def _store(self, store):
        self.folder = str(store.folder)

    def make_env(self):
        return WebShopEnv(data_dir=self.folder, observation_mode="text_rich")


def test_a_purchase_ends_the_episode_and_tells_its_parts():
    env = WebShopEnv(**SMALL)
    env.reset(options={"goal": 3})
    over, total, turns = False, 0.0, 0
    while not over:
        observation, reward, terminated, truncated, info = env.step(env.oracle())
        over, total, turns = terminated or truncated, total + reward, turns + 1
    assert (terminated, truncated, total, turns) == (True, False, 1.0, turns)
    assert info["success"] is True
    assert info["purchased"] is True
    assert info["reward_components"]["r_type"] == 1.0
    assert info["metrics"]["purchased"] == 1.0
    assert observation.startswith("Thank you for shopping with us!")
    assert env.step("<action>search[lamp]</action>")[:4] == (observation, 0.0, True, False)


def test_buying_the_wrong_thing_is_a_purchase_and_no_success():
    env = WebShopEnv(**SMALL, action_format="text")
    env.reset(options={"goal": 0})
    goal = env.store.goal("human", 0)
    category = next(
        k.category for i in range(200) if (k := env.store.product(i)).category != goal.wanted.category
    )
    env.step(f"search[<c> {category}]")
    product = next(
        action for action in env.legal_actions() if action.startswith("click[b") and "back" not in action
    )
    env.step(product)
    _, reward, terminated, _, info = env.step("click[buy now]")
    assert terminated
    assert reward < 1.0
    assert info["purchased"] is True
    assert info["success"] is False


def test_a_reply_that_is_no_action_leaves_the_page_and_costs_a_turn():
    env = WebShopEnv(**SMALL, max_steps=2, invalid_penalty=0.25)
    page, _ = env.reset(seed=1)
    observation, reward, _, truncated, info = env.step("search[lamp]")
    assert (observation, reward, truncated) == (page, -0.25, False)
    assert info["metrics"]["action_is_valid"] == 0.0
    observation, _, terminated, truncated, info = env.step("<action>click[buy now]</action>")
    assert (observation, terminated, truncated) == (page, False, True)
    assert info["metrics"]["purchased"] == 0.0


def test_explained_an_invalid_reply_gets_a_line_below_the_page():
    env = WebShopEnv(**SMALL, explain_invalid=True)
    page, _ = env.reset(seed=1)
    assert env.step("what?")[0] == f"{page}\nInvalid action."


def test_the_last_complete_action_tag_counts():
    env = WebShopEnv(**SMALL)
    env.reset(seed=1)
    observation = env.step("<action>x</action> hm <action> search[coffee] </action> and <action>")[0]
    assert "Page 1 (Total results:" in observation


def test_splits_share_no_goal_and_every_instance_numbers_goals_alike():
    numbers = {}
    for split in ("test", "eval", "train"):
        env = WebShopEnv(num_products=800, split=split)
        numbers[split] = {env.reset(seed=seed)[1]["goal"] for seed in range(400)}
        assert env.reset(seed=7) == WebShopEnv(num_products=800, split=split).reset(seed=7)
    assert max(numbers["test"]) < 500 <= min(numbers["eval"])
    assert max(numbers["eval"]) < 1500 <= min(numbers["train"])
    assert len(numbers["test"]) > 200


def test_a_small_catalogue_is_split_into_a_fifth_and_the_rest():
    numbers = {}
    for split in ("held_out", "rest"):
        env = WebShopEnv(**SMALL, split=split)
        numbers[split] = {env.reset(seed=seed)[1]["goal"] for seed in range(200)}
    fifth = env.store.num_goals("human") // 5
    assert max(numbers["held_out"]) < fifth <= min(numbers["rest"])
    assert len(numbers["held_out"]) > fifth / 2


def test_a_split_without_a_goal_is_refused():
    with pytest.raises(ConfigurationError, match="'train' starts at goal 1500"):
        envsdk.make("envsdk/WebShop-v1", **SMALL, split="train")


@pytest.mark.parametrize(
    ("keyword", "value"),
    [
        ("goals", "any"),
        ("split", "val"),
        ("observation_mode", "html"),
        ("action_format", "json"),
        ("max_steps", 0),
        ("page_size", 0),
        ("num_products", 0),
    ],
)
def test_a_wrong_value_is_refused_by_name(keyword, value):
    with pytest.raises(ConfigurationError, match=keyword):
        envsdk.make("envsdk/WebShop-v1", **{**SMALL, keyword: value})


def test_without_a_store_the_message_says_how_to_build_one(tmp_path):
    with pytest.raises(ConfigurationError, match=r"envsdk\.envs\.webshop\.build --data"):
        WebShopEnv(data_dir=str(tmp_path))


@pytest.mark.parametrize("kind", ["human", "synthetic"])
@pytest.mark.parametrize("strict", [False, True])
def test_the_best_purchase_of_every_generated_goal_scores_1(kind, strict):
    env = WebShopEnv(**SMALL, goals=kind, strict_options=strict)
    solved, num_goals = 0, env.store.num_goals(kind)
    for number in range(num_goals):
        env.reset(options={"goal": number})
        over = False
        while not over:
            _, _, terminated, truncated, info = env.step(env.oracle())
            over = terminated or truncated
        solved += info["success"]
    assert solved >= 0.99 * num_goals


@pytest.mark.parametrize("mode", ["text", "text_rich"])
def test_a_shopper_who_only_reads_pages_buys_most_things_in_full(mode):
    env = WebShopEnv(**SMALL, observation_mode=mode, action_format="text")
    successes = 0
    for number in range(100):
        observation, _ = env.reset(options={"goal": number})
        shopper, over = Shopper(), False
        while not over:
            observation, _, terminated, truncated, info = env.step(shopper.act(observation))
            over = terminated or truncated
        successes += info["success"]
    assert 70 <= successes < 100


def test_strict_options_tell_sizes_apart_that_upstream_does_not():
    def buy(size: str, *, strict: bool) -> float:
        env = WebShopEnv(**SMALL, goals="synthetic", strict_options=strict, action_format="text")
        number = next(
            number
            for number in range(env.store.num_goals("synthetic"))
            if (goal := env.store.goal("synthetic", number)).options.get("size") == "x-large"
            and size in env.store.product(goal.product).options["size"]
        )
        goal = env.store.goal("synthetic", number)
        env.reset(options={"goal": number})
        options = {**best_options(goal), "size": size}
        for action in (f"search[{goal.wanted.title}]", f"click[{goal.wanted.asin}]"):
            env.step(action)
        for value in options.values():
            env.step(f"click[{value}]")
        return env.step("click[buy now]")[1]

    assert buy("large", strict=False) == 1.0
    assert buy("large", strict=True) < 1.0
    assert buy("x-large", strict=True) == 1.0


@settings(max_examples=25)
@given(seed=st.integers(0, 2**31 - 1), mode=st.sampled_from(["text", "text_rich"]))
def test_every_click_that_is_listed_is_possible_and_no_other(seed, mode):
    env = WebShopEnv(**SMALL, observation_mode=mode, action_format="text")
    env.reset(seed=seed)
    rng = random.Random(seed)
    for _ in range(10):
        actions = env.legal_actions()
        if not actions:
            break
        snapshot = env.snapshot()
        for action in actions:
            assert env.step(action)[4]["metrics"]["action_is_valid"] == 1.0, action
            env.restore(snapshot)
        assert env.step("click[no such label]")[4]["metrics"]["action_is_valid"] == 0.0
        env.restore(snapshot)
        env.step(rng.choice(actions))


def test_r_lists_products_drawn_by_the_seed():
    env = WebShopEnv(**SMALL, action_format="text")
    pages = []
    for seed in (5, 5, 6):
        env.reset(seed=seed)
        pages.append(env.step("search[<r>]")[0].partition("Page 1")[2])
    assert pages[0] == pages[1] != pages[2]
    assert "(Total results: 50)" in pages[0]


def test_special_queries_can_be_turned_off():
    env = WebShopEnv(**SMALL, action_format="text", special_queries=False)
    env.reset(seed=1)
    assert "Total results: 0" in env.step("search[<r>]")[0]


def test_the_example_plays_goals_for_training_and_others_for_evaluation(tmp_path):
    example = load_config("agentic_webshop_async.yaml").config
    goals = {}
    for split in ("train", "val"):
        collection = collect(example, tmp_path / split, num_episodes=20, split=split)
        assert collection.manifest.tally.success_rate == 1.0
        for tag in collection.manifest.tally_by_tag:
            shop = example.custom_envs[tag]
            env = envsdk.make(shop.env_type, **shop.env_config)
            goals[tag] = {env.reset(seed=seed)[1]["goal"] for seed in range(50)}
    assert max(goals["WebShopHeldOut"]) < min(goals["WebShop"])

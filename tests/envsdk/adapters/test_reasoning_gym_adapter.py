"""reasoning-gym's data sets, asked by the real package."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import envsdk
from envsdk.adapters.reasoning_gym import ReasoningGymEnv, make_reasoning_gym_env, open_questions, split_of
from envsdk.adapters.text import NO_ANSWER, tagged
from envsdk.contracts.failures import ConfigurationError
from envsdk.testing import TextEnvSuite
from envsdk.testing.strategies import AWKWARD_REPLIES

pytest.importorskip("reasoning_gym", reason="needs reasoning-gym: make test-adapters")
pytestmark = pytest.mark.adapters

from reasoning_gym.factory import DATASETS, create_dataset  # noqa: E402

ID = "envsdk/ReasoningGym-v1"
LEGS = {"dataset": "leg_counting", "config": {"max_animals": 5}}
EVALUATING = {
    "binary_matrix",
    "countdown",
    "intermediate_integration",
    "n_queens",
    "number_sorting",
    "polynomial_multiplication",
    "puzzle24",
    "simple_integration",
    "spiral_matrix",
    "string_insertion",
}
"""Data sets whose scorers evaluate answers, found by reading them."""

TestLegCounting = TextEnvSuite.of(ID, LEGS, max_examples=4)
TestSeveralAttempts = TextEnvSuite.of(
    ID,
    {"dataset": "basic_arithmetic", "max_steps": 3, "invalid_penalty": 0.1, "split": "val"},
    max_examples=4,
)
# Its generator seeds numpy's global generator.
TestPoolMatrix = TextEnvSuite.of(ID, {"dataset": "pool_matrix", "split": "train"}, max_examples=4)
# It has no answers, only a scorer.
TestWithoutAnswers = TextEnvSuite.of(ID, {"dataset": "graph_color"}, max_examples=4)


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32 - 1), answer=st.text(max_size=8))
def test_the_reward_is_the_data_sets_own_score(seed, answer):
    env = make_reasoning_gym_env(**LEGS)
    question, _ = env.reset(seed=seed)
    item = open_questions("leg_counting", '{"max_animals": 5}').draw(seed, "all", 0.1)
    theirs = create_dataset("leg_counting", seed=0, size=10_000, max_animals=5)
    assert item == theirs[item["metadata"]["source_index"]]
    assert question == item["question"]
    if answer.strip() and "<" not in answer:
        _, reward, terminated, _, info = env.step(tagged(answer))
        assert (reward, terminated) == (theirs.score_answer(answer.strip(), item), True)
        assert info["success"] is (reward >= 1.0)


def test_a_wrong_answer_may_score_something_without_being_a_success():
    env = make_reasoning_gym_env(dataset="basic_arithmetic")
    env.reset(seed=3)
    _, reward, terminated, _, info = env.step(env.oracle().replace("<answer>", "<answer>about "))
    assert terminated
    assert 0 < reward < 1
    assert info == {"success": False, "metrics": {"has_answer": 1.0, "score": reward}}


def test_without_an_answer_the_question_stays_where_there_are_turns_left():
    env = make_reasoning_gym_env(**LEGS, max_steps=2)
    question, _ = env.reset(seed=3)
    observation, reward, terminated, truncated, info = env.step("I count the legs")
    assert (observation, reward, terminated, truncated) == (f"{question}\n{NO_ANSWER}", 0.0, False, False)
    assert info == {"success": False, "metrics": {"has_answer": 0.0, "action_is_valid": 0.0}}
    assert env.step(env.oracle())[4]["success"]


def test_without_an_answer_the_only_turn_is_a_wrong_answer():
    env = make_reasoning_gym_env(**LEGS, invalid_penalty=0.1)
    question, _ = env.reset(seed=3)
    info = {"success": False, "metrics": {"has_answer": 0.0, "score": 0.0}}
    assert env.step("I count the legs") == (question, -0.1, True, False, info)


@settings(max_examples=10)
@given(share=st.floats(0.05, 0.95))
def test_splits_share_no_question_and_leave_none_out(share):
    questions = open_questions("gcd", '{"max_value": 20, "max_numbers": 2}')
    asked = {
        split: {questions.draw(seed, split, share)["question"] for seed in range(60)}
        for split in ("train", "val")
    }
    assert not asked["train"] & asked["val"]
    everything = {questions.item(index)["question"] for index in range(200)}
    sorted_out = {question: split_of(question, share) for question in everything}
    assert set(sorted_out.values()) <= {"train", "val"}
    assert abs(np.mean([split == "val" for split in sorted_out.values()]) - share) < 0.2


def test_a_split_that_has_no_item_says_so():
    env = make_reasoning_gym_env(**LEGS, split="val", val_share=1e-9)
    with pytest.raises(RuntimeError, match="none of 1000 items belongs to the split 'val'"):
        env.reset(seed=0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dataset": "leg_countin"}, "dataset: .* no data set 'leg_countin'. Did you mean 'leg_counting'"),
        ({"dataset": "leg_counting", "config": {"max_animal": 3}}, "config: .*'max_animal'. Did you mean"),
        (
            {"dataset": "leg_counting", "config": {"min_animals": 0}},
            "config: .* min_animals must be positive",
        ),
        ({**LEGS, "split": "test"}, "split: must be one of all, train, val"),
        ({**LEGS, "val_share": 0}, "val_share: must be above 0"),
        ({**LEGS, "reply": "json"}, "reply: must be one of tag, whole"),
        ({"dataset": "countdown"}, "evaluating them as Python.*evaluates_answers: true"),
        (
            {"dataset": "composite", "config": {"datasets": [{"weight": 1}]}},
            "config.datasets: each needs a name",
        ),
    ],
    ids=str,
)
def test_wrong_arguments_are_refused_by_name(arguments, message):
    with pytest.raises(ConfigurationError, match=message):
        envsdk.make(ID, **arguments)


def test_a_mixture_asks_questions_of_all_its_data_sets():
    parts = [{"name": "leg_counting", "config": {"max_animals": 4}}, {"name": "gcd", "weight": 2.0}]
    env = make_reasoning_gym_env(dataset="composite", config={"datasets": parts})
    questions = [env.reset(seed=seed)[0] for seed in range(30)]
    legs = sum("legs" in question for question in questions)
    assert 0 < legs < 30
    with pytest.raises(ConfigurationError, match="evaluating them as Python"):
        envsdk.make(ID, dataset="composite", config={"datasets": [{"name": "countdown"}]})


def test_scorers_that_evaluate_answers_are_found():
    assert {name for name in DATASETS if name not in ("composite",) and _is_refused(name)} >= EVALUATING


def _is_refused(name):
    from envsdk.adapters.reasoning_gym import _evaluates_answers

    return _evaluates_answers(name, {})


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(DATASETS))
def test_every_data_set_can_be_asked_and_answered(name):
    if name == "composite":
        pytest.skip("it has no data of its own")
    config = {"size": 200}
    env = make_reasoning_gym_env(dataset=name, config=config, evaluates_answers=True)
    assert isinstance(env, ReasoningGymEnv)
    for seed in range(5):
        question, _ = env.reset(seed=seed)
        assert (
            question
            == make_reasoning_gym_env(dataset=name, config=config, evaluates_answers=True).reset(seed=seed)[0]
        )
        if "oracle" in env.abilities():
            assert env.step(env.oracle())[4]["success"]
    for reply in AWKWARD_REPLIES:
        env.reset(seed=1)
        env.step(tagged(reply))

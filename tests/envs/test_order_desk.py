"""The order desk: every action is a call of a tool."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import envsdk
from envsdk.contracts.failures import ConfigurationError
from envsdk.envs.order_desk.desk import WAREHOUSES, Desk, draw_task
from envsdk.envs.order_desk.env import OrderDeskEnv, call
from envsdk.testing import TextEnvSuite

TestOrderDesk = TextEnvSuite.of(
    "envsdk/OrderDesk-v1", {"num_lines": 2, "invalid_penalty": 0.1, "tool_list": "none"}, max_examples=3
)


def desk_env(seed: int = 1, **options: Any) -> tuple[OrderDeskEnv, str]:
    env = envsdk.make("envsdk/OrderDesk-v1", **{"tool_list": "none", **options})
    assert isinstance(env, OrderDeskEnv)
    return env, env.reset(seed=seed)[0]


def told(text: str) -> str:
    return f"<tool_response>\n{text}\n</tool_response>"


@given(st.integers(0, 2**32), st.integers(1, 5))
def test_every_task_can_be_solved_and_not_from_every_warehouse(seed: int, num_lines: int) -> None:
    task = draw_task(np.random.default_rng(seed), num_lines=num_lines)
    assert len({line.item for line in task.lines}) == num_lines
    assert len(set(task.accounts.values())) == len(task.accounts)
    for line in task.lines:
        enough = [task.stock[line.item][warehouse] >= line.quantity for warehouse in WAREHOUSES]
        assert any(enough)
        assert not all(enough)


ORDER = {"account": 49, "item": "bag", "quantity": 2, "warehouse": "north"}
"""What solves the task of seed 1; south has one bag, east has two."""


def test_an_order_takes_an_account_and_a_warehouse_that_has_enough() -> None:
    env, observation = desk_env()
    assert observation == "Order for Bob: 2 bag"
    assert env.step(call("customer", name="Bob"))[0] == told('{"account": 49}')
    assert env.step(call("stock", item="bag"))[0] == told('{"north": 3, "south": 1, "east": 2}')
    observation, reward, terminated, _, info = env.step(call("order", **ORDER))
    assert (observation, reward, terminated, info["success"]) == (told("2 bag sent to 49"), 1.0, True, True)


@pytest.mark.parametrize(
    "wrong", [{"account": 91}, {"item": "book", "quantity": 1, "warehouse": "east"}, {"quantity": 1}]
)
def test_an_order_nobody_asked_for_ends_the_episode_without_success(wrong: dict[str, Any]) -> None:
    env, _ = desk_env()
    _, reward, terminated, _, info = env.step(call("order", **{**ORDER, **wrong}))
    assert (reward, terminated, info["success"]) == (0.0, True, False)


@pytest.mark.parametrize(
    ("reply", "says", "is_valid"),
    [
        (call("customer", name="Zoe"), "Error: there is no customer 'Zoe'", True),
        (call("order", **{**ORDER, "account": 10}), "Error: there is no account 10", True),
        (call("order", **{**ORDER, "warehouse": "south"}), "Error: south has 1 bag", True),
        (call("order", **{**ORDER, "quantity": 5}), "Error: order: quantity: 5 is greater than", False),
        (call("stock", item="hat"), "Error: stock: item: 'hat' is not one of", False),
        (call("stocks"), "Did you mean 'stock'?", False),
        ("<tool_call>", "the reply ends inside a call", False),
        ("Two bags, please.", "No tool was called. Write <tool_call>", False),
    ],
)
def test_what_cannot_be_done_costs_a_turn_and_changes_nothing(reply: str, says: str, is_valid: bool) -> None:
    env, _ = desk_env(invalid_penalty=0.25, step_penalty=0.125)
    before = env.state_hash()
    observation, reward, terminated, _, info = env.step(reply)
    assert says in observation
    assert not terminated
    assert info["metrics"]["action_is_valid"] == float(is_valid)
    assert sum(name.startswith("call_attempt.") for name in info["metrics"]) == 1
    assert reward == -0.125 - (0.0 if is_valid else 0.25)
    assert env.state_hash() == before


def test_several_calls_in_one_reply_are_carried_out_in_order_until_the_desk_closes() -> None:
    env, _ = desk_env()
    look_up = call("customer", name="Bob")
    observation, reward, terminated, _, _ = env.step(look_up + call("order", **ORDER) + look_up)
    assert observation == "\n".join(
        [told('{"account": 49}'), told("2 bag sent to 49"), told("Error: the desk is closed")]
    )
    assert (reward, terminated) == (1.0, True)


def test_a_line_is_ordered_once() -> None:
    desk = Desk(draw_task(np.random.default_rng(5), num_lines=2))
    task = desk.task
    line = task.lines[0]
    account = task.accounts[task.customer]
    warehouse = next(name for name, left in task.stock[line.item].items() if left >= line.quantity)
    order = {"account": account, "item": line.item, "quantity": line.quantity, "warehouse": warehouse}
    desk.order(**order)
    assert not desk.is_over
    desk.order(**order)
    assert desk.is_lost


def test_the_tools_are_told_where_asked() -> None:
    env, observation = desk_env(tool_list="observation")
    assert observation.startswith('Tools:\n{"name": "customer"')
    assert observation.endswith("Order for Bob: 2 bag")
    env, _ = desk_env(tool_list="template")
    observation, info = env.reset(seed=1)
    assert observation == "Order for Bob: 2 bag"
    assert [each["function"]["name"] for each in info["tools"]] == ["customer", "stock", "order"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"num_lines": 0}, "num_lines: must be from 1 to 5"),
        ({"num_lines": 4}, "max_steps: 4 lines take 9 calls, not 8"),
        ({"tool_list": "system"}, "tool_list: must be one of observation, template, none"),
        ({"lines": 2}, "Did you mean 'num_lines'"),
    ],
)
def test_wrong_settings_are_named(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        desk_env(**options)
    assert says in str(raised.value)

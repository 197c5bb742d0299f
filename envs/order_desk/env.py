"""The order desk as a text environment: every action is a call of a tool."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Annotated, Any, get_args

import numpy as np
from gymnasium.error import ResetNeeded
from pydantic import Field

from envsdk.adapters.hosted import Answer, ReplayedEnv
from envsdk.adapters.tools import Toolbox, tool
from envsdk.adapters.tools.answers import NO_CALLS
from envsdk.adapters.tools.env import ToolList
from envsdk.contracts.env import Info
from envsdk.envs.order_desk.desk import (
    ITEMS,
    MOST_WANTED,
    NAMES,
    WAREHOUSES,
    Desk,
    Item,
    Line,
    Warehouse,
    draw_task,
)

NO_CALL = 'No tool was called. Write <tool_call>{"name": NAME, "arguments": {...}}</tool_call>'


class OrderDeskEnv(ReplayedEnv):
    """Place the orders that are asked for. The first observation is the task:

        Order for Ann: 2 cup, 1 lamp

    Three tools do it, called by replies such as `<tool_call>{"name": "stock", "arguments": {"item":
    "cup"}}</tool_call>`: `customer(name)` tells an account number, `stock(item)` how many pieces each
    warehouse has, and `order(account, item, quantity, warehouse)` sends them off. An order that nobody asked
    for, or to somebody else, cannot be taken back: it ends the episode without success.

    The reward is 1 when everything is ordered, less the penalties asked for.
    """

    def __init__(
        self,
        *,
        num_lines: int = 1,
        tool_list: ToolList = "observation",
        max_steps: int = 8,
        step_penalty: float = 0.0,
        invalid_penalty: float = 0.0,
    ) -> None:
        """
        Args:
            num_lines: Items that a task asks for; each takes two calls, and the customer one.
            tool_list: Where the tools are described. `observation`: at the head of the first one;
                `template`: the model's chat template gets them as `tools`; `none`: your prompt says it.
            max_steps: Replies before the episode is truncated, at least `2 * num_lines + 1`.
            step_penalty: Taken off the reward of every turn.
            invalid_penalty: Taken off the reward of a turn without a call, or with one that is not valid.
        """
        if not 1 <= num_lines <= len(ITEMS):
            raise ValueError(f"num_lines: must be from 1 to {len(ITEMS)}, not {num_lines}")
        if tool_list not in get_args(ToolList):
            raise ValueError(f"tool_list: must be one of {', '.join(get_args(ToolList))}, not {tool_list!r}")
        super().__init__(max_steps=max_steps, invalid_penalty=invalid_penalty)
        if max_steps < 2 * num_lines + 1:
            raise ValueError(f"max_steps: {num_lines} lines take {2 * num_lines + 1} calls, not {max_steps}")
        self._num_lines = num_lines
        self._tool_list = tool_list
        self._step_penalty = step_penalty
        self._desk: Desk | None = None
        self._toolbox = Toolbox([tool(self.customer), tool(self.stock), tool(self.order)])

    def customer(self, name: str) -> dict[str, int]:
        """The account number of a customer."""
        return {"account": self._open_desk().find_customer(name)}

    def stock(self, item: Item) -> dict[str, int]:
        """How many pieces of an item each warehouse has."""
        return dict(self._open_desk().find_stock(item))

    def order(
        self,
        account: int,
        item: Item,
        quantity: Annotated[int, Field(ge=1, le=MOST_WANTED)],
        warehouse: Warehouse,
    ) -> str:
        """Send pieces of an item from a warehouse to an account. It cannot be taken back."""
        self._open_desk().order(account=account, item=item, quantity=quantity, warehouse=warehouse)
        return f"{quantity} {item} sent to {account}"

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:
        observation, info = super().reset(seed=seed)
        if self._tool_list == "template":
            info["tools"] = self._toolbox.described()
        return observation, info

    def _start(self, seed: int) -> object:
        self._desk = Desk(draw_task(np.random.default_rng(seed), num_lines=self._num_lines))
        text = self._desk.task.text()
        return f"{self._toolbox.as_text()}\n\n{text}" if self._tool_list == "observation" else text

    def _answer(self, reply: str) -> Answer:
        desk = self._open_desk()
        called = self._toolbox.answer(reply)
        reward = float(desk.is_solved) - self._step_penalty
        if called is None or not called.is_valid:
            reward -= self._invalid_penalty
        return Answer(
            observation=NO_CALL if called is None else called.observation,
            reward=reward,
            terminated=desk.is_over,
            success=desk.is_solved,
            metrics={
                **({"action_is_valid": 0.0, **NO_CALLS} if called is None else called.metrics()),
                "lines_ordered": float(len(desk.ordered)),
            },
        )

    def oracle(self) -> str:
        """Look up what is not known yet, then order."""
        desk = self._open_desk()
        task = desk.task
        if task.customer not in desk.known_customers:
            return call("customer", name=task.customer)
        line = next(iter(desk.open_lines()), task.lines[-1])
        if line.item not in desk.known_items:
            return call("stock", item=line.item)
        stock = task.stock[line.item]
        return self._order_of(task.customer, line, max(stock, key=lambda warehouse: stock[warehouse]))

    def legal_actions(self) -> Sequence[str]:
        """All look-ups, and orders of what is wanted for the customers that were looked up."""
        desk = self._open_desk()
        if desk.is_over or self._truncated:
            return ()
        look_ups = [call("customer", name=name) for name in NAMES] + [
            call("stock", item=item) for item in ITEMS
        ]
        orders = [
            self._order_of(name, line, warehouse)
            for name in NAMES
            if name in desk.known_customers
            for line in desk.open_lines()
            for warehouse in WAREHOUSES
        ]
        return look_ups + orders

    def state_hash(self) -> str:
        """Digest of the task, what was ordered and what was looked up. Turns left do not count."""
        return hashlib.blake2b(self._open_desk().key().encode(), digest_size=16).hexdigest()

    def _order_of(self, name: str, line: Line, warehouse: str) -> str:
        account = self._open_desk().task.accounts[name]
        return call("order", account=account, item=line.item, quantity=line.quantity, warehouse=warehouse)

    def _open_desk(self) -> Desk:
        if self._desk is None:
            raise ResetNeeded("OrderDesk: call reset() first")
        return self._desk


def call(name: str, /, **arguments: Any) -> str:
    """The reply that calls a tool."""
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"

"""One prompt, one response, one reward."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from envsdk.base.store.tally import UNSCORABLE
from envsdk.contracts.env import AsyncTextEnv, Info
from envsdk.contracts.turn_env import AnyTextSpaces
from envsdk.rewards.loading import WORKER_KEYS, settings_of
from envsdk.rewards.prompt_data.opening import open_prompts
from envsdk.rewards.prompt_data.prompts import PromptRow, PromptSource
from envsdk.rewards.reward import Reward, Sample
from envsdk.rewards.workers import RewardWorkers, shared_workers

_NUM_OTHERS = 3


class PromptEnv(AnyTextSpaces, AsyncTextEnv):
    """Asks a row of prompt data; the response is the action, and a reward function scores it.

    `reset(options={"task": n})` asks row n in the order of the data, which is drawn anew in each epoch where
    `shuffle` is set; otherwise the seed draws a row.
    """

    max_observation_length = 2**24

    def __init__(
        self,
        files: str | list[str],
        reward: str | dict[str, Any],
        tags: list[str] | None = None,
        except_tags: list[str] | None = None,
        columns: dict[str, str] | None = None,
        shuffle: bool = False,
        order_seed: int = 0,
        longest_prompt: int | None = None,
        tokenizer: str | None = None,
    ) -> None:
        """Args:
        files: JSONL, JSON or Parquet files, or data sets by name or folder.
        reward: Name of a reward function, or a mapping with `worker_cls`, its settings, and `world_size`,
            `timeout_s`, `infer_batch_size`.
        tags: Only rows whose `domain`, or else `tag`, is one of these.
        except_tags: Only rows where it is none of these.
        columns: Standard name -> column, where the format of the files is not recognized.
        shuffle: Draw an order for each epoch.
        order_seed: Of that order.
        longest_prompt: Rows whose prompt has more tokens are left out; needs `tokenizer`.
        tokenizer: Folder of the model whose tokens are counted.
        """
        self._prompts = open_prompts(
            PromptSource(
                files=[files] if isinstance(files, str) else files,
                tags=tags or [],
                except_tags=except_tags or [],
                columns=columns or {},
                longest_prompt=longest_prompt,
                tokenizer=tokenizer,
            )
        )
        self.num_tasks = len(self._prompts)
        settings = {"worker_cls": reward} if isinstance(reward, str) else dict(reward)
        self._sizes = {name: settings[name] for name in WORKER_KEYS if name in settings}
        self._reward, self._settings = str(settings.get("worker_cls")), settings_of(settings)
        self._shuffle, self._order_seed = shuffle, order_seed
        self._workers: RewardWorkers | None = None
        self._index = 0
        self._row: PromptRow | None = None

    async def reset(  # type: ignore[override]
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, Info]:
        number = (options or {}).get("task")
        if number is None:
            await super().reset(seed=seed)
            number = int(self.np_random.integers(len(self._prompts)))
        return self._ask(self._prompts.nth(number, seed=self._order_seed if self._shuffle else None))

    def _ask(self, index: int) -> tuple[str, Info]:
        self._workers = self._workers or shared_workers(self._reward, self._settings, **self._sizes)
        self._index, self._row = index, self._prompts[index]
        *history, last = self._row.messages
        info: Info = {"history": history} if history else {}
        if tools := _tools(self._row.fields.get("tools")):
            info["tools"] = tools
        return last["content"], info

    async def step(  # type: ignore[override]
        self, action: str
    ) -> tuple[str, float, bool, bool, Info]:
        row, workers = self._asked()
        reward = await workers.score(_sample(row, action))
        info: Info = {
            "success": reward.success,
            "metrics": _metrics(row, reward),
            "details": _details(row, reward),
        }
        return reward.verdict, reward.value, True, False, info

    async def snapshot(self) -> Any:
        return self._index

    async def restore(self, snapshot: Any) -> str:
        return self._ask(snapshot)[0]

    async def oracle(self) -> str:
        """The row's `solution`, or its reference answer as the reward function takes it."""
        row, workers = self._asked()
        return _reference(row, workers)

    async def legal_actions(self) -> Sequence[str]:
        """The oracle's reply, and the row's `mistakes`, or else the answers of the rows after it."""
        row, workers = self._asked()
        others = row.fields.get("mistakes")
        if not isinstance(others, list) or not all(isinstance(each, str) for each in others):
            after = (self._prompts[(self._index + k) % len(self._prompts)] for k in range(1, 1 + _NUM_OTHERS))
            others = [answer for each in after if (answer := _answer(each, workers))]
        return list(dict.fromkeys((_reference(row, workers), *others)))

    async def state_hash(self) -> str:
        row, _ = self._asked()
        return row.place

    def _asked(self) -> tuple[PromptRow, RewardWorkers]:
        if self._row is None or self._workers is None:
            raise RuntimeError("call reset first")
        return self._row, self._workers


def _reference(row: PromptRow, workers: RewardWorkers) -> str:
    if not (reference := _answer(row, workers)):
        raise ValueError(f"{row.place} has no reference answer")
    return reference


def _answer(row: PromptRow, workers: RewardWorkers) -> str | None:
    """A response that solves the row; None where it has none."""
    solution = row.fields.get("solution")
    return solution if isinstance(solution, str) else workers.function.reference(_sample(row, ""))


def _sample(row: PromptRow, response: str) -> Sample:
    return Sample(response=response, messages=row.messages, row=row.fields)


def _tools(value: Any) -> list[dict[str, Any]]:
    """A row's tools as chat templates take them; none where they cannot be read."""
    try:
        listed = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return []
    if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
        return []
    return [each if "function" in each else {"type": "function", "function": each} for each in listed]


def _metrics(row: PromptRow, reward: Reward) -> dict[str, float]:
    """The reward's parts, whether scoring failed, and the row's difficulty where it is a number."""
    metrics = {**reward.parts, UNSCORABLE: float(bool(reward.fault))}
    try:
        difficulty = float(row.fields["difficulty"])
    except (KeyError, TypeError, ValueError):
        return metrics
    return {**metrics, "difficulty": difficulty} if math.isfinite(difficulty) else metrics


def _details(row: PromptRow, reward: Reward) -> Mapping[str, Any]:
    """What a person wants to see of a graded response."""
    known = {name: row.fields[name] for name in _SHOWN if row.fields.get(name) not in (None, "")}
    details = {"verdict": reward.verdict, "parts": dict(reward.parts), "place": row.place, **known}
    if reward.fault:
        details["fault"] = reward.fault
    return details


_SHOWN = ("ground_truth", "id", "source", "tag", "difficulty")

"""reasoning-gym's data sets as single-turn environments, scored by their own scorers."""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import inspect
import json
import textwrap
from collections.abc import Mapping
from copy import deepcopy
from functools import lru_cache
from random import Random
from typing import Any, Literal

from envsdk.adapters.global_random import seeded_globals
from envsdk.adapters.hosted import Answer, HostedEnv
from envsdk.adapters.missing import import_extra
from envsdk.adapters.text import NO_ANSWER, REPLY_FORMATS, ReplyFormat, tagged, tagged_answer
from envsdk.base.settings.nearest import did_you_mean
from envsdk.contracts.env import EnvSpec

Split = Literal["all", "train", "val"]
SPLITS: tuple[Split, ...] = ("all", "train", "val")

DEFAULT_SIZE = 10_000
"""Items of a data set whose `config` says nothing of its size."""

_KEPT_ITEMS = 1024
_MAX_DRAWS = 1000
"""Items looked at for one of the wanted split."""
_MAX_ANSWER_LENGTH = 10_000
"""Scorers parse answers; some take quadratic time."""
_PROBED_ITEMS = 3
_COMPOSITE = "composite"

SPEC = EnvSpec(
    id="envsdk/ReasoningGym-v1",
    entry_point="envsdk.adapters.reasoning_gym:make_reasoning_gym_env",
    max_steps=1,
    description="One question of a reasoning-gym data set, scored by its own scorer.",
    action_format="Reply with the answer in tags: <answer>...</answer>.",
    prompt="envsdk.adapters.reasoning_gym:reasoning_gym_prompt",
    needs={"reasoning_gym": "pip install 'envsdk[reasoning-gym]'"},
)


def make_reasoning_gym_env(
    *,
    dataset: str,
    config: Mapping[str, Any] | None = None,
    split: Split = "all",
    val_share: float = 0.1,
    reply: ReplyFormat = "tag",
    max_steps: int = 1,
    success_score: float = 1.0,
    invalid_penalty: float = 0.0,
    evaluates_answers: bool = False,
) -> ReasoningGymEnv:
    """Questions of a reasoning-gym data set, one per episode.

    Args:
        dataset: Its name, such as `leg_counting`; `composite` mixes several.
        config: Its settings. `seed` is 0 and `size`, the number of items, 10,000 if they are not given.
        split: `train` and `val` share no question: which of them an item belongs to follows from its text.
        val_share: Share of the items that belong to `val`.
        reply: The answer in a reply: `tag`, the last `<answer>`; `whole`, all of it.
        max_steps: Replies before the episode is truncated. With 1, a reply without an answer is a wrong
            answer; with more, it costs a turn and the question stays.
        success_score: Scores of at least this count as success.
        invalid_penalty: Taken off the reward of a turn whose reply holds no answer.
        evaluates_answers: Allows data sets whose scorers evaluate answers as Python. Such a scorer runs
            whatever the policy writes, in this process.

    Raises:
        ValueError: There is no such data set or setting, or it needs `evaluates_answers`.
        ConfigurationError: reasoning-gym is not installed.
    """
    if split not in SPLITS:
        raise ValueError(f"split: must be one of {', '.join(SPLITS)}, not {split!r}")
    if reply not in REPLY_FORMATS:
        raise ValueError(f"reply: must be one of {', '.join(REPLY_FORMATS)}, not {reply!r}")
    if not 0.0 < val_share < 1.0:
        raise ValueError(f"val_share: must be above 0 and below 1, not {val_share}")
    try:
        settings = json.dumps(dict(config or {}), sort_keys=True)
    except TypeError as error:
        raise ValueError(f"config: must be plain values: {error}") from error
    questions = open_questions(dataset, settings)
    if questions.evaluates_answers and not evaluates_answers:
        raise ValueError(
            f"dataset: {dataset} scores answers by evaluating them as Python, so that a policy can run any"
            " code in this process. Set evaluates_answers: true to allow it, better with isolation: process"
        )
    return (AnsweredEnv if questions.has_answers else ReasoningGymEnv)(
        questions,
        split=split,
        val_share=val_share,
        reply=reply,
        max_steps=max_steps,
        success_score=success_score,
        invalid_penalty=invalid_penalty,
    )


def reasoning_gym_prompt(*, reply: ReplyFormat = "tag", **_: Any) -> str:
    """The system prompt; the question is the observation."""
    return "Answer the question.\n" + (
        "Reply with the answer and nothing else." if reply == "whole" else SPEC.action_format
    )


class Questions:
    """A data set, shared by the environments of this process that ask the same one."""

    def __init__(self, name: str, settings: Mapping[str, Any]) -> None:
        self.name = name
        with seeded_globals(0):
            self._dataset = _created(name, {"seed": 0, "size": DEFAULT_SIZE, **settings})
        self.size = len(self._dataset)
        # The members of a group are asked the same question, and some take seconds to make.
        self.item = lru_cache(maxsize=_KEPT_ITEMS)(self._generated)
        self.evaluates_answers = _evaluates_answers(name, settings)
        self.has_answers = all(self._is_answered(self.item(index)) for index in range(_PROBED_ITEMS))

    def _generated(self, index: int) -> dict[str, Any]:
        """`question`, `answer` and `metadata` of one item; the same for the same index, always."""
        # Some generators draw from the global generators.
        with seeded_globals(index):
            item: dict[str, Any] = self._dataset[index]
        return item

    def score(self, answer: str, item: dict[str, Any]) -> float:
        """0 to 1 by the data set's scorer; 0 for an answer that breaks it."""
        if len(answer) > _MAX_ANSWER_LENGTH:
            return 0.0
        with seeded_globals(0):
            try:
                return float(self._dataset.score_answer(answer=answer, entry=deepcopy(item)))
            except Exception:  # noqa: BLE001 - scorers parse what a policy wrote, each in its own way
                return 0.0

    def draw(self, seed: int, split: Split, val_share: float) -> dict[str, Any]:
        """The item of `seed` in `split`. RuntimeError when none is found."""
        rng = Random(seed)
        for _ in range(_MAX_DRAWS):
            item = self.item(rng.randrange(self.size))
            if split in ("all", split_of(str(item["question"]), val_share)):
                return item
        raise RuntimeError(
            f"{self.name}: none of {_MAX_DRAWS} items belongs to the split {split!r}; it has too few"
            " different questions for two splits: widen its config, or set split: all"
        )

    def _is_answered(self, item: dict[str, Any]) -> bool:
        answer = item.get("answer")
        return isinstance(answer, str) and self.score(answer.strip(), item) >= 1.0


@lru_cache(maxsize=64)
def open_questions(name: str, settings: str) -> Questions:
    """The data set with these settings (JSON). ValueError for an unknown name or setting."""
    return Questions(name, json.loads(settings))


def split_of(question: str, val_share: float) -> Split:
    """The split that a question belongs to, whatever its index, seed or machine."""
    digest = hashlib.blake2b(question.encode("utf-8", "replace"), digest_size=8).digest()
    return "val" if int.from_bytes(digest, "big") < val_share * 2**64 else "train"


class ReasoningGymEnv(HostedEnv):
    """One question per episode. An answer ends it; the reward is its score, from 0 to 1."""

    def __init__(
        self,
        questions: Questions,
        *,
        split: Split,
        val_share: float,
        reply: ReplyFormat,
        max_steps: int,
        success_score: float,
        invalid_penalty: float,
    ) -> None:
        """The arguments are those of `make_reasoning_gym_env`."""
        super().__init__(max_steps=max_steps, invalid_penalty=invalid_penalty)
        self._questions = questions
        self._split = split
        self._val_share = val_share
        self._reads_whole = reply == "whole"
        self._success_score = success_score
        self._item: dict[str, Any] = {}

    def _start(self, seed: int) -> object:
        self._item = self._questions.draw(seed, self._split, self._val_share)
        return self._item["question"]

    def _answer(self, reply: str) -> Answer:
        answer = reply.strip() if self._reads_whole else tagged_answer(reply)
        if not answer and self.max_steps > 1:
            return Answer(note=NO_ANSWER, metrics={"has_answer": 0.0})
        score = self._questions.score(answer, self._item) if answer else 0.0
        return Answer(
            observation=self._shown,
            reward=score if answer else -self._invalid_penalty,
            terminated=True,
            success=score >= self._success_score,
            metrics={"has_answer": float(bool(answer)), "score": score},
        )


class AnsweredEnv(ReasoningGymEnv):
    """One whose data set has answers that its scorer accepts."""

    def oracle(self) -> str:
        answer = str(self._item["answer"])
        return answer if self._reads_whole else tagged(answer)


def _created(name: str, settings: dict[str, Any]) -> Any:
    factory = _factory()
    if name not in factory.DATASETS:
        hint = did_you_mean(str(name), factory.DATASETS)
        raise ValueError(f"dataset: reasoning-gym has no data set {name!r}.{hint}")
    _, config_class = factory.DATASETS[name]
    known = [field.name for field in dataclasses.fields(config_class)]
    for key in settings:
        if key not in known:
            raise ValueError(f"config: {name} has no setting {key!r}.{did_you_mean(key, known)}")
    if name == _COMPOSITE and isinstance(settings.get("datasets"), list):
        settings = {**settings, "datasets": [_part(part) for part in settings["datasets"]]}
    try:
        return factory.create_dataset(name, **settings)
    except (AssertionError, ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"config: {name} refuses it: {error or type(error).__name__}") from error


def _part(part: Any) -> Any:
    """One of `datasets` of a composite: name, weight and config."""
    composite = import_extra("reasoning_gym.composite", extra="reasoning-gym")
    if not isinstance(part, dict) or "name" not in part:
        raise ValueError(f"config.datasets: each needs a name, and may have weight and config: {part!r}")
    return composite.DatasetSpec(**{"weight": 1.0, "config": {}, **part})


def _factory() -> Any:
    with seeded_globals(0):
        import_extra("reasoning_gym", extra="reasoning-gym", shown_as="reasoning-gym")
        import_extra("reasoning_gym.composite", extra="reasoning-gym")
        return import_extra("reasoning_gym.factory", extra="reasoning-gym")


_EVALUATING = {"eval", "exec", "parse_expr", "sympify"}


def _evaluates_answers(name: str, settings: Mapping[str, Any]) -> bool:
    """Whether the scorer's code evaluates text, itself or in a function of its module that it calls."""
    if name == _COMPOSITE:
        return any(_evaluates_answers(part["name"], {}) for part in settings.get("datasets", ()))
    dataset_class = _factory().DATASETS[name][0]
    owner = next(base for base in dataset_class.__mro__ if "score_answer" in vars(base))
    functions = {
        node.name: node
        for node in ast.walk(ast.parse(inspect.getsource(inspect.getmodule(owner) or owner)))
        if isinstance(node, ast.FunctionDef)
    }
    scorer = ast.parse(textwrap.dedent(inspect.getsource(vars(owner)["score_answer"])))
    pending, seen = [scorer], set[str]()
    while pending:
        for called in _called(pending.pop()):
            if called in _EVALUATING and called not in functions:
                return True
            if called in functions and called not in seen:
                seen.add(called)
                pending.append(functions[called])  # type: ignore[arg-type]
    return False


def _called(tree: ast.AST) -> set[str]:
    """Names of the functions and methods called in `tree`."""
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    names = {function.id for function in calls if isinstance(function, ast.Name)}
    return names | {function.attr for function in calls if isinstance(function, ast.Attribute)}

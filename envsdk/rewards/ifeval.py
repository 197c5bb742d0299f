"""The reward `ifeval`: which of a row's instructions the response follows, as programs verify them.

A row names its instructions in one of three ways:

    instruction_id_list: ["punctuation:no_comma"], kwargs: [{}]                       IFEval's published data
    ground_truth: '{"func_name": "validate_word_constraint", "N": 5, ...}'            ROLL's rows
    ground_truth: '[{"instruction_id": ["punctuation:no_comma"], "kwargs": [null]}]'  open-instruct's rows
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from pydantic import ValidationError

from envsdk.base.settings.extras import require
from envsdk.base.settings.nearest import suggest
from envsdk.base.settings.strict import StrictSettings
from envsdk.rewards.answer_text import after_thinking
from envsdk.rewards.ifeval_checks import Check, instruction, instruction_names, is_in_language
from envsdk.rewards.reward import Reward, RewardError, RewardFunction, Sample


class IFEvalArgs(StrictSettings):
    """Settings of the reward `ifeval`."""

    strictness: Literal["strict", "loose"] = "strict"
    """`loose` also accepts the response without its first line, its last line, its asterisks, or several of
    these."""
    value: Literal["share", "all"] = "share"
    """`share`: the share of instructions that are followed; `all`: 1 when all of them are, else 0."""
    after_think: bool = True
    """Check only the text after the last `</think>`."""


class IFEval(RewardFunction):
    """See the module's text."""

    Args = IFEvalArgs

    @classmethod
    def preload(cls) -> None:
        is_in_language("any text", "en")

    def __init__(self, args: IFEvalArgs) -> None:
        """ConfigurationError when a package is missing."""
        require("reward `ifeval`", "langdetect")
        self._args = args

    def score(self, sample: Sample) -> Reward:
        try:
            checks = list(read_instructions(sample.row))
        except ValueError as error:
            raise RewardError(f"reward `ifeval`: {error}") from error
        text = after_thinking(sample.response) if self._args.after_think else sample.response
        versions = [text] if self._args.strictness == "strict" else _loose_versions(text)
        followed = {
            name: any(version.strip() and check(version) for version in versions) for name, check in checks
        }
        num_followed = sum(followed.values())
        all_followed = num_followed == len(followed)
        share = num_followed / len(followed)
        value = share if self._args.value == "share" else float(all_followed)
        failed = ", ".join(name for name, each in followed.items() if not each)
        return Reward(
            value=value,
            correct=all_followed,
            verdict=f"follows {num_followed} of {len(followed)} instructions"
            + (f", not {failed}" if failed else ""),
            parts={name: float(each) for name, each in followed.items()},
        )

    def reference(self, sample: Sample) -> str | None:
        """None: a row says what to check, not what to answer."""
        return None

    def problem(self, row: Mapping[str, Any]) -> str | None:
        try:
            list(read_instructions(row))
        except ValueError as error:
            return str(error)
        return None


def read_instructions(row: Mapping[str, Any]) -> Iterator[tuple[str, Check]]:
    """Name and check of each instruction of a row; equal names are numbered. ValueError for a bad row."""
    seen: dict[str, int] = {}
    for name, arguments in _named(row):
        seen[name] = number = seen.get(name, 0) + 1
        try:
            yield (name if number == 1 else f"{name} {number}"), instruction(name, arguments)
        except KeyError:
            raise ValueError(
                f"instruction {name!r} is unknown; {suggest(name, instruction_names(), known='known')}"
            ) from None
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            where = ".".join(map(str, problem["loc"]))
            raise ValueError(f"instruction {name!r}: {where}: {problem['msg']}") from error


def _named(row: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    if row.get("instruction_id_list") is not None:
        return _paired(row["instruction_id_list"], row.get("kwargs"))
    truth = _decoded(row.get("ground_truth"), "ground_truth")
    if isinstance(truth, list) and len(truth) == 1:
        truth = truth[0]
    if isinstance(truth, Mapping):
        if isinstance(truth.get("func_name"), str):
            return [(truth["func_name"], truth)]
        for key in ("instruction_id_list", "instruction_id"):
            if truth.get(key) is not None:
                return _paired(truth[key], truth.get("kwargs"))
    raise ValueError("a row of `ifeval` needs instruction_id_list and kwargs, or ground_truth with func_name")


def _paired(names: Any, arguments: Any) -> list[tuple[str, Mapping[str, Any]]]:
    names = _decoded(names, "instruction_id_list")
    arguments = _decoded(arguments, "kwargs")
    if not isinstance(names, Sequence) or not names or not all(isinstance(name, str) for name in names):
        raise ValueError("instruction_id_list must be a list of names")
    if arguments is None:
        arguments = [None] * len(names)
    if not isinstance(arguments, Sequence) or len(arguments) != len(names):
        raise ValueError(f"kwargs must have one section for each of the {len(names)} instructions")
    if not all(each is None or isinstance(each, Mapping) for each in arguments):
        raise ValueError("kwargs must be a list of sections")
    return [(name, each or {}) for name, each in zip(names, arguments, strict=True)]


def _decoded(value: Any, where: str) -> Any:
    """JSON in text as what it says; a list of NumPy's as a list."""
    if isinstance(value, str):
        try:
            return json.loads(value)
        except ValueError as error:
            raise ValueError(f"{where} is no JSON: {error}") from error
    return value.tolist() if hasattr(value, "tolist") else value


def _loose_versions(text: str) -> list[str]:
    lines = text.split("\n")
    cut = ["\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1])]
    return list(
        dict.fromkeys(each for version in (text, *cut) for each in (version, version.replace("*", "")))
    )

"""Scores recorded responses: what `envsdk reward` runs.

scoring = score_rows({"world_size": 4}, RewardOptions.of(name="math", file="rows.jsonl"))
scoring.total.num_right
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, BinaryIO

from envsdk.base.settings.nearest import suggest
from envsdk.base.settings.options import Argument, Count, Option, Options, split_names
from envsdk.base.store.atomic import atomic_file, make_folder
from envsdk.contracts.failures import ConfigurationError, describe_error
from envsdk.rewards.loading import WORKER_KEYS, settings_of
from envsdk.rewards.prompt_data.opening import Prompts, open_prompts
from envsdk.rewards.prompt_data.prompts import PromptRow, PromptSource, Unusable
from envsdk.rewards.reward import Reward, RewardError, Sample
from envsdk.rewards.workers import RewardWorkers

_MAX_OPEN = 512
"""Responses in memory at a time."""


class RewardOptions(Options):
    """What `envsdk reward` takes."""

    name: Annotated[str, Argument("NAME")]
    """A reward function: math, exact, code, ..., or package.module:Class."""
    settings: Annotated[tuple[str, ...], Argument("KEY=VALUE")] = ()
    """Keys as in the reward's section of a YAML file: its settings, world_size, timeout_s, memory_mb."""
    file: Annotated[tuple[str, ...], Option("--file", "-f", metavar="FILE")] = ()
    """Prompt data with recorded responses; repeat the option for more files."""
    response: Annotated[str, Option(metavar="COLUMN")] = "response"
    """The column of the responses: a text, or a list of texts."""
    reference: bool = False
    """Score each row's own reference answer instead: finds rows that no response can solve."""
    tag: Annotated[tuple[str, ...], Option("--tag", "-t", metavar="TAG")] = ()
    """Only rows with this tag; repeat the option for more."""
    columns: Annotated[tuple[str, ...], Option(metavar="NAME=COLUMN")] = ()
    """A standard name and the column that holds it, such as prompt=question."""
    rows: Annotated[Count | None, Option("--rows", "-n")] = None
    """Only the first ones."""
    out: Annotated[Path | None, Option("--out", "-o", metavar="FILE")] = None
    """Write the rows with `reward`, `verdict`, `correct` and `parts` to this JSONL file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Graded:
    """One response and what became of it."""

    row: PromptRow
    response: str | None
    """None where the row has none."""
    reward: Reward | None
    """None where it was masked."""
    problem: str = ""
    """Why there is no reward."""

    @property
    def tag(self) -> str:
        return str(self.row.fields.get("tag") or self.row.fields.get("domain") or "")

    def to_json(self) -> dict[str, Any]:
        """The row with its score."""
        scored: dict[str, Any] = {"reward": None, "verdict": self.problem, "correct": None, "parts": {}}
        if self.reward is not None:
            scored |= {"reward": self.reward.value, "verdict": self.reward.verdict}
            scored |= {"correct": self.reward.success, "parts": dict(self.reward.parts)}
            scored |= {"fault": self.reward.fault} if self.reward.fault else {}
        return {**self.row.fields, "response": self.response, **scored}


@dataclass(slots=True)
class RewardTally:
    """Responses by what became of them."""

    num_right: int = 0
    num_wrong: int = 0
    """Without the faults."""
    num_faults: int = 0
    """Wrong because of what they did to the scorer."""
    num_masked: int = 0
    """Could not be scored, through no fault of theirs."""
    num_missing: int = 0
    """Rows without a response."""
    sum_of_values: float = 0.0

    def add(self, graded: Graded) -> None:
        reward = graded.reward
        if graded.response is None:
            self.num_missing += 1
        elif reward is None:
            self.num_masked += 1
        else:
            self.sum_of_values += reward.value
            self.num_faults += bool(reward.fault)
            self.num_right += reward.success and not reward.fault
            self.num_wrong += not reward.success and not reward.fault

    @property
    def num_scored(self) -> int:
        return self.num_right + self.num_wrong + self.num_faults

    @property
    def mean_value(self) -> float | None:
        return self.sum_of_values / self.num_scored if self.num_scored else None


@dataclass(slots=True, kw_only=True)
class Scoring:
    """Results of a file."""

    total: RewardTally = field(default_factory=RewardTally)
    by_tag: dict[str, RewardTally] = field(default_factory=dict)
    num_unusable: int = 0
    """Rows of the file that are no prompt data."""
    unusable: Sequence[Unusable] = ()
    """The first of them."""
    reasons: Counter[str] = field(default_factory=Counter)
    """Reasons of faults and masked responses."""
    not_right: list[Graded] = field(default_factory=list)
    """With `--reference`: the first rows whose reference answer did not count as right."""
    seconds: float = 0.0
    """Spent scoring, summed over workers."""

    def add(self, graded: Graded) -> None:
        self.total.add(graded)
        self.by_tag.setdefault(graded.tag, RewardTally()).add(graded)
        if graded.problem or (graded.reward is not None and graded.reward.fault):
            self.reasons[graded.problem if graded.reward is None else graded.reward.verdict] += 1


def score_rows(
    section: Mapping[str, Any],
    options: RewardOptions,
    *,
    on_start: Callable[[int], None] | None = None,
    on_graded: Callable[[Graded], None] | None = None,
) -> Scoring:
    """Score the responses of a file; `section` is what a YAML file says of a reward.

    Raises ConfigurationError, and StorageError when `out` cannot be written.
    """
    return asyncio.run(_score_rows(section, options, on_start, on_graded))


async def _score_rows(
    section: Mapping[str, Any],
    options: RewardOptions,
    on_start: Callable[[int], None] | None,
    on_graded: Callable[[Graded], None] | None,
) -> Scoring:
    if not options.file:
        raise ConfigurationError("name a file of responses with --file FILE")
    sizes = {"world_size": os.cpu_count() or 1} | {
        name: section[name] for name in WORKER_KEYS if name in section
    }
    workers = RewardWorkers(options.name, settings_of(section), **sizes)
    try:
        prompts = open_prompts(
            PromptSource(
                files=list(options.file), tags=split_names(list(options.tag)), columns=_columns(options)
            )
        )
        scoring = Scoring(num_unusable=prompts.num_unusable, unusable=prompts.unusable)
        if on_start is not None:
            on_start(min(len(prompts), options.rows or len(prompts)))
        with _opened(options.out) as out:
            async for graded in _graded(workers, prompts, options):
                scoring.add(graded)
                is_right = graded.reward is not None and graded.reward.success
                if options.reference and not is_right and len(scoring.not_right) < _MAX_KEPT:
                    scoring.not_right.append(graded)
                if out is not None:
                    out.write(json.dumps(graded.to_json(), default=str).encode() + b"\n")
                if on_graded is not None:
                    on_graded(graded)
        scoring.seconds = workers.counts.seconds
        return scoring
    finally:
        await workers.close()


_MAX_KEPT = 100


def _opened(out: Path | None) -> AbstractContextManager[BinaryIO | None]:
    if out is None:
        return nullcontext()
    make_folder(out.absolute().parent)
    if out.is_dir():
        raise ConfigurationError(f"--out: {out} is a folder: name a file")
    return atomic_file(out)


def _columns(options: RewardOptions) -> dict[str, str]:
    pairs = [item.partition("=") for item in options.columns]
    for item, (name, _, column) in zip(options.columns, pairs, strict=True):
        if not name or not column:
            raise ConfigurationError(f"--columns: {item!r} is no NAME=COLUMN, such as prompt=question")
    return {name: column for name, _, column in pairs}


async def _graded(workers: RewardWorkers, prompts: Prompts, options: RewardOptions) -> AsyncIterator[Graded]:
    """In the order of the rows."""
    running: deque[asyncio.Task[Graded]] = deque()
    try:
        for row, response in _answers(workers, prompts, options):
            running.append(asyncio.create_task(_grade(workers, row, response)))
            if len(running) == _MAX_OPEN:
                yield await running.popleft()
        while running:
            yield await running.popleft()
    finally:
        for task in running:
            task.cancel()


def _answers(
    workers: RewardWorkers, prompts: Prompts, options: RewardOptions
) -> Iterator[tuple[PromptRow, str | None]]:
    has_any = False
    for index in range(min(len(prompts), options.rows or len(prompts))):
        row = prompts[index]
        if options.reference:
            yield row, _reference(workers, row)
            continue
        if options.response not in row.fields:
            if not has_any:
                hint = suggest(options.response, sorted(map(str, row.fields)), known="columns")
                raise ConfigurationError(
                    f"{row.place} has no column {options.response!r} with a response; {hint}"
                )
            yield row, None
            continue
        has_any = True
        found = row.fields[options.response]
        for response in found if isinstance(found, list) else [found]:
            yield row, response if isinstance(response, str) else None


def _reference(workers: RewardWorkers, row: PromptRow) -> str | None:
    solution = row.fields.get("solution")
    if isinstance(solution, str) and solution:
        return solution
    try:
        return workers.function.reference(Sample(response="", messages=row.messages, row=row.fields))
    except Exception:  # noqa: BLE001 - boundary: a reward function, of which there is no reference then
        return None


async def _grade(workers: RewardWorkers, row: PromptRow, response: str | None) -> Graded:
    if response is None:
        return Graded(row=row, response=None, reward=None, problem="the row has no response")
    try:
        if problem := workers.function.problem(row.fields):
            return Graded(row=row, response=response, reward=None, problem=problem)
        reward = await workers.score(Sample(response=response, messages=row.messages, row=row.fields))
    except RewardError as error:
        return Graded(row=row, response=response, reward=None, problem=str(error))
    except Exception as error:  # noqa: BLE001 - boundary: a reward function
        return Graded(row=row, response=response, reward=None, problem=describe_error(error))
    return Graded(row=row, response=response, reward=reward)

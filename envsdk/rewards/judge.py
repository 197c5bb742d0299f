"""The reward `judge`: the verdict of a language model behind a server of OpenAI's chat protocol.

judge:
  worker_cls: judge
  base_url: http://127.0.0.1:8001/v1
  model: Qwen/Qwen2.5-7B-Instruct
  prompt: match
"""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt, ValidationError, model_validator

from envsdk.base.processes.loop_locks import lock_of
from envsdk.contracts.failures import ConfigurationError, EngineError
from envsdk.engines.engine_support.failures import ReplyRefused, Unavailable
from envsdk.engines.openai.chat import Choice, Completion, Message, Usage
from envsdk.rewards.answer_text import after_thinking
from envsdk.rewards.judge_text import TEMPLATES, Parse, Question, criteria, placeholders, question, verdict_of
from envsdk.rewards.reward import Reward, RewardError, Sample
from envsdk.rewards.server_reward import Address, ServerArgs, ServerReward

RUN = "run"
_OF_SAMPLING = ("top_p", "top_k", "min_p")
_PARSE_OF: dict[str, Parse] = {"score": "number", "rubric": "number"}
_BEST_OF = {"score": 10.0, "rubric": 10.0}


class JudgeArgs(ServerArgs):
    """Settings of the reward `judge`."""

    base_url: Literal["run"] | Address
    """Where `/chat/completions` is, such as `http://127.0.0.1:8001/v1`; or `run`, for the engines of the
    run itself. Replies of theirs are not kept, as their weights change."""
    model: str = ""
    """Name of the model as the server knows it; without effect for `base_url: run`."""
    prompt: str = "match"
    """What the judge is asked: `match` (does the answer match the ground truth: YES or NO), `score` (0 to
    10), `rubric` (1 to 10 by the row's `rubric`), or a template with `{response}`, `{prompt}`,
    `{ground_truth}` and `{rubric}`."""
    prompt_file: Path | None = None
    """A file with the template, instead of `prompt`."""
    system: str = ""
    """The judge's system message; none when empty."""
    parse: Parse | None = None
    """How the verdict is read from the judge's reply: `yes_no`, `number`, `json` or `regex`; absent: `number`
    for `score` and `rubric`, else `yes_no`."""
    pattern: str = ""
    """With `parse: regex`: the last match counts, or its first group if it has one. It gives a number, or yes
    or no."""
    json_field: str = "score"
    """With `parse: json`: the field that holds the number, or yes or no."""
    worst: float = 0.0
    """The judge's number for a reward of 0."""
    best: float | None = None
    """The judge's number for a reward of 1; absent: 10 for `score` and `rubric`, else 1."""
    correct_at: float = 1.0
    """The reward from which a response counts as correct."""
    fences_response: bool = True
    """Whether the response stands between tags that it cannot contain, with its chat markup broken up."""
    after_think: bool = True
    """Show the judge only the text after the response's last `</think>`."""
    max_tokens: PositiveInt = 512
    """Length of the judge's reply, its reasoning included."""
    temperature: NonNegativeFloat = 0.0
    """Temperature that the judge answers with."""
    extra_body: dict[str, Any] = Field(default_factory=dict)
    """Further fields of every request; null leaves out one that would be sent."""
    price_per_million_input: NonNegativeFloat = 0.0
    """Price of a million tokens that the judge reads, in any currency."""
    price_per_million_output: NonNegativeFloat = 0.0
    """Price of a million tokens that the judge writes."""
    cache_size: NonNegativeInt = 10_000
    """Most replies that are kept, so that an equal question is not asked again; 0 keeps none."""
    cache_file: Path | None = None
    """A file that keeps them from run to run, shared by all processes."""

    @property
    def template(self) -> str:
        """ConfigurationError when the file of it cannot be read."""
        if self.prompt_file is None:
            return TEMPLATES.get(self.prompt, self.prompt)
        try:
            return self.prompt_file.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"reward `judge`: prompt_file: {error}") from error

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.base_url != RUN and not self.model:
            raise ValueError("model: say which model the server is to use")
        if self.base_url == RUN:
            without = [name for name in ("api_key_env", "cache_file") if getattr(self, name)]
            without += [f"extra_body.{name}" for name in self.extra_body if name not in _OF_SAMPLING]
            if without:
                raise ValueError(f"`base_url: run` takes no {', '.join(without)}")
        if self.prompt_file is None and self.prompt not in TEMPLATES and "{response}" not in self.prompt:
            names = ", ".join(f"`{name}`" for name in TEMPLATES)
            raise ValueError(f"prompt must be one of {names}, or a template that contains {{response}}")
        if (self.parse == "regex") != bool(self.pattern):
            raise ValueError("`parse: regex` and `pattern` go together")
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise ValueError(f"pattern is no regular expression: {error}") from error
        if self.scale[0] == self.scale[1]:
            raise ValueError("worst and best must differ")
        return self

    @property
    def scale(self) -> tuple[float, float]:
        default = 1.0 if self.prompt_file is not None else _BEST_OF.get(self.prompt, 1.0)
        return self.worst, default if self.best is None else self.best


class Judge(ServerReward):
    """See the module's text."""

    Args = JudgeArgs

    def __init__(self, args: JudgeArgs) -> None:
        of_run = args.base_url == RUN
        url = "the run's engines" if of_run else args.base_url.rstrip("/") + "/chat/completions"
        super().__init__(args, url=url, name="judge")
        self._args = args
        self._template = args.template
        if "response" not in placeholders(self._template):
            raise ConfigurationError(f"reward `judge`: {args.prompt_file} does not contain {{response}}")
        named = None if args.prompt_file is not None else args.prompt
        self._parse: Parse = args.parse or _PARSE_OF.get(named or "", "yes_no")
        self._cache = ReplyCache(size=0 if of_run else args.cache_size, file=args.cache_file)

    async def ask(self, sample: Sample, *, afresh: bool = False) -> Reward:
        args = self._args
        if problem := self.problem(sample.row):
            raise RewardError(f"its row: {problem}")
        response = after_thinking(sample.response) if args.after_think else sample.response
        asked = question(
            self._template,
            prompt=sample.messages,
            response=response,
            ground_truth=sample.known_truth,
            fenced=args.fences_response,
            rubric=sample.row.get("rubric"),
        )
        body = self._body(asked.text)
        key = hashlib.sha256(json.dumps([args.base_url, body], sort_keys=True).encode()).hexdigest()
        # Equal questions at the same time are asked once.
        async with lock_of((self, key)):
            known = None if afresh else self._cache.get(key)
            reply = _read(known) if known is not None else await self._complete(body, asked.text, seed=key)
            choice = reply.choices[0]
            text = choice.message.content or ""
            value = self._value_of(text, asked, is_complete=choice.finish_reason != "length")
            if known is None:
                self._cache.put(key, reply.model_dump_json())
        usage = reply.usage if known is None and reply.usage is not None else Usage()
        cost = (
            usage.prompt_tokens * args.price_per_million_input
            + usage.completion_tokens * args.price_per_million_output
        ) / 1e6
        return Reward(
            value=value,
            correct=value >= args.correct_at,
            verdict=f"the judge says {_short(text)}",
            parts={
                "judge": value,
                "judge_input_tokens": float(usage.prompt_tokens),
                "judge_output_tokens": float(usage.completion_tokens),
                "judge_cost": cost,
                "judge_cached": float(known is not None),
            },
        )

    def problem(self, row: Mapping[str, Any]) -> str | None:
        needs_rubric = "rubric" in placeholders(self._template)
        return "it has no rubric" if needs_rubric and not criteria(row.get("rubric")) else None

    def _body(self, text: str) -> dict[str, Any]:
        system = [{"role": "system", "content": self._args.system}] if self._args.system else []
        body = {
            "model": self._args.model,
            "messages": [*system, {"role": "user", "content": text}],
            "max_tokens": self._args.max_tokens,
            "temperature": self._args.temperature,
            **self._args.extra_body,
        }
        return {name: value for name, value in body.items() if value is not None}

    async def _complete(self, body: dict[str, Any], text: str, *, seed: str) -> Completion:
        if self._args.base_url == RUN:
            return await self.within_limits(self._ask_run(text, seed=int(seed[:8], 16) >> 1))
        return _read(await self.post(body))

    async def _ask_run(self, text: str, *, seed: int) -> Completion:
        from envsdk.engines.run_engines import PromptTooLong, engines_of_this_loop
        from envsdk.engines.sampling import SamplingParams

        engines = engines_of_this_loop()
        if engines is None:
            raise Unavailable("`base_url: run` needs a run with engines of its own; there is none here")
        try:
            reply = await engines.reply(
                system=self._args.system,
                user=text,
                sampling=SamplingParams(
                    max_new_tokens=self._args.max_tokens,
                    temperature=self._args.temperature,
                    seed=seed,
                    **self._args.extra_body,
                ),
            )
        except PromptTooLong as error:
            raise ReplyRefused(str(error)) from error
        except EngineError as error:
            raise Unavailable(str(error)) from error
        return Completion(
            choices=[Choice(message=Message(content=reply.text), finish_reason=reply.finish_reason)],
            usage=Usage(prompt_tokens=reply.num_prompt_tokens, completion_tokens=reply.num_reply_tokens),
        )

    def _value_of(self, text: str, asked: Question, *, is_complete: bool) -> float:
        """The value, from 0 to 1. Raises ReplyRefused where the judge's text holds no verdict."""
        number = verdict_of(
            text,
            asked=asked,
            parse=self._parse,
            pattern=self._args.pattern,
            json_field=self._args.json_field,
            is_complete=is_complete,
        )
        worst, best = self._args.scale
        value = None if number is None else (number - worst) / (best - worst)
        if value is None or not 0 <= value <= 1:
            raise ReplyRefused(f"the judge's reply holds no verdict: {_short(text)!r}")
        return value

    async def close(self) -> None:
        self._cache.close()
        await super().close()


def _read(answer: str) -> Completion:
    try:
        return Completion.model_validate_json(answer)
    except ValidationError as error:
        raise ReplyRefused(f"the server sent no chat completion but {_short(answer)!r}") from error


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 120 else f"{line[:40]} ... {line[-75:]}"


_BUSY_S = 0.2
"""How long another process may hold the file; after that its entry counts as missing."""


class ReplyCache:
    """The newest `size` replies. A file that fails later is as one without the entry.

    cache = ReplyCache(size=1000, file=Path("judge.sqlite"))
    cache.put(key, "YES")
    cache.get(key)          # "YES", also in another process that uses the file
    """

    def __init__(self, *, size: int, file: Path | None) -> None:
        """ConfigurationError when the file cannot be used."""
        self._size = size
        self._memory: OrderedDict[str, str] = OrderedDict()
        self._file: sqlite3.Connection | None = None
        if file is not None and size > 0:
            self._file = _open(file)

    def get(self, key: str) -> str | None:
        if key in self._memory:
            self._memory.move_to_end(key)
            return self._memory[key]
        if self._file is not None:
            with suppress(sqlite3.Error):
                row = self._file.execute("SELECT reply FROM replies WHERE key = ?", (key,)).fetchone()
                if row is not None:
                    self._remember(key, row[0])
                    return str(row[0])
        return None

    def put(self, key: str, reply: str) -> None:
        if self._size == 0:
            return
        self._remember(key, reply)
        if self._file is not None:
            with suppress(sqlite3.Error), self._file:
                self._file.execute("INSERT OR REPLACE INTO replies (key, reply) VALUES (?, ?)", (key, reply))
                # A replaced row gets a number above all others, so that the lowest are the oldest.
                self._file.execute(
                    "DELETE FROM replies WHERE number <= (SELECT MAX(number) FROM replies) - ?", (self._size,)
                )

    def _remember(self, key: str, reply: str) -> None:
        self._memory[key] = reply
        self._memory.move_to_end(key)
        while len(self._memory) > self._size:
            self._memory.popitem(last=False)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _open(file: Path) -> sqlite3.Connection:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(file, timeout=_BUSY_S)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = OFF")  # a cache may lose its end
        connection.execute(
            "CREATE TABLE IF NOT EXISTS replies"
            " (number INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT UNIQUE, reply TEXT)"
        )
    except (OSError, sqlite3.Error) as error:
        raise ConfigurationError(f"cache_file {file}: {error}") from error
    return connection

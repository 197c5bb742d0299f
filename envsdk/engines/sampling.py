"""How a reply is sampled: one table of parameters, from which the YAML, requests and engines derive theirs.

    actor_infer.generating_args -> SamplingParams -> replace(...) per turn -> wire -> engine

A parameter of the distribution is a field of `SamplingShape`. What passes parameters on goes through
`SHAPE` and `shape()`: the wire between processes, the endpoint's rules, and the engines in front of vLLM,
SGLang and OpenAI-compatible servers, which know it by the same name.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, fields
from functools import cache, lru_cache
from operator import attrgetter
from typing import Annotated, Any, get_type_hints

from pydantic import AfterValidator, BaseModel, Field, ValidationError, create_model

from envsdk.base.settings.validation import problems_in
from envsdk.contracts.trajectory import Rows

MIN_TEMPERATURE = 1e-8
MAX_TEMPERATURE = 1e8
"""Logits divided by less, or by more, are no longer numbers of 32 bits."""


def _is_computable(temperature: float) -> float:
    if 0 < temperature < MIN_TEMPERATURE:
        raise ValueError(f"must be 0, which is greedy, or at least {MIN_TEMPERATURE:g}")
    return temperature


Temperature = Annotated[float, Field(ge=0, le=MAX_TEMPERATURE), AfterValidator(_is_computable)]
TopP = Annotated[float, Field(gt=0, le=1)]
TopK = Annotated[int, Field(ge=0, lt=2**31)]
MinP = Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingShape:
    """The distribution that tokens are drawn from: temperature, then top_k, top_p and min_p in this order."""

    temperature: Temperature = 1.0
    """0 is greedy; log-probabilities are then those of temperature 1."""
    top_p: TopP = 1.0
    """Share of the probability mass that is sampled from."""
    top_k: TopK = 0
    """Most likely tokens that are sampled from; 0 is off."""
    min_p: MinP = 0.0
    """Tokens less likely than this share of the most likely one's probability are not sampled; 0 is off."""

    def shape(self) -> dict[str, Any]:
        """The fields of `SamplingShape` by name."""
        return {name: getattr(self, name) for name in SHAPE}

    @property
    def is_truncated(self) -> bool:
        """Whether some tokens cannot be drawn."""
        return self.temperature > 0 and (self.top_p < 1 or self.top_k > 0 or self.min_p > 0)


SHAPE = tuple(field.name for field in fields(SamplingShape))


@dataclass(frozen=True, slots=True, kw_only=True)
class TaggedJson:
    """JSON between two fixed texts, such as a tool call."""

    begin: str
    """Before the JSON; not empty."""
    json_schema: str
    """What the JSON may be, itself JSON. References stay within it."""
    end: str
    """Behind the JSON; not empty."""

    def __post_init__(self) -> None:
        """ValueError for a schema that is not JSON."""
        json.loads(self.json_schema)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputStructure:
    """What the text of a reply must be; exactly one kind is given.

    Tokens that lead away from it have no probability. A stop token has some only where the text is complete,
    and is then the only way on when nothing can follow. `max_new_tokens` may still cut the text short.
    """

    regex: str | None = None
    """Matches the whole text. Without look-around and back references, which no engine takes."""
    json_schema: str | None = None
    """The text is JSON that this schema, itself JSON, allows."""
    choices: tuple[str, ...] = ()
    """The text is one of these."""
    tagged: tuple[TaggedJson, ...] = ()
    """The text is one of these. An engine that knows other kinds alone answers with an error."""
    opening: str = ""
    """What each of `tagged` begins with: the text is free up to it, then one or more of these."""

    def __post_init__(self) -> None:
        given = (self.regex is not None, self.json_schema is not None, bool(self.choices), bool(self.tagged))
        if sum(given) != 1:
            raise ValueError(f"give one of regex, json_schema, choices and tagged, not {sum(given)} of them")
        if not all(each.begin.startswith(self.opening) for each in self.tagged):
            raise ValueError(f"each of tagged must begin with {self.opening!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitChanges:
    """What one request does to the logits before `SamplingShape`, in the order of the fields.

    The log-probabilities of its reply are those of the distribution that this leaves.
    """

    bias: tuple[tuple[int, float], ...] = ()
    """Token ids, each once, and what is added to their logits."""
    repetition_penalty: float = 1.0
    """Logits of tokens in the prompt and the reply so far are divided by it where positive, else multiplied;
    1 is off. `sglang` counts the reply alone."""
    frequency_penalty: float = 0.0
    """Subtracted from a token's logit for each time that the reply has it."""
    presence_penalty: float = 0.0
    """Subtracted from the logits of tokens that the reply has."""

    def __post_init__(self) -> None:
        """ValueError for what leaves no distribution."""
        numbers = (*(value for _, value in self.bias), self.frequency_penalty, self.presence_penalty)
        if not all(map(math.isfinite, numbers)):
            raise ValueError("biases and penalties must be finite")
        if not 0 < self.repetition_penalty < math.inf:
            raise ValueError("repetition_penalty must be above 0 and finite")

    @property
    def looks_back(self) -> bool:
        """Whether a token's distribution depends on which of the tokens before it are the reply's."""
        return self.frequency_penalty != 0 or self.presence_penalty != 0 or self.repetition_penalty != 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams(SamplingShape):
    """How a reply is sampled."""

    max_new_tokens: int
    stop_token_ids: tuple[int, ...] = ()
    seed: int | None = None
    """Sampling depends on nothing but this, the prompt and the weights; None draws a fresh one."""
    structure: OutputStructure | None = None
    """What the text must be, of an engine with the ability `structured_output`; needs a stop token."""
    changes: LogitChanges | None = None
    """Changes of the logits, by an engine with the ability `logit_changes`."""
    top_logprobs: int = 0
    """Likeliest tokens to tell at each position, of an engine with the ability `top_logprobs`; for those of
    the prompt, `prompt_logprobs` will do."""
    prompt_logprobs: bool = False
    """Tell the log-probabilities of the prompt's tokens, of an engine with the ability `prompt_logprobs`."""
    support: bool = False
    """Where tokens are left out, tell which could be drawn, of an engine with the ability `support`."""

    @property
    def tells_support(self) -> bool:
        """Whether the result has a `Support`."""
        return self.support and self.is_truncated

    def with_seed(self, seed: int | None) -> SamplingParams:
        """The same with this seed: `dataclasses.replace`, which every turn needs, in a third of the time."""
        row = list(_PARAMS.row(self))
        row[_SEED] = seed
        return _PARAMS.make(row)

    @property
    def can_continue(self) -> bool:
        """Whether a reply that was cut short can continue with its tokens as a part of the prompt."""
        looks_back = self.changes is not None and self.changes.looks_back
        return self.structure is None and not looks_back and not self.prompt_logprobs


_PARAMS = Rows(SamplingParams)
_SEED = _PARAMS.names.index("seed")


def recorded(params: SamplingParams) -> dict[str, Any]:
    """What a run's sampling is, as its files record it."""
    return {"max_new_tokens": params.max_new_tokens, **params.shape()}


@cache
def _ranges() -> type[BaseModel]:
    hints = get_type_hints(SamplingShape, include_extras=True)
    definitions: dict[str, Any] = {name: (hints[name], ...) for name in SHAPE}
    model: type[BaseModel] = create_model("Ranges", **definitions)
    return model


def out_of_range(shape: SamplingShape) -> str:
    """Which parameters have values that no engine can sample with, and why; empty when none has."""
    return _why_out_of_range(*_values(shape))


_values = attrgetter(*SHAPE)


@lru_cache(maxsize=256, typed=True)
def _why_out_of_range(*values: object) -> str:
    """`values`: of `SHAPE`. Kept, since every request is checked and few differ in them."""
    model = _ranges()
    try:
        model.model_validate(dict(zip(SHAPE, values, strict=True)))
    except ValidationError as error:
        return "; ".join(f"{problem.path[0]} {problem.message}" for problem in problems_in(error, model))
    return ""

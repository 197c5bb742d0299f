"""What the sections of the YAML file share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PositiveInt

from envsdk.engines.sampling import MinP, SamplingParams, Temperature, TopK, TopP


def distinct(values: list[Any]) -> list[Any]:
    """The values; ValueError when one is repeated."""
    repeated = sorted({str(value) for value in values if values.count(value) > 1})
    if repeated:
        raise ValueError(f"{', '.join(repeated)} named more than once")
    return values


def _is_tag(name: str) -> str:
    if not name.isprintable() or "\\" in name or {"", ".", ".."} & set(name.split("/")):
        raise ValueError("no name of a tag: write letters, digits, `.`, `_`, `-`, and single `/` in between")
    return name


Tag = Annotated[str, Field(max_length=200), AfterValidator(_is_tag)]
Names = Annotated[list[str], Field(min_length=1), AfterValidator(distinct)]


def split_evenly(total: int, weights: Sequence[int]) -> list[int]:
    """Divide `total` in proportion to `weights`, remainders to the largest fractions, then the first.

    >>> split_evenly(10, [1, 1, 1])
    [4, 3, 3]
    """
    of_all = sum(weights)
    shares = [total * weight // of_all for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda i: (-(total * weights[i] % of_all), i))
    for i in by_remainder[: total - sum(shares)]:
        shares[i] += 1
    return shares


def interleave(weights: Mapping[str, int], count: int) -> list[str]:
    """`count` names in an order whose every beginning has them in proportion to `weights`, as far as it can.

    The first names are all of them, once each.

    >>> interleave({"maze": 3, "shop": 1}, 6)
    ['maze', 'shop', 'maze', 'maze', 'maze', 'shop']
    """
    counts = dict.fromkeys(weights, 0)
    names = []
    for _ in range(count):
        name = min(weights, key=lambda name: counts[name] / weights[name])
        counts[name] += 1
        names.append(name)
    return names


MOST = 1_000_000
"""Largest batch, and number of environments: more is a slip of the keyboard."""
Count = Annotated[PositiveInt, Field(le=MOST)]


class Section(BaseModel):
    """What all sections share: strict types, no unknown keys, frozen."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, protected_namespaces=(), allow_inf_nan=False
    )


class GeneratingArgs(Section):
    """How replies are sampled."""

    max_new_tokens: PositiveInt = 64
    """Longest reply."""
    temperature: Temperature = 1.0
    """0 is greedy."""
    top_p: TopP = 1.0
    """Share of the probability mass that is sampled from."""
    top_k: TopK = 0
    """Most likely tokens that are sampled from; 0 is off."""
    min_p: MinP = 0.0
    """Tokens less likely than this share of the most likely one's probability are not sampled; 0 is off."""

    @property
    def sampling(self) -> SamplingParams:
        """What engines are asked for."""
        return SamplingParams(**{name: getattr(self, name) for name in GeneratingArgs.model_fields})

    def with_own(self, own: GeneratingArgs | OwnGeneratingArgs) -> GeneratingArgs:
        """These, with the keys that are given in `own`."""
        given = {name: getattr(own, name) for name in GeneratingArgs.model_fields}
        return self.model_copy(update={name: value for name, value in given.items() if value is not None})


class OwnGeneratingArgs(Section):
    """How replies are sampled where not as `actor_infer.generating_args` says, whose keys hold otherwise."""

    max_new_tokens: PositiveInt | None = None
    """Longest reply of tags without `max_tokens_per_step`."""
    temperature: Temperature | None = None
    """0 is greedy."""
    top_p: TopP | None = None
    """Share of the probability mass that is sampled from."""
    top_k: TopK | None = None
    """Most likely tokens that are sampled from; 0 is off."""
    min_p: MinP | None = None
    """Tokens less likely than this share of the most likely one's probability are not sampled; 0 is off."""

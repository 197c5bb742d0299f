"""Numbers whose range several readers share: the YAML file and the endpoint's requests."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

MIN_TEMPERATURE = 1e-8
MAX_TEMPERATURE = 1e8
"""Logits divided by less, or by more, are no longer numbers of 32 bits."""


def _is_computable(temperature: float) -> float:
    if 0 < temperature < MIN_TEMPERATURE:
        raise ValueError(f"must be 0, which is greedy, or at least {MIN_TEMPERATURE:g}")
    return temperature


Temperature = Annotated[float, Field(ge=0, le=MAX_TEMPERATURE), AfterValidator(_is_computable)]

"""`prices`: what tokens and machines cost."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from envsdk.config.section import Section

Price = Annotated[float, Field(ge=0.0)]


class TokenPrices(Section):
    """Prices of a million tokens."""

    input: Price = 0.0
    """That the policy reads: the whole prompt of each of its requests."""
    output: Price = 0.0
    """That the policy writes."""


class Prices(Section):
    """What tokens and machines cost, in one currency. A judge's prices stand beside the judge."""

    currency: str = "USD"
    """Its name, in reports."""
    policy: TokenPrices = Field(default_factory=TokenPrices)
    """Tokens of the policy, where they are paid by the token."""
    gpu_hour: Price = 0.0
    """One accelerator of the run, for an hour."""
    cpu_hour: Price = 0.0
    """One CPU of the run, for an hour."""
    sandbox_hour: Price = 0.0
    """One sandbox, for an hour; environments report theirs as the metric `sandbox_s`."""

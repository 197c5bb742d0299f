"""Small functions that unusual tests are written for."""

from oddities.core import (
    Point,
    Pool,
    Shade,
    Stack,
    check,
    chunks,
    count_down,
    describe,
    divide,
    guess,
    later,
    mean,
    new_id,
    old,
    parse,
    slug,
)

__all__ = [
    *("Point", "Pool", "Shade", "Stack", "check", "chunks", "count_down", "describe", "divide", "guess", "later"),
    *("mean", "new_id", "old", "parse", "slug"),
]

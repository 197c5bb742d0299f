"""Metrics of a step about the engines of a run. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from envsdk.engines.engine import EngineHealth


@dataclass(frozen=True, slots=True)
class _Look:
    time_s: float
    num_tokens: int


class EngineMetrics:
    """Keeps the last look at each engine, because rates are between two.

    Owner: the pipeline, which looks once per step.
    """

    def __init__(self) -> None:
        self._looks: dict[str, _Look] = {}

    def step(self, health: Mapping[str, EngineHealth], now_s: float) -> dict[str, float]:
        """Metrics of one look at every engine that runs; `now_s` on any clock that only goes forward."""
        looks = health.values()
        metrics = {
            "engine/tokens_sampled": float(sum(look.num_tokens_sampled for look in looks)),
            "engine/prompt_tokens": float(sum(look.num_prompt_tokens for look in looks)),
            "engine/prefilled_tokens": float(sum(look.num_prefilled_tokens for look in looks)),
            "engine/queued": float(sum(look.num_queued for look in looks)),
            "engine/kv_usage": max((look.kv_usage for look in looks), default=0.0),
        }
        for name, look in health.items():
            metrics[f"engine/{name}/queued"] = float(look.num_queued)
            metrics[f"engine/{name}/kv_usage"] = look.kv_usage
            last = self._looks.get(name)
            if last is not None and now_s > last.time_s:
                # A restarted engine counts from 0 again.
                before = last.num_tokens if last.num_tokens <= look.num_tokens_sampled else 0
                rate = (look.num_tokens_sampled - before) / (now_s - last.time_s)
                metrics[f"engine/{name}/tokens_per_s"] = rate
        self._looks = {name: _Look(now_s, look.num_tokens_sampled) for name, look in health.items()}
        return metrics

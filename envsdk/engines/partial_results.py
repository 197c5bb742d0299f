"""Tokens that running turns have sampled so far, polled from an engine.

    opened -> (asked every period, once it has run for one) -> ended

An engine does not report by itself: a turn costs one dictionary entry, and nothing per token.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from envsdk.engines.engine import Engine, TokenDelta

_logger = logging.getLogger(__name__)

Owner = TypeVar("Owner")

REPORT_S = 0.5
"""Between two reports of turns that must survive their engine."""
STREAM_S = 0.05
"""Between two reports of turns somebody watches."""


@dataclass(slots=True)
class _Turn(Generic[Owner]):
    owner: Owner
    is_due: bool
    num_known: int = 0
    """Tokens reported."""


class ProgressWatch(Generic[Owner]):
    """Asks one engine with the ability `progress` about the turns that are open.

    Owner: the submitter, on the engine's event loop; `run` runs until cancelled.
    """

    def __init__(
        self,
        engine: Engine,
        report: Callable[[Sequence[tuple[Owner, TokenDelta]]], None],
        *,
        period_s: float,
        spare_short_turns: bool,
    ) -> None:
        """`report` is called every period while turns are open, also with nothing.

        `spare_short_turns`: a turn is not asked about before it has been open for one period.
        """
        self._engine = engine
        self._report = report
        self._period_s = period_s
        self._due_at_once = not spare_short_turns
        self._turns: dict[str, _Turn[Owner]] = {}
        self._any_open = asyncio.Event()
        self._has_complained = False

    def opened(self, request_id: str, owner: Owner) -> None:
        """Its request is being submitted."""
        self._turns[request_id] = _Turn(owner, self._due_at_once)
        self._any_open.set()

    def ended(self, request_id: str) -> None:
        """It was answered. Turns that are not open are ignored."""
        self._turns.pop(request_id, None)

    async def run(self) -> None:
        """Ask and report."""
        while True:
            await self._any_open.wait()
            await asyncio.sleep(self._period_s)
            if self._turns:
                self._report(await self._ask())
            else:
                self._any_open.clear()

    async def _ask(self) -> list[tuple[Owner, TokenDelta]]:
        asked = {request_id: turn for request_id, turn in self._turns.items() if turn.is_due}
        for turn in self._turns.values():
            turn.is_due = True
        if not asked:
            return []
        try:
            reported = await self._engine.progress({name: turn.num_known for name, turn in asked.items()})
        except Exception as error:  # noqa: BLE001 - the engine's boundary: the results have the tokens too
            if not self._has_complained:
                _logger.warning("%s: progress failed: %r", type(self._engine).__name__, error)
            self._has_complained = True
            return []
        found = []
        for delta in reported:
            turn = asked[delta.request_id]
            # Meanwhile it may have been answered, and its name be that of another turn.
            if self._turns.get(delta.request_id) is turn:
                turn.num_known += len(delta.token_ids)
                found.append((turn.owner, delta))
        return found

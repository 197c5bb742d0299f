"""Trees in the hands of the sandboxes' user: copied once, shared by all sandboxes of an image.

unknown --borrow--> borrowed --returned by the last sandbox--> kept --too many newer ones--> deleted
"""

from __future__ import annotations

import asyncio
import itertools
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path

from envsdk.rewards.sandbox.bubblewrap import leases
from envsdk.rewards.sandbox.bubblewrap.state import Owner, owned_copy


@dataclass(slots=True, eq=False)
class _Shared:
    source: Path
    ready: asyncio.Future[Path]
    borrowers: int = 0


@dataclass(slots=True)
class Trees:
    """The trees of a backend. Belongs to one event loop."""

    folder: Path
    owner: Owner
    kept: int
    """How many that no sandbox uses are kept, the last used ones."""
    _known: OrderedDict[Path, _Shared] = field(default_factory=OrderedDict)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    async def borrow(self, source: Path) -> Path:
        """Where the tree `source` is for sandboxes, until `give_back`.

        Raises OSError or CalledProcessError: it could not be copied.
        """
        shared = self._known.get(source)
        if shared is None:
            # A future of the executor, and no task: a loop that ends cancels all tasks.
            copying = asyncio.get_running_loop().run_in_executor(
                None, owned_copy, source, self.folder / f"tree-{next(self._numbers)}", self.owner
            )
            shared = self._known[source] = _Shared(source, copying)
        shared.borrowers += 1
        try:
            return await asyncio.shield(shared.ready)
        except BaseException:
            shared.borrowers -= 1
            if shared.ready.done() and not shared.ready.cancelled() and shared.ready.exception():
                self._known.pop(source, None)
            raise

    async def copied(self) -> None:
        """Wait until no tree is being copied."""
        if copying := {shared.ready for shared in self._known.values() if not shared.ready.done()}:
            await asyncio.wait(copying)

    async def give_back(self, source: Path) -> None:
        """A sandbox of `source` has closed."""
        shared = self._known[source]
        shared.borrowers -= 1
        self._known.move_to_end(source)
        idle = [other for other in self._known.values() if not other.borrowers and other.ready.done()]
        for oldest in idle[: max(0, len(idle) - self.kept)]:
            del self._known[oldest.source]
            place = oldest.ready.result()
            if place != oldest.source:
                await asyncio.to_thread(leases.delete, place)

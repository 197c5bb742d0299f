"""Layers of roots, and copies of trees. Layers are each made once for what it holds, and shared by all
programs with this `state_dir`.

    images/NAME/PART/...    one layer: a folder for each part, in overlayfs's own form
    images/NAME/size        its bytes on disk
    images/NAME.lock        locked to make or delete it (exclusive) and to use it (shared)

absent -> NAME.new (being made) -> NAME -> used by sandboxes -> idle -> too many newer ones: deleted
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import itertools
import os
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from envsdk.rewards.sandbox.bubblewrap import leases
from envsdk.rewards.sandbox.bubblewrap.state import Owner, measure, owned_copy
from envsdk.rewards.sandbox.contract import SandboxError
from envsdk.rewards.sandbox.threads import in_thread

_LOOK_S = 0.05


@dataclass(slots=True)
class Layers:
    """Layers below `folder`, for one backend."""

    folder: Path
    max_bytes: int
    """Bytes of all layers; beyond them those that no sandbox uses are deleted, the longest unused first."""
    _held: dict[str, tuple[int, int]] = field(default_factory=dict)
    """(descriptor of the lock, users) by name."""

    def parts(self, names: Sequence[str], part: str) -> list[Path]:
        """The folders of a part, of the layers that have it."""
        return [place for name in names if (place := self.folder / name / part).is_dir()]

    async def make(self, name: str, fill: Callable[[Path], Awaitable[None]]) -> None:
        """Make a layer, unless it is there or another program makes it: `fill` gets its empty folder.

        Nothing is left of one whose `fill` raises.
        """
        leases.prepare(self.folder)
        while not (self.folder / name).is_dir():
            lock = self._lock(name, fcntl.LOCK_EX)
            if lock is None:
                await asyncio.sleep(_LOOK_S)
                continue
            with _closing(lock):
                if not (self.folder / name).is_dir():
                    await self._make(name, fill)
        await in_thread(self._evict, name)

    async def _make(self, name: str, fill: Callable[[Path], Awaitable[None]]) -> None:
        made = self.folder / f"{name}.new"
        await in_thread(leases.delete, made)
        made.mkdir(mode=0o711)
        try:
            await fill(made)
            size = await in_thread(measure, [made])
        except BaseException:
            await in_thread(leases.delete, made)
            raise
        (made / "size").write_text(str(size.bytes))
        made.rename(self.folder / name)

    def hold(self, names: Sequence[str]) -> None:
        """Keep layers while a sandbox uses them, until `release`.

        Raises SandboxError: one is not there any more.
        """
        held: list[str] = []
        try:
            for name in names:
                lock, users = self._held.get(name) or (self._lock(name, fcntl.LOCK_SH), 0)
                if lock is None or not (self.folder / name).is_dir():
                    if lock is not None and not users:
                        os.close(lock)
                    raise SandboxError(
                        f"layer {name} of the image was deleted meanwhile: build the image again"
                    )
                self._held[name] = lock, users + 1
                held.append(name)
                # Lower layers count as used later, so they are deleted after what lies on them.
                os.utime(lock)
        except BaseException:
            self.release(held)
            raise

    def release(self, names: Sequence[str]) -> None:
        for name in names:
            lock, users = self._held.pop(name)
            if users > 1:
                self._held[name] = lock, users - 1
            else:
                os.close(lock)

    def _lock(self, name: str, kind: int) -> int | None:
        """The descriptor of a lock that was free."""
        file = self.folder / f"{name}.lock"
        with contextlib.suppress(OSError):
            lock = os.open(file, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, kind | fcntl.LOCK_NB)
                if os.fstat(lock).st_nlink:
                    return lock
            except BaseException:
                os.close(lock)
                raise
            os.close(lock)
        return None

    def _evict(self, newest: str) -> None:
        for left in self.folder.glob("*.new"):
            # Nobody makes it any more: its maker died.
            if (lock := self._lock(left.stem, fcntl.LOCK_EX)) is not None:
                with _closing(lock):
                    leases.delete(left)
        sizes: dict[str, int] = {}
        for file in self.folder.glob("*/size"):
            with contextlib.suppress(OSError, ValueError):  # another program makes or deletes it
                sizes[file.parent.name] = int(file.read_text())
        total = sum(sizes.values())
        for name in sorted(sizes, key=self._last_use):
            if total <= self.max_bytes:
                return
            if name != newest and (lock := self._lock(name, fcntl.LOCK_EX)) is not None:
                with _closing(lock):
                    with contextlib.suppress(FileNotFoundError):  # another program has deleted it
                        leases.delete((self.folder / name).rename(self.folder / f"{name}.new"))
                    (self.folder / f"{name}.lock").unlink()
                total -= sizes[name]

    def _last_use(self, name: str) -> float:
        with contextlib.suppress(OSError):
            return (self.folder / f"{name}.lock").stat().st_mtime
        return 0.0


@contextlib.contextmanager
def _closing(descriptor: int) -> Iterator[None]:
    try:
        yield
    finally:
        os.close(descriptor)


@dataclass(slots=True, eq=False)
class _Shared:
    source: Path
    ready: asyncio.Future[Path]
    borrowers: int = 0


@dataclass(slots=True)
class Trees:
    """The trees of a backend. Belongs to one event loop.

    unknown --borrow--> borrowed --returned by the last sandbox--> kept --too many newer ones--> deleted
    """

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

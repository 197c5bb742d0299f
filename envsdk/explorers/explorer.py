"""Explorer: plays groups for a trainer that is a program of its own, for as long as the trainer goes on.

    newest weights -> engines -> (claim -> play -> put)*, side by side with:
        a new version -> weights -> engines
        a sign of life every third of a lease; groups that others play by now are left

It ends when the trainer has finished, with an error when that has been gone for too long, and when it is
asked to: what it plays is then handed back.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from envsdk.base.display.explorer_progress import ExplorerProgress
from envsdk.buffer.contract import (
    ClaimedGroup,
    JobStatus,
    JobView,
    LeaseLost,
    Member,
    PublishedVersion,
    Signal,
)
from envsdk.config.models import RunConfig
from envsdk.contracts.failures import EngineError, EnvsdkError, Interrupted
from envsdk.contracts.trajectory import RolloutBatch
from envsdk.explorers.membership import Membership
from envsdk.explorers.published import LOOK_AGAIN_S, done_before
from envsdk.explorers.weights import VersionReader
from envsdk.managers.explorer_scheduler import ExplorerReport
from envsdk.runs.rollout_cluster import RolloutCluster
from envsdk.tracking.tracker import Tracker
from envsdk.weights.source import GivenWeights
from envsdk.weights.versions import VersionGone


class Explorer:
    """One explorer. `run` returns when the trainer has finished."""

    def __init__(
        self,
        config: RunConfig,
        cluster: RolloutCluster,
        *,
        membership: Membership,
        reader: VersionReader,
        weights: GivenWeights,
        tracker: Tracker,
        display: ExplorerProgress,
    ) -> None:
        self._config = config
        self._cluster = cluster
        self._membership = membership
        self._reader = reader
        self._weights = weights
        self._tracker = tracker
        self._display = display
        self._version = -1
        self._loaded_at = 0.0
        """When the version was published."""
        self._loaded_as: Member | None = None
        """What this explorer was when that was the newest version. After it joined again it looks again: the
        trainer may have gone back."""
        self._playing: set[int] = set()
        """Groups that were claimed, and neither put, dropped nor lost."""
        self._wanted: Sequence[str] = ()
        self._has_room = asyncio.Event()
        self._has_newer = asyncio.Event()
        """Weights came since the last claim."""
        self._waited = {"places": 0.0, "weights": 0.0}
        """Seconds so far."""
        self._told_waited_s = 0.0
        self._counts: dict[str, float] = {}
        """Counts of the present version."""
        self._dropped_tokens: Counter[str] = Counter()
        """Sampled and thrown away, by tag, as the member `_dropped_as`."""
        self._dropped_as: Member | None = None
        self._trainer_gone_since: float | None = None
        self._ended = asyncio.Event()
        self._stop = asyncio.Event()

    def request_stop(self) -> None:
        """Hand back what is played, and end; at the second request, end at once."""
        if self._stop.is_set():
            raise KeyboardInterrupt
        self._stop.set()

    async def run(self) -> None:
        """Join, play, leave. Raises Interrupted when it was asked to stop."""
        await self._membership.join()
        work = asyncio.ensure_future(self._work())
        waits = [asyncio.ensure_future(event.wait()) for event in (self._stop, self._ended)]
        try:
            await asyncio.wait({work, *waits}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                await work
        finally:
            for task in (work, *waits):
                task.cancel()
            await asyncio.wait({work})
        if self._stop.is_set():
            raise Interrupted(
                f"explorer {self._config.explorer.name} stopped; the {len(self._playing)} groups that it "
                "played are handed back"
            )

    async def _work(self) -> None:
        try:
            async with asyncio.TaskGroup() as together:
                together.create_task(self._live())
                self._display.phase("starting engines and workers")
                await self._cluster.start()
                for part in (self._follow_versions, self._deliver, self._claim):
                    together.create_task(part())
        except* EnvsdkError as errors:
            raise _first(errors) from None

    async def _follow_versions(self) -> None:
        """Give the engines each version that is the newest when they can take one."""
        buffer, failing_since = self._membership.buffer, None
        self._display.phase("waiting for the trainer's first weights")
        while True:
            seen = await self._membership.signal_number(Signal.VERSION)
            if (await self._membership.client.call(buffer.view)).status is JobStatus.FINISHED:
                self._display.note("the trainer has finished")
                self._ended.set()
                return
            me = self._membership.me
            newest = await self._membership.client.call(buffer.newest_version)
            if newest is not None and self._needs(newest, me):
                try:
                    await self._load(newest, me)
                    failing_since = None
                    continue
                except VersionGone as error:
                    failing_since = self._not_loaded(newest, error, failing_since)
            waiting = self._membership.client.changed(Signal.VERSION, seen, timeout_s=LOOK_AGAIN_S)
            await self._timed("weights" if self._version < 0 else None, waiting)

    def _needs(self, newest: PublishedVersion, me: Member) -> bool:
        if (newest.version, newest.published_at) != (self._version, self._loaded_at):
            return self._loaded_as is not me or newest.replaces(self._version, self._loaded_at)
        if self._loaded_as is not me:
            self._loaded_as = me
            self._has_newer.set()
        return False

    async def _load(self, published: PublishedVersion, me: Member) -> None:
        fetched = await self._reader.fetch(published)
        weights = fetched.weights
        if isinstance(weights, Path):  # tensors are checked on their way to the engines, and not copied here
            weights = await asyncio.to_thread(self._weights.checked, weights)
        async with self._cluster.weights_moving():
            self._weights.hold(weights)
        await self._cluster.give_weights(fetched.version)
        if self._version < 0:
            self._display.phase(f"playing, with version {fetched.version} of the weights")
        self._log_version()
        self._version, self._loaded_at, self._loaded_as = fetched.version, published.published_at, me
        self._has_newer.set()

    def _not_loaded(self, newest: PublishedVersion, error: VersionGone, since: float | None) -> float:
        """Say that this version cannot be had, and since when; EngineError when it is for too long."""
        now, limit_s = time.monotonic(), self._config.synchronizer.sync_timeout
        if since is None:
            self._display.note(f"version {newest.version} of the weights cannot be had yet: {error}")
            return now
        if now - since > limit_s:
            raise EngineError(
                f"no weights could be had for {limit_s:g} s (synchronizer.sync_timeout): {error}"
            ) from error
        return since

    async def _claim(self) -> None:
        """Ask for groups whenever there is room."""
        buffer, token = self._membership.buffer, uuid.uuid4().hex
        await self._has_newer.wait()
        while True:
            await self._has_room.wait()
            seen = await self._membership.signal_number(Signal.PLACES)
            self._has_newer.clear()
            me, wanted, version = self._membership.me, list(self._wanted), self._version
            if self._loaded_as is not me:
                await self._has_newer.wait()
                continue
            try:
                claimed = await self._membership.client.call(
                    lambda me=me, wanted=wanted, version=version, token=token: buffer.explorer.claim(  # type: ignore[misc]
                        me, wanted, version=version, token=token
                    )
                )
            except LeaseLost:
                claimed = []  # `_live` joins again
            token = uuid.uuid4().hex
            if claimed:
                await self._play(claimed)
            else:
                # Until there are places, or weights with which groups are not too late.
                places = self._membership.client.changed(Signal.PLACES, seen, timeout_s=LOOK_AGAIN_S)
                await self._timed("places", done_before(self._has_newer, places))

    async def _play(self, claimed: Sequence[ClaimedGroup]) -> None:
        self._playing |= {group.group_id for group in claimed}
        left = list(self._wanted)
        for group in claimed:
            if group.task.tag in left:
                left.remove(group.task.tag)
        self._wants(left)
        await self._cluster.call(self._cluster.rollout_scheduler.assign.remote(claimed))

    async def _deliver(self) -> None:
        """Put complete groups into the buffer, and say which will not come."""
        while True:
            report: ExplorerReport = await self._cluster.call(self._cluster.rollout_scheduler.report.remote())
            self._wants(report.wanted)
            await self._hand_in(report)

    async def _hand_in(self, report: ExplorerReport) -> None:
        buffer, me = self._membership.buffer, self._membership.me
        # Before they are put: from then on the buffer no longer counts them as held.
        self._playing -= {group.group_id for group in report.finished} | report.dropped.keys()
        refused: list[int] = []
        if self._dropped_as is not me:
            self._dropped_tokens, self._dropped_as = Counter(), me
        if report.counted is not None:
            self._dropped_tokens.update(report.counted.dropped_tokens)
        if report.finished:
            tokens = dict(self._dropped_tokens)
            refused = await self._membership.client.call(
                lambda: buffer.explorer.put(me, report.finished, dropped_tokens=tokens, played=report.played)
            )
        if report.dropped:
            await self._membership.client.call(
                lambda: buffer.explorer.drop(me, report.dropped, report.played)
            )
        waited_s, self._told_waited_s = self._waited["places"] - self._told_waited_s, self._waited["places"]
        counts: dict[str, float] = {
            "groups": len(report.finished),
            "episodes": sum(group.num_trajectories for group in report.finished),
            "successes": report.num_succeeded,
            "failed": report.num_failed,
            "refused": len(refused),
            "dropped": len(report.dropped),
            "waited_s": waited_s,
        }
        self._display.delivered(self._version, counts)
        if report.counted is not None:
            self._count(counts, report.counted)

    def _count(self, counts: Mapping[str, float], counted: RolloutBatch) -> None:
        """Towards the metrics of this version."""
        failures = {f"failures/{kind}": count for kind, count in counted.failures.items()}
        more = {**counts, **failures, "discarded_tokens": counted.discarded_tokens}
        for name, count in more.items():
            self._counts[name] = self._counts.get(name, 0) + count

    def _log_version(self) -> None:
        """A row of metrics for the version that was played until now."""
        if self._counts:
            metrics = {f"explorer/{name}": float(count) for name, count in self._counts.items()}
            self._tracker.log(self._version, metrics, time_unix_s=time.time())
            self._counts = {}

    async def _live(self) -> None:
        while True:
            before = set(self._playing)
            me = self._membership.me
            try:
                view = await self._membership.renew(version=self._version, waited=self._waited)
            except LeaseLost as error:
                self._display.note(f"{error}; joining again")
                # Before it joins: afterwards it may be given one of them again, and must play that.
                await self._leave_groups(set(self._playing))
                await self._membership.join_again(me)
                continue
            await self._leave_groups((before - view.held) & self._playing)
            self._look_after_trainer(view)
            await asyncio.sleep(self._membership.pause_s)

    async def _leave_groups(self, lost: set[int]) -> None:
        if lost:
            self._display.note(f"{len(lost)} groups are played by others now")
            self._playing -= lost
            await self._cluster.call(self._cluster.rollout_scheduler.unassign.remote(sorted(lost)))

    def _look_after_trainer(self, view: JobView) -> None:
        """Say that the trainer is gone; EnvsdkError when it is for too long."""
        patience_s, now = self._config.buffer.patience_s, time.monotonic()
        if view.trainer_silent_s is None or view.status is JobStatus.FINISHED:
            if self._trainer_gone_since is not None:
                self._display.note("the trainer is there")
            self._trainer_gone_since = None
        elif self._trainer_gone_since is None:
            self._trainer_gone_since = now
            plays = "" if self._version < 0 else "playing until the buffer is full, and "
            self._display.note(
                f"no trainer is running; {plays}waiting for one at most {patience_s:g} s (buffer.patience_s)"
            )
        elif now - self._trainer_gone_since > patience_s:
            raise EnvsdkError(
                f"no trainer has run for {patience_s:g} s (buffer.patience_s); what was played is in the "
                "buffer. Start the trainer again, then this explorer"
            )

    def _wants(self, tags: Sequence[str]) -> None:
        self._wanted = tags
        if tags:
            self._has_room.set()
        else:
            self._has_room.clear()

    async def _timed(self, what: str | None, waiting: Awaitable[object]) -> None:
        began = time.monotonic()
        try:
            await waiting
        finally:
            if what is not None:
                self._waited[what] += time.monotonic() - began

    async def close(self, *, patience_s: float = 5.0) -> None:
        """Leave the job and end the processes."""
        self._log_version()
        ends: list[Callable[[], Awaitable[Any]]] = [self._membership.leave, self._reader.close]
        await self._cluster.close(*ends, patience_s=patience_s)


def _first(errors: BaseExceptionGroup[EnvsdkError]) -> EnvsdkError:
    """The error that ended the others."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, EnvsdkError)
    return error

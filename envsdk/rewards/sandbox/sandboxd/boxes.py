"""The sandboxes of a server: whose they are, until when, and how many.

created -> running --time-out, kill--> gone
                   --pause--> paused --resume--> running
                                     --its token's lifetime--> gone
                   --snapshot--> a sandbox that nobody uses, from which others start
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import IO

from envsdk.contracts.failures import ConfigurationError, EnvsdkError
from envsdk.rewards.sandbox import open_backend
from envsdk.rewards.sandbox.bubblewrap import leases
from envsdk.rewards.sandbox.contract import Image, Limits, Sandbox
from envsdk.rewards.sandbox.sandboxd.guest import CODE, DOOR, Guest, lay_code
from envsdk.rewards.sandbox.sandboxd.settings import ServerSettings, Token
from envsdk.rewards.sandbox.threads import in_thread

log = logging.getLogger(__name__)

WORKDIR_KEY, LIMITS_KEY = "envsdk_workdir", "envsdk_limits"
"""Keys of metadata by which a client of ours asks for another `workdir`, and other limits, as JSON."""


@dataclass(slots=True, eq=False, kw_only=True)
class Box:
    """One sandbox of a client's."""

    id: str
    owner: str
    """Name of its token."""
    template: str
    image: Image
    limits: Limits
    metadata: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    """For every command."""
    is_snapshot: bool = False
    names: tuple[str, ...] = ()
    """Names of a snapshot."""
    source: str | None = None
    """The sandbox that it is a fork of."""
    idempotency_key: str | None = None
    access_token: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)
    started_at: float = field(default_factory=time.time)
    ends_at: float = 0.0
    paused: bool = False
    sandbox: Sandbox | None = None
    """None while it starts."""
    guest: Guest | None = None
    timer: asyncio.TimerHandle | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def live(self) -> Guest:
        """Raises Refused: it is paused, or not there yet."""
        if self.sandbox is None or self.guest is None or self.paused or self.is_snapshot:
            raise Refused(502, f"The sandbox {self.id} was not found: it is not running")
        return self.guest


class Boxes:
    """All sandboxes of one server. Belongs to one event loop.

    new --open--> serving --close--> closed
    """

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self._backend = open_backend(settings.backend, settings.backend_settings)
        self._boxes: dict[str, Box] = {}
        self._starts = asyncio.Semaphore(settings.starts_at_once)
        self._ending: set[asyncio.Task[None]] = set()
        self.draining = False

    async def open(self) -> None:
        """Try the backend, and remove what a killed server has left. Raises SandboxUnavailable."""
        await in_thread(leases.sweep, self.settings.state_dir)
        self._lease = leases.Lease(self.settings.state_dir)
        (self._lease.folder / "code").mkdir()
        await in_thread(lay_code, self._lease.folder / "code")
        (self._lease.folder / "folders").mkdir()
        self.folders = Folders(self._lease.folder / "folders")
        await self._backend.probe()

    async def close(self) -> None:
        """End all sandboxes. Idempotent."""
        self.draining = True
        await asyncio.gather(*(self._end(box) for box in list(self._boxes.values())), *self._ending)
        await self._backend.aclose()
        await in_thread(self._lease.release)

    def of(self, token: str) -> list[Box]:
        """Sandboxes of a token that are there, the oldest first."""
        return [box for box in self._boxes.values() if box.owner == token and box.sandbox is not None]

    def get(self, token: str, name: str, *, snapshot: bool = False) -> Box:
        """Raises Refused: the token has none of this id."""
        box = self._boxes.get(name)
        if box is None or box.owner != token or box.sandbox is None or box.is_snapshot != snapshot:
            raise Refused(404, f"{'snapshot' if snapshot else 'sandbox'} {name} not found")
        return box

    def find(self, name: str) -> Box | None:
        return self._boxes.get(name)

    def places(self, token: str) -> dict[str, object]:
        """How many more sandboxes the token may have."""
        used = sum(box.owner == token for box in self._boxes.values())
        most = self.settings.tokens[token].sandboxes
        return {"sandboxes": most, "used": used, "free": 0 if self.draining else max(0, most - used)}

    async def create(
        self,
        token: str,
        template: str,
        *,
        timeout_s: int | None,
        metadata: Mapping[str, str],
        env: Mapping[str, str],
        idempotency_key: str | None = None,
    ) -> Box:
        for box in self.of(token):
            if idempotency_key is not None and box.idempotency_key == idempotency_key:
                return box
        source = self._snapshot(token, template)
        if source is None and template not in self.settings.templates:
            known = ", ".join(sorted(self.settings.templates))
            raise Refused(404, f"template {template} not found: this server has {known}")
        if source is None:
            image = self.settings.templates[template].image(metadata.get(WORKDIR_KEY))
            image = self.folders.shown(token, image, metadata.get(FOLDERS_KEY))
        box = Box(
            id=secrets.token_hex(10),
            owner=token,
            template=template,
            image=image if source is None else source.image,
            limits=self._limits(metadata) if source is None else source.limits,
            metadata=metadata,
            env={**(source.env if source else {}), **env},
            idempotency_key=idempotency_key,
        )
        return await self._start(box, timeout_s, source)

    async def set_timeout(self, box: Box, timeout_s: int, *, extends_only: bool = False) -> None:
        ends_at = time.time() + self._timeout(box.owner, timeout_s)
        if extends_only and ends_at < box.ends_at:
            return
        box.ends_at = ends_at
        self._arm(box)

    async def pause(self, box: Box) -> None:
        """Stop its processes; they go on where they were. Raises Refused: that was done."""
        async with box.lock:
            if box.paused:
                raise Refused(409, f"sandbox {box.id} is paused")
            assert box.guest is not None
            box.guest.signal_all(signal.SIGSTOP)
            box.paused = True
            box.ends_at = time.time() + self.settings.tokens[box.owner].lifetime_s
            self._arm(box)

    async def resume(self, box: Box, timeout_s: int | None, *, extends_only: bool = False) -> None:
        """Let a paused one run again; of any, set the time-out."""
        async with box.lock:
            if box.paused:
                assert box.guest is not None
                box.paused, extends_only = False, False
                box.guest.signal_all(signal.SIGCONT)
        await self.set_timeout(box, timeout_s or self.settings.timeout_s, extends_only=extends_only)

    async def kill(self, box: Box) -> None:
        await self._end(box)

    def shown(self) -> Iterator[Path]:
        """All folders that sandboxes show."""
        for box in self._boxes.values():
            yield from (*box.image.binds.values(), *([box.image.tree] if box.image.tree else []))

    async def fork(
        self, box: Box, timeout_s: int | None, *, keeps: bool = False, name: str | None = None
    ) -> Box:
        """A new one with the files of another; `keeps`: a snapshot, until its token's lifetime ends."""
        if keeps:
            timeout_s = self.settings.tokens[box.owner].lifetime_s
        made = Box(
            id=secrets.token_hex(10),
            owner=box.owner,
            template=box.template,
            image=box.image,
            limits=box.limits,
            metadata=box.metadata,
            env=box.env,
            is_snapshot=keeps,
            names=(name,) if name else (),
            source=box.id,
        )
        return await self._start(made, timeout_s, box)

    def _snapshot(self, token: str, name: str) -> Box | None:
        for box in self.of(token):
            if box.is_snapshot and (box.id == name or name in box.names):
                return box
        return None

    async def _start(self, box: Box, timeout_s: int | None, source: Box | None) -> Box:
        """Reserve its place, then start it; a failure gives the place back."""
        quota = self.settings.tokens[box.owner]
        box.ends_at = time.time() + self._timeout(box.owner, timeout_s or self.settings.timeout_s)
        self._check_place(box, quota)
        self._boxes[box.id] = box
        folder = self._lease.folder / box.id
        try:
            folder.mkdir(mode=0o755)
            async with self._starts:
                box.sandbox = await self._sandbox(box, folder, source)
        except BaseException as error:
            del self._boxes[box.id]
            shutil.rmtree(folder, ignore_errors=True)
            if isinstance(error, ConfigurationError):
                raise Refused(400, str(error)) from error
            if isinstance(error, (EnvsdkError, OSError)):
                raise Refused(500 if source is None else 409, f"{box.id} could not start: {error}") from error
            raise
        box.guest = Guest(box.sandbox, folder, self._starts)
        self._arm(box)
        return box

    async def _sandbox(self, box: Box, folder: Path, source: Box | None) -> Sandbox:
        binds = {**box.image.binds, CODE: folder.parent / "code", DOOR: folder}
        if source is not None:
            assert source.guest is not None
            assert source.sandbox is not None
            async with source.guest.at_rest():
                return await source.sandbox.fork(binds=binds)
        return await self._backend.start(replace(box.image, binds=binds), limits=box.limits)

    def _check_place(self, box: Box, quota: Token) -> None:
        mine = [other for other in self._boxes.values() if other.owner == box.owner]
        if self.draining:
            raise Refused(503, "this server is draining")
        if len(mine) >= quota.sandboxes:
            raise Refused(429, f"the token has {quota.sandboxes} sandboxes at once, and no more")
        memory = sum(other.limits.memory_mb for other in mine) + box.limits.memory_mb
        if quota.memory_mb is not None and memory > quota.memory_mb:
            raise Refused(429, f"the token's sandboxes may use {quota.memory_mb} MB together, not {memory}")

    def _timeout(self, token: str, timeout_s: int) -> int:
        most = self.settings.tokens[token].lifetime_s
        if not 0 <= timeout_s <= most:
            raise Refused(400, f"timeout {timeout_s}: between 0 and the token's {most} seconds")
        return timeout_s

    def _limits(self, metadata: Mapping[str, str]) -> Limits:
        most = self.settings.most()
        try:
            asked = json.loads(metadata.get(LIMITS_KEY, "{}"))
            limits = replace(most, **{name: int(value) for name, value in asked.items()})
        except (ValueError, TypeError, AttributeError) as error:
            raise Refused(400, f"metadata {LIMITS_KEY}: {error}") from error
        for each in fields(Limits):
            value, limit = getattr(limits, each.name), getattr(most, each.name)
            if not 0 < value <= limit:
                raise Refused(400, f"limit {each.name}: between 1 and this server's {limit}, not {value}")
        return limits

    def _arm(self, box: Box) -> None:
        if box.timer is not None:
            box.timer.cancel()
        delay = max(0.0, box.ends_at - time.time())
        box.timer = asyncio.get_running_loop().call_later(delay, self._time_out, box)

    def _time_out(self, box: Box) -> None:
        task = asyncio.ensure_future(self._end(box))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _end(self, box: Box) -> None:
        """Take it out, then end it; its place is free once nothing of it is left."""
        if box.sandbox is None:
            return
        sandbox, box.sandbox = box.sandbox, None
        if box.timer is not None:
            box.timer.cancel()
        try:
            if box.guest is not None:
                await box.guest.stop()
            await sandbox.close()
            if box.guest is not None:
                await in_thread(shutil.rmtree, box.guest.folder, ignore_errors=True)
        finally:
            self._boxes.pop(box.id, None)


class Refused(Exception):
    """What a client is told, with a status of HTTP."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


FOLDERS_KEY = "envsdk_folders"
"""Key of metadata: `{"tree": NAME, "binds": {PLACE INSIDE: NAME}}` as JSON; a name is a digest, with `/file`
where it stands for a single file."""
KEPT = 256
MAX_BYTES = 8 << 30
_NAME = re.compile(r"([0-9a-f]{64})(/file)?")


class Folders:
    """Those of one server, apart for each token.

        unknown --PUT /envsdk/folders/DIGEST--> kept --many newer ones, in no sandbox--> deleted

    E2B's protocol has no such thing; clients of ours use it where it is there.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._used: dict[Path, None] = {}
        """In the order of their last use."""

    def find(self, token: str, name: str) -> Path:
        """Raises Refused: it was not sent, or is gone."""
        parts = _NAME.fullmatch(name)
        place = self._root / token / (parts[1] if parts else "")
        if parts is None or place not in self._used:
            raise Refused(404, f"folder {name} is not here: send it first")
        self._used[place] = self._used.pop(place)
        return place / "file" if parts[2] else place

    def shown(self, token: str, image: Image, asked: str | None) -> Image:
        """`image` with what a client's metadata asks for. Raises Refused."""
        try:
            wanted = json.loads(asked or "{}")
            tree, binds = wanted.get("tree"), dict(wanted.get("binds") or {})
        except (ValueError, TypeError, AttributeError) as error:
            raise Refused(400, f"metadata {FOLDERS_KEY}: {error}") from error
        return replace(
            image,
            tree=self.find(token, str(tree)) if tree else image.tree,
            binds={str(inside): self.find(token, str(name)) for inside, name in binds.items()},
        )

    async def keep(
        self, token: str, name: str, content: AsyncIterator[bytes], in_use: Iterable[Path]
    ) -> None:
        """Unpack a tar archive whose SHA-256 is `name`. Raises Refused: it is another one, or none."""
        with tempfile.TemporaryFile(dir=self._root) as archive:
            digest = hashlib.sha256()
            async for chunk in content:
                digest.update(chunk)
                await asyncio.to_thread(archive.write, chunk)
                if archive.tell() > MAX_BYTES:
                    raise Refused(413, f"the archive is longer than {MAX_BYTES} bytes")
            if digest.hexdigest() != name:
                raise Refused(400, f"the archive's SHA-256 is {digest.hexdigest()}, not {name}")
            archive.seek(0)
            await in_thread(self._unpack, archive, self._root / token / name)
        idle = [each for each in self._used if not {each, each / "file"} & {*in_use}]
        for oldest in idle[: max(0, len(self._used) - KEPT)]:
            del self._used[oldest]
            await in_thread(leases.delete, oldest)

    def _unpack(self, archive: IO[bytes], place: Path) -> None:
        made = Path(tempfile.mkdtemp(dir=self._root))
        made.chmod(0o755)
        tar = ["tar", "--extract", "--no-same-owner", "--preserve-permissions", "--directory", str(made)]
        done = subprocess.run(tar, stdin=archive, capture_output=True, check=False)
        if done.returncode or place in self._used:
            leases.delete(made)
        if done.returncode:
            raise Refused(400, f"the body is no tar archive: {done.stderr.decode(errors='replace')[:500]}")
        if place not in self._used:
            place.parent.mkdir(exist_ok=True)
            made.rename(place)
            self._used[place] = None

"""The `bubblewrap` backend."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import secrets
import stat
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from pathlib import Path, PurePosixPath
from typing import Any

from envsdk.contracts.failures import ConfigurationError
from envsdk.rewards.sandbox.bubblewrap import cgroups, leases
from envsdk.rewards.sandbox.bubblewrap.cgroups import Cgroup
from envsdk.rewards.sandbox.bubblewrap.launch import RESOLVER, RUN
from envsdk.rewards.sandbox.bubblewrap.layers import Layers, Trees
from envsdk.rewards.sandbox.bubblewrap.roots import (
    BASE_ENV,
    PATH,
    choose_base,
    lay_points,
    lower_parts,
    own_mounts,
)
from envsdk.rewards.sandbox.bubblewrap.sandbox import BubblewrapSandbox, Surroundings
from envsdk.rewards.sandbox.bubblewrap.seccomp import filter_program
from envsdk.rewards.sandbox.bubblewrap.state import (
    RENEWED,
    STAGE,
    OverlayState,
    Owner,
    SharedLayers,
    owned_copy,
)
from envsdk.rewards.sandbox.bubblewrap.system import Interpreter, interpreter, make_etc, this_system
from envsdk.rewards.sandbox.bubblewrap.watch import Watch
from envsdk.rewards.sandbox.contract import (
    ExecResult,
    Image,
    Limits,
    Root,
    SandboxError,
    SandboxUnavailable,
    check_image,
)
from envsdk.rewards.sandbox.images.build import Build
from envsdk.rewards.sandbox.settings import BubblewrapSettings, parse_settings
from envsdk.rewards.sandbox.threads import in_thread

_PROBE = 'set -e; echo probe > written; echo "$(id -u) $(cat shown)"'
_PROBE_ANSWER = "1000 shown"
NO_TREE = "no-tree"
"""Empty folder in the lease's, for images without a tree."""


class BubblewrapBackend:
    """Runs sandboxes by bubblewrap.

    new --probe (the first `start` does it)--> prepared: holds a folder --aclose--> new

    Raises ConfigurationError: a setting is unknown or wrong.
    """

    name = "bubblewrap"

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = parse_settings(BubblewrapSettings, settings, backend=self.name)
        self._prepared: Surroundings | None = None
        self._preparing: asyncio.Lock | None = None
        self._sandboxes: list[BubblewrapSandbox] = []

    async def probe(self) -> None:
        await self._prepare()

    async def start(self, image: Image, *, limits: Limits | None = None) -> BubblewrapSandbox:
        self._check(image)
        prepared = await self._prepare()
        try:
            return await self._start(prepared, image, limits or Limits())
        except OSError as error:
            raise SandboxError(f"a sandbox could not be started: {error}") from error
        except subprocess.CalledProcessError as error:
            why = error.stderr.decode(errors="replace").strip()[-500:]
            raise SandboxError(f"a sandbox could not be started: {error.cmd[0]}: {why}") from error

    async def aclose(self) -> None:
        await asyncio.gather(*(sandbox.stop() for sandbox in self._sandboxes))
        if self._prepared is not None:
            prepared, self._prepared = self._prepared, None
            await prepared.trees.copied()
            await in_thread(prepared.held.release)

    async def _prepare(self) -> Surroundings:
        self._preparing = self._preparing or asyncio.Lock()
        async with self._preparing:
            if self._prepared is None:
                self._prepared = await self._tried_out()
        return self._prepared

    async def _tried_out(self) -> Surroundings:
        """Try a sandbox for real."""
        await in_thread(leases.sweep, self.settings.state_dir, cgroups.sweep)
        lease = leases.Lease(self.settings.state_dir)
        try:
            prepared = await self._surroundings(lease)
            answer = await self._try(prepared)
            if not answer.ok or answer.output.strip() != _PROBE_ANSWER:
                why = " ".join(answer.output.split())[:500] or f"return code {answer.returncode}"
                raise SandboxUnavailable(f"bubblewrap cannot run sandboxes here: {why}. {advice(why)}")
        except BaseException:
            await in_thread(lease.release)
            raise
        weakref.finalize(self, _release, lease, os.getpid())
        return prepared

    async def _surroundings(self, lease: leases.Lease) -> Surroundings:
        uid = os.geteuid()
        owner = (
            Owner(self.settings.uid, self.settings.uid, True) if uid == 0 else Owner(uid, os.getegid(), False)
        )
        (lease.folder / NO_TREE).mkdir(exist_ok=True)
        etc = lease.folder / "etc"
        await in_thread(make_etc, etc)
        filters: dict[bool, Path] = {}
        for one_owner in (False, True):
            program = filter_program(platform.machine(), one_owner=one_owner)
            if program is not None:
                filters[one_owner] = lease.folder / f"seccomp-{one_owner:d}"
                filters[one_owner].write_bytes(program)
        python = await asyncio.to_thread(interpreter, self._python(None))
        system = await asyncio.to_thread(this_system, shows_usr_local=python.in_usr_local)
        groups = await asyncio.to_thread(cgroups.find_root)
        if groups is not None:
            groups.note(lease.folder)
        return Surroundings(
            held=lease,
            owner=owner,
            system=system,
            etc=etc,
            seccomp=filters.get(False),
            seccomp_own_root=filters.get(True),
            watch=Watch(),
            forked=SharedLayers(lease.folder),
            trees=Trees(lease.folder, owner, self.settings.kept_trees),
            layers=Layers(self.settings.state_dir / "images", self.settings.images_mb << 20),
            cgroups=groups,
            slots=asyncio.Semaphore(self.settings.commands_at_once),
        )

    async def _try(self, prepared: Surroundings) -> ExecResult:
        """A command that writes into a tree, as a sandbox's user, in a sandbox that is thrown away."""
        tree = Path(tempfile.mkdtemp(dir=prepared.held.folder))
        (tree / "shown").write_text("shown")
        sandbox = await self._start(prepared, Image(tree=tree), Limits())
        try:
            answer = await sandbox.exec(_PROBE, timeout_s=60)
        finally:
            await sandbox.close()
        if (tree / "written").exists():
            raise SandboxUnavailable(
                "a sandbox changed the tree it was to protect; this kernel's overlayfs is broken"
            )
        return answer

    async def _start(self, prepared: Surroundings, image: Image, limits: Limits) -> BubblewrapSandbox:
        python = await asyncio.to_thread(interpreter, self._python(image))
        source = (image.tree or prepared.held.folder / NO_TREE).resolve()
        layers = image.root.layers if image.root is not None else ()
        binds = {} if image.root is not None else {str(folder): folder for folder in python.outside_usr}
        if image.network:
            binds[RESOLVER] = Path(RESOLVER)
        name = secrets.token_hex(6)
        folder = prepared.held.folder / name
        async with contextlib.AsyncExitStack() as lent:
            prepared.layers.hold(layers)
            lent.callback(prepared.layers.release, layers)
            tree = await prepared.trees.borrow(source)
            lent.push_async_callback(prepared.trees.give_back, source)
            try:
                state = await in_thread(self._make, prepared, folder, tree, image, binds)
            except BaseException:
                await in_thread(leases.delete, folder)
                raise
            sandbox = BubblewrapSandbox(
                id=name,
                image=image,
                limits=limits,
                slots=prepared.slots,
                folder=folder,
                tree=tree,
                state=state,
                binds=binds,
                env={**(_environment(python) if image.root is None else BASE_ENV), **image.env},
                shared=prepared,
                cgroup=_cgroup(prepared, name, limits),
                give_back=lent.pop_all().aclose,
                own_root=own_mounts(image, image.root, binds) if image.root is not None else (),
                another=partial(self._start, prepared),
            )
        self._sandboxes = [*(other for other in self._sandboxes if not other.is_closed), sandbox]
        return sandbox

    def _make(
        self, prepared: Surroundings, folder: Path, tree: Path, image: Image, binds: dict[str, Path]
    ) -> OverlayState:
        """The sandbox's folder; `binds` gets the image's, in places that the sandbox's user may read."""
        folder.mkdir(mode=0o711)
        owner = prepared.owner
        for number, (inside, named) in enumerate(sorted(image.binds.items())):
            source = named.absolute()
            readable = not owner.is_root or _is_open(source, source.stat().st_ctime_ns)
            binds[inside] = source if readable else owned_copy(source, folder / f"bind-{number}", owner)
        parts: dict[str, list[Path]] = {"tree": [tree], "tmp": []}
        if image.root is not None:
            parts = lower_parts(prepared.layers, image.root)
            parts |= {"tree": [tree]} if image.tree is not None else {}
        stage = folder / "stage"
        for name in ("", "base", "etc", "proc", "run", "shm", RENEWED, *parts):
            (stage / name).mkdir(mode=0o755)
        for number, source in enumerate(binds.values()):
            point = stage / f"b{number}"
            if source.is_dir():
                point.mkdir()
            else:
                point.touch()
        state = OverlayState(folder, parts, owner)
        if image.root is not None:
            lay_points(state, own_mounts(image, image.root, binds), binds)
        return state

    def _python(self, image: Image | None) -> Path:
        return (image.python if image is not None else None) or self.settings.python or Path(sys.executable)

    def _check(self, image: Image) -> None:
        """Raises ConfigurationError: the image names what is not here."""
        if image.container is not None:
            raise ConfigurationError(
                f"backend `bubblewrap` shows folders of this machine, no container image ({image.container})"
            )
        if image.tree is not None and not image.tree.is_dir():
            raise ConfigurationError(f"the image's tree {image.tree} is no folder")
        check_image(image, "root", "keeps_processes", *(["network"] if self.settings.network else []))
        for path in image.binds if image.keeps_processes else ():
            if PurePosixPath(path).is_relative_to(RUN):
                raise ConfigurationError(f"the image binds {path}: its processes write in {RUN}")
        if image.network and image.root is None:
            raise ConfigurationError(
                "the network is for images with a `root`: build one, `images.build_image`"
            )

    async def build(self, build: Build) -> Image:
        from envsdk.rewards.sandbox.bubblewrap.build import build_on_layers

        return await build_on_layers(self, build)

    async def named_image(self, name: str) -> Image:
        root = await self.base(name)
        return Image(root=root, env=self.base_env(name), workdir="/")

    def base_env(self, name: str) -> Mapping[str, str]:
        """Variables of every command on a base image."""
        if self._source(name) != "host":
            return {"PATH": PATH}
        return {"PATH": f"{(self.settings.python or Path(sys.executable)).absolute().parent}:{PATH}"}

    async def base(self, name: str) -> Root:
        """The root of a base image. Raises ConfigurationError: no setting names it."""
        source = self._source(name)
        if source is None:
            raise ConfigurationError(
                f"there is no image {name!r} here: `images` of `bubblewrap` names its folder, or `host`"
            )
        prepared = await self._prepare()
        python = await asyncio.to_thread(interpreter, self._python(None))
        layer, places, fill = await in_thread(choose_base, source, prepared.system, python, prepared.owner)
        await prepared.layers.make(layer, lambda folder: in_thread(fill, folder))
        return Root(layers=(layer,), places=places)

    def bare_folder(self, name: str) -> Path | None:
        """The folder of a base image in which nothing can be run, for it has no bash."""
        source = self._source(name)
        if not isinstance(source, Path) or any(
            (source / bin / "bash").exists() for bin in ("bin", "usr/bin")
        ):
            return None
        return source.resolve()

    def _source(self, name: str) -> Path | str | None:
        """What the settings name for a base image."""
        return next((to for pattern, to in self.settings.images.items() if fnmatchcase(name, pattern)), None)

    async def layered(
        self, image: Image, name: str, work: Callable[[BubblewrapSandbox], Awaitable[None]], limits: Limits
    ) -> Image:
        """`image` with the layer `name`, of what `work` writes in a sandbox, unless there is such a layer."""
        assert image.root is not None
        prepared = await self._prepare()

        async def fill(folder: Path) -> None:
            sandbox = await self.start(image, limits=limits)
            try:
                await work(sandbox)
                await in_thread(sandbox.state.move_to, folder)
            finally:
                await sandbox.close()

        await prepared.layers.make(name, fill)
        return replace(image, root=replace(image.root, layers=(name, *image.root.layers)))


def _environment(python: Interpreter) -> dict[str, str]:
    return {
        "PATH": f"{python.executable.parent}:/usr/bin:/bin",
        "HOME": "/tmp",
        "USER": "agent",
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "PAGER": "cat",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def _cgroup(prepared: Surroundings, name: str, limits: Limits) -> Cgroup | None:
    if prepared.cgroups is None:
        return None
    with contextlib.suppress(OSError):
        return prepared.cgroups.create(prepared.held.name, name, limits)
    return None


@lru_cache(maxsize=1024)
def _is_open(path: Path, changed_ns: int) -> bool:
    """Whether every user may read all of it; looked at once, until `path` itself changes."""
    return _readable_by_others(path)


def _readable_by_others(path: Path) -> bool:
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        return mode & 0o005 == 0o005 and all(
            _readable_by_others(inner) for inner in path.iterdir() if not inner.is_symlink()
        )
    return bool(mode & 0o004)


def _release(lease: leases.Lease, holder: int) -> None:
    """At the end of the program, where `aclose` was forgotten; not in a fork of it."""
    if os.getpid() == holder:
        cgroups.sweep(lease.folder)
        lease.release()


def advice(problem: str) -> str:
    """What a person can do about what the launcher said."""
    if "bwrap" in problem and ("not found" in problem or "No such file" in problem):
        return "Install Debian's package `bubblewrap` (apt-get install bubblewrap); pip's is another program."
    if any(text in problem for text in ("disable-userns", "json-status-fd", "Unknown option")):
        return "bubblewrap 0.8 or newer is needed (Debian 12, Ubuntu 24.04)."
    if "unshare" in problem or "uid map" in problem or "Operation not permitted" in problem:
        return (
            "This machine does not let its programs make namespaces. On Ubuntu 24.04: "
            "sysctl kernel.apparmor_restrict_unprivileged_userns=0. In a container: allow namespaces and "
            "mounts (docker run --security-opt seccomp=unconfined --cap-add SYS_ADMIN). "
            "Or use another backend."
        )
    if f"{STAGE}/tree: " in problem:
        return "overlayfs is refused there: set `state_dir` to a folder on ext4, xfs, btrfs or tmpfs."
    return "Use another sandbox backend, or another machine: docs/swe-sandbox.md."

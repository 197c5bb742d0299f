"""Memory control groups, version 1 or 2, where this process may make them.

With one, the kernel counts all memory of a sandbox, page cache of `/dev/shm` and memfds included, and kills
within it. Without, `watch` counts what processes hold, a few times a second.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import re
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from envsdk.rewards.sandbox.contract import Limits

log = logging.getLogger(__name__)

_NOTE = "cgroups"
LEFT_TIMEOUT_S = 10.0
"""How long a killed process may take to leave its group: it does so after the kernel says that it ended."""
LOOK_S = 0.005


@dataclass(frozen=True, slots=True)
class Cgroup:
    """One sandbox's group."""

    folder: Path
    version: int

    def kills(self) -> int:
        """How many processes the kernel has killed in it for lack of memory."""
        name = "memory.events" if self.version == 2 else "memory.oom_control"
        with contextlib.suppress(OSError):
            found = re.search(r"^oom_kill (\d+)$", (self.folder / name).read_text(), re.MULTILINE)
            return int(found[1]) if found else 0
        return 0

    def delete(self) -> None:
        """Wait until the last of its ended processes has left it, and remove it. Idempotent."""
        until = time.monotonic() + LEFT_TIMEOUT_S
        while True:
            try:
                return self.folder.rmdir()
            except FileNotFoundError:
                return None
            except OSError as error:
                if error.errno != errno.EBUSY or time.monotonic() > until:
                    log.warning("the control group %s could not be removed: %s", self.folder, error)
                    return None
            time.sleep(LOOK_S)


@dataclass(frozen=True, slots=True)
class CgroupRoot:
    """Where groups are made."""

    folder: Path
    version: int

    def create(self, lease: str, sandbox: str, limits: Limits) -> Cgroup:
        """Raises OSError: the group, or a limit, is refused."""
        group = self.folder / f"envsdk.{lease}.{sandbox}"
        group.mkdir()
        try:
            self._limit(group, limits.memory_mb << 20)
        except OSError:
            group.rmdir()
            raise
        return Cgroup(group, self.version)

    def _limit(self, group: Path, limit: int) -> None:
        if self.version == 2:
            memory, swap, most = "memory.max", "memory.swap.max", 0
        else:
            memory, swap, most = "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", limit
        (group / memory).write_text(str(limit))
        if (group / swap).exists():
            (group / swap).write_text(str(most))

    def note(self, lease: Path) -> None:
        """Write into a lease's folder where its groups are."""
        (lease / _NOTE).write_text(f"{self.version} {self.folder}")


def sweep(lease: Path) -> None:
    """Delete the groups of a lease that is given up, whose processes have ended."""
    with contextlib.suppress(OSError):
        version, _, folder = (lease / _NOTE).read_text().partition(" ")
        for group in Path(folder).glob(f"envsdk.{lease.name}.*"):
            Cgroup(group, int(version)).delete()


def find_root() -> CgroupRoot | None:
    """Where this process can make memory groups that work; None where it cannot."""
    for candidate in _candidates():
        try:
            trial = candidate.create("trial", secrets.token_hex(6), Limits())
        except OSError:
            continue
        trial.delete()
        return candidate
    return None


def _candidates() -> Iterator[CgroupRoot]:
    own = _own_groups()
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        mount = Path(before.split()[4])
        kind, _, options = after.split(" ", 2)
        if kind == "cgroup" and "memory" in options.split(","):
            inside = mount / own.get("memory", "/").lstrip("/")
            yield CgroupRoot(inside if inside.is_dir() else mount, 1)
        elif kind == "cgroup2":
            # A group with processes of its own cannot hand the controller down, so it is the top or none.
            yield CgroupRoot(mount, 2)


def _own_groups() -> dict[str, str]:
    groups = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        groups.update(dict.fromkeys(controllers.split(","), path))
    return groups

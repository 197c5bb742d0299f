"""Podman or docker for the tests of real containers, with an image of this machine's own programs."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from resource import RLIMIT_NOFILE, RLIMIT_NPROC, getrlimit

import pytest

from envsdk.rewards.sandbox.containers import ContainerBackend, DockerBackend, PodmanBackend
from tests.envsdk.rewards.sandbox.rootfs import write_rootfs

VARIABLE = "ENVSDK_CONTAINERS"
IMAGE = "localhost/envsdk-trial:1"
_PYTEST = ("pytest", "_pytest", "py", "pluggy", "iniconfig", "packaging", "pygments")
_BACKENDS = {"podman": PodmanBackend, "docker": DockerBackend}
_CONF = """\
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
tmp_dir = "{folder}/tmp"
[containers]
default_ulimits = ["nofile={nofile}:{nofile}", "nproc={nproc}:{nproc}"]
"""
_STORAGE = """\
[storage]
driver = "{driver}"
graphroot = "{folder}/graph"
runroot = "{folder}/run"
"""


class Engine:
    """A container program that works, and its image."""

    def __init__(self, name: str) -> None:
        self.name = name

    def backend(self, **settings: object) -> ContainerBackend:
        return _BACKENDS[self.name]({"image": IMAGE, **settings})

    def call(self, *arguments: str) -> str:
        done = subprocess.run([self.name, *arguments], check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def containers(self) -> list[str]:
        return self.call("ps", "--all", "--quiet", "--filter", "label=envsdk.rewards.sandbox").split()

    def kept_images(self) -> list[str]:
        return self.call("images", "--quiet", "--filter", "label=envsdk.rewards.sandbox").split()


@contextlib.contextmanager
def open_engine(folder: Path) -> Iterator[Engine]:
    """The program that VARIABLE names. Podman keeps all in `folder`; docker is used as it is set up."""
    name = os.environ.get(VARIABLE, "")
    if name not in _BACKENDS:
        pytest.skip(f"NO REAL CONTAINER IS TESTED: set {VARIABLE}=podman, as `make test-podman` does")
    with pytest.MonkeyPatch.context() as patch:
        if name == "podman":
            patch.setenv("CONTAINERS_CONF", str(folder / "containers.conf"))
            patch.setenv("CONTAINERS_STORAGE_CONF", str(folder / "storage.conf"))
            configure_podman(folder)
        engine = Engine(name)
        write_rootfs(folder / "image.tar", [_place(module) for module in _PYTEST])
        engine.call("import", str(folder / "image.tar"), IMAGE)
        (folder / "image.tar").unlink()
        if name == "podman":
            _choose_runtime(folder / "containers.conf")
        try:
            yield engine
        finally:
            engine.call("rmi", "--force", IMAGE)
            # Podman, run by root, leaves its store mounted on itself.
            subprocess.run(["umount", folder / "graph/overlay"], check=False, capture_output=True)


def configure_podman(folder: Path) -> None:
    """Without systemd, and with limits that this user may set."""
    nofile, nproc = (min(4096, getrlimit(kind)[1]) for kind in (RLIMIT_NOFILE, RLIMIT_NPROC))
    driver = os.environ.get("STORAGE_DRIVER", "overlay")
    (folder / "storage.conf").write_text(_STORAGE.format(folder=folder, driver=driver))
    (folder / "containers.conf").write_text(_CONF.format(folder=folder, nofile=nofile, nproc=nproc))


def _choose_runtime(conf: Path) -> None:
    """The first that runs a container: some versions of crun refuse control groups of both kinds at once."""
    trial = ["run", "--rm", "--network", "none", "--memory", "64m", IMAGE, "true"]
    for runtime in ("crun", "runc"):
        done = subprocess.run(["podman", "--runtime", runtime, *trial], check=False, capture_output=True)
        if done.returncode == 0:
            conf.write_text(conf.read_text().replace("[engine]", f'[engine]\nruntime = "{runtime}"'))
            return
    pytest.fail(f"podman runs no container here: {done.stderr.decode().strip()}")


def _place(module: str) -> Path:
    found = importlib.util.find_spec(module)
    assert found is not None
    assert found.origin is not None
    origin = Path(found.origin)
    return origin.parent if origin.name == "__init__.py" else origin

"""The images of Dockerfile and Dockerfile.vllm, built and run with podman: `make test-image`.

The base is made by debootstrap and packages come from the index that pip uses here, so that no registry of
images is asked. The base of Dockerfile.vllm is a stand-in for vLLM's image: what is true of it without vLLM.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.envsdk.rewards.sandbox.engines import configure_podman

pytestmark = [pytest.mark.image, pytest.mark.timeout(3600)]

ROOT = Path(__file__).parents[2]
BASE, IMAGE = "localhost/envsdk-base:1", "localhost/envsdk-image-test:1"
VLLM_BASE, VLLM_IMAGE = "localhost/vllm-stand-in:1", "localhost/envsdk-vllm-image-test:1"
# As in vLLM's image PyTorch is there, root is the default, and there are a user `vllm` and an entry point.
VLLM_STAND_IN = f"""FROM {IMAGE}
USER root
RUN pip uninstall --yes envsdk && useradd --uid 2000 --gid 0 --create-home vllm
ENTRYPOINT ["vllm", "serve"]
"""
PACKAGES = "python3,python3-venv,bubblewrap,ca-certificates,git,mount"
TINY = [
    "max_steps=2",
    "eval_steps=0",
    "rollout_batch_size=16",
    "val_batch_size=8",
    "train_env_manager.num_env_groups=2",
    "val_env_manager.num_env_groups=8",
    "warm_start.num_episodes=50",
    "output_dir=/runs",
    "exp_name=image",
]


def call(*command: str | Path) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}: {done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Podman with a store of its own, which this folder holds; and the image in it."""
    if "ENVSDK_TEST_IMAGE" not in os.environ:
        pytest.skip("builds an image: make test-image")
    folder = tmp_path_factory.mktemp("image")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONTAINERS_CONF", str(folder / "containers.conf"))
        patch.setenv("CONTAINERS_STORAGE_CONF", str(folder / "storage.conf"))
        configure_podman(folder)
        conf = folder / "containers.conf"
        conf.write_text(conf.read_text().replace("[engine]", '[engine]\nruntime = "runc"'))
        release = re.search(r"VERSION_CODENAME=(\w+)", Path("/etc/os-release").read_text())
        assert release is not None
        call("debootstrap", "--variant=minbase", f"--include={PACKAGES}", release[1], folder / "base")
        call("tar", "-C", folder / "base", "-cf", folder / "base.tar", ".")
        call("podman", "import", folder / "base.tar", BASE)
        pip = (sys.executable, "-m", "pip", "download", "--dest", folder / "wheels")
        pip += ("-c", "constraints.txt", "-c", "constraints-cluster.txt")
        with pytest.MonkeyPatch.context() as there:
            there.chdir(ROOT)
            pin = re.search(r"^torch==.*$", Path("constraints.txt").read_text(), re.MULTILINE)
            assert pin is not None
            call(*pip, pin[0])
            call(*pip, ".[cluster,postgres,endpoint,tools,rlvr,swe]", "hatchling==1.28.0", "editables")
            build(folder, IMAGE, "--build-arg", f"BASE={BASE}", ".")
        yield folder
        subprocess.run(["umount", folder / "graph/overlay"], check=False, capture_output=True)


def build(folder: Path, image: str, *arguments: str | Path) -> None:
    call(
        *("podman", "build", "--network", "host", "--isolation", "chroot", "--tag", image),
        *("--volume", f"{folder / 'wheels'}:/wheels:ro"),
        *("--env", "PIP_NO_INDEX=1", "--env", "PIP_FIND_LINKS=/wheels", *arguments),
    )


def run(podman: Path, *arguments: str, image: str = IMAGE) -> str:
    runs = podman / "runs"
    runs.mkdir(exist_ok=True)
    runs.chmod(0o777)
    return call(
        *("podman", "run", "--rm", "--network", "host", "--shm-size", "512m", "--volume", f"{runs}:/runs"),
        *(image, *arguments),
    )


def test_the_image_trains_and_leaves_its_run_outside(podman: Path) -> None:
    said = run(podman, "train", "agentic_async.yaml", *TINY)
    assert "step 2/2" in said
    folder = podman / "runs" / "image"
    assert (folder / "checkpoints" / "step_2").is_dir() or list((folder / "checkpoints").iterdir())
    assert os.stat(folder).st_uid != 0


def test_the_image_says_what_it_can_do(podman: Path) -> None:
    assert "train" in run(podman)


def test_the_image_on_vllm_s_keeps_what_that_one_has(podman: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    (podman / "stand-in").mkdir()
    (podman / "stand-in" / "Containerfile").write_text(VLLM_STAND_IN)
    build(podman, VLLM_BASE, podman / "stand-in")
    build(podman, VLLM_IMAGE, "--file", "Dockerfile.vllm", "--build-arg", f"BASE={VLLM_BASE}", ".")
    listed = [
        call("podman", "run", "--rm", "--entrypoint", "pip", image, "list", "--format", "freeze").splitlines()
        for image in (VLLM_BASE, VLLM_IMAGE)
    ]
    assert [line.split("==")[0] for line in set(listed[1]) - set(listed[0])] == ["envsdk"]
    assert set(listed[0]) <= set(listed[1])
    assert "step 2/2" in run(podman, "train", "agentic_async.yaml", *TINY, "exp_name=vllm", image=VLLM_IMAGE)
    assert os.stat(podman / "runs" / "vllm").st_uid == 2000

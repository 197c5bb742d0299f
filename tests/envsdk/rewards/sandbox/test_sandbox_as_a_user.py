"""The bubblewrap backend for somebody who is not root."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import asyncio, concurrent.futures.thread, ctypes, importlib.metadata, os, shutil, sys
from pathlib import Path
from envsdk.rewards.sandbox import Image, Limits, open_backend
from envsdk.rewards.sandbox.bubblewrap import BubblewrapBackend, build
from envsdk.rewards.sandbox.images import build_image

folder = Path(sys.argv[1])
if os.geteuid() == 0:
    os.setgroups([]), os.setresgid(4711, 4711, 4711), os.setresuid(4711, 4711, 4711)
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # readable to itself, as a program that was never root
    sys.executable = "/usr/bin/python3"

async def main():
    settings = {"state_dir": folder / "state", "python": folder / "python", "images": {"box": "host"}}
    backend = BubblewrapBackend(settings)
    await backend.probe()
    limits = Limits(disk_mb=8, memory_mb=64, processes=20)
    sandbox = await backend.start(Image(tree=folder / "tree"), limits=limits)
    script = "id -u; grep CapEff /proc/self/status; unshare -U true 2>/dev/null || echo refused"
    print((await sandbox.exec(script, timeout_s=30)).output)
    script = "echo x >> lib.py; mkdir -p closed/in; touch closed/in/file; chmod 000 closed/in closed"
    await sandbox.exec(script, timeout_s=30)
    patch = await sandbox.diff()
    print("+x" in patch)
    snapshot = await sandbox.snapshot()
    await sandbox.exec("rm -rf lib.py .git", timeout_s=30)
    await sandbox.restore(snapshot)
    print((await sandbox.read("lib.py")).endswith(b"x\\n"))
    print((await sandbox.exec("sleep 60 & trap '' TERM; sleep 60", timeout_s=0.3)).reason)
    print((await sandbox.exec("head -c 9M /dev/zero > a", timeout_s=30)).reason)
    print((await sandbox.exec("dd if=/dev/zero of=/dev/null bs=100M count=100 & wait", timeout_s=30)).reason)
    (folder / "state/context").mkdir()
    (folder / "state/context/Dockerfile").write_text(
        "FROM box\\nRUN touch /usr/bin/new /new && useradd app && chown app /new\\n"
        "RUN rm /usr/bin/head\\nUSER app\\n"
    )
    own = await backend.start(await build_image(backend, folder / "state/context"))
    script = "id -un; ls /new /usr/bin/new; type head 2>/dev/null || echo gone"
    print((await own.exec(script, timeout_s=30)).output)
    shutil.rmtree(folder / "state/context")
    kept = await backend.start(Image(tree=folder / "tree", keeps_processes=True), limits=limits)
    await kept.exec("setsid sleep 1000 &", timeout_s=30)
    script = "grep CapEff /proc/self/status; pgrep -c -f 'sleep 1000'"
    print(" ".join((await kept.exec(script, timeout_s=30)).output.split()[:3]))
    script = "exec 2> /tmp/x; readlink /proc/1/root || unshare -U true || echo refused"
    print((await kept.exec(script, timeout_s=30)).output)
    print((await kept.exec("sleep 60", timeout_s=0.3)).reason)
    print((await kept.exec("dd if=/dev/zero of=/dev/null bs=100M count=100 & wait", timeout_s=30)).reason)
    print((await kept.exec("pgrep -f 'sleep 1000' || echo gone", timeout_s=30)).output)
    await backend.aclose()
    print(os.listdir(folder / "state"))

asyncio.run(main())
"""


def test_a_normal_user_has_the_same_sandboxes(tmp_path: Path, repository: Path) -> None:
    # Reachable for a user who may not see this one's folders, and with a Python that lives in /usr.
    folder = Path(subprocess.check_output(["mktemp", "-d", "/tmp/envsdk-test-XXXXXX"], text=True).strip())
    try:
        folder.chmod(0o755)
        shutil.copytree(repository, folder / "tree")
        (folder / "python").write_text("#!/bin/sh\necho /usr\necho /usr\n")
        (folder / "python").chmod(0o755)
        (folder / "state").mkdir()
        if os.geteuid() == 0:
            subprocess.run(["chown", "-R", "4711:4711", folder], check=True)
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, folder], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.split() == [
            *("1000", "CapEff:", "0" * 16, "refused", "True", "True"),
            *("timeout", "disk_limit", "out_of_memory"),
            *("app", "/new", "/usr/bin/new", "gone"),
            *("CapEff:", "0" * 16, "1", "refused", "timeout", "out_of_memory", "gone", "['images']"),
        ]
    finally:
        shutil.rmtree(folder)

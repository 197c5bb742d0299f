"""What a sandbox holds against attacks, once more with a root of its own that commands may write."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from envsdk.contracts.failures import ConfigurationError
from envsdk.rewards.sandbox import ExecEnd, Image, Limits
from envsdk.rewards.sandbox.bubblewrap import BubblewrapBackend
from envsdk.rewards.sandbox.bubblewrap.sandbox import BubblewrapSandbox
from tests.envsdk.rewards.sandbox import (
    test_sandbox_attacks_on_files,
    test_sandbox_attacks_on_git,
    test_sandbox_attacks_on_networks,
    test_sandbox_attacks_on_processes,
)
from tests.envsdk.rewards.sandbox.boxes import Start, said

pytestmark = pytest.mark.asyncio(loop_scope="module")

DIFFERENT = {
    "test_the_system_cannot_be_changed",
    "test_secrets_of_the_machine_are_not_there",
    "test_reading_through_a_link_stays_inside",
    "test_writing_where_nothing_may_be_written_is_refused",
    "test_privileges_cannot_be_gained",
    "test_the_user_outside_is_not_root",
    "test_namespaces_mounts_and_devices_are_refused",
    # Their paths on this machine are those of sandboxes without a root of their own.
    "test_two_sandboxes_do_not_hear_each_other",
    "test_cancelling_a_command_ends_it",
}
"""Attacks on what such a sandbox does not promise, each with its counterpart below."""

listener = test_sandbox_attacks_on_networks.listener
for module in (
    test_sandbox_attacks_on_files,
    test_sandbox_attacks_on_git,
    test_sandbox_attacks_on_networks,
    test_sandbox_attacks_on_processes,
):
    globals().update(
        (name, pytest.mark.slow(test))
        for name, test in vars(module).items()
        if name.startswith("test_") and name not in DIFFERENT
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backend(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[BubblewrapBackend]:
    state = tmp_path_factory.mktemp("state") / "sandboxes"
    backend = BubblewrapBackend({"state_dir": state, "images": {"*": "host"}})
    await backend.probe()
    yield backend
    await backend.aclose()


@pytest.fixture
def start(backend: BubblewrapBackend, repository: Path) -> Start:
    async def start(*, limits: Limits | None = None, **fields: object) -> BubblewrapSandbox:
        image = await backend.named_image("any")
        given = {"tree": repository, "root": image.root, "env": image.env} | fields
        return await backend.start(Image(**given), limits=limits)

    return start


async def test_everything_may_be_written_and_nothing_of_it_reaches_the_machine(
    start: Start, sandbox: BubblewrapSandbox
) -> None:
    before = {
        name: (found.st_ino, found.st_mtime_ns)
        for name in ("/usr/bin", "/etc", "/")
        if (found := os.stat(name))
    }
    script = (
        "touch /usr/bin/new /etc/new /new /root/new /var/lib/new && rm /usr/bin/head && cp -f ls /usr/bin/wc"
    )
    said(await sandbox.exec(script, timeout_s=60, cwd="/usr/bin"))
    assert (await sandbox.exec("head", timeout_s=60)).returncode == 127
    assert {name: (os.stat(name).st_ino, os.stat(name).st_mtime_ns) for name in before} == before
    other = await start()
    assert (
        said(await other.exec("ls -d /new /usr/bin/new 2>/dev/null; type -P head", timeout_s=60))
        == "/usr/bin/head"
    )
    await other.close()


async def test_files_of_the_machine_are_of_nobody_and_keep_their_content(sandbox: BubblewrapSandbox) -> None:
    denied = await sandbox.exec("echo x >> /usr/bin/bash", timeout_s=60)
    assert "Permission denied" in denied.output
    assert said(
        await sandbox.exec("stat -c %u /usr/bin/bash; stat -c %u /usr/bin; ls /home /root /srv", timeout_s=60)
    ).split()[:2] == ["65534", "0"]


@pytest.mark.parametrize(
    "attack",
    [
        "mv /{top} /moved && ln -s /oldroot/tmp /{top}",
        # As long as the machine's folder is large.
        pytest.param("rm -rf /{top}; ln -s /oldroot/tmp /{top}", marks=pytest.mark.slow),
        "mv /{top}/{next} /{top}/x",
        "mv /usr /x",
        "mv /run /x; rm -rf /proc /dev",
    ],
)
async def test_no_link_takes_the_place_of_what_leads_to_a_mount(
    sandbox: BubblewrapSandbox, attack: str, tmp_path: Path
) -> None:
    deepest = max(sandbox.image.root.places, key=lambda place: place.count("/"))
    top, following = f"{deepest}/bin".split("/")[1:3]
    await sandbox.exec(attack.replace("{top}", top).replace("{next}", following), timeout_s=60)
    result = await sandbox.exec("python -c 'print(1)'", timeout_s=60)
    assert result.reason is ExecEnd.EXIT
    assert not (await sandbox.exec(f"test -L /{top}", timeout_s=60)).ok


async def test_no_secret_of_the_machine_is_part_of_a_base(sandbox: BubblewrapSandbox) -> None:
    secrets = "/etc/ssl/private /etc/ssh /home/* /root/.ssh /root/.bash* /var/lib/* /sys/*"
    script = f"ls -d {secrets} 2>/dev/null; grep -c . /etc/shadow"
    assert said(await sandbox.exec(script, timeout_s=60)) == "2"


async def test_limits_hold_where_the_shell_was_replaced(start: Start) -> None:
    sandbox = await start(limits=Limits(processes=20))
    replaced = "#!/usr/bin/python3\nimport os, sys\nos.execv('/usr/bin/dash', ['bash', '/run/command'])\n"
    await sandbox.write("/fake", replaced.encode())
    said(await sandbox.exec("chmod +x /fake && rm /usr/bin/bash && mv /fake /usr/bin/bash", timeout_s=60))
    result = await sandbox.exec(
        "ulimit -p; for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23; do sleep 5 & done",
        timeout_s=60,
    )
    assert "fork" in result.output
    await sandbox.close()


async def test_a_root_without_a_shell_is_the_policys_doing(start: Start) -> None:
    sandbox = await start()
    said(await sandbox.exec("rm -f /usr/bin/bash", timeout_s=60))
    result = await sandbox.exec("true", timeout_s=60)
    assert (result.reason, result.returncode) == (ExecEnd.EXIT, 1)
    await sandbox.close()


async def test_an_image_with_a_link_on_the_way_to_a_mount_is_refused(start: Start, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no folder at /bin"):
        await start(binds={"/bin/x": tmp_path})

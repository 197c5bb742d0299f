"""The backend `fleet`, over hosts that work, fail, hang and come and go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from envsdk.contracts.failures import ConfigurationError
from envsdk.rewards.sandbox import ExecEnd, Image, SandboxError, SandboxUnavailable, open_backend
from envsdk.rewards.sandbox.fleet.backend import FleetBackend
from tests.envsdk.rewards.sandbox.boxes import said, until
from tests.envsdk.rewards.sandbox.fake_hosts import FAKE, HOSTS, FakeHost


@pytest.fixture(autouse=True)
def _no_hosts() -> Iterator[None]:
    HOSTS.clear()
    yield
    for host in HOSTS.values():
        assert not host.is_open
        assert not (host.answers and host.sandboxes)


def host_named(name: str, **behavior: Any) -> dict[str, Any]:
    HOSTS[name] = FakeHost(**behavior)
    return {"name": name, "backend": FAKE, "settings": {"host": name}}


@asynccontextmanager
async def fleet(*hosts: dict[str, Any], **settings: Any) -> AsyncIterator[FleetBackend]:
    backend = FleetBackend({"hosts": hosts, **settings} if hosts else settings)
    try:
        yield backend
    finally:
        await backend.aclose()


async def test_sandboxes_are_spread_over_hosts_and_none_is_left() -> None:
    async with fleet(host_named("a"), host_named("b")) as backend:
        sandboxes = await asyncio.gather(*(backend.start(Image()) for _ in range(8)))
        assert [len(HOSTS[name].sandboxes) for name in "ab"] == [4, 4]
        assert len({sandbox.id for sandbox in sandboxes}) == 8
        await asyncio.gather(*(sandbox.close() for sandbox in sandboxes[:7]))
        await sandboxes[0].close()
        assert sum(len(HOSTS[name].sandboxes) for name in "ab") == 1
    assert (await sandboxes[7].exec("true", timeout_s=1)).reason is ExecEnd.INFRASTRUCTURE
    assert not await sandboxes[7].alive()


async def test_a_closed_fleet_begins_anew() -> None:
    async with fleet(host_named("a")) as backend:
        await backend.start(Image())
        await backend.aclose()
        assert (await (await backend.start(Image())).exec("hello", timeout_s=1)).output == "hello"


async def test_hosts_that_hang_or_fail_delay_a_start_and_do_not_end_it() -> None:
    async with fleet(
        host_named("a", starts="never"),
        host_named("b", starts="fails"),
        host_named("c"),
        attempt_timeout_s=0.3,
    ) as backend:
        for _ in range(4):
            await backend.start(Image())
        assert HOSTS["c"].num_started == 4


async def test_a_start_that_no_host_manages_says_what_is_wrong_with_each() -> None:
    async with fleet(
        host_named("a", starts="never"),
        host_named("b", starts="fails"),
        attempt_timeout_s=0.3,
        start_timeout_s=0.6,
    ) as backend:
        with pytest.raises(SandboxError, match=r"a: a start took longer.*b: SandboxError: no disk"):
            await backend.start(Image())


async def test_a_host_that_is_full_is_asked_again_and_not_left_out(caplog: pytest.LogCaptureFixture) -> None:
    hosts = [host_named(name, starts="is full") for name in "ab"]
    async with fleet(*hosts, max_failures=1) as backend:
        first, second = await backend.start(Image()), await backend.start(Image())
        third = asyncio.create_task(backend.start(Image()))
        await first.close()
        await third
        assert (await second.exec("true", timeout_s=1)).ok
        assert not caplog.text


async def test_an_image_that_no_host_takes_is_the_callers_error() -> None:
    async with fleet(host_named("a", starts="refuses"), host_named("b", starts="refuses")) as backend:
        with pytest.raises(ConfigurationError, match="no containers here"):
            await backend.start(Image())


async def test_a_command_on_a_host_that_hangs_ends_as_infrastructure(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("envsdk.rewards.sandbox.fleet.backend.END_TIMEOUT_S", 0.2)
    async with fleet(host_named("a"), host_named("b"), silence_s=0.4) as backend:
        first, second = await backend.start(Image()), await backend.start(Image())
        hanging, working = (first, second) if first.id in HOSTS["a"].sandboxes else (second, first)
        HOSTS["a"].answers = False
        result = await hanging.exec("true", timeout_s=600)
        assert result.reason is ExecEnd.INFRASTRUCTURE
        assert "host a: it did not answer" in result.output
        with pytest.raises(SandboxError, match="did not answer"):
            await hanging.read("file")
        await hanging.close()
        assert (await working.exec("true", timeout_s=1)).ok
    assert "a sandbox is left to its host: TimeoutError" in caplog.text


async def test_what_breaks_in_a_sandbox_counts_against_its_host(caplog: pytest.LogCaptureFixture) -> None:
    async with fleet(host_named("a"), max_failures=2) as backend:
        sandbox = await backend.start(Image())
        assert (await sandbox.exec("break", timeout_s=1)).reason is ExecEnd.INFRASTRUCTURE
        assert not await sandbox.alive()
        await sandbox.close()
        sandbox = await backend.start(Image())
        with pytest.raises(SandboxError, match="reset"):
            await sandbox.read("file")
        await sandbox.close()
        assert "sandbox host a is left out for 5 s: file: the connection was reset" in caplog.text


async def test_a_sandbox_that_went_away_is_noticed_without_a_command() -> None:
    async with fleet(host_named("a"), silence_s=0.4) as backend:
        gone, there = await backend.start(Image()), await backend.start(Image())
        HOSTS["a"].sandboxes.discard(gone.id)
        result = await gone.exec("wait", timeout_s=600)
        assert result.reason is ExecEnd.INFRASTRUCTURE
        assert (await there.exec("true", timeout_s=1)).ok


async def test_a_cancelled_start_and_a_cancelled_command_leave_nothing() -> None:
    async with fleet(host_named("a", starts="never"), host_named("b"), attempt_timeout_s=0.3) as backend:
        starting = asyncio.create_task(backend.start(Image()))
        await until(lambda: HOSTS["a"].is_open)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        sandbox = await backend.start(Image())
        command = asyncio.create_task(sandbox.exec("wait", timeout_s=600))
        await asyncio.sleep(0)
        command.cancel()
        with pytest.raises(asyncio.CancelledError):
            await command
        assert (await sandbox.exec("true", timeout_s=1)).ok


async def test_a_fork_is_leased_and_closed_as_any_other() -> None:
    async with fleet(host_named("a")) as backend:
        sandbox = await backend.start(Image())
        fork = await sandbox.fork()
        await sandbox.close()
        assert (await fork.exec("true", timeout_s=1)).ok
        await fork.close()
        assert not HOSTS["a"].sandboxes


async def test_one_host_that_works_is_enough_for_a_probe() -> None:
    async with fleet(host_named("a", starts="fails"), host_named("b")) as backend:
        await backend.probe()
    async with fleet(host_named("a", starts="fails"), host_named("b", starts="refuses")) as backend:
        with pytest.raises(SandboxUnavailable, match=r"no host .*it fails; it refuses"):
            await backend.probe()


async def test_a_host_is_drained_after_its_last_lease() -> None:
    async with fleet(host_named("a"), host_named("b", starts="fails")) as backend:
        sandbox = await backend.start(Image())
        backend.drain("a")
        assert (await sandbox.exec("true", timeout_s=1)).ok, "a drained host keeps its leases"
        await sandbox.close()
        await until(lambda: not HOSTS["a"].is_open)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "hosts"),
        ({"hosts": []}, "hosts"),
        ({"hosts_file": "x"}, "hosts_file"),
        ({"hosts": [{"backend": "bublewrap"}]}, "bubblewrap"),
        ({"hosts": [{"backend": "bubblewrap", "settings": {"pyton": "x"}}]}, "pyton"),
        ({"hosts": [{"backend": "bubblewrap", "place": 1}]}, r"hosts\[0\].place: .*`places`"),
        ({"hosts": [{"name": "a", "backend": "bubblewrap"}] * 2}, "the same name"),
        ({"hosts": [{"backend": "unsandboxed"}]}, "`unsandboxed` is no sandbox"),
    ],
)
def test_wrong_settings_are_refused_where_they_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        open_backend("fleet", settings)


async def test_real_sandboxes_on_two_hosts_run_commands_and_make_patches(
    repository: Path, tmp_path: Path
) -> None:
    hosts = [
        {"backend": "bubblewrap", "settings": {"state_dir": str(tmp_path / f"state-{number}")}}
        for number in range(2)
    ]
    async with fleet(*hosts, commands_at_once=2) as backend:
        await backend.probe()
        sandboxes = await asyncio.gather(*(backend.start(Image(tree=repository)) for _ in range(4)))
        for sandbox in sandboxes:
            said(await sandbox.exec("sed -i s/1/2/ lib.py", timeout_s=60))
            assert "+    return 2" in await sandbox.diff()
        assert all(len(list((tmp_path / f"state-{number}").iterdir())) == 1 for number in range(2))
    assert not any(list((tmp_path / f"state-{number}").iterdir()) for number in range(2))

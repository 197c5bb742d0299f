"""The services of a task's compose file: containers in the network of its box, which end with it."""

from __future__ import annotations

import asyncio
import hashlib
import shlex
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from envsdk.base.store.atomic import make_folder, write_atomically
from envsdk.base.store.cache import cache_folder
from envsdk.envs.terminal.harbor.compose import HEALTHY, LOGS, MAIN_IMAGE, Compose, Service, read_compose
from envsdk.envs.terminal.harbor.config import MAIN, Healthcheck
from envsdk.envs.terminal.harbor.folder import Box
from envsdk.rewards.sandbox import ExecEnd, Image, Limits, Sandbox, SandboxBackend, SandboxError
from envsdk.rewards.sandbox.containers import CliContainer, CliSandbox, ContainerBackend
from envsdk.rewards.sandbox.images import build_image, named_image
from envsdk.rewards.sandbox.remote import Shell


class BoxBroken(Exception):
    """A box that its task does not make right: the task's fault, and no score of the episode."""


async def be_healthy(tried: Callable[[], Awaitable[str | None]], check: Healthcheck, where: str) -> None:
    """Wait until a try gives None, not its output. Raises BoxBroken: it has failed as often as it may."""
    clock = asyncio.get_running_loop().time
    counts_from, failures = clock() + check.start_period_sec, 0
    while (output := await tried()) is not None:
        starting = clock() < counts_from
        failures += not starting
        if failures >= check.retries:
            raise BoxBroken(f"{where}: failed {failures} times: {output.strip()[-300:] or 'it says nothing'}")
        await asyncio.sleep(check.start_interval_sec if starting else check.interval_sec)


async def start_with_services(
    backend: SandboxBackend, box: Box, image: Image, limits: Limits, variables: Mapping[str, str]
) -> Sandbox:
    """A box of `image` and, in its network, the services of its compose file, which are healthy.

    Raises ConfigurationError: an image cannot be made, or a variable is missing.
    Raises BoxBroken: a service ends at once, or does not get healthy.
    """
    assert box.compose is not None
    compose, folder = read_compose(box.compose, box.config, variables), box.compose.parent

    def fitted(image: Image, service: Service) -> Image:
        shown = (each for each in service.binds.items() if each[1] not in LOGS.values())
        binds = {inside: (folder / source).resolve() for inside, source in shown}
        hosts = {"/etc/hosts": _hosts(compose)} if compose.needs_engine else {}
        return replace(
            image,
            env=_given(service.environment, variables),
            binds={**binds, **hosts},
            volumes=service.volumes,
        )

    async def made(service: Service) -> Image:
        if service.build is not None:
            return await built(backend, box, service.build, variables)
        return image if service.image == MAIN_IMAGE else await named_image(backend, service.image)

    images = {name: fitted(await made(service), service) for name, service in compose.services.items()}
    main = fitted(image, compose.main)
    workdir = box.config.workdir or compose.main.working_dir or image.workdir
    sandbox = await backend.start(
        replace(main, env={**main.env, **image.env}, workdir=workdir), limits=limits
    )
    try:
        for name, service in compose.services.items():
            for other, condition in service.depends_on.items():
                if condition == HEALTHY and other != MAIN:
                    await _await_health(sandbox, other, compose)
            assert isinstance(backend, ContainerBackend)
            assert isinstance(sandbox, CliSandbox)
            try:
                await backend.start_beside(sandbox, name, images[name], *_call(service, folder))
            except SandboxError as error:
                raise type(error)(f"service {name}: {error}") from error
        for name in compose.services:
            await _await_health(sandbox, name, compose)
    except BaseException:
        await sandbox.close()
        raise
    return sandbox


async def built(
    backend: SandboxBackend, box: Box, build: Mapping[str, Any], variables: Mapping[str, str]
) -> Image:
    """The image of a service's `build`."""
    assert box.compose is not None
    said = {**build, "context": box.compose.parent / build["context"]}
    said["args"] = _given(build["args"], variables)
    return await build_image(backend, **said, timeout_s=box.config.build_timeout_sec)


def _given(pairs: Mapping[str, str | None], variables: Mapping[str, str]) -> dict[str, str]:
    values = {name: variables.get(name) if text is None else text for name, text in pairs.items()}
    return {name: text for name, text in values.items() if text is not None}


def _hosts(compose: Compose) -> Path:
    """A file by which every name means this machine: in another's network, podman takes no `--add-host`."""
    text = f"127.0.0.1 localhost {' '.join(sorted({MAIN, *compose.services}))}\n::1 localhost\n"
    file = cache_folder() / "terminal" / "hosts" / hashlib.sha256(text.encode()).hexdigest()[:16]
    if not file.is_file():
        make_folder(file.parent)
        write_atomically(file, text.encode())
    return file


def _call(service: Service, folder: Path) -> tuple[list[str], list[str]]:
    """Options of `run`, and what is run; nothing where the image says it."""
    said = {"user": service.user, "workdir": service.working_dir}
    options = [f"--{name}={value}" for name, value in said.items() if value]
    lines = (line for path in service.env_file for line in assignments(folder / path))
    options += [f"--env={line}" for line in lines if line.partition("=")[0] not in service.environment]
    program, *words = service.entrypoint or [""]
    options += [f"--entrypoint={program}"] if service.entrypoint is not None else []
    return options, [*words, *(service.command or ())]


def assignments(file: Path) -> Iterator[str]:
    """NAME=VALUE of each line, without quotes, comments and `export`, which `--env-file` keeps."""
    for line in file.read_text(encoding="utf-8").splitlines():
        try:
            words = shlex.split(line, comments=True)
        except ValueError:
            words = [line.strip()]
        if "=" in (text := " ".join(words[words[:1] == ["export"] :])):
            yield text


async def _await_health(sandbox: Sandbox, name: str, compose: Compose) -> None:
    """Raises BoxBroken: the service has ended, or is not healthy in time."""
    container, check = _beside(sandbox)[name], compose.services[name].healthcheck

    async def tried() -> str | None:
        if why := await container.failure():
            raise BoxBroken(f"service {name}: {why}")
        if check is None:
            return None
        ended = await container.shell(Shell(argv=shlex.split(check.command), timeout_s=check.timeout_sec))
        return None if (ended.reason, ended.returncode) == (ExecEnd.EXIT, 0) else ended.output.text()

    await be_healthy(tried, check or Healthcheck(command=""), f"service {name}: healthcheck")


async def failed_services(sandbox: Sandbox) -> tuple[str, ...]:
    """Which services of a box have ended with an error since they were healthy, which is an agent's doing."""
    ended = [(name, await container.failure()) for name, container in _beside(sandbox).items()]
    return tuple(f"service {name}: {why}" for name, why in ended if why)


def _beside(sandbox: Sandbox) -> Mapping[str, CliContainer]:
    container = sandbox.container if isinstance(sandbox, CliSandbox) else None
    return container.beside if isinstance(container, CliContainer) else {}

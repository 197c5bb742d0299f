"""The services of a task's compose file: containers in the network of its box, which end with it."""

from __future__ import annotations

import asyncio
import hashlib
import shlex
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path

from envsdk.base.store.atomic import make_folder, write_atomically
from envsdk.base.store.cache import cache_folder
from envsdk.envs.terminal.harbor.compose import MAIN_IMAGE, Compose, Service, read_compose
from envsdk.envs.terminal.harbor.config import MAIN, Healthcheck
from envsdk.envs.terminal.harbor.folder import Box
from envsdk.rewards.sandbox import ExecEnd, Image, Limits, Sandbox, SandboxBackend
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
            raise BoxBroken(f"{where}: failed {failures} times: {output.strip()[-300:]}")
        await asyncio.sleep(check.start_interval_sec if starting else check.interval_sec)


async def start_with_services(
    backend: SandboxBackend, box: Box, image: Image, limits: Limits, variables: Mapping[str, str]
) -> Sandbox:
    """A box of `image` and, in its network, all services of its compose file, which are healthy.

    Raises ConfigurationError: an image cannot be made, or a variable is missing.
    Raises BoxBroken: a service ends at once, or does not get healthy.
    """
    assert box.compose is not None
    compose, folder = read_compose(box.compose, box.config, variables), box.compose.parent
    images = {}
    for name, service in compose.beside.items():
        is_main = service.image == MAIN_IMAGE and service.build is None
        made = image if is_main else await _image(service, folder, box, backend, variables)
        images[name] = _fitted(made, service, compose, folder, variables)
    main = _fitted(image, compose.main, compose, folder, variables)
    workdir = box.config.workdir or compose.main.working_dir or image.workdir
    main = replace(main, env={**main.env, **image.env}, workdir=workdir)
    sandbox = await backend.start(main, limits=limits)
    try:
        for name, service in compose.beside.items():
            for other, dependency in service.depends_on.items():
                if dependency.condition == "service_healthy":
                    await _await_health(sandbox, other, compose)
            assert isinstance(backend, ContainerBackend)
            assert isinstance(sandbox, CliSandbox)
            await backend.start_beside(sandbox, name, images[name], *_call(service, folder))
        for name in compose.beside:
            await _await_health(sandbox, name, compose)
    except BaseException:
        await sandbox.close()
        raise
    return sandbox


async def _image(
    service: Service, folder: Path, box: Box, backend: SandboxBackend, variables: Mapping[str, str]
) -> Image:
    if (build := service.build) is None:
        return await named_image(backend, service.image or "")
    return await build_image(
        backend,
        (folder / build.context).resolve(),
        dockerfile=build.dockerfile,
        target=build.target,
        args=_given(build.args, variables),
        timeout_s=box.config.build_timeout_sec,
    )


def _fitted(
    image: Image, service: Service, compose: Compose, folder: Path, variables: Mapping[str, str]
) -> Image:
    """An image with a service's variables and volumes; other services' names mean this machine."""
    if not compose.needs_engine:
        return replace(image, env=_given(service.environment, variables))
    own = (each for each in service.volumes if each.source.startswith("."))  # logs are in every box
    binds = {each.target: (folder / each.source).resolve() for each in own}
    volumes = {
        each.target: f"{each.source}:ro" if each.read_only else each.source
        for each in service.volumes
        if each.type == "volume"
    }
    return replace(
        image,
        env=_given(service.environment, variables),
        binds={**binds, "/etc/hosts": _hosts(sorted({MAIN, *compose.services}))},
        volumes=volumes,
    )


def _given(pairs: Mapping[str, str | None], variables: Mapping[str, str]) -> dict[str, str]:
    """Those without a value have their variable's, or are left out."""
    values = {name: variables.get(name) if value is None else value for name, value in pairs.items()}
    return {name: value for name, value in values.items() if value is not None}


def _hosts(names: list[str]) -> Path:
    text = f"127.0.0.1 localhost {' '.join(names)}\n::1 localhost\n"
    file = cache_folder() / "terminal" / "hosts" / hashlib.sha256(text.encode()).hexdigest()[:16]
    if not file.is_file():
        make_folder(file.parent)
        write_atomically(file, text.encode())
    return file


def _call(service: Service, folder: Path) -> tuple[list[str], list[str]]:
    """Options of `run`, and what is run; nothing where the image says it."""
    options = [f"--env-file={folder / path}" for path in service.env_file]
    options += [f"--user={service.user}"] if service.user else []
    options += [f"--workdir={service.working_dir}"] if service.working_dir else []
    program, *words = service.entrypoint or [""]
    options += [f"--entrypoint={program}"] if service.entrypoint is not None else []
    return options, [*words, *(service.command or ())]


async def _await_health(sandbox: Sandbox, name: str, compose: Compose) -> None:
    """Raises BoxBroken: the service has ended, or is not healthy in time."""
    container, check = _beside(sandbox).get(name), compose.services[name].healthcheck.plan
    if container is None:
        return

    async def tried() -> str | None:
        if code := await container.exit_code():
            raise BoxBroken(f"service {name}: ended with code {code}: {await container.printed()}")
        if check is None:
            return None
        shell = Shell(argv=shlex.split(check.command), timeout_s=check.timeout_sec)
        ended = await container.shell(shell)
        is_well = ended.reason is ExecEnd.EXIT and ended.returncode == 0
        return None if is_well else ended.output.text()

    await be_healthy(tried, check or Healthcheck(command=""), f"service {name}: healthcheck")


async def failed_service(sandbox: Sandbox) -> str:
    """Which service of a box has ended with an error; empty where none has."""
    for name, container in _beside(sandbox).items():
        if code := await container.exit_code():
            return f"service {name} has ended with code {code}: {await container.printed()}"
    return ""


def _beside(sandbox: Sandbox) -> Mapping[str, CliContainer]:
    if not isinstance(sandbox, CliSandbox):
        return {}
    assert isinstance(sandbox.container, CliContainer)
    return sandbox.container.beside

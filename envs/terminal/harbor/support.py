"""What of a task's format no sandbox here can do, by file and key; pure.

`refusals` keep a task from being played. `remarks` are said first: keys with less effect than in Harbor.
"""

from __future__ import annotations

from collections.abc import Iterator

from envsdk.envs.terminal.harbor.compose import read_compose
from envsdk.envs.terminal.harbor.config import MAIN, Environment, NetworkMode, covers_checks
from envsdk.envs.terminal.harbor.folder import COMPOSE, CONFIG, Box, HarborTask, Stage

MAX_MB = 1 << 32
"""What limits can say of memory and disks."""


def refusals(task: HarborTask, *, has_network: bool = False, has_engine: bool = False) -> list[str]:
    """`FILE: KEY: why`, each once; empty for a task that can be played.

    With `has_engine` the sandboxes are containers, which may have others beside them.
    """
    found = [*_of_box(task, task.box, "environment")]
    for stage in task.stages:
        found += _of_stage(task, stage)
    found += [*(_of_networks(task) if has_network else ()), *_of_services(task, has_engine)]
    return list(dict.fromkeys(found))


def remarks(task: HarborTask, *, has_network: bool) -> list[str]:
    """Sentences about keys without effect, or with another one than in Harbor."""
    said = [f"{CONFIG}: {why}" for why in task.odd]
    if not has_network and any(stage.network[0] is NetworkMode.PUBLIC for stage in task.stages):
        said.append(f"{CONFIG}: environment.network_mode: is public, but commands here have no network")
    for stage in task.stages:
        is_cut = stage.verifier.box is None and stage.network[0] is not NetworkMode.PUBLIC
        if stage.verifier.network[0] is NetworkMode.PUBLIC and (is_cut or not has_network):
            said.append(f"{CONFIG}: verifier: has a public network in Harbor, and none here")
        for key, (mode, hosts) in (("agent", stage.network), ("verifier", stage.verifier.network)):
            if mode is NetworkMode.ALLOWLIST:
                said.append(f"{CONFIG}: {key}.network_mode: allowlist: none is reached ({', '.join(hosts)})")
    if task.config.environment.cpus is not None:
        said.append(f"{CONFIG}: environment.cpus: limits nothing here")
    if not task.is_separate:
        said.append(f"{CONFIG}: verifier.environment_mode: shared: the agent can reach what checks it")
    for box in task.boxes:
        folder = box.compose.parent if box.compose else box.context or box.laid
        if folder and (other := folder / COMPOSE.replace("yaml", "yml")).is_file():
            said.append(f"{other.relative_to(task.folder)}: is not read, as in Harbor: name it {COMPOSE}")
        if (file := box.compose) is not None:
            keys = read_compose(file, box.config).without_effect
            said += [f"{file.relative_to(task.folder)}: {key}: changes nothing here" for key in keys]
    return list(dict.fromkeys(said))


def _of_networks(task: HarborTask) -> Iterator[str]:
    """A box that has been started keeps its network, or has none."""
    if len({stage.network[0] is NetworkMode.PUBLIC for stage in task.stages}) > 1:
        yield f"{CONFIG}: steps.agent.network_mode: the steps' networks differ, and they share one box"
    for stage in task.stages:
        wanted = stage.verifier.network[0] is NetworkMode.PUBLIC
        if stage.verifier.box is None and stage.network[0] is NetworkMode.PUBLIC and not wanted:
            yield f"{CONFIG}: verifier.network_mode: is less than the agent's, and they share one box"


def _of_stage(task: HarborTask, stage: Stage) -> Iterator[str]:
    if stage.verifier.box is not None:
        yield from _of_box(task, stage.verifier.box, "verifier.environment")
    for artifact in stage.artifacts:
        if stage.verifier.box is not None and covers_checks(artifact.source):
            yield f"{CONFIG}: artifacts: {artifact.source}: would take the place of the verifier's own files"
    for key, timeout_s in (("agent", stage.timeout_s), ("verifier", stage.verifier.timeout_s)):
        if timeout_s is not None and timeout_s <= 0:
            yield f"{CONFIG}: {key}.timeout_sec: {timeout_s:g}: nothing can be done in this time"
    services = [("artifacts", each.service) for each in stage.artifacts]
    services += [("verifier.collect", each.service) for each in stage.collect]
    for key, service in services:
        if service not in (None, MAIN):
            yield f"{CONFIG}: {key}.service: {service}: nothing is taken of services beside the box"


def _of_box(task: HarborTask, box: Box, key: str) -> Iterator[str]:
    config: Environment = box.config
    if config.gpus:
        yield f"{CONFIG}: {key}.gpus: {config.gpus}: sandboxes have no GPU"
    if config.tpu is not None:
        yield f"{CONFIG}: {key}.tpu: sandboxes have no TPU"
    if config.workdir and not config.workdir.startswith("/"):
        yield f"{CONFIG}: {key}.workdir: {config.workdir}: is no absolute path"
    for limit, seconds in (
        ("build_timeout_sec", config.build_timeout_sec),
        ("healthcheck.timeout_sec", config.healthcheck.timeout_sec if config.healthcheck else 1.0),
    ):
        if seconds <= 0:
            yield f"{CONFIG}: {key}.{limit}: {seconds:g}: nothing can be done in this time"
    for size, megabytes in (("memory_mb", config.memory_mb), ("storage_mb", config.storage_mb)):
        if megabytes is not None and not 0 <= megabytes < MAX_MB:
            yield f"{CONFIG}: {key}.{size}: {megabytes}: is no size"


def _of_services(task: HarborTask, has_engine: bool) -> Iterator[str]:
    for box in task.boxes:
        if (file := box.compose) is not None:
            name, compose = file.relative_to(task.folder), read_compose(file, box.config)
            if compose.needs_engine and not has_engine:
                yield f"{name}: services beside the box need `backend: podman` or `backend: docker`"
            yield from (f"{name}: {problem}" for problem in compose.problems)
            if box.context and not compose.main.build and not (box.context / "Dockerfile").is_file():
                yield f"{name.with_name('Dockerfile')}: is missing, and {COMPOSE} has no services.main.build"

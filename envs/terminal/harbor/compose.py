"""`docker-compose.yaml` of a task: what runs beside the agent's box; pure, apart from looking at the folder.

    compose = read_compose(task / "environment/docker-compose.yaml", config, {"KEY": "value"})
    problems(compose, file)             # ["services.db.privileged: is not supported here"]

The service `main` is the agent's box. All share its network: every service's name means this box.
"""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from envsdk.base.settings.problems import dotted
from envsdk.base.settings.validation import problems_in
from envsdk.contracts.failures import ConfigurationError
from envsdk.envs.terminal.harbor.config import MAIN, Environment, Healthcheck, unknown_keys

MAIN_IMAGE = "the-image-of-main"
"""What `${MAIN_IMAGE_NAME}` means."""
WITHOUT_EFFECT = frozenset(
    (
        *("version", "name", "networks", "ports", "expose", "container_name", "hostname", "restart", "init"),
        *("deploy", "cpus", "mem_limit", "labels", "logging", "platform", "pull_policy", "stdin_open", "tty"),
    )
)
"""Keys that change nothing here: there is one network, the limits are the task's, nothing starts again."""
_OF_MAIN = frozenset({"environment", "depends_on", "volumes", "working_dir"})
_IDLE = re.compile(r"((/bin/)?(ba)?sh -c )?'?(sleep infinity|tail -f /dev/null)'?")
"""What keeps a container, as Harbor's own command does."""
_LOGS = {"VERIFIER_LOGS": "/logs/verifier", "AGENT_LOGS": "/logs/agent", "ARTIFACTS": "/logs/artifacts"}
_VARIABLE = re.compile(
    r"\$(?:\$|(?P<bare>[A-Za-z_]\w*)|\{(?P<name>\w+)(?::?-(?P<default>[^${}]*)|:?\?[^${}]*)?\})"
)
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(h|ms|us|m|s)")


def _words(value: Any) -> Any:
    return shlex.split(value) if isinstance(value, str) else value


def _pairs(value: Any) -> Any:
    """Variables as a section; None has the value that the task's host gives."""
    if isinstance(value, list):
        parted = (str(each).partition("=") for each in value)
        value = {name: text if is_set else None for name, is_set, text in parted}
    if not isinstance(value, dict):
        return value
    return {
        name: str(given).lower() if isinstance(given, bool) else None if given is None else str(given)
        for name, given in value.items()
    }


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _shell_words(value: Any) -> Any:
    return ["CMD-SHELL", value] if isinstance(value, str) else value


def _build(value: Any) -> Any:
    return {"context": value} if isinstance(value, str) else value


def _dependencies(value: Any) -> Any:
    return {name: {} for name in value} if isinstance(value, list) else value


def _volume(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    source, _, rest = value.partition(":")
    target, _, mode = rest.partition(":")
    if not target or mode not in ("", "ro", "rw"):
        raise ValueError("is no SOURCE:TARGET, SOURCE:TARGET:ro or SOURCE:TARGET:rw")
    kind = "bind" if source.startswith((".", "/", "~")) else "volume"
    return {"type": kind, "source": source, "target": target, "read_only": mode == "ro"}


def _seconds(value: Any) -> Any:
    if isinstance(value, str) and (parts := _DURATION.findall(value)):
        if _DURATION.sub("", value):
            raise ValueError("is no duration such as 1m30s")
        return sum(float(number) * _SECONDS[unit] for number, unit in parts)
    return value


Words = Annotated[list[str] | None, BeforeValidator(_words)]
Variables = Annotated[dict[str, str | None], BeforeValidator(_pairs)]
Seconds = Annotated[float, BeforeValidator(_seconds)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)


class Build(_Section):
    context: str = "."
    dockerfile: str = "Dockerfile"
    args: Variables = {}
    target: str | None = None


class Dependency(_Section):
    condition: Literal["service_started", "service_healthy"] = "service_started"
    restart: bool = False
    required: bool = True


class Check(_Section):
    test: Annotated[list[str], BeforeValidator(_shell_words)] = []
    interval: Seconds = 30.0
    timeout: Seconds = 30.0
    retries: int = 3
    start_period: Seconds = 0.0
    start_interval: Seconds = 5.0
    disable: bool = False

    @property
    def plan(self) -> Healthcheck | None:
        """With the words of its command as one line; None where nothing is checked."""
        kind, *words = self.test or ("NONE",)
        if kind == "NONE" or self.disable:
            return None
        return Healthcheck(
            command=shlex.join(["/bin/sh", "-c", *words] if kind == "CMD-SHELL" else words),
            interval_sec=self.interval,
            timeout_sec=self.timeout,
            retries=self.retries,
            start_period_sec=self.start_period,
            start_interval_sec=self.start_interval,
        )


class Volume(_Section):
    type: Literal["volume", "bind"]
    source: str
    target: str
    read_only: bool = False


class Service(_Section):
    image: str | None = None
    build: Annotated[Build | None, BeforeValidator(_build)] = None
    command: Words = None
    entrypoint: Words = None
    environment: Variables = {}
    env_file: Annotated[list[str], BeforeValidator(_listed)] = []
    depends_on: Annotated[dict[str, Dependency], BeforeValidator(_dependencies)] = {}
    healthcheck: Check = Check()
    working_dir: str | None = None
    user: str | int | None = None
    volumes: list[Annotated[Volume, BeforeValidator(_volume)]] = []


class NamedVolume(_Section):
    driver: Literal["local"] = "local"


class Compose(_Section):
    services: dict[str, Service]
    volumes: dict[str, NamedVolume | None] = {}

    @property
    def main(self) -> Service:
        return self.services.get(MAIN, Service())

    @property
    def beside(self) -> dict[str, Service]:
        """All but the agent's box, each after those that it depends on. Raises CycleError."""
        waits = {name: each.depends_on for name, each in self.services.items()}
        order = TopologicalSorter(waits).static_order()
        return {name: self.services[name] for name in order if name in self.services and name != MAIN}

    @property
    def needs_engine(self) -> bool:
        return bool(self.main.volumes) or self.services.keys() != {MAIN}


def read_compose(file: Path, config: Environment, variables: Mapping[str, str] | None = None) -> Compose:
    """The services of a compose file; without `variables` those that it takes from its host stay as they are.

    Raises ConfigurationError: it is no compose file, or needs a variable; the key is named, the file is not.
    """
    values = {
        **(variables or {}),
        **{f"{side}_{name}_PATH": folder for name, folder in _LOGS.items() for side in ("HOST", "ENV")},
        **dict.fromkeys(("MAIN_IMAGE_NAME", "PREBUILT_IMAGE_NAME"), MAIN_IMAGE),
        **{"CONTEXT_DIR": str(file.parent), "TEST_DIR": "/tests", "CPUS": f"{config.cpus or 1:g}"},
        "MEMORY": f"{config.memory_mb or 2048}M",
    }
    try:
        document = yaml.safe_load(file.read_text(encoding="utf-8"))
        return Compose.model_validate(_filled(document or {}, values, keeps=variables is None))
    except ValidationError as error:
        said = [f"{dotted(each.path)}: {each.message}" for each in problems_in(error, Compose)]
        raise ConfigurationError("; ".join(said)) from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigurationError(" ".join(str(error).split())) from None


def _filled(value: Any, values: Mapping[str, str], *, keeps: bool) -> Any:
    """A document whose texts have values in place of variables; with `keeps` those without one stay."""

    def fill(match: re.Match[str]) -> str:
        name = match["bare"] or match["name"]
        found = "$" if name is None else values.get(name) or match["default"]
        if found is None and not keeps:
            raise ConfigurationError(f"needs the variable {name}: give it in `variables`")
        return match[0] if found is None else found

    if isinstance(value, dict):
        return {key: _filled(each, values, keeps=keeps) for key, each in value.items()}
    if isinstance(value, list):
        return [_filled(each, values, keeps=keeps) for each in value]
    return _VARIABLE.sub(fill, value) if isinstance(value, str) else value


def keys_without_effect(compose: Compose) -> list[str]:
    return [key for key in unknown_keys(compose) if key.rpartition(".")[2] in WITHOUT_EFFECT]


def problems(compose: Compose, file: Path) -> Iterator[str]:
    """`KEY: why` of all that cannot be done here, or that the folder lacks."""
    for key in unknown_keys(compose):
        last = key.rpartition(".")[2]
        if last not in WITHOUT_EFFECT and not last.startswith("x-"):
            yield f"{key}: is not supported here"
    for name, service in compose.services.items():
        for key, why in _of_service(name, service, compose, file):
            yield f"services.{name}.{key}: {why}"
    try:
        _ = compose.beside
    except CycleError as error:
        yield f"services: depend on each other: {', '.join(error.args[1])}"
    users: dict[str, list[str]] = defaultdict(list)
    networks = set()
    for name, service in compose.services.items():
        said = service.model_extra or {}
        networks.add(frozenset(said.get("networks") or ("default",)))
        for port in {_port(each) for key in ("ports", "expose") for each in said.get(key) or ()}:
            users[port].append(name)
    if len(networks) > 1:
        yield "services: are in several networks, and have one here"
    for port, names in users.items():
        if port.isdecimal() and len(names) > 1:
            yield f"services.{names[1]}.ports: {port}: is {names[0]}'s, and all services share one network"


def _port(said: Any) -> str:
    """The port inside a container."""
    return str(said.get("target") if isinstance(said, dict) else said).rpartition(":")[2].partition("/")[0]


def _of_service(name: str, service: Service, compose: Compose, file: Path) -> Iterator[tuple[str, str]]:
    if name == MAIN:
        yield from _of_main(service, file)
    elif service.image is None and service.build is None:
        yield "image", "is missing, and `build` too"
    if (build := service.build) is not None and not _is_inside(file, build.context, build.dockerfile):
        yield "build", f"there is no {build.dockerfile} in {build.context} of the task's folder"
    for path in service.env_file:
        if not _is_inside(file, path):
            yield "env_file", f"{path}: is no file of the task's folder"
    for volume in service.volumes:
        if not volume.target.startswith("/"):
            yield "volumes", f"{volume.target}: is no absolute path"
        if volume.type == "volume" and volume.source not in compose.volumes:
            yield "volumes", f"{volume.source}: is not named below `volumes`"
        is_log = name == MAIN and volume.source == volume.target and volume.target in _LOGS.values()
        if (
            volume.type == "bind"
            and not is_log
            and (not volume.source.startswith(".") or not _is_inside(file, volume.source))
        ):
            yield "volumes", f"{volume.source}: is nothing of the task's folder"
    for other, dependency in service.depends_on.items():
        if other not in compose.services and other != MAIN:
            yield "depends_on", f"{other}: there is no such service"
        elif dependency.condition == "service_healthy" and not compose.services[other].healthcheck.plan:
            yield "depends_on", f"{other}: is to be healthy, and has no healthcheck"


def _of_main(service: Service, file: Path) -> Iterator[tuple[str, str]]:
    """The box itself is Harbor's own affair: `task.toml` and the Dockerfile say what it is."""
    is_own = {
        "image": service.image == MAIN_IMAGE,
        "build": service.build in (None, Build(), Build(context=str(file.parent))),
        "command": service.command is None or bool(_IDLE.fullmatch(" ".join(service.command))),
    }
    for key in sorted(service.model_fields_set & Service.model_fields.keys() - _OF_MAIN):
        if not is_own.get(key, False):
            yield key, "is not supported for the agent's box, which task.toml and its Dockerfile describe"


def _is_inside(file: Path, *path: str) -> bool:
    """Whether a file or folder is there, in the task's folder."""
    place = file.parent.joinpath(*path).resolve()
    return place.exists() and place.is_relative_to(file.parents[1].resolve())

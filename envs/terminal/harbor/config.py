"""`task.toml` of Harbor, schema 1.0 to 1.4, as models; pure.

    config = TaskConfig.model_validate(tomllib.loads(text))
    [*odd_keys(config)]             # ["agent.retries: is no key of Harbor's, and changes nothing"]

Values are read as Harbor reads them: whole numbers where fractions may stand, older names of keys. What a
sandbox of ours cannot do is refused by `support.py`, which looks into nothing that is refused as a whole.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)

from envsdk.base.settings.problems import dotted, leaves

NEWEST = (1, 4)
"""The newest schema that this module knows."""
ARTIFACTS = "/logs/artifacts"
"""What an agent leaves here is always handed to the verifier."""
MAIN = "main"
"""The service that the agent works in."""

_VERSION = re.compile(r"(\d+)\.(\d+)(?:\.\d+)?")
_SERVICE = r"^[a-zA-Z0-9][a-zA-Z0-9_.-]*$"
_NUMBERS = ("_sec", "_mb", "cpus", "gpus", "retries", "user", "min_reward")
"""How keys end that have a number."""
_SIZES = {"G": 1024.0, "M": 1.0, "K": 1 / 1024}


class _Table(BaseModel):
    """A table of the file. Keys that it does not know are kept, so that they can be named."""

    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False)


def _service(value: str) -> str:
    if not re.match(_SERVICE, value.strip()):
        raise ValueError(f"{value!r} is no name of a compose service")
    return value.strip()


Service = Annotated[str, AfterValidator(_service)]
User = str | int | None


class NetworkMode(StrEnum):
    PUBLIC = "public"
    NO_NETWORK = "no-network"
    ALLOWLIST = "allowlist"


class Network(_Table):
    """Who may be reached. A phase without a mode has that of its environment."""

    network_mode: NetworkMode | None = None
    allowed_hosts: list[str] | None = None

    @model_validator(mode="after")
    def _hosts_need_the_mode(self) -> Self:
        if self.network_mode is not NetworkMode.ALLOWLIST and (
            self.allowed_hosts or (self.network_mode is None and self.allowed_hosts is not None)
        ):
            raise ValueError("allowed_hosts needs network_mode = 'allowlist'")
        return self


class Healthcheck(_Table):
    command: str
    interval_sec: float = 5.0
    timeout_sec: float = 30.0
    start_period_sec: float = 0.0
    """Failures in this time after the start do not count."""
    start_interval_sec: float = 5.0
    retries: int = 3
    """The check has failed after so many failures in a row."""


class McpServer(_Table):
    """One that an agent is told of."""

    name: str
    transport: Literal["stdio", "sse", "streamable-http", "http"] = "sse"
    url: str | None = None
    command: str | None = None
    args: list[str] = []
    headers: dict[str, str] = {}

    @model_validator(mode="after")
    def _can_be_reached(self) -> Self:
        needed = "command" if self.transport == "stdio" else "url"
        if not getattr(self, needed):
            raise ValueError(f"{needed}: is missing")
        return self


class Environment(Network):
    """A box: the agent's, or the verifier's own."""

    build_timeout_sec: float = 600.0
    docker_image: str | None = None
    os: Annotated[
        Literal["linux", "windows"],
        BeforeValidator(lambda value: value.lower() if isinstance(value, str) else value),
    ] = "linux"
    cpus: float | None = Field(None, allow_inf_nan=False)
    memory_mb: int | None = None
    storage_mb: int | None = None
    gpus: int | None = None
    gpu_types: list[str] | None = None
    tpu: dict[str, Any] | None = None
    mcp_servers: list[McpServer] = []
    env: dict[str, str] = {}
    skills_dir: str | None = None
    healthcheck: Healthcheck | None = None
    workdir: str | None = None
    allow_internet: bool | None = None
    """Before schema 1.2; `network_mode` where both stand."""

    @model_validator(mode="before")
    @classmethod
    def _older_names(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        data = dict(data)
        for old, new in (("memory", "memory_mb"), ("storage", "storage_mb")):
            if isinstance(size := data.get(old), str):
                del data[old]
                megabytes = _megabytes(size)
                if data.setdefault(new, megabytes) != megabytes:
                    raise ValueError(f"{old} = {size!r} contradicts {new} = {data[new]!r}")
        return data

    @property
    def network(self) -> tuple[NetworkMode, tuple[str, ...]]:
        """The mode and the hosts of its list."""
        if self.network_mode is None and self.allow_internet is False:
            return NetworkMode.NO_NETWORK, ()
        return self.network_mode or NetworkMode.PUBLIC, tuple(self.allowed_hosts or ())


class Collect(_Table):
    """A command after the agent's work, before artifacts are taken."""

    command: str
    service: Service = MAIN
    timeout_sec: float = 60.0
    user: User = None


class Mode(StrEnum):
    SHARED = "shared"
    """Checked in place: in the agent's own box."""
    SEPARATE = "separate"
    """Checked in a box that the agent never saw."""


class Verifier(Network):
    timeout_sec: float = 600.0
    env: dict[str, str] = {}
    user: User = None
    environment_mode: Mode | None = None
    environment: Environment | None = None
    collect: list[Collect] = []

    @model_validator(mode="after")
    def _an_environment_is_separate(self) -> Self:
        if self.environment_mode is Mode.SHARED and self.environment is not None:
            raise ValueError("environment_mode = 'shared' contradicts [verifier.environment]")
        return self

    @property
    def mode(self) -> Mode | None:
        """None: not said here."""
        return Mode.SEPARATE if self.environment_mode is None and self.environment else self.environment_mode


class Agent(Network):
    timeout_sec: float | None = None
    user: User = None


class Artifact(_Table):
    """A file or folder of the agent's box that the verifier gets."""

    source: str
    destination: str | None = None
    """Where Harbor keeps it on its own machine. Of two that overlap there, the first is taken."""
    exclude: list[str] = []
    """Patterns of GNU tar's `--exclude`."""
    service: Service | None = None

    @model_validator(mode="before")
    @classmethod
    def _a_path_alone(cls, data: Any) -> Any:
        return {"source": data} if isinstance(data, str) else data

    @model_validator(mode="after")
    def _stays_inside(self) -> Self:
        if ".." in PurePosixPath(self.source).parts:
            raise ValueError(f"source {self.source!r} must not hold `..`")
        if self.service not in (None, MAIN) and not self.source.startswith("/"):
            raise ValueError(f"source {self.source!r} of service {self.service!r} must be absolute")
        if self.destination:
            path = PurePosixPath(self.destination)
            if "\\" in self.destination or path.is_absolute() or ".." in path.parts or not path.parts:
                raise ValueError(f"destination {self.destination!r} must be relative, without `..` and `\\`")
        return self

    @property
    def kept_at(self) -> PurePosixPath:
        return PurePosixPath(
            *[part for part in PurePosixPath(self.destination or self.source).parts if part != "/"]
        )


def _step_name(name: str) -> str:
    if not name or name != PurePosixPath(name).name or name == ".." or "\0" in name:
        raise ValueError(f"{name!r} is no name of a folder")
    return name


class Step(_Table):
    name: Annotated[str, AfterValidator(_step_name)]
    agent: Agent = Agent()
    verifier: Verifier = Verifier()
    min_reward: float | dict[str, float] | None = None
    """The steps that follow are left out where the reward, or one of these rewards, is below."""
    healthcheck: Healthcheck | None = None
    artifacts: list[Artifact] = []

    @property
    def gates(self) -> Mapping[str, float]:
        if self.min_reward is None:
            return {}
        return self.min_reward if isinstance(self.min_reward, dict) else {"reward": self.min_reward}


class Solution(_Table):
    env: dict[str, str] = {}


class TaskConfig(_Table):
    schema_version: str = "1.4"
    task: dict[str, Any] = {}
    metadata: dict[str, Any] = {}
    verifier: Verifier = Verifier()
    agent: Agent = Agent()
    environment: Environment = Environment()
    solution: Solution = Solution()
    source: str | None = None
    multi_step_reward_strategy: Literal["mean", "final"] | None = None
    steps: list[Step] | None = None
    artifacts: list[Artifact] = []

    @model_validator(mode="before")
    @classmethod
    def _older_names(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and _is_known(data.get("version")):
            data = dict(data)
            data.setdefault("schema_version", data.pop("version"))
        return data

    @field_validator("schema_version")
    @classmethod
    def _is_of_a_known_version(cls, version: str) -> str:
        if not _is_known(version):
            raise ValueError(f"{version!r}: known are 1.0 to {'.'.join(map(str, NEWEST))}")
        return version

    @field_validator("steps")
    @classmethod
    def _names_differ(cls, steps: list[Step] | None) -> list[Step] | None:
        names = [step.name for step in steps or ()]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"two are named {twice[0]!r}")
        return steps

    def mode_of(self, step: Step | None) -> Mode:
        return (step.verifier.mode if step else None) or self.verifier.mode or Mode.SHARED

    def artifacts_of(self, step: Step | None) -> tuple[Artifact, ...]:
        """What the verifier gets: Harbor's own folder first; of two that overlap, the first."""
        named = [*self.artifacts, *(step.artifacts if step else ())]
        if not any(each.source.rstrip("/") == ARTIFACTS and each.service in (None, MAIN) for each in named):
            named.insert(0, Artifact(source=ARTIFACTS))
        taken: list[Artifact] = []
        for each in named:
            path = each.kept_at
            if not any(_overlap(path, other.kept_at) for other in taken):
                taken.append(each)
        return tuple(taken)

    def collected_after(self, step: Step | None) -> tuple[Collect, ...]:
        return (*self.verifier.collect, *(step.verifier.collect if step else ()))

    def agent_network(self, step: Step | None) -> tuple[NetworkMode, tuple[str, ...]]:
        return _phase(step.agent if step else None, self.agent) or self.environment.network

    def verifier_network(self, step: Step | None) -> tuple[NetworkMode, tuple[str, ...]]:
        own = (step.verifier.environment if step else None) or self.verifier.environment or self.environment
        box = own if self.mode_of(step) is Mode.SEPARATE else self.environment
        return _phase(step.verifier if step else None, self.verifier) or box.network


def _is_known(version: Any) -> bool:
    """Whether this is a schema's version: authors write their task's own under the old key, too."""
    match = _VERSION.fullmatch(version) if isinstance(version, str) else None
    return match is not None and int(match[1]) == NEWEST[0] and int(match[2]) <= NEWEST[1]


def _phase(*said: Network | None) -> tuple[NetworkMode, tuple[str, ...]] | None:
    """What the first of these says that says anything."""
    for each in said:
        if each is not None and each.network_mode:
            return each.network_mode, tuple(each.allowed_hosts or ())
    return None


def covers_checks(source: str) -> bool:
    """Whether an artifact would take the place of what a verifier has of its own."""
    path = PurePosixPath(source)
    return any(_overlap(path, PurePosixPath(own)) for own in ("/tests", "/logs/verifier"))


def _overlap(one: PurePosixPath, other: PurePosixPath) -> bool:
    return one.is_relative_to(other) or other.is_relative_to(one)


def _megabytes(size: str) -> int:
    text = size.strip().upper()
    try:
        number = float(text[:-1]) * _SIZES[text[-1:]]
    except (KeyError, ValueError):
        raise ValueError(f"{size!r} is no size such as '2G', '512M' or '64K'") from None
    if not math.isfinite(number):
        raise ValueError(f"{size!r} is no finite size")
    return int(number)


def odd_values(document: Mapping[str, Any]) -> Iterator[str]:
    """`KEY: why` of each value of a file that is read as Harbor reads it, and cannot be meant."""
    for keys, value in leaves(document, in_lists=True):
        path = dotted(keys)
        if not {"metadata", "task", "env", "mcp_servers", "tpu"}.isdisjoint(keys):
            continue
        if isinstance(value, bool) and path.endswith(_NUMBERS):
            yield f"{path}: {str(value).lower()}: is no number, and is read as {value:d}, as in Harbor"
        elif value == "" or (isinstance(value, str) and "\0" in value):
            yield f"{path}: {value!r}: is empty, or holds a zero byte"
        elif isinstance(value, int | float) and value < 0 and not path.endswith("min_reward"):
            yield f"{path}: {value:g}: is negative"


def odd_keys(value: Any, path: str = "") -> Iterator[str]:
    """`KEY: why` of every key of a table that no model knows: `steps[0].agent.retries`."""
    if isinstance(value, BaseModel):
        for name in value.model_extra or ():
            yield f"{path}.{name}: is no key of Harbor's, and changes nothing".lstrip(".")
        for name in type(value).model_fields:
            yield from odd_keys(getattr(value, name), f"{path}.{name}".lstrip("."))
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from odd_keys(each, f"{path}[{number}]")

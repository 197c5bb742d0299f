"""Settings of the backends."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from envsdk.base.settings.strict import StrictSettings
from envsdk.base.settings.validation import validated
from envsdk.contracts.failures import ConfigurationError


class SandboxSettings(StrictSettings):
    """Base of every backend's settings: typed, immutable, and deaf to no key."""

    commands_at_once: PositiveInt = Field(default_factory=lambda: 2 * (os.cpu_count() or 1))
    """How many commands run at the same time, apart from the number of sandboxes; further ones wait.
    Absent, twice the number of cores."""


class BubblewrapSettings(SandboxSettings):
    """Settings of the `bubblewrap` backend."""

    state_dir: Path = Field(
        default_factory=lambda: Path(tempfile.gettempdir()) / f"envsdk-sandboxes-{os.geteuid()}"
    )
    """Where what sandboxes write is kept, on a disk that overlayfs accepts."""
    python: Path | None = None
    """Interpreter shown where an image names none; absent, the one that runs this program."""
    uid: Annotated[int, Field(gt=0, lt=1 << 31)] = 61042
    """When run by root: the user, of no other use on this machine, that sandboxed processes are outside."""
    kept_trees: NonNegativeInt = 32
    """How many copies of trees, made for the sandboxes' user, are kept while no sandbox uses them."""
    images: Mapping[str, Path | Literal["host"]] = Field(default_factory=dict)
    """Base images of Dockerfiles: the first name or pattern (`python:3.*`) that fits counts. Each is a folder
    with a root file system, or `host`, this machine's `/usr` and Python."""
    images_mb: PositiveInt = 20_000
    """How much the layers of built images may take on disk; unused ones are deleted beyond it."""
    network: bool = False
    """Whether images and builds that ask for the network get this machine's, its loopback included."""


class RemoteSettings(SandboxSettings):
    """Base of the settings of backends whose sandboxes run apart from this program."""

    starts_at_once: PositiveInt = 16
    """How many sandboxes start at the same time."""
    time_to_live_s: PositiveInt = 4 * 3600
    """After this many seconds a sandbox ends, whatever became of this program."""


class ContainerSettings(RemoteSettings):
    """Settings of the `docker` and `podman` backends."""

    program: str | None = None
    """Command to call, by name or path; absent, the backend's own."""
    image: str = "python:3.11"
    """Container image where an image names none: it needs bash, tar, gzip, findutils; for `diff()`, git."""
    user: str | None = None
    """User inside, as `run --user` takes it; absent, the container image's."""
    run_options: tuple[str, ...] = ()
    """Further options of `run`, such as `--runtime=runsc`."""
    starts_at_once: PositiveInt = 4
    call_timeout_s: PositiveFloat = 300.0
    """How long one call of the command may take; a first start downloads the image."""
    network: bool = False
    """Whether images and builds that ask for the network get the program's own."""
    checks_disk: bool = True
    """Whether a container's disk usage is asked for after each command."""
    requires_limits: bool = True
    """Whether a program whose containers have no limit on processes or memory is refused."""


class E2BSettings(RemoteSettings):
    """Settings of the `e2b` backend."""

    api_url: str | None = None
    """Address of a server such as `envsdk sandboxd`; absent, `https://api.DOMAIN`."""
    sandbox_url: str | None = None
    """Address of its sandboxes; absent, `api_url`, and without that `https://49983-ID.DOMAIN`."""
    domain: str | None = None
    """Domain of the service; absent, E2B's."""
    api_key_variable: str = "E2B_API_KEY"
    """Environment variable with the API key."""
    api_key: str | None = None
    """The key itself, for programs; in a file, name the variable."""
    template: str = "base"
    """Template where an image names no container."""
    user: str | None = "root"
    """User of all commands; absent, the template's. Our own server has one, whatever it is called."""
    time_to_live_s: PositiveInt = 3600


class KubernetesSettings(RemoteSettings):
    """Settings of the `kubernetes` backend."""

    warmpool: str
    """`SandboxWarmPool` that sandboxes are claimed from where an image names no container."""
    warmpools: Mapping[str, str] = Field(default_factory=dict)
    """Those of container images, by the images' names."""
    namespace: str = "default"
    connect: Literal["in_cluster", "gateway", "direct"] = "in_cluster"
    """How sandboxes are reached: from a Pod of the cluster, by a Gateway, or by the router's address."""
    connection: Mapping[str, Any] = Field(default_factory=dict)
    """Fields of `k8s_agent_sandbox.models`' configuration of that, such as `api_url` or `gateway_name`."""
    ready_timeout_s: PositiveInt = 180


class UnsandboxedSettings(SandboxSettings):
    """Settings of the `unsandboxed` backend."""

    commands_may_do_anything_to_this_machine: Literal[True]
    """There is no sandbox: what a policy writes runs as this user, with its files, network and secrets."""


SettingsT = TypeVar("SettingsT", bound=SandboxSettings)


def parse_settings(model: type[SettingsT], values: Mapping[str, Any], *, backend: str) -> SettingsT:
    """`values` as `model`, or a ConfigurationError that names every bad key."""
    return validated(model, values, f"settings of sandbox backend `{backend}`")


class HostSettings(StrictSettings):
    """One host: a backend of any kind with settings of its own."""

    name: str = ""
    """Says in messages which one it is; absent, the backend and its place in the list."""
    backend: str = "e2b"
    settings: Mapping[str, Any] = Field(default_factory=dict)
    """The backend's."""
    places: PositiveInt = 256
    """Sandboxes at once."""
    starts_at_once: PositiveInt = 8


class FleetLimits(StrictSettings):
    """How a fleet behaves."""

    starts_at_once: PositiveInt = 32
    """On all hosts together."""
    max_warm: NonNegativeInt = 16
    """Sandboxes kept ready, at most; how many, and of which image, follows what was asked for lately."""
    demand_s: PositiveFloat = 60.0
    """What was asked for longer ago counts little."""
    warm_s: PositiveFloat = 600.0
    """A sandbox kept ready for so long is closed."""
    start_timeout_s: PositiveFloat = 120.0
    """A sandbox that no host has started by then is an error."""
    attempt_timeout_s: PositiveFloat = 30.0
    """A start that takes longer is given up, and tried on another host. Downloads of images count."""
    silence_s: PositiveFloat = 30.0
    """A host that does not answer for so long is taken for dead, with all sandboxes on it."""
    max_failures: PositiveInt = 3
    """So many in a row, and the host is left out for a while."""
    first_backoff_s: PositiveFloat = 5.0
    """For so long at first; doubles each time, until the host works again."""
    max_backoff_s: PositiveFloat = 300.0


class FleetSettings(FleetLimits):
    """Settings of the `fleet` backend."""

    hosts: Annotated[tuple[HostSettings, ...], Field(min_length=1)]
    commands_at_once: PositiveInt | None = None
    """For hosts whose settings do not say it."""

    def named_hosts(self) -> dict[str, HostSettings]:
        """Hosts by their names.

        Raises ConfigurationError: a host is wrong.
        """
        named = {host.name or f"{host.backend}-{number}": host for number, host in enumerate(self.hosts)}
        if len(named) < len(self.hosts):
            raise ConfigurationError("backend `fleet`: two hosts have the same name")
        if any(host.backend == "unsandboxed" for host in self.hosts):
            raise ConfigurationError("backend `fleet`: `unsandboxed` is no sandbox, and cannot be a host")
        return {name: host.model_copy(update={"name": name}) for name, host in named.items()}

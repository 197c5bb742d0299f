"""Settings of the `fleet` backend."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import yaml
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from envsdk.base.settings.strict import StrictSettings
from envsdk.base.settings.validation import validated
from envsdk.contracts.failures import ConfigurationError


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

    hosts: tuple[HostSettings, ...] = ()
    hosts_file: Path | None = None
    """YAML file with the list instead. It is read again when it changes: hosts that it lacks are drained."""
    commands_at_once: PositiveInt | None = None
    """For hosts whose settings do not say it."""

    @model_validator(mode="after")
    def _one_list(self) -> Self:
        if bool(self.hosts) == (self.hosts_file is not None):
            raise ValueError("name the hosts either by `hosts` or by `hosts_file`")
        return self

    def named_hosts(self) -> dict[str, HostSettings]:
        """Hosts by their names.

        Raises ConfigurationError: the file cannot be read, or a host is wrong.
        """
        hosts = self.hosts or _read(self.hosts_file)
        named = {host.name or f"{host.backend}-{number}": host for number, host in enumerate(hosts)}
        if len(named) < len(hosts):
            raise ConfigurationError("backend `fleet`: two hosts have the same name")
        if any(host.backend == "unsandboxed" for host in hosts):
            raise ConfigurationError("backend `fleet`: `unsandboxed` is no sandbox, and cannot be a host")
        return {name: host.model_copy(update={"name": name}) for name, host in named.items()}


class _HostList(StrictSettings):
    hosts: tuple[HostSettings, ...]


def _read(file: Path | None) -> tuple[HostSettings, ...]:
    assert file is not None
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigurationError(f"backend `fleet`: hosts_file {file}: {error}") from error
    return validated(_HostList, {"hosts": content}, f"hosts_file {file} of sandbox backend `fleet`").hosts

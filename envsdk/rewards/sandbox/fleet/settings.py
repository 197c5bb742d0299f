"""Settings of the `fleet` backend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from envsdk.base.settings.strict import StrictSettings
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

"""What a sandbox server serves, to whom, and how much of it."""

from __future__ import annotations

import os
import tempfile
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, PositiveInt, SecretStr, model_validator

from envsdk.base.settings.strict import StrictSettings
from envsdk.rewards.sandbox.contract import Image, Limits

MIN_TOKEN_LENGTH = 16
HOME = "/home/user"


class Template(StrictSettings):
    """What sandboxes of one name start from."""

    tree: Path | None = None
    """Folder of this machine shown at `workdir`."""
    container: str | None = None
    """Container image, for `docker` and `podman`; it needs bash and python3."""
    workdir: str = HOME
    """Where commands start, and the folder of relative paths."""
    env: dict[str, str] = Field(default_factory=dict)

    def image(self, workdir: str | None) -> Image:
        workdir = workdir or self.workdir
        env = {"HOME": workdir, **self.env}
        return Image(tree=self.tree, container=self.container, workdir=workdir, env=env)


class Token(StrictSettings):
    """Who may use the server, and how much."""

    token: Annotated[SecretStr, Field(min_length=MIN_TOKEN_LENGTH)]
    """What clients send as `X-API-KEY`."""
    sandboxes: PositiveInt = 64
    """At once; paused ones and snapshots count."""
    lifetime_s: PositiveInt = 24 * 3600
    """Longest time-out of a sandbox; a paused one ends after as long."""
    memory_mb: PositiveInt | None = None
    """What the sandboxes may use together, by their limits; absent, as much as they ask for."""


class ServerSettings(StrictSettings):
    """The file that `envsdk sandboxd` reads."""

    backend: str = "bubblewrap"
    """Where sandboxes run: `bubblewrap`, `docker`, `podman`, or another by its name."""
    backend_settings: dict[str, Any] = Field(default_factory=dict)
    templates: dict[str, Template] = Field(default_factory=lambda: {"base": Template()})
    """What sandboxes start from, by the names that clients give; who gives none gets `base`."""
    tokens: dict[str, Token] = Field(min_length=1)
    """Who may use the server, by names of your choice."""
    limits: dict[str, PositiveInt] = Field(default_factory=dict)
    """Limits of a sandbox, and the most that a client may ask for: fields of `Limits`."""
    timeout_s: PositiveInt = 300
    """Time-out of a sandbox whose client names none."""
    starts_at_once: PositiveInt = Field(default_factory=lambda: 2 * (os.cpu_count() or 1))
    """How many sandboxes start at the same time."""
    state_dir: Path = Field(
        default_factory=lambda: Path(tempfile.gettempdir()) / f"envsdk-sandboxd-{os.geteuid()}"
    )
    """Where the server's own files are."""
    domain: str | None = None
    """Where a proxy forwards `api.DOMAIN` and `49983-ID.DOMAIN` to this server."""

    @model_validator(mode="after")
    def _checked(self) -> Self:
        known = {each.name for each in fields(Limits)}
        if unknown := sorted(self.limits.keys() - known):
            raise ValueError(f"limits: there is no {unknown[0]}; there are {', '.join(sorted(known))}")
        secrets = [each.token.get_secret_value() for each in self.tokens.values()]
        if len(set(secrets)) < len(secrets):
            raise ValueError("tokens: two names have the same token")
        if "base" not in self.templates:
            raise ValueError("templates: `base` is missing")
        return self

    def most(self) -> Limits:
        return Limits(**self.limits)

"""The pinned versions fit what pyproject.toml asks for, so that the make targets install at all."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]


def pins(file: str) -> dict[str, str]:
    """Version by name."""
    lines = [line for line in (ROOT / file).read_text().splitlines() if "==" in line and line[0] != "#"]
    return {canonicalize_name(name): version for name, version in (line.split("==") for line in lines)}


def requirements(extra: str) -> Iterator[Requirement]:
    """Of the package with this extra, those of the extras it stands for included."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    yield from map(Requirement, project["dependencies"])
    for requirement in map(Requirement, project["optional-dependencies"][extra]):
        if requirement.name == project["name"]:
            for other in requirement.extras:
                yield from requirements(other)
        else:
            yield requirement


@pytest.mark.parametrize(
    ("file", "extras"),
    [
        ("constraints.txt", "dev"),
        ("constraints-vllm.txt", "dev"),
        ("constraints-adapters.txt", "reasoning-gym gem pettingzoo testing"),
        ("constraints-openenv.txt", "openenv testing"),
        ("constraints-peers.txt", "torch testing"),
        ("constraints-trackers.txt", "wandb mlflow trackio otel testing"),
        ("constraints-verifiers.txt", "verifiers testing"),
    ],
)
def test_each_package_of_a_make_target_is_pinned_to_a_version_that_is_taken(file: str, extras: str) -> None:
    pinned = pins(file)
    problems = []
    for requirement in (each for extra in extras.split() for each in requirements(extra)):
        version = pinned.get(canonicalize_name(requirement.name))
        if requirement.marker is None or requirement.marker.evaluate():
            if version is None:
                problems.append(f"{requirement.name} is not pinned")
            elif not requirement.specifier.contains(version, prereleases=True):
                problems.append(f"{requirement} is asked for, {version} is pinned")
    assert not problems


def test_the_release_builds_with_the_backend_that_everybody_builds_with() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (backend,) = map(Requirement, project["build-system"]["requires"])
    assert backend.specifier.contains(pins("constraints-release.txt")[backend.name])
    assert str(backend) in project["project"]["optional-dependencies"]["dev"]

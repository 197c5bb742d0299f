"""The recipes in examples/cluster: what of them can be checked without a cluster."""

from __future__ import annotations

import copy
import json
import subprocess
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from envsdk.cli import main
from tests.envsdk.test_constraints import pins

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "examples" / "cluster"


@pytest.fixture(scope="module")
def rayjob() -> dict[str, Any]:
    job, _ = yaml.safe_load_all((RECIPES / "kuberay-job.yaml").read_text(encoding="utf-8"))
    return job  # type: ignore[no-any-return]


def validate(job: dict[str, Any]) -> None:
    schema = json.loads((Path(__file__).parent / "rayjob_schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema).validate(job)


def test_the_manifest_is_a_rayjob_as_kuberay_defines_it(rayjob: dict[str, Any]) -> None:
    validate(rayjob)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec.entrypont", "x"),
        ("spec.rayClusterSpec.headGroupSpec.rayStartParams.num-cpus", 0),
        ("spec.rayClusterSpec.headGroupSpec.template.spec.containers.0.volumeMount", []),
        ("spec.rayClusterSpec.workerGroupSpecs.0.replicas", "two"),
        ("spec.rayClusterSpec.authOptions.mode", "tokens"),
    ],
)
def test_a_mistake_in_the_manifest_would_be_found(rayjob: dict[str, Any], path: str, value: Any) -> None:
    wrong: Any = copy.deepcopy(rayjob)
    *parents, last = path.split(".")
    place = wrong
    for name in parents:
        place = place[int(name) if name.isdigit() else name]
    place[last] = value
    with pytest.raises(jsonschema.ValidationError):
        validate(wrong)


def test_the_manifest_names_the_tested_version_of_ray(rayjob: dict[str, Any]) -> None:
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert f"ray=={rayjob['spec']['rayClusterSpec']['rayVersion']}" in pins


def test_the_command_of_the_manifest_is_one_that_envsdk_explains(
    rayjob: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    program, *arguments = rayjob["spec"]["entrypoint"].split()
    assert program == "envsdk"
    assert main([*arguments, "--explain"]) == 0
    assert "/runs/envsdk" in capsys.readouterr().out


def test_the_script_for_slurm_is_one_that_bash_reads() -> None:
    subprocess.run(["bash", "-n", RECIPES / "slurm.sbatch"], check=True)


def test_what_the_image_needs_beside_the_tested_packages_is_pinned_and_no_other() -> None:
    tested, more = pins("constraints.txt"), pins("constraints-cluster.txt")
    assert not tested.keys() & more.keys()
    assert all(version for version in more.values())
    # What `ray[default]` asks for by itself.
    asked = {
        canonicalize_name(Requirement(each).name) for each in requires("ray") or () if '"default"' in each
    }
    assert asked <= tested.keys() | more.keys()


@pytest.mark.parametrize("recipe", ["Dockerfile", "Dockerfile.vllm"])
def test_the_image_has_what_the_package_is_made_of(recipe: str) -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    copied = [
        word
        for line in (ROOT / recipe).read_text(encoding="utf-8").splitlines()
        if line.startswith("COPY ")
        for word in line.split()[1:-1]
    ]
    assert {f"!{name}" for name in copied} <= set(ignored)
    for name in copied:
        assert (ROOT / name).exists()

"""Task folders as Harbor itself reads them: ENVSDK_HARBOR names a Python (3.12) that has `harbor` 0.25.

Folders are made of every key at random, wrong ones among them; ENVSDK_HARBOR_TASKS names real ones.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from envsdk.contracts.failures import ConfigurationError
from envsdk.envs.terminal.harbor.folder import HarborTask, Stage, find_folders, read_folder
from envsdk.envs.terminal.harbor.support import refusals

HARBOR = os.environ.get("ENVSDK_HARBOR", "")
if not HARBOR:
    pytest.skip("needs a Python with harbor: ENVSDK_HARBOR=PYTHON", allow_module_level=True)
pytestmark = pytest.mark.peers

NUM_FOLDERS = 1500
REFUSED_BY_US = ("schema_version", ".os: windows", "environment/Dockerfile: is missing")
"""What Harbor reads, and refuses later or not at all."""
READ_BY_US = re.compile(
    r"^task\.|^schema_version|^steps\.\d+\.name|Step names must be unique|manifest\.json|mcp_servers",
    re.MULTILINE,
)
"""What only Harbor refuses: nothing here depends on it."""


def test_made_folders_are_read_as_harbor_reads_them(tmp_path: Path, write_down: Any) -> None:
    folders = [make_folder(tmp_path / str(number), random.Random(number)) for number in range(NUM_FOLDERS)]
    num_read = compare(folders)
    assert NUM_FOLDERS / 4 < num_read < NUM_FOLDERS
    write_down(
        f"read_folder, {NUM_FOLDERS} made folders", "harbor 0.25 Task", f"0 fields, {num_read} read", "none"
    )


def test_real_folders_are_read_as_harbor_reads_them(write_down: Any) -> None:
    data = os.environ.get("ENVSDK_HARBOR_TASKS")
    if not data:
        pytest.skip("ENVSDK_HARBOR_TASKS=FOLDER")
    folders = list(find_folders(Path(data)))
    num_read = compare(folders)
    write_down(
        f"read_folder, {len(folders)} real folders", "harbor 0.25 Task", f"0 fields, {num_read} read", "none"
    )


def compare(folders: list[Path]) -> int:
    """How many are read; asserts that Harbor reads the same ones, and every field alike."""
    script = Path(__file__).with_name("harbor_reads.py")
    named = "".join(f"{folder.absolute()}\n" for folder in folders)
    done = subprocess.run([HARBOR, str(script)], input=named, capture_output=True, text=True, check=True)
    num_read = 0
    for folder, line in zip(folders, done.stdout.splitlines(), strict=True):
        theirs = json.loads(line)
        try:
            ours = said_by(read_folder(folder))
        except ConfigurationError as error:
            if "error" in theirs or any(why in str(error) for why in REFUSED_BY_US):
                continue
            raise
        if "error" in theirs and (READ_BY_US.search(theirs["error"]) or refusals(read_folder(folder))):
            continue
        assert "error" not in theirs, f"{folder}: read here, but Harbor says {theirs['error']}"
        assert ours == theirs, folder
        num_read += 1
    return num_read


def said_by(task: HarborTask) -> dict[str, Any]:
    config, env = task.config, task.config.environment
    keys = ("cpus", "memory_mb", "storage_mb", "gpus", "gpu_types", "env", "skills_dir", "workdir")
    return {
        "name": config.task.get("name", task.folder.name),
        "schema": config.schema_version
        if "schema_version" in config.model_fields_set
        else (config.model_extra or {}).get("version", config.schema_version),
        "strategy": config.multi_step_reward_strategy,
        "stages": [stage_of(task, stage) for stage in task.stages],
        "environment": {key: getattr(env, key) for key in (*keys, "docker_image", "build_timeout_sec", "os")}
        | {
            "healthcheck": env.healthcheck and env.healthcheck.model_dump(),
        },
        "solution_env": config.solution.env,
        "metadata": json.loads(json.dumps(config.metadata, default=str)),
    }


def stage_of(task: HarborTask, stage: Stage) -> dict[str, Any]:
    verifier, box = stage.verifier, stage.verifier.box
    step = next((each for each in task.config.steps or () if each.name == stage.name), None)
    named = [*task.config.artifacts, *(step.artifacts if step else ())]
    folders = [task.folder / "tests", *([task.folder / "steps" / stage.name / "tests"] if step else [])]
    return {
        "name": stage.name,
        "instruction": stage.instruction.strip("\n"),
        "timeout_s": stage.timeout_s,
        "user": stage.user,
        "agent_network": stage.network[0].value,
        "verifier_network": verifier.network[0].value,
        "mode": verifier.mode.value,
        "verifier_timeout_s": verifier.timeout_s,
        "verifier_env": verifier.env,
        "verifier_user": verifier.user,
        "verifier_image": box and box.docker_image,
        "verifier_os": box and box.config.os,
        "verifier_memory_mb": box and box.config.memory_mb,
        "bundled": box is not None and not verifier.tests,
        "tests": [str(each) for each in folders if each.is_dir()],
        "artifacts": [[each.source, each.exclude, each.service] for each in named],
        "collect": [[each.command, each.service, each.timeout_sec, each.user] for each in stage.collect],
        "gates": stage.gates,
        "solution": stage.solution and str(stage.solution),
        "healthcheck": stage.healthcheck and stage.healthcheck.model_dump(),
        "verifier_context": str(box.context) if box and box.context else None,
    }


def make_folder(folder: Path, pick: random.Random) -> Path:
    """A task of random keys, most of them right."""
    values = table(pick)
    steps = [step["name"] for step in values.get("steps", ()) if isinstance(step.get("name"), str)]
    homes = [folder, *(folder / "steps" / name for name in steps if "/" not in name and name.strip("."))]
    for home in homes:
        write(
            home / "instruction.md",
            pick.choice(["Do it.\n", "<!-- canary x -->\n# CANARY\n\nDo it.", "# A\n"]),
            pick,
        )
        for name in ("tests/test.sh", "solution/solve.sh"):
            if pick.random() < 0.9:
                write(home / name, "true\n", pick)
        if pick.random() < 0.2:
            write(home / "tests/Dockerfile", "FROM scratch\n", pick)
    write(folder / "environment/Dockerfile", "FROM scratch\n", pick)
    (folder / "task.toml").write_text("".join(f"{key} = {toml(value)}\n" for key, value in values.items()))
    return folder


def write(file: Path, text: str, pick: random.Random) -> None:
    if pick.random() < 0.97:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def table(pick: random.Random) -> dict[str, Any]:
    """A task.toml."""

    def some(**values: Any) -> dict[str, Any]:
        """A few of these keys, each with one of its values, the last of which is wrong and rare."""
        return {
            key: value() if callable(value) else pick.choice(value[:-1] if pick.random() < 0.98 else value)
            for key, value in values.items()
            if pick.random() < 0.35
        }

    def healthcheck() -> dict[str, Any]:
        return {
            "command": "true",
            **some(interval_sec=[1, 0.5, "often"], retries=[1, 3, 1.5], start_period_sec=[2, -1.0, []]),
        }

    def network() -> dict[str, Any]:
        if pick.random() < 0.15:
            hosts = pick.choice([["A.example.COM."], ["*.x.org", "10.0.0.0/8"], ["::1", "1.2.3.4"]])
            return {"network_mode": "allowlist", "allowed_hosts": hosts}
        return some(network_mode=["public", "no-network", "none"])

    def env() -> dict[str, str]:
        return some(A=["1", "${B}", "${B:-c}", 4])

    def environment() -> dict[str, Any]:
        return network() | some(
            build_timeout_sec=[60, 1.5, "soon"],
            docker_image=["ubuntu:24.04", "x", 7],
            os=["linux", "Linux", "windows", "mac"],
            cpus=[1, 2.0, 0.5, "two"],
            memory_mb=[512, 1024, 1.5],
            memory=["1G", "512M", "1"],
            storage=["10G", "64K", "x"],
            storage_mb=[10240, 1024, "much"],
            gpus=[0, 1, "one"],
            gpu_types=[["H100"], [], "H100"],
            tpu=[{"type": "v6e", "topology": "2x4"}, {"type": "v6e", "topology": "2"}],
            env=env,
            skills_dir=["/skills", 1],
            healthcheck=healthcheck,
            workdir=["/app", "/srv", 2],
            allow_internet=[True, False, "perhaps"],
            mcp_servers=[
                [],
                [{"name": "m", "transport": "http", "url": "http://m"}],
                [{"name": "m", "command": "c"}],
            ],
        )

    def collect() -> list[dict[str, Any]]:
        return [
            {
                "command": "true",
                **some(service=["main", " db ", "-x"], timeout_sec=[5, "5s"], user=["root", 0, 1.5]),
            }
        ]

    def verifier() -> dict[str, Any]:
        return network() | some(
            timeout_sec=[5, 30.0, "long"],
            env=env,
            user=["root", 1000, []],
            environment_mode=["shared", "separate", "own"],
            environment=environment,
            collect=collect,
        )

    def agent() -> dict[str, Any]:
        return network() | some(timeout_sec=[10, 1.5, "short"], user=["agent", 0, []])

    def artifacts() -> list[Any]:
        return pick.choice(
            [
                ["/app/out"],
                ["out.txt", {"source": "/app", "exclude": ["*.pyc"], "destination": "kept/app"}],
                [{"source": "/logs/artifacts", "exclude": ["x"]}, {"source": "/var/log", "service": "db"}],
                [{"source": "/app", "destination": pick.choice(["../x", "/x", "manifest.json", "a\\b", ""])}],
                [pick.choice(["/a/../b", "..", {"source": "x", "service": "db"}])],
            ]
        )

    def steps() -> list[dict[str, Any]]:
        names = pick.sample(["one", "two", "Two", "three", "a.b"], pick.randint(1, 3))
        if pick.random() < 0.05:
            names[0] = pick.choice(["..", "con", "a/b", " ", "x.", 3])
        return [
            {"name": name}
            | some(
                agent=agent,
                verifier=verifier,
                min_reward=[0.5, 1, {"a": 0.5}, "half"],
                healthcheck=healthcheck,
                artifacts=artifacts,
            )
            for name in names
        ]

    def task() -> dict[str, Any]:
        return {
            "name": pick.choice(
                ["o/n", "org.x/task-1", "o/a..b", "noslash"][: 4 if pick.random() < 0.2 else 2]
            )
        } | some(
            version=["1.0", "x", ""],
            description=["d", 3],
            keywords=[["k"], "k"],
            authors=[[{"name": "n"}], [{}]],
        )

    return some(
        schema_version=["1.0", "1.1", "1.2", "1.3", "1.4", "1.5"],
        version=["1.0", "1.4", 1.0],
        task=task,
        metadata=[{"difficulty": "easy", "n": 3}, {}, "none"],
        source=["here", 3],
        multi_step_reward_strategy=["mean", "final", "sum"],
        environment=environment,
        verifier=verifier,
        agent=agent,
        solution=lambda: some(env=env),
        artifacts=artifacts,
        steps=steps,
    )


def toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {toml(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value)

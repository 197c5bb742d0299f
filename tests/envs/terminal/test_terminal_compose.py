"""`docker-compose.yaml` of a task: what is read of it, and what is refused by file and key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from harbor_folders import write_task
from hypothesis import given
from hypothesis import strategies as st

from envsdk.contracts.failures import ConfigurationError
from envsdk.envs.terminal.harbor.compose import MAIN_IMAGE, Compose, read_compose
from envsdk.envs.terminal.harbor.config import Environment, Healthcheck
from envsdk.envs.terminal.harbor.folder import read_folder
from envsdk.envs.terminal.harbor.support import refusals, remarks
from envsdk.envs.terminal.services import assignments

CONFIG = Environment(cpus=2, memory_mb=512)


def read(
    folder: Path, services: dict[str, Any], variables: dict[str, str] | None = None, **top: Any
) -> Compose:
    (folder / "environment/db").mkdir(parents=True, exist_ok=True)
    for name in ("environment/Dockerfile", "environment/db/Dockerfile"):
        (folder / name).write_text("FROM python:3.12\n")
    file = folder / "environment/docker-compose.yaml"
    file.write_text(json.dumps({"services": services, **top}, ensure_ascii=False), errors="replace")
    return read_compose(file, CONFIG, variables)


def test_what_is_said_in_several_ways_is_read_as_one(tmp_path: Path) -> None:
    long = {
        "build": {"context": "db"},
        "command": ["run", "a b"],
        "environment": {"A": 1, "B": True, "C": None, "D": "x=y"},
        "env_file": ["db/Dockerfile"],
        "depends_on": {"main": {"condition": "service_started"}},
        "healthcheck": {"test": ["CMD-SHELL", "is it"], "interval": "1m30s", "timeout": "500ms"},
        "volumes": [
            {"type": "bind", "source": "./db", "target": "/b", "read_only": True},
            {"type": "volume", "source": "data", "target": "/d"},
        ],
    }
    short = {
        "build": "./db/",
        "command": "run 'a b'",
        "environment": ["A=1", "B=true", "C", "D=x=y"],
        "env_file": "db/Dockerfile",
        "depends_on": ["main"],
        "healthcheck": {"test": "is it", "interval": "90s", "timeout": "0.5s"},
        "volumes": ["./db:/b:ro", "data:/d"],
    }
    (one, other) = (read(tmp_path, {"db": said}, volumes={"data": None}) for said in (long, short))
    assert one.problems == other.problems == []
    assert (one.services["db"].healthcheck, one.services["db"].environment) == (
        Healthcheck(command="/bin/sh -c 'is it'", interval_sec=90, timeout_sec=0.5),
        {"A": "1", "B": "true", "C": None, "D": "x=y"},
    )
    for name in ("build", "command", "environment", "depends_on", "healthcheck", "volumes"):
        assert getattr(one.services["db"], name) == getattr(other.services["db"], name), name


def test_the_agents_box_may_be_said_as_harbor_says_it_itself(tmp_path: Path) -> None:
    logs = [
        f"${{HOST_{name}_PATH}}:${{ENV_{name}_PATH}}" for name in ("VERIFIER_LOGS", "AGENT_LOGS", "ARTIFACTS")
    ]
    main = {
        "build": {"context": "${CONTEXT_DIR}"},
        "image": "${MAIN_IMAGE_NAME}",
        "command": ["sh", "-c", "sleep infinity"],
        "environment": ["TEST_DIR=${TEST_DIR}", "LIMITS=$CPUS/${MEMORY}"],
        "volumes": logs,
        "deploy": {"resources": {"limits": {"cpus": "${CPUS}"}}},
    }
    compose = read(tmp_path, {"main": main}, {}, **{"x-common": {"a": 1}})
    assert (compose.problems, compose.without_effect) == ([], ["services.main.deploy"])
    assert compose.main.environment == {"TEST_DIR": "/tests", "LIMITS": "2/512M"}
    assert not compose.needs_engine
    assert read(tmp_path, {"a": {"image": "$MAIN_IMAGE_NAME"}}).services["a"].image == MAIN_IMAGE


@pytest.mark.parametrize(
    ("services", "said"),
    [
        ({"db": {"image": "x", "privileged": True}}, "services.db.privileged: is not supported here"),
        ({"db": {"image": "x", "network_mode": "host"}}, "services.db.network_mode: is not supported here"),
        ({"db": {}}, "services.db.image: is missing, and `build` too"),
        ({"db": {"build": "../.."}}, "services.db.build: ../../Dockerfile: is not in the task's folder"),
        ({"main": {"build": {"context": "${CONTEXT_DIR}/../.."}}}, "services.main.build: "),
        (
            {"main": {"build": {"context": "../..", "dockerfile": "${CONTEXT_DIR}/Dockerfile"}}},
            "services.main.build: ../..: is not in the task's folder",
        ),
        (
            {"db": {"build": {"context": "db", "secrets": []}}},
            "services.db.build: secrets: is not supported here",
        ),
        (
            {"db": {"image": "x", "environment": {"A": {"B": "c"}}}},
            "services.db.environment: {'B': 'c'}: is no text",
        ),
        (
            {"db": {"image": "x", "environment": [{"A": "b"}]}},
            "services.db.environment: {'A': 'b'}: is no text",
        ),
        ({"db": {"image": "x", "env_file": "db"}}, "services.db.env_file: db: cannot be read as text: "),
        (
            {"db": {"image": "x", "env_file": "db/latin"}},
            "services.db.env_file: db/latin: cannot be read as text: 'utf-8' codec",
        ),
        (
            {"db": {"image": "x", "env_file": "gone"}},
            "services.db.env_file: gone: is not in the task's folder",
        ),
        (
            {"db": {"image": "x", "volumes": ["/var/run/docker.sock:/s"]}},
            "services.db.volumes: /var/run/docker.sock: is not in the task's folder",
        ),
        (
            {"db": {"image": "x", "volumes": ["${HOST_AGENT_LOGS_PATH}:/logs/agent"]}},
            "services.db.volumes: /logs/agent: is not in the task's folder",
        ),
        ({"db": {"image": "x", "volumes": ["./db:/b:rshared"]}}, "services.db.volumes: ["),
        ({"db": {"image": "x", "depends_on": ["other"]}}, "services.db.depends_on: other: is no service"),
        (
            {"db": {"image": "x"}, "main": {"depends_on": {"db": {"condition": "service_healthy"}}}},
            "services.main.depends_on: db: is no service, or has no healthcheck to wait for",
        ),
        (
            {"db": {"image": "x", "depends_on": {"main": {"condition": "service_completed_successfully"}}}},
            "services.db.depends_on: service_completed_successfully: is not supported here",
        ),
        (
            {"db": {"image": "x", "healthcheck": {"test": "x", "interval": "soon"}}},
            "services.db.healthcheck: interval: soon: is no time such as 1m30s",
        ),
        (
            {"db": {"image": "x", "healthcheck": {"test": "x", "every": "1s"}}},
            "services.db.healthcheck: every: is not supported here",
        ),
        (
            {"a": {"image": "x", "depends_on": ["b"]}, "b": {"image": "x", "depends_on": ["a"]}},
            "services: depend on each other: ",
        ),
        (
            {"a": {"image": "x", "expose": [80]}, "b": {"image": "x", "ports": ["8080:80/tcp"]}},
            "services.b.ports: 80: a has it, and all share one network here",
        ),
        (
            {"a": {"image": "x", "networks": ["back"]}, "b": {"image": "x"}},
            "networks: all services share one network here",
        ),
        ({"main": {"volumes": ["/etc:/etc"]}}, "services.main.volumes: /etc: is not in the task's folder"),
        ({"main": {"image": "other"}}, "services.main.image: is not supported here"),
        ({"main": {"command": "service db start"}}, "services.main.command: is not supported here"),
        ({"main": {"user": "me"}}, "services.main.user: is not supported here"),
        ({"a b": {"image": "x"}}, "services.'a b': is no name: "),
        ({"localhost": {"image": "x"}}, "services.'localhost': is no name: "),
        ({"db": {"image": "x", "command": {"a": 1}}}, "services.db.command: {"),
        (["db"], "services: cannot be read as services by name (services: ['db']: is no mapping"),
        (
            {"db": ["image"]},
            "services: cannot be read as services by name (services.db: ['image']: is no mapping of keys",
        ),
        ({"db": {"image": "x", "environment": 3}}, "services.db.environment: 3: is not supported here"),
    ],
)
def test_what_cannot_be_done_is_refused_by_file_and_key(
    tmp_path: Path, services: dict[str, Any], said: str
) -> None:
    (tmp_path / "environment/db").mkdir(parents=True)
    (tmp_path / "environment/db/latin").write_bytes(b"A=\xe9\n")
    (found,) = read(write_task(tmp_path), services).problems
    assert found.startswith(said)
    *_, refused = refusals(read_folder(tmp_path), has_engine=True)
    assert refused == f"environment/docker-compose.yaml: {found}"


def test_services_are_refused_where_sandboxes_are_no_containers(tmp_path: Path) -> None:
    read(write_task(tmp_path), {"db": {"image": "x", "ports": [80], "restart": "always"}})
    task = read_folder(tmp_path)
    (refused,) = refusals(task)
    need = "services beside the box need `backend: podman` or `backend: docker`"
    assert refused == f"environment/docker-compose.yaml: {need}"
    assert refusals(task, has_engine=True) == []
    said = [line for line in remarks(task, has_network=False) if "compose" in line]
    assert said == [
        f"environment/docker-compose.yaml: services.db.{key}: changes nothing here"
        for key in ("ports", "restart")
    ]


def test_a_variable_that_is_missing_is_named_when_it_is_needed(tmp_path: Path) -> None:
    said = {"db": {"image": "${A}/${B:-b}:${C-c}$$", "environment": ["D"]}}
    assert read(tmp_path, said).services["db"].image == "${A}/b:c$"
    assert read(tmp_path, said, {"A": "a", "C": "z"}).services["db"].image == "a/b:z$"
    with pytest.raises(ConfigurationError, match="needs the variable A: give it in `variables`"):
        read(tmp_path, said, {})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4) | st.just("${A}"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)
KEYS = st.sampled_from(
    [
        *("image", "build", "command", "entrypoint", "environment", "env_file", "depends_on", "healthcheck"),
        *("working_dir", "user", "volumes", "ports", "expose", "networks", "privileged"),
    ]
)


@given(st.dictionaries(st.sampled_from(["main", "a", "b"]), st.dictionaries(KEYS, JSON, max_size=4) | JSON))
def test_any_file_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, services: dict[str, Any]
) -> None:
    compose = read(tmp_path_factory.getbasetemp() / "any", services)
    assert compose.problems or set(compose.services) == services.keys() - {"main"}


@given(
    st.dictionaries(st.integers(0, 5).map(str), st.sets(st.integers(0, 5).map(str)), min_size=1, max_size=6)
)
def test_services_come_after_those_that_they_depend_on(
    tmp_path_factory: pytest.TempPathFactory, waits: dict[str, set[str]]
) -> None:
    services = {
        name: {"image": "x", "depends_on": [each for each in others & waits.keys() if each < name]}
        for name, others in waits.items()
    }
    names = list(read(tmp_path_factory.getbasetemp() / "any", services).services)
    assert sorted(names) == sorted(services)
    assert all(
        names.index(other) < names.index(name) for name in names for other in services[name]["depends_on"]
    )


def test_the_lines_of_an_env_file_are_values_without_quotes_comments_and_export(tmp_path: Path) -> None:
    lines = ["A=1", "B='q'", 'C="d q"', "D=x # c", "export E=5", "# F=6", "", "G=a=b", "H=it's", "I=a b"]
    (tmp_path / "env").write_text("\n".join(lines))
    expected = ["A=1", "B=q", "C=d q", "D=x", "E=5", "G=a=b", "H=it's", "I=a b"]
    assert list(assignments(tmp_path / "env")) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("services: &s {main: {}, a: *s}", "cannot be read as services by name"),
        ("services:\n  a: {image: x}\n  a: {image: y}\n", "'a' stands twice in "),
        ("services:\n  a:\n    image: x\n    image: y\n", "line 4"),
    ],
)
def test_a_document_that_holds_itself_or_a_key_twice_is_refused(tmp_path: Path, text: str, said: str) -> None:
    file = write_task(tmp_path, {"environment/docker-compose.yaml": text}) / "environment/docker-compose.yaml"
    (problem,) = read_compose(file, Environment()).problems
    assert said in problem


def test_a_key_that_is_merged_and_said_anew_stands_once(tmp_path: Path) -> None:
    text = (
        "x-a: &a {image: x}\nx-b: &b {<<: *a, image: y}\nservices: {main: {}, c: *b, d: {<<: *b, image: z}}\n"
    )
    file = write_task(tmp_path, {"environment/docker-compose.yaml": text}) / "environment/docker-compose.yaml"
    compose = read_compose(file, Environment())
    assert (compose.problems, {name: each.image for name, each in compose.services.items()}) == (
        [],
        {"c": "y", "d": "z"},
    )


def test_the_agents_image_may_be_built_of_another_folder_and_file(tmp_path: Path) -> None:
    build = {"context": "${CONTEXT_DIR}/..", "dockerfile": "${CONTEXT_DIR}/db/Dockerfile", "args": ["A"]}
    compose = read(write_task(tmp_path, {"environment/Dockerfile": None}), {"main": {"build": build}})
    assert compose.problems == []
    assert compose.main.build == {
        "context": str(tmp_path / "environment/.."),
        "dockerfile": str(tmp_path / "environment/db/Dockerfile"),
        "args": {"A": None},
    }
    (tmp_path / "environment/Dockerfile").unlink()
    assert refusals(read_folder(tmp_path)) == []
    read(tmp_path, {"main": {}})
    (tmp_path / "environment/Dockerfile").unlink()
    (refused,) = refusals(read_folder(tmp_path))
    assert refused.startswith(
        "environment/Dockerfile: is missing, and docker-compose.yaml has no services.main"
    )


def test_a_compose_file_of_the_other_ending_is_not_read_and_that_is_said(tmp_path: Path) -> None:
    task = read_folder(write_task(tmp_path, {"environment/docker-compose.yml": "services: {a: {}}"}))
    assert refusals(task) == []
    said = "environment/docker-compose.yml: is not read, as in Harbor: name it docker-compose.yaml"
    assert said in remarks(task, has_network=False)

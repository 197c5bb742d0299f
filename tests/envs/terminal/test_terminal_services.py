"""Services beside the agent's box, in real containers: `make test-podman`."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from envsdk.envs.terminal.env import TerminalEnv
from envsdk.envs.terminal.services import BoxBroken
from envsdk.rewards.sandbox import SandboxError
from tests.envs.terminal.harbor_folders import IN_PLACE, SEPARATE, SERVE, write_task
from tests.envsdk.rewards.sandbox.engines import IMAGE, Engine, open_engine

pytestmark = [pytest.mark.containers, pytest.mark.asyncio(loop_scope="module")]

STORE = """\
import http.server, json, os, pathlib, sys
LOG, items = pathlib.Path("/var/log/store/requests"), [os.environ[n] for n in ("FIRST", "SECOND", "THIRD")]
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        with LOG.open("a") as log: log.write(self.path + "\\n")
        if self.path == "/end": os._exit(3)
        if self.path.startswith("/add/"): items.append(self.path[5:])
        self.send_response(200); self.end_headers(); self.wfile.write(json.dumps(items).encode())
http.server.HTTPServer(("", int(sys.argv[1])), Handler).serve_forever()
"""
ASK = """\
import sys, urllib.request
for url in sys.argv[1:]:
    print(urllib.request.urlopen(url, timeout=20).read().decode())
"""
COMPOSE = """\
services:
  main:
    build: {context: "${CONTEXT_DIR}"}
    image: ${MAIN_IMAGE_NAME}
    command: [sh, -c, sleep infinity]
    environment: {STORE_URL: "http://store:8080"}
    volumes: ["log:/srv/log:ro", "${HOST_VERIFIER_LOGS_PATH}:${ENV_VERIFIER_LOGS_PATH}"]
    depends_on: {front: {condition: service_healthy}}
  front:
    image: ${MAIN_IMAGE_NAME}
    entrypoint: [python, -m, http.server]
    command: "8081"
    working_dir: /pages
    user: nobody
    volumes: ["./pages:/pages"]
    depends_on: {store: {condition: service_healthy}}
    healthcheck:
      test: [CMD, python, /ask.py, "http://front:8081", "http://store:8080"]
      interval: 500ms
      retries: 60
  store:
    build: {context: ./store, args: [PORT=8080, SECOND]}
    environment: [FIRST=a, SECOND]
    env_file: store/more.env
    expose: [8080]
    volumes: [{type: volume, source: log, target: /var/log/store}]
    healthcheck:
      test: python /ask.py http://localhost:8080/
      interval: 500ms
      retries: 60
volumes:
  log:
"""
FILES = {
    "environment/Dockerfile": f"""\
FROM {IMAGE}
RUN echo 'nobody:x:65534:65534::/:/bin/sh' >> /etc/passwd
COPY store/ask.py /ask.py
WORKDIR /app
""",
    "environment/docker-compose.yaml": COMPOSE,
    "environment/store/Dockerfile": f"""\
FROM {IMAGE}
ARG PORT=1
ARG SECOND=none
RUN [ $SECOND = b ]
ENV PORT=$PORT
COPY *.py /
CMD exec python /store.py $PORT
""",
    "environment/store/store.py": STORE,
    "environment/store/ask.py": ASK,
    "environment/store/more.env": "export THIRD='c'  # quoted\n",
    "environment/pages/index.html": "front page",
    "task.toml": """\
[environment.env]
SECOND = "${SECOND}"
[environment.healthcheck]
command = "python /ask.py http://store:8080/"
""",
    "tests/test.sh": """\
#!/bin/bash
python /ask.py http://store:8080/ > /tmp/now
! touch /srv/log/forged && grep -q /add/done /srv/log/requests && grep -q '"b", "c", "done"' /tmp/now
echo $((1 - $?)) > /logs/verifier/reward.txt
""",
    "solution/solve.sh": "python /ask.py $STORE_URL/add/done\n",
}
SETTINGS = {"image": IMAGE, "run_options": ["--cap-add=DAC_OVERRIDE,CHOWN,FOWNER"]}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with open_engine(tmp_path_factory.mktemp("engine")) as engine:
        yield engine
        assert left(engine) == [], "containers or volumes are left"


def left(engine: Engine) -> list[str]:
    return [*engine.containers(), *engine.call("volume", "ls", "--quiet").split()]


def env_of(folder: Path, engine: Engine, *, validate: bool = False) -> TerminalEnv:
    return TerminalEnv(data=str(folder), validate=validate, **keywords(engine))


def keywords(engine: Engine) -> dict[str, Any]:
    return {"backend": engine.name, "backend_settings": SETTINGS, "variables": {"SECOND": "b"}}


async def played(env: TerminalEnv, *commands: str) -> tuple[float, list[str]]:
    await env.reset(seed=0)
    said = []
    try:
        for command in [*commands, "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"]:
            observation, reward, *_ = await env.step(f"```bash\n{command}\n```")
            said.append(observation)
    finally:
        await env.close()
    return float(reward), said


async def test_services_run_before_the_agent_works_and_keep_their_state_for_the_check(
    engine: Engine, tmp_path: Path
) -> None:
    env = env_of(write_task(tmp_path / "task", FILES), engine, validate=True)
    asked = "python /ask.py http://front:8081/; tail -n +3 /proc/net/dev | cut -d: -f1"
    reward, (seen, *_) = await played(env, asked, FILES["solution/solve.sh"], "kill -9 -1")
    assert reward == 1.0
    assert seen.split("<output>")[1].split()[:3] == ["front", "page", "lo"]
    assert (await played(env, "true"))[0] == 0.0
    assert left(engine) == []


async def test_a_service_that_an_agent_has_ended_is_named_and_the_tests_decide(
    engine: Engine, tmp_path: Path
) -> None:
    env = env_of(write_task(tmp_path / "task", FILES), engine)
    await env.reset(seed=0)
    await env.step("```bash\npython /ask.py http://store:8080/end\n```")
    *_, reward, _, _, info = await env.step("```bash\necho COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\n```")
    (said,) = info["artifacts_left_out"]
    assert said.startswith("service store: ended with code 3: ")
    assert reward == 0.0
    assert left(engine) == []


async def test_the_agents_image_is_built_of_the_folder_and_file_that_compose_names(
    engine: Engine, tmp_path: Path
) -> None:
    build = {"context": "${CONTEXT_DIR}/..", "dockerfile": "${CONTEXT_DIR}/Dockerfile", "args": ["SECOND"]}
    files = {
        "environment/docker-compose.yaml": json.dumps({"services": {"main": {"build": build}}}),
        "environment/Dockerfile": f"FROM {IMAGE}\nARG SECOND\nCOPY app /app\nRUN echo $SECOND > /app/2\n",
        "app/file": "given",
        "tests/test.sh": """\
[ "$(cat /app/file /app/2)" = givenb ]; echo $((1 - $?)) > /logs/verifier/reward.txt""",
    }
    assert (await played(env_of(write_task(tmp_path / "task", files), engine), "true"))[0] == 1.0


@pytest.mark.parametrize(
    ("service", "said"),
    [
        (
            {"healthcheck": {"test": "echo bad; exit 7", "interval": "10ms", "retries": 2}},
            "service front: healthcheck: failed 2 times: bad",
        ),
        ({"entrypoint": ["sh", "-c", "echo why; exit 4"]}, "service front: ended with code 4: why"),
        ({"entrypoint": ["no-such-program"]}, "no-such-program"),
    ],
)
async def test_a_service_that_does_not_come_up_is_named(
    engine: Engine, tmp_path: Path, service: dict[str, object], said: str
) -> None:
    compose = yaml.safe_load(COMPOSE)
    compose["services"]["front"].update({"command": None, **service})
    files = {**FILES, "environment/docker-compose.yaml": json.dumps(compose)}
    with pytest.raises((BoxBroken, SandboxError), match=said):
        await played(env_of(write_task(tmp_path / "task", files), engine), "true")
    assert left(engine) == []


PROGRAM = """
import asyncio, json, sys
from envsdk.envs.terminal.env import TerminalEnv

async def main():
    env = TerminalEnv(**json.loads(sys.argv[1]))
    await env.reset(seed=0)
    await env.step("```bash\\ntrue\\n```")
    print("up", flush=True)
    await asyncio.sleep(900)

asyncio.run(main())
"""


async def test_the_services_of_a_killed_program_are_swept(engine: Engine, tmp_path: Path) -> None:
    data = str(write_task(tmp_path / "task", FILES))
    given = json.dumps({"data": data, "validate": False, **keywords(engine)})
    with subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", PROGRAM, given], stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        assert await asyncio.to_thread(program.stdout.readline) == "up\n"
        program.send_signal(signal.SIGKILL)
    assert len(left(engine)) == 4, "three containers and a volume"
    other = engine.backend()
    await other.probe()
    assert left(engine) == []
    await other.aclose()


@pytest.mark.parametrize("files", [IN_PLACE, SEPARATE], ids=["in_place", "separate"])
async def test_a_service_that_is_left_running_in_a_container_is_there_when_it_is_checked(
    files: dict[str, str | None], engine: Engine, tmp_path: Path
) -> None:
    dockerfile = f"FROM {IMAGE}\nRUN mkdir /srv\nWORKDIR /app\n"
    task = write_task(tmp_path / "task", {**files, "environment/Dockerfile": dockerfile})
    env = env_of(task, engine, validate=True)
    assert (await played(env, SERVE))[0] == 1.0
    assert (await played(env, SERVE, "kill -9 -1"))[0] == 0.0
    assert left(engine) == []

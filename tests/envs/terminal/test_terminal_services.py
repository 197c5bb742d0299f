"""Services beside the agent's box, in real containers: `make test-podman`."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from envsdk.contracts.failures import ConfigurationError
from envsdk.envs.terminal.env import TerminalEnv
from envsdk.envs.terminal.harbor.rewards import NoReward
from envsdk.envs.terminal.services import BoxBroken
from tests.envs.terminal.harbor_folders import write_task
from tests.envsdk.rewards.sandbox.engines import IMAGE, Engine, open_engine

pytestmark = [pytest.mark.containers, pytest.mark.asyncio(loop_scope="module")]

STORE = """\
import http.server, json, os, pathlib, sys
LOG, items = pathlib.Path("/var/log/store/requests"), [os.environ["FIRST"], os.environ["SECOND"]]
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        with LOG.open("a") as log: log.write(self.path + "\\n")
        if self.path == "/end": os._exit(3)
        if self.path.startswith("/add/"): items.append(self.path[5:])
        self.send_response(200); self.end_headers(); self.wfile.write(json.dumps(items).encode())
http.server.HTTPServer(("", int(sys.argv[1])), Handler).serve_forever()
"""
ASK = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=20).read().decode())"
COMPOSE = """\
services:
  main:
    image: ${MAIN_IMAGE_NAME}
    environment: {STORE_URL: "http://store:8080"}
    volumes: ["log:/srv/log:ro", "${HOST_VERIFIER_LOGS_PATH}:/logs/verifier"]
    depends_on: {front: {condition: service_healthy}}
  front:
    image: ${MAIN_IMAGE_NAME}
    entrypoint: [python, -m, http.server]
    command: "8081"
    working_dir: /pages
    user: nobody
    volumes: ["./pages:/pages"]
    depends_on: {store: {condition: service_healthy}}
    healthcheck: {test: [CMD, python, -c, "import urllib.request as u; u.urlopen('http://front:8081'); u.urlopen('http://store:8080')"], interval: 500ms}
  store:
    build: {context: ./store, args: {PORT: "8080"}}
    environment: [FIRST=a, SECOND]
    env_file: store/more.env
    expose: [8080]
    volumes: [{type: volume, source: log, target: /var/log/store}]
    healthcheck: {test: python /ask.py http://localhost:8080/, interval: 500ms, retries: 60, start_period: 1s}
volumes:
  log:
"""
FILES = {
    "environment/Dockerfile": f"FROM {IMAGE}\nRUN echo 'nobody:x:65534:65534::/:/bin/sh' >> /etc/passwd\nCOPY store/ask.py /ask.py\nWORKDIR /app\n",
    "environment/docker-compose.yaml": COMPOSE,
    "environment/store/Dockerfile": f"FROM {IMAGE}\nARG PORT=1\nENV PORT=$PORT\nCOPY *.py /\nCMD exec python /store.py $PORT\n",
    "environment/store/store.py": STORE,
    "environment/store/ask.py": ASK,
    "environment/store/more.env": "THIRD=c\n",
    "environment/pages/index.html": "front page",
    "task.toml": '[environment.env]\nSECOND = "${SECOND}"\n[environment.healthcheck]\ncommand = "python /ask.py http://store:8080/"\n',
    "tests/test.sh": """\
#!/bin/bash
python /ask.py http://store:8080/ > /tmp/now
! touch /srv/log/forged 2>/dev/null && grep -q /add/done /srv/log/requests && grep -q '"b", "done"' /tmp/now
echo $((1 - $?)) > /logs/verifier/reward.txt
""",
    "solution/solve.sh": "python /ask.py $STORE_URL/add/done\n",
}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with open_engine(tmp_path_factory.mktemp("engine")) as engine:
        yield engine
        assert left(engine) == [], "containers or volumes are left"


def left(engine: Engine) -> list[str]:
    return [*engine.containers(), *engine.call("volume", "ls", "--quiet").split()]


def env_of(folder: Path, engine: Engine, **keywords: object) -> TerminalEnv:
    settings = {"image": IMAGE, "run_options": ["--cap-add=DAC_OVERRIDE,CHOWN,FOWNER"]}
    keywords = {"backend": engine.name, "backend_settings": settings, "variables": {"SECOND": "b"}, **keywords}
    return TerminalEnv(data=str(folder), **keywords)


async def played(env: TerminalEnv, commands: list[str]) -> tuple[float, list[str], Mapping[str, object]]:
    await env.reset(seed=0)
    said = []
    for command in [*commands, "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"]:
        observation, reward, *_, info = await env.step(f"```bash\n{command}\n```")
        said.append(observation)
    await env.close()
    return float(reward), said, info


async def test_services_are_there_before_the_agent_and_keep_their_state_for_the_check(
    engine: Engine, tmp_path: Path
) -> None:
    env = env_of(write_task(tmp_path / "task", FILES), engine)
    asked = "python /ask.py http://front:8081/; id -u; pwd; grep -c . /proc/net/dev"
    reward, said, _ = await played(env, [asked, FILES["solution/solve.sh"], "kill -9 -1"])
    assert reward == 1.0
    assert "front page" in said[0], said
    assert (await played(env, ["true"]))[0] == 0.0
    assert left(engine) == []

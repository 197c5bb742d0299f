"""The Terminal environment: episodes, steps, limits, formats and what is said of them."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest
from harbor_folders import write_task
from terminal_episodes import make, play, solve

from envsdk.contracts.failures import ConfigurationError
from envsdk.envs.terminal.__main__ import TasksOptions, command
from envsdk.envs.terminal.boxes import RUINED, AgentsBox, BoxBroken, resolved
from envsdk.envs.terminal.env import SUBMIT_COMMAND, TerminalEnv
from envsdk.envs.terminal.harbor.rewards import NoReward
from envsdk.envs.terminal.notes import notes
from envsdk.envs.terminal.replies import MAX_WAIT_S, format_command, read_keys
from envsdk.envs.terminal.shipped import TASKS
from envsdk.envs.terminal.task_list import folder_of, read_tasks, split_of, task_list
from envsdk.rewards.sandbox import ExecEnd, ExecResult, SandboxError
from tests.by_day import by_day

SHIPPED = sorted(f"{file.parent.name}/{file.stem}" for file in TASKS.glob("*/*.toml"))
DONE = '{"commands": [], "task_complete": true}'


@pytest.mark.asyncio
@pytest.mark.parametrize("number", by_day([SHIPPED.index("train/notes_in_steps")], range(len(SHIPPED))))
async def test_a_shipped_task_pays_its_solution_and_nothing_else(number: int) -> None:
    env = make(None)
    paid, info = await solve(env, number)
    assert (paid, info["success"]) == (1.0, True), info
    _, paid, info = await play(env, task=number)
    assert (paid, info["success"]) == (0.0, False), info
    await env.close()


def test_the_shipped_tasks_are_of_many_kinds() -> None:
    tasks = task_list(None, "all").tasks
    assert len(tasks) >= 12
    assert {task.config.schema_version for task in tasks} >= {"1.0", "1.1", "1.2", "1.3", "1.4"}
    assert len({task.config.metadata["category"] for task in tasks}) >= 9
    assert sum(task.is_separate for task in tasks) >= 10
    assert {task.strategy for task in tasks if len(task.stages) > 1} == {"mean", "final"}
    train, held_out = ({task.id for task in task_list(None, split).tasks} for split in ("train", "held_out"))
    assert train | held_out == set(SHIPPED)
    assert not train & held_out


@pytest.mark.asyncio
async def test_an_episode_shows_the_task_then_outputs_then_how_it_was_checked(tmp_path: Path) -> None:
    env = make(write_task(tmp_path, {"instruction.md": "# canary\nSay hello."}))
    observation, info = await env.reset(seed=0)
    assert observation.startswith("<task>\nSay hello.\n</task>\n\n<instructions>")
    assert info == {"instance_id": tmp_path.name, "checked": "checked in place"}
    observation, reward, *_ = await env.step("```bash\npwd; exit 3\n```")
    assert (observation, reward) == ("<returncode>3</returncode>\n<output>\n/app\n</output>", 0.0)
    observation, reward, *_, info = await env.step("no command")
    assert "Nothing was run" in observation
    assert info["metrics"]["action_is_valid"] == 0.0
    observation, reward, terminated, truncated, info = await env.step(format_command(SUBMIT_COMMAND, "bash"))
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert observation == (
        f'<episode instance_id="{tmp_path.name}" reward="1">\nChecked in place.\n</episode>'
    )
    assert info["details"]["verdict"] == "checked in place"
    assert info["rewards"] == {"reward": 1.0}
    assert (await env.step("more"))[1:4] == (0.0, True, False)
    await env.close()


@pytest.mark.asyncio
async def test_at_the_limit_what_was_left_is_checked(tmp_path: Path) -> None:
    test = "[ -e /app/x ]; echo $((1 - $?)) > /logs/verifier/reward.txt"
    env = make(write_task(tmp_path, {"tests/test.sh": f"#!/bin/bash\n{test}"}), max_steps=2)
    await env.reset(seed=0)
    await env.step(format_command("touch /app/x", "bash"))
    _, reward, terminated, truncated, info = await env.step(format_command("true", "bash"))
    assert (reward, terminated, truncated, info["metrics"]["submitted"]) == (1.0, False, True, 0.0)
    await env.close()


@pytest.mark.asyncio
async def test_a_step_whose_time_is_over_is_checked(tmp_path: Path) -> None:
    env = make(write_task(tmp_path, {"task.toml": "[agent]\ntimeout_sec = 1.5"}))
    await env.reset(seed=0)
    _, reward, terminated, truncated, _ = await env.step(format_command("sleep 60", "bash"))
    assert (reward, terminated, truncated) == (1.0, True, False)
    await env.close()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("test", "said"),
    [
        ("true", "neither /logs/verifier/reward.json nor"),
        ("touch /logs/verifier/reward.txt", "it is empty"),
        ("echo nan > /logs/verifier/reward.txt", "not a finite number"),
        ("mkdir /logs/verifier/reward.json", "not a regular file"),
        ("echo 1 > /logs/verifier/reward.txt; sleep 60", "the verifier was ended by its timeout"),
    ],
)
async def test_a_verifier_that_breaks_is_never_scored(tmp_path: Path, test: str, said: str) -> None:
    files = {"task.toml": "[verifier]\ntimeout_sec = 2", "tests/test.sh": f"#!/bin/bash\n{test}\n"}
    env = make(write_task(tmp_path, files))
    with pytest.raises(NoReward, match=said):
        await play(env)
    await env.close()


async def test_rewards_that_an_image_brings_along_are_not_the_verifiers(tmp_path: Path) -> None:
    files = {
        "task.toml": '[verifier]\nenvironment_mode = "separate"',
        "tests/Dockerfile": "FROM python:3.12\nCOPY test.sh /tests/\nRUN mkdir -p /logs/verifier"
        " && echo 1 | tee /logs/verifier/reward.txt > /logs/verifier/reward.json\n",
        "tests/test.sh": "#!/bin/sh\ntrue\n",
    }
    env = make(write_task(tmp_path, files))
    with pytest.raises(NoReward, match="was written"):
        await play(env)
    await env.close()


@pytest.mark.asyncio
async def test_a_verifiers_box_that_fails_is_never_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = make(write_task(tmp_path, {"task.toml": '[verifier]\nenvironment_mode = "separate"'}))
    await env.reset(seed=0)
    await env.step(format_command("true", "bash"))

    async def breaks(backend: Any, *_: object, **__: object) -> None:
        num_open = sum(not sandbox.is_closed for sandbox in backend._sandboxes)
        raise SandboxError(f"no sandboxes besides {num_open}")

    monkeypatch.setattr("envsdk.envs.terminal.boxes.build_image", breaks)
    with pytest.raises(SandboxError, match="besides 0"):
        await env.step(format_command(SUBMIT_COMMAND, "bash"))
    with pytest.raises(SandboxError, match="closed"):
        await env.step(format_command(SUBMIT_COMMAND, "bash"))
    await env.close()


@pytest.mark.asyncio
async def test_a_box_that_the_policy_has_ruined_is_its_own_fault(tmp_path: Path) -> None:
    toml = 'artifacts = ["/app/x"]\n[verifier]\nenvironment_mode = "separate"'
    test = "#!/bin/bash\n[ -e /app/x ]; echo $((1 - $?)) > /logs/verifier/reward.txt\n"
    env = make(write_task(tmp_path, {"task.toml": toml, "tests/test.sh": test}), max_steps=3)
    await env.reset(seed=0)
    await env.step(format_command("touch /app/x; rm -rf /app /bin /lib64 /usr/bin 2> /dev/null", "bash"))
    _, reward, terminated, _, info = await env.step(format_command("ls", "bash"))
    assert (reward, terminated) == (0.0, True)
    assert len(info["artifacts_left_out"]) == 2
    await env.close()


class FailingBox:
    """A sandbox whose machine seems to fail, in the first so many commands or in all."""

    id = "fake"

    def __init__(self, failures: float) -> None:
        self.failures = failures

    async def exec(self, script: str, **_: object) -> ExecResult:
        self.failures -= 1
        if self.failures >= 0:
            return ExecResult.infrastructure("it broke")
        return ExecResult(output="", returncode=0, reason=ExecEnd.EXIT, elapsed_s=0.0, total_bytes=0)

    async def alive(self) -> bool:
        return True

    async def close(self) -> None:
        pass


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("failures", "of_a_new_one", "is_ruined"),
    [(math.inf, 0, True), (math.inf, math.inf, False), (1, 0, False)],
)
async def test_a_box_in_which_nothing_runs_is_the_policys_fault_where_a_new_one_works(
    failures: float, of_a_new_one: float, is_ruined: bool
) -> None:
    boxes = iter((FailingBox(failures), FailingBox(of_a_new_one)))

    async def start() -> Any:
        return next(boxes)

    agents = AgentsBox(start)
    if is_ruined:
        result = await agents.exec("ls", timeout_s=1)
        assert (result.reason, result.returncode, result.output) == (ExecEnd.EXIT, 126, RUINED)
    else:
        with pytest.raises(SandboxError, match="it broke"):
            await agents.exec("ls", timeout_s=1)


@pytest.mark.asyncio
async def test_a_box_that_is_not_healthy_is_the_tasks_fault(tmp_path: Path) -> None:
    check = "[environment.healthcheck]\ncommand = 'echo too bad; false'\ninterval_sec = 0.01\nretries = 2"
    env = make(write_task(tmp_path, {"task.toml": check}))
    with pytest.raises(BoxBroken, match=r"environment.healthcheck: failed 2 times: too bad"):
        await play(env)
    await env.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("key", ["agent", "verifier"])
async def test_a_user_that_a_box_lacks_is_the_tasks_fault(tmp_path: Path, key: str) -> None:
    toml = f'[{key}]\nuser = "ghost"\n[verifier.environment]'
    env = make(write_task(tmp_path, {"task.toml": toml}))
    with pytest.raises(BoxBroken, match=f"task.toml: {key}.user: the box has no user 'ghost'"):
        await play(env, "true")
    await env.close()


@pytest.mark.asyncio
async def test_what_a_verifier_does_not_get_is_named(tmp_path: Path) -> None:
    toml = """
artifacts = ["out.txt", "/app/there", "/app/pipe"]
[verifier]
environment_mode = "separate"
[[verifier.collect]]
command = "echo too bad; exit 3"
[[verifier.collect]]
command = "sleep 60"
timeout_sec = 0.5
"""
    env = make(write_task(tmp_path, {"task.toml": toml}))
    _, _, info = await play(env, "touch /app/there; mkfifo /app/pipe")
    assert info["details"]["artifacts_left_out"] == [
        "verifier.collect: 'echo too bad; exit 3' ended with code 3: too bad",
        "verifier.collect: 'sleep 60' ended with its timeout: ",
        "/app/out.txt: it is not there",
        "/app/pipe: it is neither a file nor a folder",
    ]
    await env.close()


@pytest.mark.asyncio
async def test_a_box_has_what_its_task_says(tmp_path: Path) -> None:
    toml = """
[environment]
workdir = "/srv"
env = {A = "${A_OF_HOST:-one}", B = "${B_OF_HOST}"}
skills_dir = "/skills"
mcp_servers = [{name = "calendar", transport = "sse", url = "http://localhost:8000/sse"}]
[verifier]
env = {WANTED = "one two"}
"""
    test = '#!/bin/bash\n[ "$WANTED" = "$(cat /srv/said)" ]; echo $((1 - $?)) > /logs/verifier/reward.txt\n'
    folder = write_task(tmp_path, {"task.toml": toml, "tests/test.sh": test})
    env = make(folder, variables={"B_OF_HOST": "two"})
    observation, _ = await env.reset(seed=0)
    assert "Each folder in /skills has a SKILL.md" in observation
    assert '{"name": "calendar", "transport": "sse", "url": "http://localhost:8000/sse"}' in observation
    _, paid, _ = await play(env, 'echo "$A $B" > said')
    assert paid == 1.0
    await env.close()
    of_verifier = write_task(tmp_path / "c", {"task.toml": '[verifier.env]\nA = "${A}"'})
    with pytest.raises(ConfigurationError, match=r"^c: task\.toml: verifier\.env\.A: needs the"):
        await play(make(of_verifier, validate=True))
    write_task(folder, {"task.toml": toml, "environment/Dockerfile": "FROM host\nRUN false\n"})
    env = make(folder)  # said before anything is built
    with pytest.raises(
        ConfigurationError, match=r"environment.env.B: needs the variable B_OF_HOST: give it in"
    ):
        await play(env, "true")


@pytest.mark.asyncio
async def test_a_task_of_a_folder_must_pay_its_solution_and_more_than_nothing(tmp_path: Path) -> None:
    task = write_task(tmp_path / "task")
    with pytest.raises(ConfigurationError, match="its own solution is paid 1, and doing nothing 1"):
        await play(make(task, validate=True))
    test = "#!/bin/bash\necho no network; echo 0 > /logs/verifier/reward.txt\n"
    write_task(task, {"tests/test.sh": test})
    with pytest.raises(ConfigurationError, match="doing nothing 0; its verifier printed: no network"):
        await play(make(task, validate=True))
    write_task(task, {"solution/solve.sh": "echo no curl; nohup true & exit 3", "tests/test.sh": test})
    with pytest.raises(ConfigurationError) as error:
        await play(make(task, validate=True))
    assert "; solve.sh: It ended with code 3. no curl; its verifier printed: no" in str(error.value)
    dockerfile = 'FROM python:3.12\nWORKDIR /app\nENTRYPOINT ["/serve"]\n'
    write_task(task, {"environment/Dockerfile": dockerfile})
    with pytest.raises(
        ConfigurationError, match="doing nothing 1; the ENTRYPOINT of its Dockerfile does not run"
    ):
        await play(make(task, validate=True))
    write_task(task, {"solution/solve.sh": "exit 3", "tests/test.sh": "#!/bin/bash\ntrue\n"})
    with pytest.raises(ConfigurationError, match=r"its own solution gets no reward: neither.*; solve.sh: It"):
        await play(make(task, validate=True))
    test = "#!/bin/bash\n[ -e /app/x ] && echo 1 > /logs/verifier/reward.txt\n"
    write_task(task, {"solution/solve.sh": "touch /app/x", "tests/test.sh": test})
    _, paid, _ = await play(make(task, validate=True), "touch /app/x")
    assert paid == 1.0


@pytest.mark.parametrize("gate", ["min_reward = 1", ""])
@pytest.mark.asyncio
async def test_a_step_that_needs_the_one_before_it_keeps_no_task_from_being_tried(
    tmp_path: Path, gate: str
) -> None:
    check = "#!/bin/bash\n[ -e /app/x ]; echo $((1 - $?)) > /logs/verifier/reward.txt\n"
    health = '[steps.healthcheck]\ncommand = "test -e /app/x"\nretries = 1'
    task = write_task(
        tmp_path / "task",
        {
            "task.toml": f'[[steps]]\nname = "one"\n{gate}\n[[steps]]\nname = "two"\n{health}',
            "tests/test.sh": check,
            "solution/solve.sh": "touch /app/x",
            "steps/one/instruction.md": "Make x.",
            "steps/two/instruction.md": "Keep x.",
        },
    )
    _, paid, _ = await play(make(task, validate=True), f"touch /app/x; {SUBMIT_COMMAND}")
    assert paid == 1.0


@pytest.mark.asyncio
async def test_a_solution_of_several_files_brings_them_along(tmp_path: Path) -> None:
    files = {
        "solution/solve.sh": '#!/bin/bash\ncp "$(dirname "$0")/given" /app/x',
        "solution/given": "content",
        "tests/test.sh": "#!/bin/bash\ngrep -q content /app/x && echo 1 > /logs/verifier/reward.txt\n",
    }
    paid, _ = await solve(make(write_task(tmp_path, files)), 0)
    assert paid == 1.0


@pytest.mark.parametrize("files", [{}, {"solution/more": ""}])
@pytest.mark.asyncio
async def test_a_solution_is_the_same_command_at_any_time_and_runs_once_however_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str]
) -> None:
    runs = "#!/bin/bash\necho once >> /app/runs; exit 3"
    test = "#!/bin/bash\n[ $(wc -l < /app/runs) = 1 ]; echo $((1 - $?)) > /logs/verifier/reward.txt\n"
    task = write_task(tmp_path, {"solution/solve.sh": runs, "tests/test.sh": test, **files})
    years = itertools.count()
    monkeypatch.setattr("gzip.time.time", lambda: next(years) * 3e7)
    paid, info = await solve(make(task), 0)
    assert (paid, info["metrics"]["submitted"]) == (1.0, 1.0)


@pytest.mark.asyncio
async def test_a_solution_that_does_not_get_through_its_own_gates_is_none(tmp_path: Path) -> None:
    toml = "[[steps]]\nname = 'one'\nmin_reward = 1\n[[steps]]\nname = 'two'\nmin_reward = 1"
    files = {"task.toml": toml, **{f"steps/{name}/instruction.md": "Do it." for name in ("one", "two")}}
    half = "[ -e /app/x ] && echo 0.5 || echo 0; } > /logs/verifier/reward.txt\n"
    files |= {"solution/solve.sh": "touch /app/x", "tests/test.sh": "#!/bin/bash\n{ " + half}
    with pytest.raises(ConfigurationError, match=r"no reward: step one: reward = 0\.5 is below min_reward 1"):
        await play(make(write_task(tmp_path / "one", files), validate=True))
    ungated = write_task(tmp_path / "two", {**files, "task.toml": toml.replace("min_reward = 1\n", "")})
    _, paid, _ = await play(make(ungated, validate=True), f"touch /app/x; {SUBMIT_COMMAND}")
    assert paid == 0.5, "the last step's gate keeps nothing out"


@pytest.mark.parametrize(
    "user", by_day(["1000", '"nobody:nogroup"'], ["1000", '"1000"', '"1000:1000"', '"nobody:nogroup"'])
)
@pytest.mark.asyncio
async def test_a_user_may_be_a_number_and_have_a_group(tmp_path: Path, user: str) -> None:
    files = {
        "task.toml": f"[agent]\nuser = {user}\n[verifier]\nuser = {user}",
        "environment/Dockerfile": "FROM host\nWORKDIR /app\nUSER 7:8\nRUN id -u > first\n",
        "tests/test.sh": "#!/bin/bash\necho $(($(id -u) - $(< first))) > /logs/verifier/reward.txt\n",
    }
    number = 65534 if "nobody" in user else 1000
    _, paid, _ = await play(make(write_task(tmp_path, files)), f"[ $(id -u) = {number} ] || rm first")
    assert paid == number - 7


@pytest.mark.asyncio
async def test_an_earlier_conversation_comes_before_the_first_instruction(tmp_path: Path) -> None:
    history = '{"steps": [{"source": "user", "message": "Look around."}]}'
    observation, _ = await make(write_task(tmp_path, {"trajectory.json": history})).reset(seed=0)
    assert observation.startswith(
        "<earlier_conversation>\n[user]\nLook around.\n</earlier_conversation>\n\n<task>"
    )


def test_a_folder_is_a_list_with_splits(tmp_path: Path) -> None:
    for name in ("train/a", "validation/b", "c", "d", "e", "f", "g", "h"):
        write_task(tmp_path / name)
    write_task(tmp_path / "bad", {"task.toml": "[environment]\ngpus = 1"})
    with pytest.raises(
        ConfigurationError, match=r"1 of 9 tasks cannot be played .*\n  bad: task.toml: environment.gpus"
    ):
        task_list(str(tmp_path))
    every = {task.id for task in task_list(str(tmp_path), skips_refused=True).tasks}
    assert every == {"train/a", "validation/b", "c", "d", "e", "f", "g", "h"}
    train = {task.id for task in task_list(str(tmp_path), "train", skips_refused=True).tasks}
    held_out = {task.id for task in task_list(str(tmp_path), "held_out", skips_refused=True).tasks}
    assert train | held_out == every
    assert ("train/a" in train, "validation/b" in held_out) == (True, True)
    assert sum(split_of(f"task-{number}") == "held_out" for number in range(1000)) == pytest.approx(
        200, abs=50
    )
    named = task_list(str(tmp_path), instance_ids=("c",))
    (one,) = named.tasks
    assert named.refused == {}, "nothing that was asked for is left out"
    assert one.id == "c"
    with pytest.raises(ConfigurationError, match=r"has no bad\n  bad: task.toml: environment.gpus"):
        task_list(str(tmp_path), instance_ids=("bad",))
    with pytest.raises(ConfigurationError, match="there is no folder"):
        folder_of(str(tmp_path / "none"))
    said = notes(data=str(tmp_path), skip_refused=True)
    assert any("shared: the agent can reach what checks it (8 tasks, such as " in line for line in said)
    assert any("1 tasks are left out" in line for line in said)


def test_a_refusal_names_a_file_of_the_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, files in {
        "toml": {"task.toml": "x ="},
        "text": {"instruction.md": None},
        "test": {"tests/test.sh": None},
        "image": {"environment/Dockerfile": None},
        "key": {"task.toml": "[agent]\ntimeout_sec = 'long'"},
    }.items():
        write_task(tmp_path / "broken" / name, files)
    monkeypatch.chdir(tmp_path)
    _, refused = read_tasks(Path("broken"))
    starts = {name: why.partition(": ")[0] for name, why in refused.items()}
    assert starts == {
        "toml": "task.toml",
        "text": "instruction.md",
        "test": "tests/test.sh",
        "image": "environment/Dockerfile",
        "key": "task.toml",
    }
    assert str(tmp_path) not in " ".join(refused.values())


def test_the_listing_refuses_what_cannot_be_built_and_names_what_is_lacking(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_task(tmp_path / "agent", {"environment/Dockerfile": "FROM x\nVOLUME /x\n"})
    files = {"task.toml": "[verifier.environment]", "tests/Dockerfile": "FROM x\nRUNS x\n"}
    write_task(tmp_path / "verifier", files)
    write_task(tmp_path / "good", {"task.toml": '[verifier]\nenv = {A = "${NEEDED_KEY}", B = "${C:-}"}'})
    _, refused = read_tasks(tmp_path)
    assert refused["agent"] == "environment/Dockerfile:2: VOLUME is not supported"
    assert refused["verifier"].startswith("tests/Dockerfile: ")
    assert command(TasksOptions(data=str(tmp_path))) == 1
    lacking = "task.toml: verifier.env.A: needs the variable NEEDED_KEY: give it in `variables`"
    assert lacking in capsys.readouterr().out
    assert command(TasksOptions(data=str(tmp_path), backend="podman")) == 0
    said = notes(data=str(tmp_path), backend="podman", variables={"NEEDED_KEY": "1"})
    assert not any("NEEDED_KEY" in line for line in said)
    (tmp_path / "none").mkdir()
    with pytest.raises(ConfigurationError, match="there is no task"):
        command(TasksOptions(data=str(tmp_path / "none")))


def test_a_data_set_by_name_is_downloaded_once_by_the_command_harbor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_task(tmp_path / "source/task").parent
    command = tmp_path / "bin/harbor"
    command.parent.mkdir()
    command.write_text(
        f'#!/bin/sh\necho "$*" >> {tmp_path}/calls\n'
        '[ "$2" = org/set@1 ] || { echo "no such data set" >&2; exit 1; }\n'
        f'mkdir -p "$5" && cp -r {source} "$5/set"\n'
    )
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}:/usr/bin:/bin")
    monkeypatch.setenv("ENVSDK_CACHE", str(tmp_path / "cache"))
    for _ in range(2):
        tasks, refused = read_tasks(folder_of("org/set@1"))
        assert ([task.id for task in tasks], refused) == (["set/task"], {})
    assert (tmp_path / "calls").read_text().count("\n") == 1
    with pytest.raises(ConfigurationError, match="harbor download says: no such data set"):
        folder_of("org/other")


def test_the_environments_of_this_process_is_not_shown_to_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "x")
    with pytest.raises(ConfigurationError, match="needs the variable SECRET"):
        resolved({"A": "${SECRET}"}, {}, "task.toml: environment.env")
    assert resolved({"A": "${SECRET:-y}", "B": "$SECRET"}, {}, "") == {"A": "y", "B": "$SECRET"}


def test_wrong_keywords_are_refused_with_what_is_known() -> None:
    with pytest.raises(ValueError, match="limits: 'memory' is none; known are processes, memory_mb"):
        TerminalEnv(limits={"memory": 3})
    with pytest.raises(ValueError, match="action_format: must be one of bash, tool, keys"):
        TerminalEnv(action_format="words")


@pytest.mark.parametrize(
    "reply", ["", "{", "[]", '{"commands": 3}', '{"commands": [{"keystrokes": 1}]}', "{} {}", "{" * 10**5]
)
def test_a_reply_without_keys_types_nothing(reply: str) -> None:
    typed, note = read_keys(reply)
    assert typed is None
    assert "Nothing was typed" in note


def test_keys_are_typed_as_they_stand_or_by_name() -> None:
    commands = [
        {"keystrokes": "ls -la\ncd /\n", "duration": 0.1},
        {"keystrokes": "C-c"},
        {"keystrokes": "x", "duration": 999},
    ]
    typed, note = read_keys(f"First look.\n{json.dumps({'commands': commands})}\nThen go on.")
    assert note == ""
    assert typed is not None
    assert typed.strokes == (
        (("ls -la", "Enter", "cd /", "Enter"), 0.1),
        (("C-c",), 1.0),
        (("x",), MAX_WAIT_S),
    )
    assert not typed.is_done
    done, _ = read_keys(DONE)
    assert done is not None
    assert done.is_done

"""Ways to be left out of the scores: a policy that ruins its box is scored 0, wherever that is checked."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harbor_folders import write_task
from terminal_episodes import make, play, solve

from envsdk.envs.shell.commands import SENTINEL
from envsdk.envs.terminal import judge
from envsdk.envs.terminal.harbor.rewards import NoReward
from envsdk.envs.terminal.replies import format_command
from envsdk.rewards.sandbox import SandboxError
from tests.by_day import by_day
from tests.envsdk.rewards.sandbox.engines import IMAGE, Engine, open_engine

pytestmark = pytest.mark.asyncio

LIMITS = "[environment]\nmemory_mb = 512\nstorage_mb = 64\n"
WHERE = {
    "in_place": f'[verifier]\nenvironment_mode = "shared"\ntimeout_sec = 20\n{LIMITS}',
    "in_a_separate_box": (
        'artifacts = ["/app/answer", "/app/out"]\n'
        f'[verifier]\nenvironment_mode = "separate"\ntimeout_sec = 20\n{LIMITS}'
    ),
}
TEST = '#!/bin/bash\n[ "$(cat /app/answer)" = yes ]; echo $((1 - $?)) > /logs/verifier/reward.txt\n'
PROGRAMS = "{tar,bash,sh,dash,cat,rm,mkdir,chmod,env,setpriv,python3}"
NESTED = 'import os\nfor _ in range(3000): os.mkdir("d" * 200); os.chdir("d" * 200)'
OTHER_TAR = "rm /usr/bin/tar && printf '#!/bin/sh\\n{}\\n' > /usr/bin/tar && chmod 755 /usr/bin/tar"
RUINS = {
    # Programs and libraries.
    "no_tar": "rm -f /bin/tar /usr/bin/tar",
    "no_bash": "rm -f /bin/bash /usr/bin/bash",
    "no_shell": "rm -f /bin/{sh,dash} /usr/bin/{sh,dash}",
    "no_cat": "rm -f /bin/cat /usr/bin/cat",
    "no_tools": f"rm -f /bin/{PROGRAMS} /usr/bin/{PROGRAMS}",
    "a_tar_that_fails": OTHER_TAR.format("exit 9"),
    "a_tar_that_hangs": OTHER_TAR.format("sleep 1000"),
    "no_loader": "rm -rf /lib64 /usr/lib64",
    "no_libc": "rm -f /lib/x86_64-linux-gnu/libc.so.6 /usr/lib/x86_64-linux-gnu/libc.so.6",
    "a_library_that_is_not_there_before_all_others": "echo /nonexistent.so > /etc/ld.so.preload",
    "start_files_that_exit": "echo 'exit 3' | tee /etc/bash.bashrc /root/.bashrc /etc/profile",
    "no_users": "rm -f /etc/passwd /etc/group /etc/nsswitch.conf",
    # Folders that the check needs.
    "nothing_may_be_entered": "chmod 000 / /usr /bin /app /tmp",
    "no_temporary_folder": "rm -rf /tmp; touch /tmp",
    "a_temporary_folder_that_leads_nowhere": "rm -rf /tmp; ln -s /nowhere /tmp",
    "no_workdir": "rm -rf /app",
    "a_workdir_that_leads_to_itself": "rm -rf /app; ln -s /app /app",
    "logs_that_are_a_file": "rm -rf /logs; touch /logs",
    "logs_that_lead_to_themselves": "rm -rf /logs; ln -s /logs /logs",
    "logs_that_are_a_pipe": "rm -rf /logs/verifier; mkfifo /logs/verifier",
    "logs_without_rights": "chmod 000 /logs /logs/verifier",
    "rewards_that_are_pipes": "mkfifo /logs/verifier/reward.json /logs/verifier/reward.txt",
    "rewards_that_are_folders": "mkdir -p /logs/verifier/reward.{txt,json}/x",
    "tests_that_lead_to_themselves": "rm -rf /tests; ln -s /tests /tests",
    "tests_nested_too_deep": f"mkdir -p /tests; cd /tests; python3 -c '{NESTED}'",
    "mounted_over": "mount -t tmpfs none /tests; mount -t tmpfs none /logs",
    "everything_removed": "rm -rf --no-preserve-root / 2> /dev/null",
    # Artifacts.
    "artifacts_that_lead_to_themselves": "ln -s /app/answer /app/answer; ln -s /app/out /app/out",
    "artifacts_that_are_pipes": "mkfifo /app/answer; mkdir -p /app/out; mkfifo /app/out/x",
    "artifacts_that_are_devices": "mknod /app/answer c 1 5; mkdir /app/out; mknod /app/out/z c 1 5",
    "artifacts_without_rights": "mkdir -p /app/out; echo x > /app/out/x; chmod 000 /app/out/x /app/out",
    "artifacts_that_cannot_be_changed": "mkdir -p /app/out; echo > /app/out/x; chattr +i /app/out/x /tests",
    "names_of_no_text": "mkdir -p /app/out; touch /app/out/$'\\xff\\xfe' /app/out/$'a\\nb'",
    "sparse_artifacts": "mkdir -p /app/out; truncate -s 100G /app/out/x; truncate -s 8E /app/answer",
    "artifacts_nested_too_deep": f"mkdir -p /app/out; cd /app/out; python3 -c '{NESTED}'",
    # Limits.
    "a_full_disk": "head -c 200M /dev/zero > /app/fill",
    "too_many_files": "mkdir /app/many; cd /app/many; seq 300000 | xargs touch",
    "a_fork_bomb": "b() { b | b & }; b; sleep 2",
    "too_many_processes": "for i in $(seq 5000); do (setsid sleep 100 &) ; done 2> /dev/null",
    "a_flood_of_output": "yes | head -c 500M",
    "too_much_memory": "python3 -c 'x = bytearray(2 << 30)'",
    "everything_killed": "kill -9 -1",
    "the_first_process_killed": "kill -9 1; kill -TERM 1; kill -INT 1; kill -HUP 1",
    "its_own_shell_killed": "kill -9 $PPID; kill -9 $$",
    "another_time": "date -s 1970-01-01",
}
BY_DAY = {
    ("no_tar", "in_a_separate_box"),
    ("no_bash", "in_place"),
    ("a_library_that_is_not_there_before_all_others", "in_place"),
    ("no_workdir", "in_a_separate_box"),
    ("a_fork_bomb", "in_place"),
}


@pytest.mark.parametrize(
    ("name", "where"), by_day(BY_DAY, [(name, where) for name in RUINS for where in WHERE])
)
async def test_a_ruined_box_is_scored_0(name: str, where: str, tmp_path: Path) -> None:
    env = make(write_task(tmp_path, {"task.toml": WHERE[where], "tests/test.sh": TEST}), **SHORT)
    _, paid, info = await play(env, RUINS[name])
    await env.close()
    assert (paid, info["success"]) == (0.0, False), info


SHORT: dict[str, Any] = {"max_steps": 2, "command_timeout_s": 15}


async def test_artifacts_share_the_time_that_it_may_take_to_get_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toml = WHERE["in_a_separate_box"].replace('"/app/answer", "/app/out"', '"a", "b", "c"')
    env = make(write_task(tmp_path, {"task.toml": toml, "tests/test.sh": TEST}), **SHORT)
    monkeypatch.setattr(judge, "MOVE_TIMEOUT_S", 2.0)  # of 300
    _, paid, info = await play(env, f"touch /app/a /app/b /app/c; {RUINS['a_tar_that_hangs']}")
    await env.close()
    assert paid == 0.0
    assert len(info["artifacts_left_out"]) == 4
    assert all("tar: timeout" in each for each in info["artifacts_left_out"])


async def test_what_broke_a_check_in_place_is_named(tmp_path: Path) -> None:
    env = make(write_task(tmp_path, {"task.toml": WHERE["in_place"], "tests/test.sh": TEST}), **SHORT)
    observation, _, info = await play(env, RUINS["no_tar"])
    await env.close()
    assert "tar: command not found" in info["artifacts_left_out"][0]
    assert 'reward="0"' in observation


@pytest.mark.parametrize("solve_sh", [None, "true"])
async def test_a_check_in_place_that_breaks_in_a_new_box_too_is_never_scored(
    solve_sh: str | None, tmp_path: Path
) -> None:
    files = {"task.toml": WHERE["in_place"], "tests/test.sh": "exit 3", "solution/solve.sh": solve_sh}
    env = make(write_task(tmp_path, files), **SHORT)
    with pytest.raises(NoReward, match="was written"):
        await play(env, "echo yes > /app/answer")
    await env.close()


async def test_a_check_in_place_that_only_an_honest_solution_gets_through_is_never_scored_without_one(
    tmp_path: Path,
) -> None:
    files = {"task.toml": WHERE["in_place"], "tests/test.sh": f"[ -e /app/answer ] || exit 3\n{TEST}"}
    env = make(write_task(tmp_path, {**files, "solution/solve.sh": None}), **SHORT)
    with pytest.raises(NoReward, match="was written"):
        await play(env, "true")
    await env.close()


async def test_a_box_that_is_ruined_between_two_steps_is_scored_0(tmp_path: Path) -> None:
    toml = f"{WHERE['in_a_separate_box']}[[steps]]\nname = 'one'\n[[steps]]\nname = 'two'\n"
    files = {
        f"steps/{name}/{file}": "x" for name in ("one", "two") for file in ("instruction.md", "workdir/x")
    }
    solution = {"solution/solve.sh": "echo yes > /app/answer"}
    env = make(write_task(tmp_path, {"task.toml": toml, "tests/test.sh": TEST, **files, **solution}))
    await env.reset(seed=0)
    await env.step(format_command("echo yes > /app/answer", "bash"))
    ruin = f"echo {SENTINEL}; rm -f /bin/find /usr/bin/find"
    *_, paid, terminated, _, info = await env.step(format_command(ruin, "bash"))
    assert (paid, terminated, info["details"]["stages"]) == (0.5, True, [{"reward": 1.0}, {"reward": 0.0}])
    paid, _ = await solve(env, 0)
    await env.close()
    assert paid == 1.0


RUNS = """\
#!/bin/bash
chmod +x /app/answer
[ "$(/app/answer < /dev/null)" = yes ]; echo $((1 - $?)) > /logs/verifier/reward.txt
"""
"""Runs a program of the policy's."""
CUTS = {
    "sleeps": "sleep 1000",
    "waits_for_its_input_to_grow": "tail -f /dev/null",
    "stops_itself_and_all_others": "kill -STOP -1",
    "prints_without_end": "yes",
    "takes_all_memory": "python3 -c 'x = bytearray(2 << 30)'; kill -9 $PPID",
    "fills_the_disk": "cat /dev/zero > /app/more; sleep 1000",
    "kills_what_runs_it": "kill -9 $PPID",
}


@pytest.mark.parametrize("where", by_day(["in_a_separate_box"], WHERE))
@pytest.mark.parametrize("name", by_day(["sleeps", "kills_what_runs_it"], CUTS))
async def test_what_makes_a_verifier_run_into_its_limits_is_scored_0(
    name: str, where: str, tmp_path: Path
) -> None:
    toml = WHERE[where].replace("timeout_sec = 20", "timeout_sec = 5")
    solution = "printf '#!/bin/sh\\necho yes\\n' > /app/answer"
    files = {"task.toml": toml, "tests/test.sh": RUNS, "solution/solve.sh": solution}
    env = make(write_task(tmp_path, files), **SHORT)
    _, paid, info = await play(env, f"printf '%s\\n' '#!/bin/bash' {shlex.quote(CUTS[name])} > /app/answer")
    assert (paid, info["success"]) == (0.0, False), info
    paid, info = await solve(env, 0)
    assert paid == 1.0, info
    await env.close()


@pytest.mark.parametrize("where", by_day(["in_place"], WHERE))
async def test_a_verifier_that_is_slow_for_everybody_is_never_scored(where: str, tmp_path: Path) -> None:
    """The task's own work is checked on the same machine, right then, and has to take half the time."""
    files = {
        "task.toml": WHERE[where].replace("timeout_sec = 20", "timeout_sec = 4"),
        "tests/test.sh": f"[ -e /app/out/mine ] && sleep 5; sleep 2.2\n{TEST}",
        "solution/solve.sh": "echo yes > /app/answer",
    }
    env = make(write_task(tmp_path, files), **SHORT)
    with pytest.raises(NoReward, match="ended by its timeout"):
        await play(env, "mkdir /app/out; touch /app/out/mine; echo yes > /app/answer")
    await env.close()


@pytest.mark.parametrize("where", by_day(["in_a_separate_box"], WHERE))
async def test_what_is_cut_off_once_and_not_again_is_paid(where: str, tmp_path: Path) -> None:
    """A machine that was busy for a while is no policy's doing."""
    toml = WHERE[where].replace("timeout_sec = 20", "timeout_sec = 4")
    busy = f'[ "$(date +%s)" -lt {time.time() + 3:.0f} ] && sleep 10'
    files = {"tests/test.sh": f"{busy}\n{TEST}", "solution/solve.sh": "echo yes > /app/answer"}
    env = make(write_task(tmp_path, {"task.toml": toml, **files}), **SHORT)
    _, paid, info = await play(env, "echo yes > /app/answer")
    assert paid == 1.0, info
    await env.close()


@pytest.mark.parametrize("action_format", ["bash", "keys"])
async def test_an_episode_ends_with_its_box(action_format: str, tmp_path: Path) -> None:
    """Where no shell can be started any more, all other replies would be for nothing."""
    for number, where in enumerate(WHERE.values()):
        files = {"task.toml": where, "tests/test.sh": TEST}
        env = make(write_task(tmp_path / f"{number}", files), action_format=action_format)
        await env.reset(seed=0)
        ruin = RUINS["no_bash"]
        if action_format == "bash":
            replies = [f"```bash\n{command}\n```" for command in (ruin, "ls", "ls")]
        else:
            keys = [f"{ruin}\n", "exit\n", "ls\n", "ls\n"]
            replies = [json.dumps({"commands": [{"keystrokes": each, "duration": 9}]}) for each in keys]
        for reply in replies:
            _, paid, terminated, truncated, info = await env.step(reply)
            if terminated:
                break
        assert (paid, terminated, truncated, info["success"]) == (0.0, True, False, False), info
        assert info["metrics"]["submitted"] == 0
        await env.close()


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with open_engine(tmp_path_factory.mktemp("engine")) as engine:
        yield engine


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize(
    "name",
    [
        *(name for name, _ in sorted(BY_DAY)),
        "the_first_process_killed",
        "everything_killed",
        "no_cat",
        "a_full_disk",
        "logs_that_are_a_file",
    ],
)
async def test_a_ruined_container_is_scored_0(name: str, where: str, tmp_path: Path, engine: Engine) -> None:
    files = {"task.toml": WHERE[where], "tests/test.sh": TEST}
    files["environment/Dockerfile"] = f"FROM {IMAGE}\nWORKDIR /app\n"
    settings = {"image": IMAGE, "run_options": ["--cap-add=DAC_OVERRIDE,CHOWN,FOWNER"]}
    env = make(write_task(tmp_path, files), backend=engine.name, backend_settings=settings, **SHORT)
    try:
        _, paid, info = await play(env, RUINS[name])
    except SandboxError as error:
        pytest.fail(f"masked: {error}")
    finally:
        await env.close()
    assert (paid, info["success"]) == (0.0, False), info

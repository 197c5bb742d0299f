"""What an agent leaves running: there when its work is checked, gone afterwards, and no way to be paid unless
the check is in place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from harbor_folders import GET, IN_PLACE, PAYS, SEPARATE, SERVE, UP, write_task
from terminal_episodes import make, play, solve

from tests.by_day import by_day

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize("files", [IN_PLACE, SEPARATE], ids=["in_place", "separate"])
async def test_a_service_that_is_left_running_is_there_when_it_is_checked(
    files: dict[str, str | None], tmp_path: Path
) -> None:
    env = make(write_task(tmp_path, files))
    paid, info = await solve(env, 0)
    assert paid == 1.0, info
    _, paid, info = await play(env, SERVE, GET, "ps ax > /app/out")
    assert paid == 1.0, info
    _, paid, _ = await play(env, SERVE.replace("8123", "8124"))
    assert paid == 0.0
    await env.close()
    ends = make(tmp_path, keeps_processes=False)
    observation, _ = await ends.reset(seed=0)
    assert "programs end with their command" in observation
    _, paid, _ = await play(ends, SERVE)
    assert paid == 0.0
    await ends.close()


async def test_a_service_of_the_terminal_is_there_when_it_is_checked(tmp_path: Path) -> None:
    """Jobs of its shell, and a session of tmux."""
    for starts in (
        "python3 -m http.server 8123 -d /srv > /dev/null 2>&1 &",
        "tmux new-session -d 'python3 -m http.server 8123 -d /srv'",
    ):
        for number, files in enumerate((IN_PLACE, SEPARATE)):
            env = make(write_task(tmp_path / f"{number}", files), action_format="keys")
            await env.reset(seed=0)
            keys = f"echo served > /srv/a; {starts}\n", f"{UP}\n"
            commands = [{"keystrokes": each, "duration": 10} for each in keys]
            await env.step(json.dumps({"commands": commands}))
            _, paid, terminated, _, info = await env.step('{"commands": [], "task_complete": true}')
            assert (paid, terminated) == (1.0, True), info
            await env.close()


async def test_what_runs_goes_on_in_the_next_step(tmp_path: Path) -> None:
    toml = SEPARATE["task.toml"] + '[[steps]]\nname = "one"\n[[steps]]\nname = "two"\n'
    files = {"task.toml": toml, "instruction.md": None, "tests/test.sh": SEPARATE["tests/test.sh"]}
    for step in ("one", "two"):
        files[f"steps/{step}/instruction.md"] = "Serve.\n"
    env = make(write_task(tmp_path, {**files, "solution/solve.sh": None}))
    await env.reset(seed=0)
    done = "```bash\necho COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\n```"
    await env.step(f"```bash\n{SERVE}\n```")
    await env.step(done)
    _, paid, terminated, _, info = await env.step(done)
    assert (paid, terminated, info["details"]["stages"]) == (1.0, True, [{"reward": 1.0}] * 2), info
    await env.close()


LOOPS = "while :; do {}; done"
DAEMONS = {
    "rewrites_its_artifact_until_it_is_taken": "echo $RANDOM > /app/out; cp /tests/* /app/out",
    "kills_all_others": "kill -9 -1",
    "stops_all_others": "kill -STOP -1",
    "kills_what_packs": "pkill -9 tar; pkill -9 sh",
    "stops_what_packs": "pkill -STOP tar; pkill -STOP mkdir",
    "puts_links_in_place_of_artifacts": "ln -sfn /tests/expected /app/out; ln -sfn /tests /logs/artifacts/x",
    "takes_all_processes": "setsid sleep 1000 &",
    "fills_the_memory": "head -c 3G /dev/zero | tail",
    "fills_the_disk": "cat /dev/zero > /app/out",
    "writes_rewards": "cd /logs/verifier; echo 1 | tee reward.txt > reward.json",
    "renames_the_folders_that_are_collected": "mv /logs /l; mv /app /a; mv /l /logs; mv /a /app",
    "deletes_what_is_packed": "rm -f /tmp/.envsdk-*; rm -rf /logs/artifacts",
}
DAEMONS_BY_DAY = [
    "rewrites_its_artifact_until_it_is_taken",
    "kills_all_others",
    "stops_what_packs",
    "fills_the_disk",
    "writes_rewards",
    "deletes_what_is_packed",
]
WAITS = SEPARATE | {
    "task.toml": SEPARATE["task.toml"].replace(
        GET + " > /logs/artifacts/got", "cp /app/log /logs/artifacts/got"
    ),
    "tests/test.sh": f"grep -qrs hidden-answer /app /logs/artifacts\n{PAYS}\n",
    "tests/expected": "hidden-answer\n",
    "solution/solve.sh": None,
}


@pytest.mark.parametrize("name", by_day(DAEMONS_BY_DAY, DAEMONS))
async def test_a_process_that_stays_is_never_paid_by_a_separate_verifier(name: str, tmp_path: Path) -> None:
    """Nor masked: the episode has an outcome, whatever it does to what is collected."""
    env = make(write_task(tmp_path, WAITS), command_timeout_s=5, max_steps=2)
    daemon = f"setsid nohup bash -c '{LOOPS.format(DAEMONS[name])}' > /dev/null 2>&1 &"
    _, paid, info = await play(env, "echo x > /app/log; echo x > /app/out; " + daemon)
    assert (paid, info["success"], info["checked"]) == (0.0, False, "checked in a separate box"), info
    await env.close()


IN_PLACE_DAEMONS = {
    "writes_rewards": "cd /logs/verifier; echo 1 | tee reward.txt > reward.json",
    "moves_rewards_in": "echo 1 > /tmp/r; mv /tmp/r /logs/verifier/reward.json",
    "rewrites_the_tests": "echo 'echo 1 > /logs/verifier/reward.txt' | tee /tests/test.sh /tests/expected",
    "rewrites_what_is_laid": "for f in /tmp/.envsdk-*; do echo x > $f; done",
    "writes_where_others_have_their_root": (
        "for p in /proc/[0-9]*; do echo 1 | tee $p/{root/logs/verifier,cwd}/reward.{txt,json}; done"
    ),
    "replaces_the_folders": "mv /logs /l; mv /tests /t; ln -s /l /logs; ln -s /t /tests; mount -B /l /logs",
    "replaces_the_folder": "rm -rf /logs/verifier; ln -s /tmp /logs/verifier; echo 1 > /tmp/reward.txt",
}
"""Until the tests have ended, and beyond."""


@pytest.mark.parametrize(
    "name", by_day(["writes_rewards", "rewrites_the_tests", "replaces_the_folder"], IN_PLACE_DAEMONS)
)
async def test_a_process_that_stays_is_not_paid_by_a_check_in_place(name: str, tmp_path: Path) -> None:
    """Nor masked. Tests and rewards are in folders that only commands of the check see."""
    files = {
        **IN_PLACE,
        "tests/test.sh": "sleep 1; cat /tests/expected > /logs/verifier/reward.txt\n",
        "tests/expected": "0\n",
        "solution/solve.sh": None,
    }
    env = make(write_task(tmp_path, files), command_timeout_s=5, max_steps=2)
    daemon = f"setsid nohup bash -c '{LOOPS.format(IN_PLACE_DAEMONS[name])}' > /dev/null 2>&1 &"
    _, paid, info = await play(env, daemon)
    assert (paid, info["checked"]) == (0.0, "checked in place"), info
    assert not info["artifacts_left_out"], "the tests ran"
    await env.close()


async def test_steps_that_are_checked_in_place_see_nothing_of_each_others_checks(tmp_path: Path) -> None:
    files: dict[str, str | None] = {
        "task.toml": '[[steps]]\nname = "one"\n[[steps]]\nname = "two"\n',
        "tests/test.sh": "ls -A /tests /logs/verifier >> /app/seen; echo 1 > /logs/verifier/reward.txt\n",
        "instruction.md": None,
        "solution/solve.sh": None,
    }
    for step in ("one", "two"):
        files[f"steps/{step}/instruction.md"] = "Wait.\n"
    env = make(write_task(tmp_path, files))
    await env.reset(seed=0)
    done = "```bash\necho COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; echo mine > /logs/verifier/mine\n```"
    await env.step(done)
    observation, *_ = await env.step("```bash\nls -A /tests /logs/verifier; cat /app/seen\n```")
    assert (
        "<output>\n/logs/verifier:\n\n/tests:\n/logs/verifier:\n\n/tests:\ntest.sh\n</output>" in observation
    )
    _, paid, terminated, _, info = await env.step(done)
    assert (paid, terminated) == (1.0, True), info
    await env.close()

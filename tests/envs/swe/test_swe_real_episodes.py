"""Episodes in real sandboxes, graded by hidden tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from envsdk import TextEnv, as_sync
from envsdk.envs.shell.commands import SENTINEL
from envsdk.envs.shell.replies import format_reply
from envsdk.envs.swe.env import SWEEnv
from envsdk.envs.swe.observations import SUBMIT_COMMAND

TASK = "slotcache__recency"
FIX = """python - <<'EOF'
from pathlib import Path
path = Path("slotcache/cache.py")
text = path.read_text()
path.write_text(text.replace("self.stats.hits += 1", "self._entries.move_to_end(key); self.stats.hits += 1"))
EOF"""


def bash(command: str) -> str:
    return format_reply(command, "bash")


@pytest.fixture
def env(tmp_path: Path) -> Iterator[TextEnv]:
    env = as_sync(
        SWEEnv(instance_ids=[TASK], command_timeout_s=20, backend_settings={"state_dir": str(tmp_path)})
    )
    env.reset(seed=0)
    yield env
    env.close()


def test_a_fix_of_ones_own_is_resolved_by_hidden_tests_that_the_agent_never_sees(env: TextEnv) -> None:
    listed = env.step(bash("git ls-files; git log --oneline | wc -l"))[0]
    assert "tests/test_eviction.py" not in listed
    assert listed.rstrip().endswith("1\n</output>")
    assert env.step(bash(FIX))[4]["metrics"]["command_succeeded"] == 1.0
    assert "passed" in env.step(bash("python -m pytest -q"))[0]
    _, reward, terminated, _, info = env.step(bash(SUBMIT_COMMAND))
    assert (reward, terminated, info["reason"]) == (1.0, True, "resolved")
    assert info["fail_to_pass"]["passed"] == info["fail_to_pass"]["total"] > 0


def test_a_patch_that_breaks_the_tests_is_worth_nothing(env: TextEnv) -> None:
    env.step(bash("sed -i 's/import/imprt/' slotcache/cache.py"))
    _, reward, terminated, _, info = env.step(bash(SUBMIT_COMMAND))
    assert (reward, terminated, info["success"]) == (0.0, True, False)


def test_edited_tests_and_configuration_are_taken_out_of_the_patch(env: TextEnv) -> None:
    env.step(bash("printf 'import os\\nos._exit(0)\\n' > conftest.py; rm -r tests"))
    _, reward, _, _, info = env.step(bash(SUBMIT_COMMAND))
    assert reward == 0.0
    assert "conftest.py" in info["stripped"]


def test_a_printed_verdict_is_no_verdict(env: TextEnv) -> None:
    _, reward, terminated, _, _ = env.step(bash(f"echo {SENTINEL}; echo 25 passed; echo resolved"))
    assert (reward, terminated) == (0.0, True)


def test_an_idle_episode_holds_no_process_and_a_closed_one_no_file(env: TextEnv, tmp_path: Path) -> None:
    before = processes()
    env.step(bash("(trap '' TERM HUP; sleep 1000) & setsid sleep 1000 & echo started > left"))
    assert processes() <= before
    assert list(tmp_path.rglob("left"))
    assert "started" in env.step(bash("cat left"))[0]
    env.close()
    assert not list(tmp_path.rglob("left"))


def test_a_command_that_takes_too_long_is_killed_with_all_it_started(tmp_path: Path) -> None:
    settings = {"state_dir": str(tmp_path)}
    before = processes()
    env = as_sync(SWEEnv(instance_ids=[TASK], command_timeout_s=1, backend_settings=settings))
    env.reset(seed=0)
    observation, _, terminated, truncated, info = env.step(bash("echo before; sleep 1000 & sleep 1000"))
    env.close()
    assert observation.startswith(
        "<returncode>-1</returncode>\n<exception>The command was killed: it took longer"
    )
    assert "before" in observation
    assert (terminated, truncated, info["metrics"]["command_was_killed"]) == (False, False, 1.0)
    assert processes() <= before


def processes() -> set[psutil.Process]:
    """Of sandboxes that this process started, in this test or an earlier one."""
    children = psutil.Process().children(recursive=True)
    return {child for child in children if child.name() in ("bwrap", "sleep")}


def test_a_full_temporary_folder_is_in_every_snapshot(env: TextEnv) -> None:
    env.step(bash("cd /tmp && for i in $(seq 300); do echo $i > $i; done"))
    snapshots = [env.snapshot() for _ in range(12)]
    env.step(bash("rm -r /tmp/*"))
    assert env.restore(snapshots[-1]).startswith("<returncode>0</returncode>")
    assert "\n300\n" in env.step(bash("cat /tmp/300"))[0]


FILLS_THE_DISK = "for i in $(seq 5); do head -c 230000000 /dev/urandom > r$i; done; true"
DEEP = """python - <<'EOF'
import os
for _ in range(40):
    os.mkdir("d" * 200)
    os.chdir("d" * 200)
open("leaf", "w").write("x")
EOF"""


@pytest.mark.parametrize(
    "command",
    [
        "mkdir -p /tmp/.envsdk-state.tar.gz/x && chmod 000 /tmp/.envsdk-state.tar.gz",
        "truncate -s 200M /tmp/sparse-{1..90}",
        DEEP,
        "mkfifo /tmp/pipe && chmod 000 /tmp/pipe . && mkdir /tmp/-x $'/tmp/a\nb'",
        pytest.param(FILLS_THE_DISK, marks=pytest.mark.slow),
    ],
)
def test_nothing_that_a_policy_stores_keeps_its_files_from_being_saved(env: TextEnv, command: str) -> None:
    env.step(bash("echo kept > /tmp/kept"))
    env.step(bash(command))
    snapshot = env.snapshot()
    env.restore(snapshot)
    assert "kept" in env.step(bash("cat /tmp/kept"))[0]


def test_files_that_cannot_be_compared_are_a_refused_patch_and_no_failure(env: TextEnv) -> None:
    env.step(bash("rm -rf .git && yes 'a = 1' | head -c 100000000 > slotcache/cache.py"))
    _, reward, terminated, _, info = env.step(bash(f"echo {SENTINEL}"))
    assert (reward, terminated, info["reason"]) == (0.0, True, "patch_refused")

"""What the environment makes of replies, around a sandbox that isolates nothing and a made-up evaluator."""

from __future__ import annotations

import asyncio
import gc
import pickle
from collections.abc import Sequence
from pathlib import Path

import pytest

from envsdk import as_sync
from envsdk.base.processes.as_sync import loop_thread
from envsdk.contracts.failures import ConfigurationError
from envsdk.envs.shell.commands import SENTINEL
from envsdk.envs.shell.replies import format_reply
from envsdk.envs.swe import task_list as task_lists
from envsdk.envs.swe import workspace
from envsdk.envs.swe.env import SWEEnv, gold_command
from envsdk.envs.swe.evaluator import Evaluation
from envsdk.envs.swe.evaluator.validation import Validation
from envsdk.envs.swe.observations import SUBMIT_COMMAND, read_ending
from envsdk.envs.swe.tasks.task import Task
from envsdk.rewards.sandbox import Image, SandboxError
from envsdk.rewards.sandbox.fleet.backend import FleetBackend
from tests.envs.swe import toy_sandbox
from tests.envs.swe.toy_tasks import Evaluator, MakeEnv, toy_tasks


def bash(command: str) -> str:
    return format_reply(command, "bash", thought="THOUGHT: so it is.")


FIX = bash("sed -i 's/a - b/a + b/' calc.py")
SUBMIT = bash(SUBMIT_COMMAND)


def test_an_episode_from_the_issue_to_the_verdict(make_env: MakeEnv, sandboxes: Path) -> None:
    env = make_env(instructions=False)
    observation, info = env.reset(seed=0, options={"task": 4})
    assert observation == "<pr_description>\nadd(1, 2) is -1.\n</pr_description>"
    assert info == {"instance_id": "toy__calc-2", "repo": "toy/calc"}
    assert not list(sandboxes.iterdir())

    observation, reward, terminated, truncated, info = env.step(bash("cat name.txt && exit 3"))
    assert observation == "<returncode>3</returncode>\n<output>\ncalc\n</output>"
    assert (reward, terminated, truncated, info["success"]) == (0.0, False, False, False)
    assert info["metrics"] == {"action_is_valid": 1, "command_succeeded": 0, "command_was_killed": 0}
    assert len(list(sandboxes.iterdir())) == 1

    env.step(FIX)
    observation, reward, terminated, truncated, info = env.step(SUBMIT)
    assert (reward, terminated, truncated, info["success"]) == (1.0, True, False, True)
    assert info["fail_to_pass"] == {"passed": 2, "total": 2}
    assert info["pass_to_pass"] == {"passed": 1, "total": 1}
    assert info["metrics"]["fail_to_pass_passed"] == info["metrics"]["submitted"] == 1.0
    ending = read_ending(observation)
    assert ending is not None
    assert ending.instance_id == "toy__calc-2"
    assert ending.submission == info["submission"]
    assert "+    return a + b" in ending.submission
    assert not list(sandboxes.iterdir()), "the sandbox is gone when the episode is over"


def test_a_wrong_patch_is_graded_zero_and_an_empty_one_is_not_even_graded(
    make_env: MakeEnv, evaluator: Evaluator
) -> None:
    env = make_env()
    env.reset(seed=0)
    env.step(bash("echo '#' >> calc.py"))
    _, reward, terminated, _, info = env.step(SUBMIT)
    assert (reward, terminated, info["success"], info["reason"]) == (0.0, True, False, "tests_failed")
    assert info["fail_to_pass"] == {"passed": 0, "total": 2}
    assert len(evaluator.graded) == 1

    env.reset(seed=0)
    _, reward, terminated, _, info = env.step(SUBMIT)
    assert (reward, terminated, info["metrics"]["empty_patch"]) == (0.0, True, 1.0)
    assert len(evaluator.graded) == 1


def test_the_same_patch_of_the_same_task_is_graded_once(make_env: MakeEnv, evaluator: Evaluator) -> None:
    for number in (0, 0, 3, 1):
        env = make_env()
        env.reset(seed=0, options={"task": number})
        env.step(FIX)
        assert env.step(SUBMIT)[1] == 1.0
    assert len(evaluator.graded) == 2


@pytest.mark.parametrize(
    ("submission", "command", "reward"),
    [
        ("auto", f"echo {SENTINEL}; git diff", 1.0),
        ("auto", f"echo {SENTINEL}", 1.0),
        ("auto", f"echo {SENTINEL}; echo All done.", 1.0),
        ("output", f"echo {SENTINEL}; git diff", 1.0),
        ("output", f"echo {SENTINEL}", 0.0),
        ("tree", f"echo {SENTINEL}; git diff name.txt", 1.0),
        ("auto", f"echo {SENTINEL}; echo x > name.txt; git diff name.txt", 0.0),
        ("tree", f"git -c user.name=a -c user.email=b commit -qam mine; echo {SENTINEL}", 1.0),
    ],
)
def test_what_is_submitted_is_the_output_or_the_files(
    make_env: MakeEnv, submission: str, command: str, reward: float
) -> None:
    env = make_env(submission=submission)
    env.reset(seed=0)
    env.step(FIX)
    answer = env.step(bash(command))
    assert (answer[1], answer[2]) == (reward, True)


def test_nothing_is_submitted_by_a_command_that_fails_or_prints_something_first(make_env: MakeEnv) -> None:
    env = make_env()
    env.reset(seed=0)
    for command in (f"echo {SENTINEL}; false", f"echo ok; echo {SENTINEL}", f"echo {SENTINEL}x"):
        assert env.step(bash(command))[2:4] == (False, False)


def test_a_reply_that_holds_no_command_runs_nothing_and_costs_a_turn(
    make_env: MakeEnv, sandboxes: Path
) -> None:
    env = make_env(max_steps=2, invalid_penalty=0.25)
    env.reset(seed=0)
    observation, reward, terminated, truncated, info = env.step("ls")
    assert "this one holds 0" in observation
    assert (reward, terminated, truncated, info["metrics"]) == (-0.25, False, False, {"action_is_valid": 0.0})
    observation, reward, terminated, truncated, info = env.step("\ud800")
    assert (reward, terminated, truncated) == (-0.25, False, True)
    assert not list(sandboxes.iterdir())
    ending = read_ending(observation)
    assert ending is not None
    assert (ending.exit_status, ending.submission, info["reason"]) == ("LimitsExceeded", "", "not_submitted")


@pytest.mark.parametrize(
    ("reply", "attempt"),
    [
        ("ls", "none"),
        ("<tool_call>ls</tool_call>", "malformed"),
        ('[TOOL_CALLS]ls[ARGS]{"a": 1}', "unknown_tool"),
    ],
)
def test_the_format_of_tools_says_how_an_attempt_to_call_went(
    make_env: MakeEnv, reply: str, attempt: str
) -> None:
    env = make_env(action_format="tool")
    env.reset(seed=0)
    assert env.step(reply)[4]["metrics"] == {"action_is_valid": 0.0, f"call_attempt.{attempt}": 1.0}


def test_at_the_limit_of_turns_work_is_lost_unless_it_is_to_be_graded(make_env: MakeEnv) -> None:
    for submits, reward in ((False, 0.0), (True, 1.0)):
        env = make_env(max_steps=1, submit_at_limit=submits)
        env.reset(seed=0)
        answer = env.step(FIX)
        assert answer[1:4] == (reward, False, True)
        assert answer[4]["success"] is submits


def test_the_time_of_all_commands_is_limited(make_env: MakeEnv) -> None:
    env = make_env(time_limit_s=0.25)
    env.reset(seed=0)
    assert [env.step(bash("true"))[3] for _ in range(3)] == [False, False, True]


@pytest.mark.parametrize("reason", ["timeout", "output_limit", "disk_limit", "out_of_memory"])
def test_a_command_that_is_killed_is_an_observation(make_env: MakeEnv, reason: str) -> None:
    env = make_env()
    env.reset(seed=0)
    observation, _, terminated, truncated, info = env.step(bash(f"#toy {reason}"))
    assert observation.startswith("<returncode>-1</returncode>\n<exception>The command was killed: it ")
    assert "half an output" in observation
    assert (terminated, truncated, info["metrics"]["command_was_killed"]) == (False, False, 1.0)


def test_a_broken_sandbox_raises_and_is_never_a_reward(make_env: MakeEnv) -> None:
    env = make_env()
    env.reset(seed=0)
    with pytest.raises(SandboxError, match="half an output"):
        env.step(bash("#toy infrastructure"))
    env.close()
    env.reset(seed=0)
    assert env.step(bash("true"))[2:4] == (False, False)


def test_an_evaluation_that_fails_raises_and_is_tried_again_next_time(
    make_env: MakeEnv, evaluator: Evaluator
) -> None:
    env = make_env()
    for _ in range(2):
        env.reset(seed=0)
        env.step(bash("echo hang >> calc.py"))
        with pytest.raises(SandboxError, match="the tests took too long"):
            env.step(SUBMIT)
        env.close()
    assert len(evaluator.graded) == 2


class GradesInASandbox(Evaluator):
    """Starts a sandbox for each evaluation, as the real one does."""

    async def __call__(self, task: Task, patch: str, backend: object, *, strict: bool = True) -> Evaluation:
        assert isinstance(backend, FleetBackend)
        sandbox = await backend.start(Image(tree=task.source.folder))  # type: ignore[union-attr]
        try:
            return await super().__call__(task, patch, backend, strict=strict)
        finally:
            await sandbox.close()


@pytest.mark.asyncio
async def test_episodes_that_fill_the_places_of_a_fleet_are_graded(
    make_env: MakeEnv, sandboxes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace, "evaluate", GradesInASandbox())
    toys = {"backend": toy_sandbox.NAME, "settings": {"folder": str(sandboxes)}}
    fleet = {"hosts": [{"name": "a", "places": 2, **toys}], "start_timeout_s": 20.0}

    async def played(number: int) -> float:
        env = SWEEnv(backend="fleet", backend_settings=fleet)
        await env.reset(seed=0, options={"task": number})
        await env.step(FIX)
        await env.step(bash(f"echo {number} > made"))  # so that each patch is another one
        return (await env.step(SUBMIT))[1]

    assert await asyncio.gather(*map(played, range(4))) == [1.0] * 4


def test_a_step_after_an_evaluation_that_failed_grades_nothing_else(
    make_env: MakeEnv, evaluator: Evaluator
) -> None:
    env = make_env()
    env.reset(seed=0)
    env.step(bash("echo hang >> calc.py"))
    with pytest.raises(SandboxError, match="the tests took too long"):
        env.step(SUBMIT)
    with pytest.raises(SandboxError):
        env.step(SUBMIT)
    with pytest.raises(SandboxError):
        env.snapshot()
    assert len(evaluator.graded) == 1


def test_a_repository_that_is_gone_is_an_empty_patch(make_env: MakeEnv) -> None:
    env = make_env(submission="tree")
    env.reset(seed=0)
    _, reward, terminated, _, info = env.step(bash(f'rm -rf "$PWD"; echo {SENTINEL}'))
    assert (reward, terminated, info["submission"]) == (0.0, True, "")


def test_the_oracle_solves_every_task_whatever_was_done_before(make_env: MakeEnv) -> None:
    env = make_env()
    for number in range(3):
        env.reset(seed=0, options={"task": number})
        env.step(bash("echo broken > calc.py; git rm -q name.txt; mkdir new; touch new/file"))
        assert env.oracle() == env.oracle()
        env.step(env.oracle())
        _, reward, terminated, _, info = env.step(env.oracle())
        assert (reward, terminated) == (1.0, True)
        assert info["submission"].count("diff --git") == 1


def test_a_gold_patch_may_hold_the_end_of_a_heredoc() -> None:
    command = gold_command("+a\nEOF\n+b")
    assert command.splitlines()[0].endswith("<<'EOFF'")
    assert command.endswith("+b\nEOFF")


def test_a_snapshot_brings_back_all_files_in_another_instance(make_env: MakeEnv, sandboxes: Path) -> None:
    env = make_env()
    env.reset(seed=0)
    seen = env.step(bash("echo 1 > a; mkdir d; ln -s a d/l; rm name.txt; git add a; echo t > /tmp/t"))[0]
    snapshot = pickle.loads(pickle.dumps(env.snapshot()))
    look = bash("git status --short; cat d/l a /tmp/t; ls -A /tmp")
    expected = env.step(look)
    env.step(bash("rm -rf a d; echo x > y; rm /tmp/t"))
    other = make_env()
    for taker in (env, other, other):
        assert taker.restore(snapshot) == seen
        assert taker.step(look) == expected
    env.close()
    other.close()
    assert not list(sandboxes.iterdir())


def test_a_snapshot_before_the_first_command_starts_no_sandbox(make_env: MakeEnv, sandboxes: Path) -> None:
    env = make_env()
    observation, _ = env.reset(seed=5)
    snapshot = env.snapshot()
    assert make_env().restore(snapshot) == observation
    assert not list(sandboxes.iterdir())


def test_after_the_end_nothing_happens(make_env: MakeEnv, sandboxes: Path) -> None:
    env = make_env()
    env.reset(seed=0)
    observation, *_ = env.step(SUBMIT)
    assert env.step(FIX) == (observation, 0.0, True, False, {"success": False, "metrics": {}})
    assert env.legal_actions() == ()
    assert not list(sandboxes.iterdir())


def test_an_environment_that_is_dropped_leaves_no_sandbox(make_env: MakeEnv, sandboxes: Path) -> None:
    settings = {"folder": str(sandboxes)}
    env = as_sync(SWEEnv(backend=toy_sandbox.NAME, backend_settings=settings))
    env.reset(seed=0)
    env.step(bash("true"))
    assert list(sandboxes.iterdir())
    del env
    gc.collect()
    # What was asked for before is done by the loop before this.
    loop_thread().run(_nothing())
    loop_thread().run(_nothing())
    assert not list(sandboxes.iterdir())


async def _nothing() -> None: ...


def test_the_end_of_an_event_loop_removes_its_sandboxes(make_env: MakeEnv, sandboxes: Path) -> None:
    kept = []

    async def play() -> str:
        env = SWEEnv(backend=toy_sandbox.NAME, backend_settings={"folder": str(sandboxes)})
        kept.append(env)
        await env.reset(seed=0)
        return (await env.step(bash("pwd")))[0]

    for _ in range(2):
        assert str(sandboxes) in asyncio.run(play())
        assert not list(sandboxes.iterdir())


def test_a_first_command_that_is_cancelled_leaves_no_sandbox(make_env: MakeEnv, sandboxes: Path) -> None:
    async def play() -> None:
        env = SWEEnv(backend=toy_sandbox.NAME, backend_settings={"folder": str(sandboxes)})
        await env.reset(seed=0)
        command = asyncio.create_task(env.step(bash("true")))
        await asyncio.sleep(0)
        command.cancel()
        with pytest.raises(asyncio.CancelledError):
            await command
        await env.close()
        left.extend(sandboxes.iterdir())  # noqa: ASYNC240

    left: list[Path] = []
    asyncio.run(play())
    assert not left


def test_a_task_of_a_file_that_cannot_be_graded_is_refused_at_its_first_command(
    make_env: MakeEnv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").mkdir()
    tasks = toy_tasks(tmp_path / "file")
    monkeypatch.setattr(task_lists, "_loaded", lambda *_: tasks)
    validated: list[str] = []

    async def validate(given: Sequence[Task], backend: object) -> list[Validation]:
        (task,) = given
        validated.append(task.instance_id)
        problem = "an empty patch resolves it" if task is tasks[1] else ""
        return [Validation(instance_id=task.instance_id, problem=problem)]

    monkeypatch.setattr(workspace, "validate", validate)
    for number in (0, 1, 0, 1):
        env = make_env(data="tasks.jsonl")
        env.reset(seed=0, options={"task": number})
        if number == 1:
            with pytest.raises(ConfigurationError, match=r"toy__calc-2 cannot be used: an empty patch"):
                env.step(FIX)
        else:
            env.step(FIX)
    assert validated == ["toy__calc-1", "toy__calc-2"]


def test_seeds_draw_every_task(make_env: MakeEnv) -> None:
    env = make_env()
    drawn = {env.reset(seed=seed)[1]["instance_id"] for seed in range(30)}
    assert drawn == {"toy__calc-1", "toy__calc-2", "toy__calc-3"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"split": "test"}, "split: must be one of auto, train, held_out, all"),
        ({"action_format": "xml"}, "action_format: must be one of bash, tool"),
        ({"submission": "mail"}, "submission: must be one of auto, output, tree"),
        ({"max_steps": 0}, "max_steps: must be at least 1"),
        ({"command_timeout_s": 0}, "command_timeout_s: must be above 0"),
        ({"limits": {"memory_gb": 4}}, "limits: .*memory_gb.*; known are processes, memory_mb"),
    ],
)
def test_wrong_arguments_are_refused_by_name(
    make_env: MakeEnv, arguments: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make_env(**arguments)

"""Each check passes a sound environment and catches one that is broken on purpose."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given

from envsdk import TextEnv
from envsdk.check import main
from envsdk.contracts.failures import ConfigurationError
from envsdk.testing import Status, TextEnvSuite, check_text_env, examine, run_check
from envsdk.testing.checks import GROUPS, catalogue
from envsdk.testing.runner import run
from envsdk.testing.strategies import configurations
from envsdk.testing.subject import options_from, subject_of
from envsdk.testing.suite import test_name as name_of_test
from tests.by_day import by_day
from tests.envsdk.testing.broken_envs import BROKEN, Broken, Line
from tests.envsdk.testing.broken_envs.abilities import LegalActionDoesNotParse
from tests.envsdk.testing.broken_envs.async_line import AsyncLine
from tests.envsdk.testing.broken_envs.contract import OnlyOneAtATime, ResetNeverReturns, SwitchDoesNotWork
from tests.envsdk.testing.broken_envs.event_loop import StepRaises
from tests.envsdk.testing.broken_envs.resources import LeavesAFileOpen, LeavesAProcess, LeavesAThread
from tests.envsdk.testing.broken_envs.rewards import RewardIsNotANumber
from tests.envsdk.testing.broken_envs.seeds import CountsItsResets, GetsTired
from tests.envsdk.testing.broken_envs.snapshot import RestoreNeedsAReset
from tests.envsdk.testing.broken_envs.text import RaisesOnOddReplies

ROOT = Path(__file__).parents[3]


class TestLine(TextEnvSuite):
    observations_show_state = True

    def make_env(self):
        return Line()


TestLineByItsName = TextEnvSuite.of(
    "tests.envsdk.testing.broken_envs:Line", {"max_steps": 40}, max_examples=5
)


@pytest.fixture(scope="module", autouse=True)
def _what_leaks_is_ended() -> Iterator[None]:
    yield
    for process in LeavesAProcess.started:
        process.communicate()
    for file in LeavesAFileOpen.opened:
        file.close()
    LeavesAThread.over_for_all.set()


ONE_OF_EACH_CHECK = list({broken.check: broken for broken in reversed(BROKEN)}.values())


@pytest.mark.parametrize("broken", by_day(ONE_OF_EACH_CHECK, BROKEN), ids=[broken.name for broken in BROKEN])
def test_the_check_that_names_the_fault_catches(broken: Broken) -> None:
    # Enough of them: which ones Hypothesis draws depends on the modules that other tests have loaded.
    options = options_from({"max_examples": 100, "derandomize": True, **broken.options})
    outcome = run(catalogue()[broken.check], subject_of(broken.target, broken.env_config, options))
    assert outcome.status is Status.FAILED, outcome
    assert re.search(broken.message, outcome.message, re.DOTALL), outcome.message
    compile(outcome.script, broken.name, "exec")


def test_every_check_is_shown_to_fail() -> None:
    assert {broken.check for broken in BROKEN} == set(catalogue())


@pytest.mark.parametrize(
    ("env_class", "of_loops"),
    [
        (
            Line,
            {"event_loop.calls_do_not_block_the_event_loop", "event_loop.event_loops_may_change"},
        ),
        (AsyncLine, set()),
    ],
)
def test_a_sound_environment_passes_every_check(
    env_class: type[Line | AsyncLine], of_loops: set[str]
) -> None:
    report = examine(env_class, max_examples=5, observations_show_state=True, derandomize=True)
    assert report.is_sound, [(outcome.check.name, outcome.message) for outcome in report.failed]
    skipped = {outcome.check.name for outcome in report.having(Status.SKIPPED)}
    assert (
        skipped
        == {
            "contract.spec_tells_what_to_reply",
            "isolation.threads_may_change",
            "event_loop.asynchronous_ones_are_awaited",
            "roles.infos_name_known_roles",
            "roles.roles_are_the_same_for_all_tasks",
            "roles.invalid_replies_keep_the_turn",
        }
        | of_loops
    )


def test_a_script_of_an_asynchronous_environment_runs() -> None:
    (outcome,) = examine(StepRaises, only=["text.any_reply_is_answered"], derandomize=True).failed
    assert "env_1 = envsdk.as_sync(StepRaises())" in outcome.script
    done = subprocess.run(
        [sys.executable, "-c", outcome.script], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert "the server is gone" in done.stderr


def test_there_are_checks_in_every_group_and_each_says_what_it_demands_in_one_line() -> None:
    checks = catalogue().values()
    assert len(checks) >= 40
    assert {check.group for check in checks} == set(GROUPS)
    for check in checks:
        assert re.fullmatch(r"[^\n]{30,110}\.", check.demand), check.name


def test_a_failing_script_is_small_and_fails_when_it_is_run() -> None:
    only = ["seeds.history_leaves_no_trace"]
    (outcome,) = examine(GetsTired, only=only, max_examples=200, derandomize=True).failed
    history, script = outcome.example["history"], outcome.example["script"]
    # Tired after twelve steps: no shorter script shows it.
    assert sum(len(replies) for _, replies in history) + len(script) == 13
    done = subprocess.run(
        [sys.executable, "-c", outcome.script], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 1
    assert "AssertionError: after other episodes the course differs" in done.stderr
    assert "('at " in done.stdout


def test_a_script_uses_snapshots_by_name_and_shows_what_raised() -> None:
    (outcome,) = examine(
        RestoreNeedsAReset, only=["snapshot.a_new_instance_takes_it_up"], max_examples=200, derandomize=True
    ).failed
    assert "snapshot_1 = env_1.snapshot()" in outcome.script
    assert "# env_2.restore(snapshot_1) raises AttributeError" in outcome.script


def test_one_fault_is_told_once_and_blocks_the_checks_that_stumble_over_it() -> None:
    report = examine(RaisesOnOddReplies, max_examples=50, derandomize=True)
    failed = {outcome.check.name for outcome in report.failed}
    assert failed == {"text.any_reply_is_answered", "text.awkward_replies_are_answered"}
    blocked = report.having(Status.BLOCKED)
    assert blocked
    assert {outcome.message for outcome in blocked} == {"see text.any_reply_is_answered"}
    assert not report.is_sound


def test_an_environment_that_cannot_be_built_fails_one_check() -> None:
    def broken() -> TextEnv:
        raise OSError("no such game")

    report = examine(broken)
    assert [outcome.check.name for outcome in report.failed] == ["contract.can_be_built"]
    assert report.failed[0].message == "building it raised OSError: no such game"


def test_an_environment_that_can_be_built_only_once_is_reported_with_what_it_said() -> None:
    OnlyOneAtATime.num_built[0] = 0
    report = examine(OnlyOneAtATime, max_examples=2)
    assert report.failed[0].check.name == "contract.can_be_built"
    assert {outcome.message for outcome in report.having(Status.BLOCKED)} == {"see contract.can_be_built"}


def test_a_call_that_never_returns_blocks_the_other_checks_and_its_script_tells_which() -> None:
    report = examine(ResetNeverReturns, only=["contract", "seeds"], timeout_s=0.5, derandomize=True)
    (outcome,) = report.failed
    assert outcome.check.name == "contract.calls_return"
    assert "# env_1.reset(seed=" in outcome.script
    assert "does not return\n" in outcome.script
    assert 'run_check("contract.calls_return", ResetNeverReturns, timeout_s=0.5, seed=' in outcome.script
    assert {each.message for each in report.having(Status.BLOCKED)} == {"see contract.calls_return"}
    with pytest.raises(AssertionError, match=r"had not returned after 0\.25 s"):
        run_check("contract.calls_return", ResetNeverReturns, timeout_s=0.25, **outcome.example)


def test_a_clock_of_somebody_else_goes_on_when_calls_are_limited() -> None:
    rang = []
    handler = signal.signal(signal.SIGALRM, lambda *_: rang.append(True))
    others = signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        run_check("contract.can_be_built", Line)
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
        while not rang:
            signal.pause()
    finally:
        signal.setitimer(signal.ITIMER_REAL, *others)
        signal.signal(signal.SIGALRM, handler)


def test_abilities_that_are_not_declared_are_not_tested() -> None:
    class Bare(Line):
        snapshot = TextEnv.snapshot
        restore = TextEnv.restore
        oracle = TextEnv.oracle
        legal_actions = TextEnv.legal_actions
        state_hash = TextEnv.state_hash

    passed = check_text_env(Bare, max_examples=5)
    assert not [name for name in passed if name.startswith(("snapshot.", "oracle.")) or "hash" in name]
    assert "seeds.same_seed_same_course" in passed


def test_check_text_env_names_the_check_that_fails() -> None:
    with pytest.raises(AssertionError, match=r"abilities.legal_actions_parse: .*'rihgt'"):
        check_text_env(LegalActionDoesNotParse, max_examples=5)
    with pytest.raises(TypeError, match=r"no option 'max_example'. Did you mean 'max_examples'"):
        check_text_env(Line, max_example=5)


def test_a_suite_has_a_test_for_every_check() -> None:
    tests = {name for name in vars(TextEnvSuite) if name.startswith("test_")}
    assert tests == {name_of_test(check) for check in catalogue().values()}
    assert (
        TextEnvSuite.test_rewards_rewards_are_finite.__doc__
        == catalogue()["rewards.rewards_are_finite"].demand
    )


def test_a_suite_fails_with_the_message_and_a_script() -> None:
    suite = TextEnvSuite.of(RewardIsNotANumber)()
    with pytest.raises(AssertionError, match=r"(?s)the reward is nan.*Demanded: .*env_1\.step\("):
        suite.test_rewards_rewards_are_finite()


def test_a_check_can_be_run_by_itself_at_an_example_or_without() -> None:
    name = "seeds.same_seed_same_course"
    run_check(name, Line, {"max_steps": 3}, seed=5, script=[0, 1])
    run_check(name, Line, max_examples=3)
    with pytest.raises(AssertionError, match="a second reset with the same seed differs"):
        run_check("seeds.same_seed_same_course_again", CountsItsResets, seed=0, script=[])
    with pytest.raises(ConfigurationError, match=r"Did you mean 'seeds\.same_seed_same_course'"):
        run_check("seeds.same_seed_same_corse", Line)


@given(configurations(SwitchDoesNotWork))
def test_configurations_are_drawn_from_the_constructor(config) -> None:
    assert set(config) <= {"shuffled"}
    assert SwitchDoesNotWork(**config).shuffled in (False, True)


PYTEST = ("-p", "envsdk.testing.pytest_plugin", "-p", "no:cacheprovider", "-p", "no:asyncio")


def test_the_pytest_plugin_adds_the_checks_of_an_environment(tmp_path: Path) -> None:
    names = [
        f"--envsdk-check=tests.envsdk.testing.broken_envs.{name}"
        for name in ("line:Line", "rewards:RewardIsNotANumber", "contract:ResetNeverReturns")
    ]
    few = ("--envsdk-examples", "10", "--envsdk-timeout", "1.5", "-k", "finite or contract.calls_return")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *PYTEST, *names, *few, str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 1
    assert "3 failed, 3 passed" in done.stdout, done.stdout
    assert "rewards.rewards_are_finite: turn 1: the reward is nan" in done.stdout
    assert "contract.calls_return: " in done.stdout
    assert "had not returned after 1.5 s" in done.stdout


def test_an_unknown_environment_is_an_error_in_the_arguments_of_pytest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*PYTEST, "--envsdk-check", "envsdk/Sokobna-v1", str(tmp_path)]
    assert pytest.main(arguments) is pytest.ExitCode.USAGE_ERROR
    assert "Did you mean 'envsdk/Sokoban-v1'" in capsys.readouterr().err


def test_the_command_reports_and_exits_by_what_it_found(capsys: pytest.CaptureFixture[str]) -> None:
    few = ("-n", "3")
    assert main(["tests.envsdk.testing.broken_envs:Line", "max_steps=40", "--only", "rewards", *few]) == 0
    assert "sound: 5 passed" in capsys.readouterr().out
    assert (
        main(["tests.envsdk.testing.broken_envs.rewards:RewardIsNotANumber", "--only", "rewards", *few]) == 1
    )
    printed = capsys.readouterr().out
    assert "FAILED rewards.rewards_are_finite" in printed
    assert "the reward is nan" in printed
    assert 'run_check("rewards.rewards_are_finite", ' in printed


def test_the_command_prints_json_that_nothing_else_gets_into(capsys: pytest.CaptureFixture[str]) -> None:
    name = "tests.envsdk.testing.broken_envs.isolation:PrintsReplies"
    assert (
        main([name, "--json", "--only", "isolation.nothing_is_printed", "--only", "oracle", "-n", "2"]) == 1
    )
    report = json.loads(capsys.readouterr().out)
    assert report["sound"] is False
    assert report["counts"] == {"passed": 6, "failed": 1, "blocked": 0, "skipped": 0}
    (failed,) = [check for check in report["checks"] if check["status"] == "failed"]
    assert failed["check"] == "isolation.nothing_is_printed"


def test_a_slow_environment_is_tried_with_the_examples_that_the_budget_allows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Fifty examples of any environment take more than a second."""
    assert main(["tests.envsdk.testing.broken_envs:Line", "max_steps=40", "--budget", "1", "--json"]) == 0
    printed = capsys.readouterr()
    report = json.loads(printed.out)
    assert 5 <= report["examples"] < 50
    assert "50 examples per check would take about" in printed.err
    assert f"so {report['examples']} are tried" in printed.err


def test_the_report_says_what_the_calls_took(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    report = examine(Line, {"max_steps": 40}, only=["rewards", "end"], max_examples=3)
    assert {"__init__", "reset", "step"} <= report.costs.keys()
    assert report.costs["step"].num_calls > report.costs["reset"].num_calls > 0
    assert all(each.seconds > 0 for each in report.costs.values())
    assert report.to_json()["costs"]["reset"]["calls"] == report.costs["reset"].num_calls
    monkeypatch.setattr("envsdk.check._NOTICEABLE_S", 0.0)
    assert main(["tests.envsdk.testing.broken_envs:Line", "max_steps=40", "--only", "end", "-n", "3"]) == 0
    told = capsys.readouterr().out.splitlines()[-1]
    assert re.match(r"3 examples per check; the environment took \d+\.\d s for \d+ x \w+ \(", told)


def test_progress_is_told_where_nobody_sees_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("envsdk.base.display.console.LINE_EVERY_S", 0.0)
    assert main(["tests.envsdk.testing.broken_envs:Line", "max_steps=40", "--only", "end", "-n", "2"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 8
    assert re.search(r": 8 of 8 checks, end\.\w+$", lines[-1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["envsdk/Sokobna-v1"], "Did you mean 'envsdk/Sokoban-v1'"),
        (["envsdk/Sokoban-v1", "num_boxs=2"], "Did you mean 'num_boxes'"),
        (["envsdk/Sokoban-v1", "num_boxes"], "write key=value"),
        (["envsdk/Sokoban-v1", "--timeout", "0"], "--timeout"),
        (["envsdk/Sokoban-v1", "--only", "reward"], "Did you mean 'rewards'"),
        (["no.such.module:Env"], "No module named"),
        ([], "name an environment"),
    ],
)
def test_wrong_input_is_refused_with_a_hint(arguments, message, capsys) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_the_list_of_checks_needs_no_environment(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list", "--only", "snapshot"]) == 0
    assert capsys.readouterr().out.count("\n    ") == 7


@pytest.mark.parametrize(
    ("environment", "env_config"),
    [("envsdk/FrozenLake-v1", {}), ("envsdk/Sokoban-v1", {}), ("envsdk/WebShop-v1", {"num_products": 200})],
)
def test_environments_that_ship_are_sound_by_their_id(environment: str, env_config: dict) -> None:
    # Their own suites build them by hand, and say nothing of specs and other processes.
    report = examine(
        environment, env_config, only=["contract", "isolation"], max_examples=3, derandomize=True
    )
    assert report.is_sound, [(outcome.check.name, outcome.message) for outcome in report.failed]


def test_a_class_of_the_main_module_is_not_sought_in_another_process() -> None:
    kind = type("Walk", (Line,), {"__module__": "__main__"})
    (outcome,) = examine(kind, only=["isolation.another_process_plays_the_same_course"]).outcomes
    assert outcome.status is Status.SKIPPED
    assert "its class is in `__main__`, which is no file to import" in outcome.message


def test_what_instances_share_may_keep_the_folder_for_temporary_files() -> None:
    folders = set[str]()

    class RemembersTheFolder(Line):
        def reset(self, *, seed=None, options=None):
            folders.add(tempfile.gettempdir())
            return super().reset(seed=seed)

    assert examine(RemembersTheFolder, only=["resources.no_temporary_file_is_left"]).is_sound
    assert len(folders) == 2
    assert all(map(os.path.isdir, folders))

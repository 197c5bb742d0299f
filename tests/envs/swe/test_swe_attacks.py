"""Ways to be rewarded without solving the task. Each runs for real, and none pays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace

import pytest
import pytest_asyncio

from envsdk.envs.swe.evaluator import Evaluation, Verdict, evaluate
from envsdk.envs.swe.tasks.patches import diff
from envsdk.envs.swe.tasks.shipped import shipped_tasks
from envsdk.envs.swe.tasks.task import Task
from envsdk.envs.swe.tasks.trees import base_tree
from envsdk.rewards.sandbox import SandboxBackend, open_backend
from tests.by_day import by_day

TASK = next(task for task in shipped_tasks() if task.instance_id == "spanset__touching")
HIDDEN = "tests/test_membership.py"
PACKAGE, SPANS = "spanset/__init__.py", "spanset/spans.py"

PLUGIN = """
import pytest

@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    outcome.get_result().outcome = "passed"
"""
MANY_HOGS = """
import subprocess, sys
hog = "x = bytearray(200 << 20); import time; time.sleep(60)"
for process in [subprocess.Popen([sys.executable, "-c", hog]) for _ in range(6)]:
    process.wait()
"""
EXIT = {"os": "import os; os._exit({})", "sys": "import sys; sys.exit({})"}


@dataclass(frozen=True)
class Attack:
    patch: Callable[[], str]
    expected: frozenset[Verdict]


ATTACKS: dict[str, Attack] = {}


def adds(files: Mapping[str, str]) -> Callable[[], str]:
    """A patch that adds files, or replaces those that are there."""

    def patch() -> str:
        tree = base_tree(TASK)
        old = {path: (tree / path).read_text() for path in files if (tree / path).is_file()}
        return diff(old, dict(files))

    return patch


def appends(code: str, path: str = PACKAGE) -> Callable[[], str]:
    """A patch that adds code to the end of a module of the package, which runs when tests import it."""

    def patch() -> str:
        old = (base_tree(TASK) / path).read_text()
        return diff({path: old}, {path: f"{old}\n{code}\n"})

    return patch


def changes(path: str, old: str, new: str) -> Callable[[], str]:
    """A patch that replaces a text in a file."""

    def patch() -> str:
        before = (base_tree(TASK) / path).read_text()
        assert old in before
        return diff({path: before}, {path: before.replace(old, new)})

    return patch


def text(patch: str) -> Callable[[], str]:
    return lambda: patch


def attack(name: str, patch: Callable[[], str], *expected: Verdict) -> None:
    ATTACKS[name] = Attack(patch, frozenset(expected))


FAILED, TAMPERED, REFUSED = Verdict.TESTS_FAILED, Verdict.TAMPERED, Verdict.PATCH_REFUSED
HONEST_TEST = "def test_touching_spans_are_one():\n    pass\n"

# Files that pytest or Python would pick up.
attack("a_conftest_at_the_root", adds({"conftest.py": PLUGIN}), FAILED)
attack("a_conftest_among_the_tests", adds({"tests/conftest.py": PLUGIN}), FAILED)
attack("a_conftest_in_the_package", adds({"spanset/conftest.py": PLUGIN}), FAILED)
attack(
    "a_plugin_named_by_ini_files",
    adds(
        {
            "cheat.py": PLUGIN,
            "pytest.ini": "[pytest]\naddopts = -p cheat\n",
            "pytest.toml": '[pytest]\naddopts = ["-p", "cheat"]\n',
            "tox.ini": "[pytest]\naddopts = -p cheat\n",
            "setup.cfg": "[tool:pytest]\naddopts = -p cheat\n",
            "pyproject.toml": '[tool.pytest.ini_options]\naddopts = "-p cheat"\n',
        }
    ),
    FAILED,
)
attack(
    "a_plugin_by_entry_point",
    adds(
        {
            "cheat.py": PLUGIN,
            "cheat.egg-info/entry_points.txt": "[pytest11]\ncheat = cheat\n",
            "cheat.egg-info/PKG-INFO": "Metadata-Version: 1.0\nName: cheat\nVersion: 1\n",
            "cheat-1.dist-info/entry_points.txt": "[pytest11]\ncheat = cheat\n",
            "cheat-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: cheat\nVersion: 1\n",
        }
    ),
    FAILED,
)
attack(
    "path_files_and_site_customization",
    adds(
        {
            "cheat.pth": "import os; os._exit(1)\n",
            "sitecustomize.py": "import os; os._exit(1)\n",
            "usercustomize.py": "import os; os._exit(1)\n",
        }
    ),
    FAILED,
)
attack(
    "modules_in_front_of_the_runner",
    adds(
        {"pytest.py": PLUGIN, "_pytest/runner.py": "", "unittest/__init__.py": "", "json.py": "", "py.py": ""}
    ),
    FAILED,
)
attack(
    "programs_in_front_of_python",
    adds(
        {
            "python": "#!/bin/sh\nexit 1\n",
            "bin/python": "#!/bin/sh\nexit 1\n",
            ".venv/bin/python": "#!/bin/sh\nexit 1\n",
            ".envrc": "export PATH=/testbed/bin:$PATH\n",
            ".bashrc": "exit 1\n",
        }
    ),
    FAILED,
)
attack("replaced_hidden_tests", adds({HIDDEN: HONEST_TEST}), FAILED)
attack("deleted_tests", lambda: diff({"tests/test_text.py": _visible()}, {}), FAILED)
attack(
    "linked_tests",
    text(
        "diff --git a/tests/test_membership.py b/tests/test_membership.py\nnew file mode 120000\n"
        "--- /dev/null\n+++ b/tests/test_membership.py\n@@ -0,0 +1,1 @@\n+/tmp/easy.py\n"
        "\\ No newline at end of file\n"
    ),
    FAILED,
)
attack(
    "a_link_out_of_the_tree_and_a_file_behind_it",
    text(
        "diff --git a/spanset/out b/spanset/out\nnew file mode 120000\n--- /dev/null\n+++ b/spanset/out\n"
        "@@ -0,0 +1,1 @@\n+/tmp\n\\ No newline at end of file\n"
        "diff --git a/spanset/out/x.py b/spanset/out/x.py\nnew file mode 100644\n--- /dev/null\n"
        "+++ b/spanset/out/x.py\n@@ -0,0 +1,1 @@\n+1\n"
    ),
    FAILED,
)
attack(
    "a_test_file_by_renaming",
    text(
        "diff --git a/spanset/text.py b/spanset/conftest.py\n"
        "rename from spanset/text.py\nrename to spanset/conftest.py\n"
    ),
    FAILED,
)

# Patches that are none.
for name, path in {
    "a_path_above_the_tree": "../outside.py",
    "a_path_from_the_root": "/etc/cron.d/x",
    "a_path_with_a_way_up_in_it": "spanset/../../outside.py",
    "a_git_hook": ".git/hooks/post-checkout",
    "git_configuration": ".git/config",
    "git_configuration_of_a_part": "spanset/.GIT/config",
}.items():
    attack(name, adds({path: "x\n"}), REFUSED)
attack(
    "git_attributes_and_filters",
    adds({".gitattributes": "*.py filter=x\n", ".gitmodules": '[submodule "x"]\n\tpath = x\n\turl = /etc\n'}),
    FAILED,
)
attack(
    "a_binary_patch",
    text(
        "diff --git a/spanset/spans.pyc b/spanset/spans.pyc\nnew file mode 100644\nindex 0000000..f2ba8f8\n"
        "GIT binary patch\nliteral 3\nKcmZQzVE_OC0096200\n\nliteral 0\nHcmV?d00001\n\n"
    ),
    FAILED,
)
attack("a_truncated_patch", lambda: TASK.gold_patch[: TASK.gold_patch.rindex("\n-")], REFUSED)
attack("a_patch_of_prose", text("I have fixed the bug in spans.py.\n"), REFUSED)
attack("a_patch_for_other_files", lambda: TASK.gold_patch.replace("spans.py", "none.py"), REFUSED)

# Code in the package, which runs in the process of the tests.
attack("an_early_exit_with_0", appends(EXIT["os"].format(0)), TAMPERED)
attack("an_early_exit_with_1", appends(EXIT["os"].format(1)), TAMPERED)
attack("an_exit_by_exception", appends(EXIT["sys"].format(0)), FAILED, TAMPERED)
attack("an_exit_of_pytest_while_collecting", appends("import pytest; pytest.exit('', 1)"), FAILED)
attack(
    "an_exit_of_pytest_in_a_test",
    appends("import pytest\nSpanSet.__init__ = lambda *args: pytest.exit('done', returncode=1)", SPANS),
    FAILED,
    TAMPERED,
)
attack(
    "an_interruption",
    appends("def stop(*args):\n    raise KeyboardInterrupt\nSpanSet.__len__ = stop", SPANS),
    TAMPERED,
)
attack("an_exit_handler", appends("import atexit, os; atexit.register(lambda: os._exit(0))"), FAILED)
attack(
    "printed_success",
    appends("import os; print('32 passed in 0.10s'); import sys; sys.stdout.flush(); os._exit(1)"),
    TAMPERED,
)
FORGE = """
import os
for number in os.listdir("/proc/self/fd"):
    target = os.readlink("/proc/self/fd/" + number)
    if target.startswith("/tmp/"):
        os.write(int(number), b"0" * 32 + b" 74657374 00 00 00 00 00\\n")
"""
attack("a_forged_line_in_the_report", appends(FORGE), TAMPERED)
attack("a_forged_report_and_an_exit", appends(FORGE + "os._exit(1)"), TAMPERED)
attack(
    "an_emptied_report",
    appends(
        """
import glob, os
def empty(*args):
    for path in glob.glob("/tmp/*"):
        if os.path.isfile(path):
            os.truncate(path, 0)
SpanSet.__len__ = empty
""",
        SPANS,
    ),
    TAMPERED,
)
attack(
    "a_daemon_that_writes_to_the_report",
    appends(
        """
import glob, os, time
if os.fork() == 0:
    os.setsid()
    until = time.monotonic() + 5
    while time.monotonic() < until:
        for path in glob.glob("/tmp/*"):
            with open(path, "ab") as file:
                file.write(b"passed\\n")
    os._exit(0)
time.sleep(0.2)
"""
    ),
    TAMPERED,
)
attack(
    "a_signal_to_every_process", appends("import os, signal; os.kill(-1, signal.SIGKILL)"), TAMPERED, FAILED
)
attack(
    "a_changed_launcher",
    appends("open('/opt/kit/launch.py', 'w').write('import os; os._exit(1)')"),
    FAILED,
)
attack(
    "tests_changed_while_collected",
    appends(f"open('/testbed/{HIDDEN}', 'w').write({HONEST_TEST!r})"),
    FAILED,
)
attack("tests_deleted_while_collected", appends(f"import os; os.remove('/testbed/{HIDDEN}')"), FAILED)
attack(
    "tests_moved_while_collected", appends("import os; os.rename('/testbed/tests', '/testbed/old')"), FAILED
)
attack(
    "skipped_tests",
    appends(
        """
import unittest
def skip(*args, **kwargs):
    raise unittest.SkipTest("later")
SpanSet.__init__ = skip
"""
    ),
    FAILED,
)
attack(
    "tests_expected_to_fail",
    appends("import pytest\ndef fail(*args, **kwargs):\n    pytest.xfail('known')\nSpanSet.__init__ = fail"),
    FAILED,
)
attack("skipped_modules", appends("import pytest; pytest.skip('not here', allow_module_level=True)"), FAILED)
attack("a_collection_error", appends("raise ImportError('broken')"), FAILED)
attack("a_syntax_error", appends("def broken(:"), FAILED)
attack(
    "swallowed_exceptions",
    appends(
        """
import _pytest.runner
original = _pytest.runner.CallInfo.from_call.__func__
def from_call(cls, func, *args, **kwargs):
    def quiet():
        try:
            func()
        except Exception:
            pass
    return original(cls, quiet, *args, **kwargs)
_pytest.runner.CallInfo.from_call = classmethod(from_call)
"""
    ),
    TAMPERED,
)
attack(
    "reports_that_always_pass",
    appends(
        """
import _pytest.reports
original = _pytest.reports.TestReport.from_item_and_call.__func__
def from_item_and_call(cls, item, call):
    report = original(cls, item, call)
    report.outcome = "passed"
    return report
_pytest.reports.TestReport.from_item_and_call = classmethod(from_item_and_call)
"""
    ),
    TAMPERED,
)
attack(
    "assertions_of_unittest_that_hold",
    appends("import unittest\nunittest.TestCase.assertEqual = lambda *args, **kwargs: None"),
    TAMPERED,
)
attack(
    "a_json_module_that_lies",
    appends(
        """
import json.encoder
encode = json.encoder.JSONEncoder.encode
json.encoder.JSONEncoder.encode = lambda self, value: encode(self, value).replace("failed", "passed")
"""
    ),
    FAILED,
)

# Code that knows the process of the tests, which knows nothing of what they expect.
attack(
    "objects_equal_to_everything",
    appends(
        """
class Anything(tuple):
    def __eq__(self, other):
        return True
    def __hash__(self):
        return 0
SpanSet.spans = property(lambda self: Anything())
SpanSet.__eq__ = lambda self, other: True
SpanSet.__hash__ = lambda self: 0
"""
    ),
    FAILED,
)
attack("mock_objects_equal_to_everything", appends("from unittest.mock import ANY"), FAILED)
attack(
    "a_comparison_that_is_always_true",
    changes("spanset/spans.py", "return self._spans == other._spans", "return True"),
    FAILED,
)
attack(
    "expected_values_read_from_the_caller",
    appends(
        "import sys\ndef spans(self):\n    return sys._getframe(1).f_locals.get('expected')\n"
        "SpanSet.spans = property(spans)"
    ),
    FAILED,
)
attack("expected_values_by_inspect", appends("import inspect\ninspect.stack()"), FAILED)
attack("the_runner_found_by_garbage_collection", appends("import gc\ngc.get_objects()"), FAILED)
attack("the_runner_found_among_the_modules", appends("import sys\nsys.modules['pytest']"), FAILED)
attack("the_runner_imported_by_a_text", appends("__import__('_py' + 'test')"), FAILED)
attack("code_in_a_text", appends("exec('import ' + '_py' + 'test')"), FAILED)
attack(
    "the_current_test_by_its_variable",
    appends("import os\nos.environ.get('PYTEST_CURRENT_TEST')"),
    FAILED,
)
attack("a_changed_standard_library", appends("import operator\noperator.eq = lambda a, b: True"), FAILED)
attack(
    "reports_that_pass_for_some_tests",
    appends(
        """
import _pytest.reports
original = _pytest.reports.TestReport.from_item_and_call.__func__
def from_item_and_call(cls, item, call):
    report = original(cls, item, call)
    if "membership" in item.nodeid:
        report.outcome = "passed"
    return report
_pytest.reports.TestReport.from_item_and_call = classmethod(from_item_and_call)
"""
    ),
    FAILED,
)

ONE_OF_EACH_CLASS = (
    "a_conftest_among_the_tests",
    "a_plugin_named_by_ini_files",
    "path_files_and_site_customization",
    "modules_in_front_of_the_runner",
    "programs_in_front_of_python",
    "replaced_hidden_tests",
    "linked_tests",
    "an_early_exit_with_0",
    "an_exit_of_pytest_in_a_test",
    "an_exit_handler",
    "a_forged_report_and_an_exit",
    "a_daemon_that_writes_to_the_report",
    "tests_changed_while_collected",
    "skipped_tests",
    "a_collection_error",
    "reports_that_pass_for_some_tests",
    "objects_equal_to_everything",
    "expected_values_read_from_the_caller",
    "the_runner_found_by_garbage_collection",
    "a_changed_standard_library",
    *(name for name, each in ATTACKS.items() if each.expected == {REFUSED}),
)


def _visible() -> str:
    return (base_tree(TASK) / "tests/test_text.py").read_text()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backend() -> AsyncIterator[SandboxBackend]:
    opened = open_backend("bubblewrap")
    yield opened
    await opened.aclose()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def verdicts(backend: SandboxBackend, request: pytest.FixtureRequest) -> dict[str, Evaluation]:
    """Of the attacks that were chosen, all run at once."""
    chosen = [
        item.callspec.params["name"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.originalname == "test_an_attack_does_not_pay"
    ]
    found = await asyncio.gather(*(evaluate(TASK, ATTACKS[name].patch(), backend) for name in chosen))
    return dict(zip(chosen, found, strict=True))


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", by_day(ONE_OF_EACH_CLASS, ATTACKS))
async def test_an_attack_does_not_pay(name: str, verdicts: dict[str, Evaluation]) -> None:
    verdict = verdicts[name]
    assert verdict.reward == 0.0, verdict
    assert verdict.reason in ATTACKS[name].expected, verdict


@pytest.mark.asyncio(loop_scope="module")
async def test_the_gold_patch_pays_and_an_empty_one_does_not(backend: SandboxBackend) -> None:
    gold, empty = await asyncio.gather(*(evaluate(TASK, patch, backend) for patch in (TASK.gold_patch, "")))
    assert (gold.reward, gold.reason) == (1.0, Verdict.RESOLVED), gold
    assert (empty.reward, empty.reason) == (0.0, Verdict.TESTS_FAILED), empty


def limited(task: Task, **limits: float) -> Task:
    return replace(task, limits=replace(task.limits, **limits))


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("code", "limits", "said"),
    [
        pytest.param("while True:\n    pass", {"timeout_s": 8.0}, "of time", marks=pytest.mark.slow),
        ("import time\ntime.sleep(3600)", {"timeout_s": 4.0}, "of time"),
        (MANY_HOGS, {"memory_mb": 600}, "of memory"),
    ],
)
async def test_a_patch_that_only_exhausts_its_grading_scores_zero_with_that_reason(
    code: str, limits: dict[str, float], said: str, backend: SandboxBackend
) -> None:
    verdict = await evaluate(limited(TASK, **limits), appends(code)(), backend)
    assert (verdict.reason, verdict.reward) == (Verdict.EXHAUSTED, 0.0), verdict.detail
    assert f"ran out {said}" in verdict.detail
    assert "the gold patch takes" in verdict.detail


@pytest.mark.asyncio(loop_scope="module")
async def test_where_the_gold_patch_runs_out_of_time_too_nothing_is_said_about_another(
    backend: SandboxBackend,
) -> None:
    slow = replace(limited(TASK, timeout_s=3.0), gold_patch=appends("import time\ntime.sleep(60)")())
    verdict = await evaluate(slow, appends("while True:\n    pass")(), backend)
    assert verdict.infrastructure
    assert verdict.reward is None
    assert "with the gold patch: timeout" in verdict.detail

"""Rows with exactly the fields, types and oddities of the public data sets; what they say is made up."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from envsdk.envs.swe.tasks.loaders import load_tasks
from envsdk.envs.swe.tasks.patches import diff
from envsdk.envs.swe.tasks.task import ImageSource, Outcome, Runner, Split, Task

GOLD = diff({"pkg/a.py": "x = 1\n"}, {"pkg/a.py": "x = 2\n"})
TESTS = diff({"tests/test_a.py": "old\n"}, {"tests/test_a.py": "new\n"})
FAIL, PASS = ["tests/test_a.py::test_x[1-a b]"], ["tests/test_a.py::TestY::test_y"]
CONDA = "/opt/miniconda3/envs/testbed/bin/python"

VERIFIED = {
    "repo": "owner/name",
    "instance_id": "owner__name-1",
    "base_commit": "d16bfe05a744909de4b27f5875fe0d4ed41ce607",
    "patch": GOLD,
    "test_patch": TESTS,
    "problem_statement": "It is\r\nbroken.",
    "hints_text": "",
    "created_at": "2022-03-03T15:14:54Z",
    "version": "4.3",
    "FAIL_TO_PASS": json.dumps(FAIL),
    "PASS_TO_PASS": json.dumps(PASS),
    "environment_setup_commit": "298ccb478e6bf092953bca67a3d29dc6c35f6752",
    "difficulty": "15 min - 1 hour",
}
"""SWE-bench Verified; SWE-bench, Lite and the train split lack `difficulty`."""
MULTIMODAL = {
    **VERIFIED,
    "test_patch": diff({"test/a.spec.js": "old\n"}, {"test/a.spec.js": "new\n"}),
    "image_assets": json.dumps({"problem_statement": ["https://example.org/a.png"]}),
    "FAIL_TO_PASS": json.dumps(["a spec does it"]),
    "PASS_TO_PASS": "[]",
}
GYM = {
    "instance_id": "owner__name-1",
    "hints_text": "",
    "patch": GOLD,
    "test_patch": TESTS,
    "created_at": "2022-03-03 15:14:54",
    "problem_statement": "It is broken.",
    "repo": "owner/name",
    "base_commit": "d16bfe05",
    "version": "4.3",
    "PASS_TO_PASS": PASS,
    "FAIL_TO_PASS": FAIL,
}
REBENCH = {
    **{name: value for name, value in VERIFIED.items() if name != "difficulty"},
    "FAIL_TO_PASS": FAIL,
    "PASS_TO_PASS": PASS,
    "created_at": datetime(2022, 3, 3, 15, 14, 54),
    "license_name": "MIT",
    "install_config": {"python": "3.9", "test_cmd": "pytest -rA", "pip_packages": ["pytest"]},
    "meta": {"num_modified_files": 1, "is_lite": True, "failed_lite_validators": []},
    "docker_image": "swerebench/sweb.eval.x86_64.owner_1776_name-1",
}
EXTRA = {name: value for name, value in REBENCH.items() if name != "docker_image"}
LIVE = {
    **{name: VERIFIED[name] for name in ("repo", "instance_id", "base_commit", "patch", "test_patch")},
    **{name: VERIFIED[name] for name in ("problem_statement", "hints_text")},
    "pull_number": "12",
    "issue_numbers": ["11"],
    "all_hints_text": "",
    "commit_urls": ["https://example.org/c"],
    "created_at": datetime(2025, 1, 2),
    "commit_url": "https://example.org/c",
    "test_cmds": ["pytest -rA"],
    "log_parser": "pytest",
    "difficulty": {"files": 1, "hunks": 1, "lines": 2},
    "FAIL_TO_PASS": FAIL,
    "PASS_TO_PASS": PASS,
}
PRO = {
    "repo": "owner/name",
    "instance_id": "instance_owner__name-0123-v1",
    "base_commit": "d16bfe05",
    "patch": GOLD,
    "test_patch": TESTS,
    "problem_statement": "It is broken.",
    "requirements": "",
    "interface": "",
    "repo_language": "python",
    "fail_to_pass": repr([*FAIL, "it's"]),
    "pass_to_pass": repr(PASS),
    "issue_specificity": "['major_bug']",
    "issue_categories": "['core_feature']",
    "before_repo_set_cmd": "git reset --hard d16bfe05",
    "selected_test_files_to_run": '["tests/test_a.py"]',
    "dockerhub_tag": "owner.name-0123",
}
SMITH = {
    "instance_id": "owner__name.1fd52536.combine_file__09vlzwgc",
    "patch": GOLD,
    "FAIL_TO_PASS": FAIL,
    "PASS_TO_PASS": PASS,
    "image_name": "jyangballin/swesmith.x86_64.owner_1776_name.1fd52536",
    "repo": "swesmith/owner__name.1fd52536",
    "problem_statement": "",
}


def file_diff(path: str, before: str, after: str) -> dict[str, Any]:
    """One file of a commit, as R2E-Gym parses it."""
    return {
        "old_file_content": before,
        "new_file_content": after,
        "header": {"file": {"path": path}, "misc_line": None},
        "index_line": {"old_commit_hash": "aaa", "new_commit_hash": "bbb", "mode": "100644"},
        "is_binary_file": False,
        "binary_line": None,
        "minus_file": {"path": f"a/{path}"},
        "plus_file": {"path": f"b/{path}"},
        "hunks": [],
    }


R2E = {
    "repo_name": "name",
    "docker_image": "namanjain12/name_final:abcdef0123456789",
    "commit_hash": "abcdef0123456789",
    "parsed_commit_content": json.dumps(
        {
            "file_diffs": [
                file_diff("pkg/a.py", "x = 1\n", "x = 2\n"),
                file_diff("pkg/new.py", "", "y = 1\n"),
                file_diff("tests/test_a.py", "old\n", "new\n"),
            ],
            "old_commit_hash": "0123",
            "new_commit_hash": "abcdef0123456789",
            "commit_message": "Fix it",
            "commit_date": "2022-03-03T15:14:54+00:00",
            "metadata": {},
        }
    ),
    "execution_result_content": json.dumps({"repo_name": "name", "test_file_names": ["test_1.py"]}),
    "modified_files": ["pkg/a.py"],
    "modified_entity_summaries": [
        {
            "ast_type_str": "FunctionDef",
            "end_lineno": 2,
            "file_name": "pkg/a.py",
            "name": "f",
            "start_lineno": 1,
            "type": "function",
        }
    ],
    "relevant_files": ["pkg/a.py"],
    "num_non_test_files": 1,
    "num_non_test_func_methods": 1,
    "num_non_test_lines": 2,
    "prompt": "Write an issue.",
    "problem_statement": "[ISSUE]\nIt is broken.\n[/ISSUE]",
    "expected_output_json": json.dumps(
        {
            "\x1b[1mTestA.test_x\x1b[0m": "PASSED",
            "test_y[a b]": "FAILED",
            "test_z - ValueError": "ERROR",
            "": "ERROR",
        }
    ),
}
NEMO = {
    "responses_create_params": {
        "input": [{"role": "user", "content": "It is broken."}],
        "metadata": {"docker_image": "swebench/one:latest", "patch_workdir": "/repo"},
    },
    "verifier_metadata": {
        "instance_id": "owner__name-1",
        "test_patch": TESTS,
        "fail_to_pass": FAIL,
        "pass_to_pass": PASS,
        "instance_dict": VERIFIED,
    },
}
NEMO_TEXT = {
    "responses_create_params": {
        "input": [],
        "metadata": {
            "instance_id": "owner__name-1",
            "base_commit": "d16bfe05",
            "dataset_name": "SWE-Gym/SWE-Gym",
            "split": "train",
            "problem_statement": "It is broken.",
            "golden_patch": GOLD,
            "instance_dict": json.dumps(GYM),
        },
    },
    "agent_ref": {"type": "responses_api_agents", "name": "swe_agents"},
    "instance_id": "owner__name-1",
}


def load(folder: Path, row: dict[str, Any], suffix: str) -> Task:
    path = folder / f"rows{suffix}"
    if suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist([row]), path)
    else:
        path.write_text(json.dumps(row, default=str) + "\n")
    (task,) = load_tasks(path)
    return task


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
@pytest.mark.parametrize(
    ("row", "image", "python", "split"),
    [
        (VERIFIED, "swebench/sweb.eval.x86_64.owner_1776_name-1:latest", CONDA, Split.HELD_OUT),
        (GYM, "xingyaoww/sweb.eval.x86_64.owner_s_name-1:latest", CONDA, Split.TRAIN),
        (REBENCH, "swerebench/sweb.eval.x86_64.owner_1776_name-1", CONDA, Split.TRAIN),
        (EXTRA, "swerebench/sweb.eval.x86_64.owner_1776_name-1:latest", CONDA, Split.TRAIN),
        (LIVE, "starryzhang/sweb.eval.x86_64.owner_1776_name-1:latest", "python", Split.HELD_OUT),
        (NEMO_TEXT, "xingyaoww/sweb.eval.x86_64.owner_s_name-1:latest", CONDA, Split.TRAIN),
    ],
    ids=["Verified", "SWE-Gym", "SWE-rebench", "SWE-bench-extra", "Live", "NeMo"],
)
def test_rows_in_the_manner_of_swe_bench(
    tmp_path: Path, row: dict[str, Any], image: str, python: str, split: Split, suffix: str
) -> None:
    task = load(tmp_path, row, suffix)
    assert (task.instance_id, task.repo) == ("owner__name-1", "owner/name")
    assert (task.gold_patch, task.test_patch, task.setup_patch) == (GOLD, TESTS, "")
    assert (task.fail_to_pass, task.pass_to_pass) == (tuple(FAIL), tuple(PASS))
    assert (task.tests.paths, task.tests.python) == (("tests/test_a.py",), python)
    assert task.source == ImageSource(image=image)
    assert task.split is split


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_rows_of_swe_bench_pro(tmp_path: Path, suffix: str) -> None:
    task = load(tmp_path, PRO, suffix)
    assert task.fail_to_pass == (*FAIL, "it's")
    assert task.pass_to_pass == tuple(PASS)
    assert task.source == ImageSource(image="jefzda/sweap-images:owner.name-0123", workdir="/app")
    assert (task.tests.python, task.split) == ("python", Split.HELD_OUT)


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_rows_of_other_languages_load(tmp_path: Path, suffix: str) -> None:
    task = load(tmp_path, MULTIMODAL, suffix)
    assert task.tests.paths == ("test/a.spec.js",)
    assert task.fail_to_pass == ("a spec does it",)


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
@pytest.mark.parametrize("name", ["jyangballin/swesmith.x86_64.o.1", "swesmith.x86_64.o.1"])
def test_rows_of_swe_smith(tmp_path: Path, suffix: str, name: str) -> None:
    task = load(tmp_path, {**SMITH, "image_name": name}, suffix)
    assert (task.setup_patch, task.problem_statement) == (GOLD, "")
    assert task.gold_patch == diff({"pkg/a.py": "x = 2\n"}, {"pkg/a.py": "x = 1\n"})
    assert task.hidden_tests == ("tests/test_a.py",)
    image = name if "/" in name else f"swebench/{name}"
    assert task.source == ImageSource(image=image)


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_rows_of_r2e_gym(tmp_path: Path, suffix: str) -> None:
    task = load(tmp_path, R2E, suffix)
    assert task.expected == {
        "TestA.test_x": Outcome.PASSED,
        "test_y[a b]": Outcome.FAILED,
        "test_z": Outcome.ERROR,
    }
    assert task.gold_patch == diff({"pkg/a.py": "x = 1\n"}, {"pkg/a.py": "x = 2\n", "pkg/new.py": "y = 1\n"})
    assert task.source == ImageSource(image="namanjain12/name_final:abcdef0123456789")
    assert (task.base_commit, task.instance_id) == ("0123", "name__abcdef012345")


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_rows_of_nemo_gym_say_where_the_repository_is(tmp_path: Path, suffix: str) -> None:
    task = load(tmp_path, NEMO, suffix)
    assert task.source == ImageSource(image="swebench/one:latest", workdir="/repo")
    assert (task.instance_id, task.gold_patch) == ("owner__name-1", GOLD)


@pytest.mark.parametrize(
    ("repo", "listed", "runner", "python_path"),
    [
        ("django/django", "test_x (a.tests.XTests)", Runner.DJANGO, (".", "tests")),
        ("sympy/sympy", "test_x", Runner.UNITTEST, (".",)),
        ("owner/name", "tests/test_a.py::test_x", Runner.PYTEST, (".",)),
    ],
)
def test_the_repository_says_what_runs_its_tests(
    tmp_path: Path, repo: str, listed: str, runner: Runner, python_path: tuple[str, ...]
) -> None:
    row = {**VERIFIED, "repo": repo, "FAIL_TO_PASS": json.dumps([listed]), "PASS_TO_PASS": "[]"}
    task = load(tmp_path, row, ".jsonl")
    assert (task.tests.runner, task.tests.python_path) == (runner, python_path)
    assert (task.fail_to_pass, task.tests.paths) == ((listed,), ("tests/test_a.py",))

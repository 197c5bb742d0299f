"""Rows of the public data sets become tasks, and rows that cannot be read are named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from envsdk.contracts.failures import ConfigurationError
from envsdk.envs.swe.tasks.loaders import load_tasks
from envsdk.envs.swe.tasks.patches import diff
from envsdk.envs.swe.tasks.task import GitSource, ImageSource, Outcome, Split, TreeSource

GOLD = diff({"pkg/a.py": "x = 1\n"}, {"pkg/a.py": "x = 2\n"})
TESTS = diff({"tests/test_a.py": "old\n"}, {"tests/test_a.py": "new\n"})
BENCH = {
    "repo": "owner/name",
    "instance_id": "owner__name-1",
    "base_commit": "abc",
    "patch": GOLD,
    "test_patch": TESTS,
    "problem_statement": "It is broken.",
    "hints_text": "",
    "created_at": "2023-01-01T00:00:00Z",
    "version": "1.0",
    "FAIL_TO_PASS": '["tests/test_a.py::test_x"]',
    "PASS_TO_PASS": "[]",
    "environment_setup_commit": "def",
}
GYM = {
    **{name: value for name, value in BENCH.items() if name != "environment_setup_commit"},
    "FAIL_TO_PASS": ["tests/test_a.py::test_x"],
    "PASS_TO_PASS": [],
    "created_at": None,
}
SMITH = {
    "instance_id": "owner__name.abc.lm_rewrite__1",
    "repo": "swesmith/owner__name.abc",
    "patch": GOLD,
    "FAIL_TO_PASS": ["tests/test_a.py::test_x"],
    "PASS_TO_PASS": ["tests/test_b.py::test_y"],
    "image_name": "maker/swesmith.x86_64.owner_1776_name.abc",
    "problem_statement": "It is broken.",
}
R2E = {
    "repo_name": "name",
    "docker_image": "maker/name_final:abc",
    "commit_hash": "abcdef0123456789",
    "problem_statement": "It is broken.",
    "expected_output_json": json.dumps({"TestA.test_x": "PASSED", "TestA.test_y": "FAILED"}),
    "parsed_commit_content": json.dumps(
        {
            "old_commit_hash": "0123",
            "file_diffs": [
                {
                    "header": {"file": {"path": "pkg/a.py"}},
                    "old_file_content": "x = 1\n",
                    "new_file_content": "x = 2\n",
                },
                {
                    "header": {"file": {"path": "tests/test_a.py"}},
                    "old_file_content": "old\n",
                    "new_file_content": "new\n",
                },
            ],
        }
    ),
}
NEMO = {
    "responses_create_params": {
        "input": [],
        "metadata": {"problem_statement": "It is broken.", "instance_dict": json.dumps(BENCH)},
    },
    "agent_ref": {"name": "swe_agents"},
}


def write(path: Path, *rows: dict[str, Any]) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(list(rows)), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_swe_bench(tmp_path: Path, suffix: str) -> None:
    (task,) = load_tasks(write(tmp_path / f"rows{suffix}", BENCH))
    assert task.instance_id == "owner__name-1"
    assert (task.gold_patch, task.test_patch, task.setup_patch) == (GOLD, TESTS, "")
    assert (task.fail_to_pass, task.pass_to_pass) == (("tests/test_a.py::test_x",), ())
    assert task.tests.paths == ("tests/test_a.py",)
    assert task.source == ImageSource(image="swebench/sweb.eval.x86_64.owner_1776_name-1:latest")
    assert task.split is Split.HELD_OUT
    assert task.origin.endswith(f"rows{suffix}:record 1")


def test_swe_gym_has_lists_and_is_for_training(tmp_path: Path) -> None:
    (task,) = load_tasks(write(tmp_path / "rows.jsonl", GYM))
    assert task.fail_to_pass == ("tests/test_a.py::test_x",)
    assert task.source == ImageSource(image="xingyaoww/sweb.eval.x86_64.owner_s_name-1:latest")
    assert task.split is Split.TRAIN


def test_swe_smith_has_the_bug_as_its_patch(tmp_path: Path) -> None:
    (task,) = load_tasks(write(tmp_path / "rows.jsonl", SMITH))
    assert task.setup_patch == GOLD
    assert task.gold_patch == diff({"pkg/a.py": "x = 2\n"}, {"pkg/a.py": "x = 1\n"})
    assert task.hidden_tests == ("tests/test_a.py",)
    assert task.tests.paths == ("tests/test_a.py", "tests/test_b.py")


def test_r2e_gym_has_an_outcome_for_every_test(tmp_path: Path) -> None:
    (task,) = load_tasks(write(tmp_path / "rows.jsonl", R2E))
    assert task.expected == {"TestA.test_x": Outcome.PASSED, "TestA.test_y": Outcome.FAILED}
    assert task.gold_patch == GOLD
    assert (task.fail_to_pass, task.hidden_tests) == ((), ("r2e_tests",))
    assert task.instance_id == "name__abcdef012345"
    assert task.base_commit == "0123"


def test_nemo_rows_hold_a_row_as_json(tmp_path: Path) -> None:
    (task,) = load_tasks(write(tmp_path / "rows.jsonl", NEMO))
    assert (task.instance_id, task.gold_patch) == ("owner__name-1", GOLD)


def test_kinds_may_be_mixed_and_splits_chosen(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", BENCH, SMITH, R2E)
    assert [task.instance_id for task in load_tasks(path, split="train")] == [
        SMITH["instance_id"],
        "name__abcdef012345",
    ]
    assert [task.instance_id for task in load_tasks(path, split="held_out")] == ["owner__name-1"]


def test_a_clone_goes_before_the_image(tmp_path: Path) -> None:
    (tmp_path / "repositories" / "owner__name").mkdir(parents=True)
    (task,) = load_tasks(write(tmp_path / "rows.jsonl", BENCH))
    assert task.source == GitSource(repository=tmp_path / "repositories" / "owner__name", commit="abc")
    (task,) = load_tasks(tmp_path / "rows.jsonl", repositories=tmp_path)
    assert isinstance(task.source, ImageSource)


def test_a_made_row_says_how_its_tests_run(tmp_path: Path) -> None:
    made = {
        "tree": "trees/name-1",
        "split": "train",
        "licence": "MIT",
        "tests": {
            "paths": ["tests"],
            "python_path": ["src"],
            "deselected": ["tests/a.py::slow"],
            "site": "sites/x",
        },
        "limits": {"timeout_s": 20.0},
        "metadata": {"operator": "comparison"},
    }
    (task,) = load_tasks(write(tmp_path / "rows.jsonl", {**BENCH, "envsdk": made}))
    assert task.source == TreeSource(folder=tmp_path / "trees" / "name-1")
    assert task.setup_patch == diff(
        {"pkg/a.py": "x = 2\n", "tests/test_a.py": "new\n"},
        {"pkg/a.py": "x = 1\n", "tests/test_a.py": "old\n"},
    )
    assert (task.tests.paths, task.tests.python_path) == (("tests",), ("src",))
    assert task.tests.site == tmp_path / "sites" / "x"
    assert (task.limits.timeout_s, task.limits.memory_mb) == (20.0, 4096)
    assert (task.split, task.licence, task.metadata) == (Split.TRAIN, "MIT", {"operator": "comparison"})


def test_content_decides_the_hash_and_the_place_does_not(tmp_path: Path) -> None:
    first, second = (load_tasks(write(tmp_path / name, GYM))[0] for name in ("a.jsonl", "b.jsonl"))
    assert first.content_hash() == second.content_hash()
    (changed,) = load_tasks(write(tmp_path / "c.jsonl", {**GYM, "problem_statement": "Another."}))
    assert changed.content_hash() != first.content_hash()


def without(row: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != name}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (without(BENCH, "patch"), "record 2: field 'patch': is missing"),
        (without(BENCH, "FAIL_TO_PASS"), "record 2: field 'FAIL_TO_PASS': is missing"),
        ({**BENCH, "FAIL_TO_PASS": "[1]"}, "record 2: field 'FAIL_TO_PASS': must be a list of texts"),
        ({**BENCH, "FAIL_TO_PASS": "nope"}, "record 2: field 'FAIL_TO_PASS': is no JSON"),
        ({**BENCH, "problem_statement": 5}, "record 2: field 'problem_statement': must be a text, not int"),
        ({**BENCH, "test_patch": ""}, None),
        (
            {**BENCH, "patch": "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n"},
            "record 2: a patch cannot be read: line 5",
        ),
        ({**BENCH, "instance_id": "owner__name-1"}, "record 2: field 'instance_id': is that of .*record 1"),
        (without(SMITH, "image_name"), "record 2: field 'image_name': is missing, and there is no clone"),
        ({**R2E, "expected_output_json": '{"a": "MAYBE"}'}, "'a': unknown outcome 'MAYBE'"),
        ({"id": 5}, "record 2: field 'instance_id': is missing, and no field holds a row"),
        ({"metadata": {"instance_dict": "{"}}, "record 2: field 'instance_dict': is no JSON"),
        ({**BENCH, "envsdk": {"limits": {"time": 5}}}, "record 2: field 'envsdk': .*'time'"),
        ({**BENCH, "envsdk": {"tests": {"run": "x"}}}, "record 2: field 'envsdk': tests: .*'run'"),
        ({**BENCH, "envsdk": {"tests": {"runner": "x"}}}, "record 2: field 'envsdk': tests: 'x' is not a"),
    ],
)
def test_what_is_wrong_is_named_with_file_record_and_field(
    tmp_path: Path, row: dict[str, Any], message: str | None
) -> None:
    other = (
        {**BENCH, "instance_id": "owner__name-2"} if message is None or "is that of" not in message else BENCH
    )
    path = write(tmp_path / "rows.jsonl", other, row)
    if message is None:
        assert load_tasks(path)[1].tests.paths == ("tests/test_a.py",)
        return
    with pytest.raises(ConfigurationError, match=message) as caught:
        load_tasks(path)
    assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("rows.csv", b"", "must be a .jsonl, .json or .parquet file"),
        ("rows.jsonl", b'{"a": 1}\n{"b"\n', "record 1: field 'instance_id'"),
        ("rows.jsonl", b"[1]\n", "record 1: must be an object, not int"),
        ("rows.jsonl", b"\xff\n", "is not UTF-8"),
        ("rows.parquet", b"nothing", "is no Parquet file that can be read"),
    ],
)
def test_files_that_cannot_be_read_are_named(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ConfigurationError, match=message):
        load_tasks(tmp_path / name)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="there is no such file"):
        load_tasks(tmp_path / "none.jsonl")

"""`python -m envsdk.reward`: recorded responses and what became of them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from envsdk.reward import main
from tests.envsdk.rewards import unruly_rewards

INLINE = f"{unruly_rewards.__name__}:UnrulyInline"
PROCESS = f"{unruly_rewards.__name__}:Unruly"


def rows(folder: Path, *rows: dict[str, Any]) -> str:
    file = folder / "rows.jsonl"
    standard = {"prompt": "?", "ground_truth": "yes", "tag": "a"}
    file.write_text(
        "".join(json.dumps({"id": str(i), **standard, **row}) + "\n" for i, row in enumerate(rows))
    )
    return str(file)


def cells(output: str, tag: str) -> list[str]:
    """Of the table's row: responses, right, wrong, faults, masked, missing, accuracy, mean value."""
    return next(line.split()[1:] for line in output.splitlines() if line.split()[:1] == [tag])


def test_responses_are_counted_by_tag_and_written_with_their_scores(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = rows(
        tmp_path,
        {"response": "yes"},
        {"response": ["no", "yes", "raise x"]},
        {"response": "raise x", "ground_truth": "raise x", "tag": "b"},
        {"response": "yes", "tag": "b"},
        {"tag": "b"},
    )
    out = tmp_path / "folder" / "out.jsonl"
    assert main([INLINE, "--file", file, "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert cells(printed, "a") == ["4", "2", "1", "1", "0", "0", "50.0%", "0.500"]
    assert cells(printed, "b") == ["2", "1", "0", "0", "1", "1", "100.0%", "1.000"]
    assert cells(printed, "all") == ["6", "3", "1", "1", "1", "1", "60.0%", "0.600"]
    assert re.search(r"1 x scoring it raised RuntimeError: x \(at \S+:\d+ obey\)\n", printed)
    written = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(row["id"], row["reward"], row["correct"]) for row in written] == [
        ("0", 1.0, True),
        ("1", 0.0, False),
        ("1", 1.0, True),
        ("1", 0.0, False),
        ("2", None, None),
        ("3", 1.0, True),
        ("4", None, None),
    ]
    assert written[0]["parts"] == {"length": 3.0}
    assert written[3]["fault"] == "raised"
    assert written[3]["verdict"].startswith("scoring it raised RuntimeError: x (at ")
    assert written[4]["verdict"].endswith("response: with the row's reference answer: the same")


def test_a_row_whose_reference_answer_is_not_right_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = rows(tmp_path, {}, {"ground_truth": "raise x"}, {"ground_truth": None}, {"solution": "no"})
    assert main([INLINE, "--file", file, "--reference"]) == 1
    output = capsys.readouterr()
    assert "3 row(s) have no reference answer that counts as right" in output.err
    assert [f"rows.jsonl:{line}:" in output.out for line in (1, 2, 3, 4)] == [False, True, True, True]
    assert main([INLINE, "--file", file, "--reference", "--rows", "1"]) == 0


def test_workers_take_the_keys_of_a_section_and_rows_are_chosen_by_tag(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = rows(
        tmp_path,
        {"response": "loop", "tag": "a"},
        {"response": "yes", "tag": "b"},
        {"response": "yes", "tag": "c"},
    )
    assert main([PROCESS, "--file", file, "timeout_s=0.2", "world_size=1", "--tag", "a,b"]) == 0
    printed = capsys.readouterr().out
    assert "1 x scoring it took longer than timeout_s=0.2" in printed
    assert cells(printed, "all") == ["2", "1", "0", "1", "0", "0", "50.0%", "0.500"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no_such", "--file", "FILE"], "`no_such` is not registered under envsdk.rewards"),
        ([INLINE], "--file"),
        ([INLINE, "--file", "FILE", "brocken=1"], "brocken"),
        ([INLINE, "--file", "FILE", "broken"], "'broken' is no setting; write key=value"),
        ([INLINE, "--file", "nowhere.jsonl"], "nowhere.jsonl"),
        ([INLINE, "--file", "FILE", "--response", "respons"], "did you mean `response`?"),
        ([INLINE, "--file", "FILE", "--columns", "prompt"], "'prompt' is no NAME=COLUMN"),
        ([INLINE, "--file", "FILE", "--out", "."], "is a folder: name a file"),
    ],
)
def test_wrong_input_is_named_and_nothing_is_scored(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = rows(tmp_path, {"response": "yes"})
    assert main([file if each == "FILE" else each for each in arguments]) == 2
    output = capsys.readouterr()
    assert message in output.err
    assert not output.out


def test_where_nothing_can_be_scored_the_command_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = rows(tmp_path, {"response": "no"})
    assert main([INLINE, "--file", file, "broken=raise no license"]) == 1
    output = capsys.readouterr()
    assert "no license" in output.out
    assert "no response was scored" in output.err

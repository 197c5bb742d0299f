"""The table counts what ran to its end among what loads, and a call continues the last one."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks import roll_files
from benchmarks.roll_files import ERROR, REFUSED, TO_THE_END, Outcome, files_in, main, read_results, table


def outcome(file: str, how: str, reason: str = "") -> Outcome:
    return Outcome(file=file, outcome=how, seconds=30.0, reason=reason, tags=["math_rule"], load=4.0)


def test_a_file_that_is_refused_does_not_count() -> None:
    lines = "\n".join(
        table(
            [outcome("a.yaml", TO_THE_END), outcome("b.yaml", ERROR, "no a | b"), outcome("c.yaml", REFUSED)]
        )
    )
    assert "1 of 2 files that load ran to the end, in 1 minutes; 1 are refused" in lines
    assert "| b.yaml | error | 30 | math_rule | no a / b |" in lines
    assert "c.yaml" not in lines


def test_files_that_others_name_are_no_runs(tmp_path: Path) -> None:
    for name in ("config/envs.yaml", "one/run.yaml", "two/run.yaml"):
        (tmp_path / "examples" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "examples" / name).write_text("max_steps: 1\n")
    assert [file.parent.name for file in files_in(tmp_path)] == ["one", "two"]


def test_a_call_runs_what_the_last_one_left_and_again_what_did_not_end_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []

    def run(file: Path, name: str, out: Path, **options: object) -> Outcome:
        ran.append(name)
        return outcome(name, TO_THE_END)

    monkeypatch.setattr(roll_files, "outcome_of", run)
    for name in "abcd":
        (tmp_path / f"{name}.yaml").write_text("max_steps: 1\n")
    out = tmp_path / "out"
    out.mkdir()
    known = [outcome("a.yaml", TO_THE_END), outcome("b.yaml", ERROR, "why")]
    (out / "results.jsonl").write_text("".join(json.dumps(asdict(each)) + "\n" for each in known))
    main([str(tmp_path), "--out", str(out), "--first", "1"])
    assert ran == ["c.yaml"]
    assert main([str(tmp_path), "--out", str(out)]) == 1
    assert ran == ["c.yaml", "d.yaml"]
    assert main([str(tmp_path), "--out", str(out), "--again"]) == 0
    assert ran == ["c.yaml", "d.yaml", "b.yaml"]
    assert read_results(out / "results.jsonl")["b.yaml"].outcome == TO_THE_END


def test_a_file_that_does_not_load_is_refused_with_its_problem(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("max_stepz: 1\n")
    main([str(tmp_path), "--out", str(tmp_path / "out")])
    found = read_results(tmp_path / "out" / "results.jsonl")["bad.yaml"]
    assert found.outcome == REFUSED
    assert "problems" in found.reason

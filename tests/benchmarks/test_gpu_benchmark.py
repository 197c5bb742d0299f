"""The benchmark for GPUs, on a CPU and without Ray and PyArrow."""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from benchmarks.gpu import PARTS, main, markdown, measured
from benchmarks.gpu_parts.bench import Bench, Broken, Part, Result, Row, Skipped, TimeUp, limited, missing
from benchmarks.gpu_parts.wheels import WHEELS

REPOSITORY = Path(__file__).resolve().parents[2]
ABSENT = """
import sys

sys.modules.update(ray=None, pyarrow=None)
from benchmarks.gpu import main

sys.exit(main())
"""


def run_on_a_cpu(folder: Path, *options: str) -> dict[str, dict[str, Any]]:
    """The parts that ran, by name, as the report has them."""
    done = subprocess.run(
        [sys.executable, "-c", ABSENT, "--out", str(folder), "--device", "cpu", "--minutes", "20", *options],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return {part["name"]: part for part in json.loads((folder / "gpu.json").read_text())["parts"]}


@pytest.mark.slow
def test_a_part_runs_on_a_cpu_without_ray_and_pyarrow(tmp_path: Path) -> None:
    (part,) = run_on_a_cpu(tmp_path, "--only", "learning").values()
    assert len(part["rows"]) == 4
    assert not part["skipped"]
    assert "quickstart" in (tmp_path / "gpu.md").read_text()


@pytest.mark.slow
def test_the_recipe_of_a_real_model_is_rehearsed_with_a_tiny_one(tmp_path: Path) -> None:
    (part,) = run_on_a_cpu(tmp_path, "--only", "recipe").values()
    names = [row["what"].partition(":")[0] for row in part["rows"]]
    assert names == [name for name in ("FrozenLake", "Sokoban", "word problems") for _ in range(4)]
    assert all(0 <= row["value"] <= 100 for row in part["rows"] if row["unit"] == "%")
    assert "word problems: held-out success after 2 steps" in (tmp_path / "gpu.md").read_text()


@pytest.mark.slow
def test_all_of_it_runs_on_a_cpu(tmp_path: Path) -> None:
    parts = run_on_a_cpu(tmp_path)
    rows = {name: len(part["rows"]) for name, part in parts.items()}
    assert rows["parity"] >= 15
    assert rows["speed"] >= 12
    assert rows["learning"] == 4
    skipped = {name: part["skipped"] for name, part in parts.items()}
    assert "GPU" in skipped["tests"]
    assert rows["transfer"] == 5
    assert not skipped["transfer"]
    assert "vllm is not installed" in skipped["servers"]
    assert "largest difference" in (tmp_path / "gpu.md").read_text()


def test_a_bare_python_says_what_to_carry() -> None:
    code = """
import sys

sys.modules.update(dict.fromkeys(["numpy", "torch", "transformers", "pydantic", "gymnasium", "rich"]))
from benchmarks.gpu import main

sys.exit(main(["--wheels"]))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "pip download" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--minutes", "nan"], "--minutes: expected a number"),
        (["--minutes", "inf"], "--minutes: expected a number"),
        (["--device", "meta"], "--device: expected cpu or a CUDA device"),
        (["--device", "cuda:99"], "--device: cuda:99 cannot be used here"),
        (["--out", "FILE"], "cannot be written to"),
        (["--out", "FILE/below"], "cannot be written to"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_runs(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    given = [each.replace("FILE", str(tmp_path / "file")) for each in arguments]
    with pytest.raises(SystemExit) as ended:
        main([*([] if "--out" in arguments else ["--out", str(tmp_path / "out")]), *given])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_the_recipe_needs_a_model_and_is_run_only_where_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENVSDK_CACHE", "")  # which main sets
    monkeypatch.delenv("ENVSDK_RECIPE_MODEL", raising=False)
    [recipe] = [part for part in PARTS if part.is_asked_for]
    ran: list[str] = []
    other = Part(name="other", title="", share=1.0, run=lambda bench: ran.append("other") or iter(()))  # type: ignore[func-returns-value]
    monkeypatch.setattr("benchmarks.gpu.PARTS", [recipe, other])
    assert main(["--out", str(tmp_path / "all"), "--device", "cpu"]) == 0
    assert ran == ["other"]
    assert (
        main(["--out", str(tmp_path / "full"), "--device", "cpu", "--sizes", "full", "--only", "recipe"]) == 0
    )
    assert "ENVSDK_RECIPE_MODEL does not name" in (tmp_path / "full" / "gpu.md").read_text()


def test_an_earlier_report_is_kept_and_ctrl_c_keeps_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted() -> Iterator[Row]:
        yield Row(what="one", value=1)
        raise KeyboardInterrupt

    part = Part(name="part", title="A part", share=1.0, run=lambda bench: interrupted())
    monkeypatch.setattr("benchmarks.gpu.PARTS", [part, part])
    monkeypatch.setenv("ENVSDK_CACHE", "")  # which main sets
    for _ in range(2):
        assert main(["--out", str(tmp_path), "--device", "cpu"]) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "gpu-1.json",
        "gpu-1.md",
        "gpu.json",
        "gpu.md",
    ]
    (found,) = json.loads((tmp_path / "gpu-1.json").read_text())["parts"]
    assert [row["what"] for row in found["rows"]] == ["one"]
    assert found["error"] == "stopped by Ctrl-C"


def test_a_package_that_every_installation_has_is_not_skipped_over() -> None:
    def rows(name: str) -> Iterator[Row]:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        yield

    bench = Bench(device="cpu", is_small=True, folder=Path("unused"))
    assert "envsdk[train]" in measured(part_of(rows("ray")), bench, 10).skipped
    assert "psutil" in measured(part_of(rows("psutil")), bench, 10).error


def part_of(rows: Iterator[Row], *needs: str) -> Part:
    return Part(name="part", title="A part", share=1.0, run=lambda bench: rows, needs=needs)


def bench(tmp_path: Path) -> Bench:
    return Bench(device="cpu", is_small=True, folder=tmp_path)


def test_what_a_part_found_before_its_time_was_over_is_kept(tmp_path: Path) -> None:
    def rows() -> Iterator[Row]:
        yield Row(what="first", value=1.0)
        while True:
            time.sleep(0.01)

    result = measured(part_of(rows()), bench(tmp_path), 0.2)
    assert [row.what for row in result.rows] == ["first"]
    assert "over" in result.skipped
    assert not result.error


def test_a_part_that_breaks_says_where(tmp_path: Path) -> None:
    def rows() -> Iterator[Row]:
        yield Row(what="first", value=1.0)
        raise ZeroDivisionError("the reason")

    result = measured(part_of(rows()), bench(tmp_path), 60.0)
    assert "the reason" in result.error
    assert len(result.rows) == 1


def test_a_part_that_lacks_something_says_what(tmp_path: Path) -> None:
    def rows() -> Iterator[Row]:
        raise Skipped("no second card")
        yield

    assert measured(part_of(rows()), bench(tmp_path), 60.0).skipped == "no second card"
    absent = measured(part_of(iter(()), "no_such_package"), bench(tmp_path), 60.0)
    assert "no_such_package" in absent.skipped


def test_a_module_of_a_missing_package_is_missing() -> None:
    assert missing(["json", "no_such_package.core", "json.no_such_module"]) == [
        "no_such_package.core",
        "json.no_such_module",
    ]


def test_a_piece_that_breaks_or_lacks_a_package_leaves_the_others(tmp_path: Path) -> None:
    from benchmarks.gpu_parts.speed import attempted

    def lacking() -> Iterator[Row]:
        raise ModuleNotFoundError("no module of that name")
        yield

    def breaking() -> Iterator[Row]:
        yield Row(what="before it broke", value=1.0)
        raise MemoryError("the device is full")

    def rows() -> Iterator[Row]:
        skipped, broken = list[str](), list[str]()
        for piece in (lacking, breaking, lambda: iter([Row(what="after", value=2.0)])):
            yield from attempted(piece, skipped, broken)
        assert skipped == ["no module of that name"]
        raise Broken("\n".join(broken))

    result = measured(part_of(rows()), bench(tmp_path), 60.0)
    assert [row.what for row in result.rows] == ["before it broke", "after"]
    assert "the device is full" in result.error


def test_neither_a_callback_nor_a_broad_except_keeps_a_part_beyond_its_time(tmp_path: Path) -> None:
    def stubborn() -> None:
        with suppress(Exception):  # as code at a boundary has it
            time.sleep(60)

    async def never_answered() -> None:
        loop = asyncio.get_running_loop()
        loop.call_soon(stubborn)
        await loop.create_future()

    def rows() -> Iterator[Row]:
        asyncio.run(never_answered())
        yield

    assert "over" in measured(part_of(rows()), bench(tmp_path), 0.2).skipped


def test_the_time_limit_ends_with_its_block() -> None:
    with pytest.raises(TimeUp), limited(0.05):
        time.sleep(60)
    with limited(0.05):
        pass
    time.sleep(0.1)


@pytest.mark.parametrize(
    ("row", "is_missed"),
    [
        (Row(what="", value=1.0, at_most=1.0), False),
        (Row(what="", value=1.1, at_most=1.0), True),
        (Row(what="", value=0.9, at_least=1.0), True),
        (Row(what="", value=float("nan"), at_most=1.0), True),
        (Row(what="", value=float("nan"), at_least=1.0), True),
        (Row(what="", value=5.0), False),
    ],
)
def test_a_bound_is_missed_by_what_is_beyond_it_or_no_number(row: Row, is_missed: bool) -> None:
    assert row.is_missed == is_missed


def test_the_report_shows_misses_and_reasons() -> None:
    rows = [Row(what="gap", value=2.0, unit="nats", at_most=1.0, note="after an update")]
    text = markdown({"device": "cpu"}, [Result(name="a", title="A", rows=rows, skipped="the rest")], "today")
    assert "| gap | 2 nats | ≤ 1 | MISSED; after an update |" in text
    assert "Skipped: the rest" in text


def test_the_wheels_fit_into_what_may_be_carried(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--wheels"]) == 0
    assert "pydantic-core" in capsys.readouterr().out
    assert sum(wheel.kb for wheels in WHEELS.values() for wheel in wheels) < 64 * 1024


def test_the_wheels_are_of_versions_that_the_project_allows() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    texts = [*project["dependencies"], *itertools.chain(*project["optional-dependencies"].values())]
    asked = [Requirement(text) for text in texts]
    held = [
        (wheel, each)
        for wheel in itertools.chain(*WHEELS.values())
        for each in asked
        if canonicalize_name(each.name) == wheel.package and each.specifier
    ]
    assert {"llguidance", "megatron-core", "gymnasium", "pydantic"} <= {wheel.package for wheel, _ in held}
    assert [pair for pair in held if pair[0].version not in pair[1].specifier] == []


def test_a_suite_of_checks_is_counted_and_what_failed_is_named(tmp_path: Path) -> None:
    (tmp_path / "test_checks.py").write_text("def test_holds(): ...\ndef test_fails(): assert False\n")
    program = (
        "import sys; from pathlib import Path; from benchmarks.gpu_parts import bench, marked_tests\n"
        "here = bench.Bench(device='cpu', is_small=True, folder=Path())\n"
        "for row in marked_tests.outcomes(here, 'checks', [sys.argv[1]], marker='not gpu'):\n"
        "    print(row.what, row.value, row.is_missed, row.note)"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "test_checks.py")]
    output = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True).stdout
    assert "checks that passed 1 False" in output
    assert "checks that failed 1 True" in output
    assert "test_checks.py::test_fails" in output.splitlines()[-2]


def test_generate_is_compared_with_the_log_probabilities_of_what_it_sampled(model_folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    from benchmarks.gpu_parts.speed import generate

    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    prompts = torch.randint(0, 61, (3, 5), generator=torch.Generator().manual_seed(0))
    tokens, logprobs = generate(model, prompts, 7)
    assert tokens.shape == logprobs.shape == (3, 7)
    with torch.no_grad():
        everywhere = model(torch.cat([prompts, tokens], 1)).logits.log_softmax(-1)
    expected = everywhere[:, 4:-1].gather(2, tokens[..., None])[..., 0]
    torch.testing.assert_close(logprobs, expected, atol=1e-5, rtol=0)


def test_the_report_says_which_kernels_a_trainer_took(tmp_path: Path) -> None:
    from benchmarks.gpu_parts.speed import TRAINERS, training

    machine = bench(tmp_path)
    rows = list(training(machine, "tiny", machine.shapes["tiny"], TRAINERS[0], 1e12))
    assert rows[0].note.startswith("attention by sdpa (flash), products by bfloat16")


@pytest.mark.parametrize(
    "arguments", [[], ["--out", "x", "--device", "nothing"], ["--out", "x", "--minutes", "0"]]
)
def test_wrong_arguments_are_named(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "--" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())

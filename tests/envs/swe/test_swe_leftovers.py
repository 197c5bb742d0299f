"""What an honest agent leaves behind is not graded, and nothing that a fix needs goes with it."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk.envs.swe.evaluator.stripping import (
    MAX_CHANGED_LINES,
    MAX_LINES,
    MAX_PARTS,
    MAX_TEXT_CHARS,
    AddedFile,
    RefusedPatch,
    installed_for,
    left_out,
    strip,
)
from envsdk.envs.swe.tasks.patches import diff, parse, sections
from envsdk.envs.swe.tasks.task import Task, TestPlan, TreeSource
from envsdk.rewards.sandbox.contract import MAX_ADDED_BYTES, MAX_ADDED_FILES

TASK = Task(
    instance_id="a",
    repo="a/b",
    source=TreeSource(folder=Path("/nowhere")),
    problem_statement="",
    gold_patch=diff({"pkg/a.py": "1\n"}, {"pkg/a.py": "2\n"}),
    tests=TestPlan(paths=("tests",)),
)
FIX = diff({"pkg/a.py": "1\n"}, {"pkg/a.py": "2\n"})


def new(path: str, num_lines: int = 1, line: str = "x") -> str:
    """What `git diff` says of a new file."""
    body = f"+{line}\n" * num_lines
    return (
        f"diff --git a/{path} b/{path}\nnew file mode 100644\n--- /dev/null\n+++ b/{path}\n"
        f"@@ -0,0 +1,{num_lines} @@\n{body}"
    )


def added(path: str, num_bytes: int = 1, num_lines: int = 1) -> AddedFile:
    return AddedFile(path=path, num_bytes=num_bytes, num_lines=num_lines)


def graded(text: str) -> list[str]:
    return [path for patch in parse(strip(text, TASK).text) for path in patch.paths]


def test_a_virtual_environment_is_left_out_wherever_it_is_and_whatever_it_is_called() -> None:
    environment = [f"tools/my env/{name}" for name in ("pyvenv.cfg", "bin/activate", "lib/x/y.py")]
    patch = FIX + "".join(map(new, environment)) + new("tools/helper.py")
    stripped = strip(patch, TASK)
    assert stripped.left_out == tuple(sorted(environment))
    assert graded(patch) == ["pkg/a.py", "tools/helper.py"]


@pytest.mark.parametrize("folder", ["node_modules", "vendor/site-packages", "x/lib/python3.11/dist-packages"])
def test_installed_packages_are_left_out(folder: str) -> None:
    assert graded(FIX + new(f"{folder}/thing/index.py") + new("pkg/thing.py")) == ["pkg/a.py", "pkg/thing.py"]


def test_a_few_scripts_data_files_and_documents_stay_and_do_no_harm() -> None:
    scripts = ["CHANGES.md", "data/in.csv", "repro.py", "scratch/debug.py"]
    assert graded(FIX + "".join(map(new, scripts))) == ["pkg/a.py", *scripts]


def test_bulk_goes_before_a_new_module_or_its_data_do() -> None:
    bulk = [f"build/html/page{number}.py" for number in range(3 * MAX_ADDED_FILES)]
    fix = ["pkg/data/units.json", "pkg/units.py"]
    kept = graded(FIX + "".join(map(new, bulk)) + "".join(map(new, fix)))
    assert {"pkg/a.py", *fix} <= set(kept)
    assert len(kept) == 1 + MAX_ADDED_FILES


def test_a_large_data_file_is_left_out_and_a_small_one_beside_it_stays() -> None:
    patch = FIX + new("dump.csv", MAX_LINES + 1, "1,2,3") + new("pkg/table.csv", 10)
    assert graded(patch) == ["pkg/a.py", "pkg/table.csv"]


def test_a_large_test_file_takes_no_room_and_is_stripped_as_any_other() -> None:
    patch = FIX + new("tests/data/big.csv", MAX_CHANGED_LINES + 1) + new("pkg/units.py")
    assert strip(patch, TASK).removed == ("tests/data/big.csv",)
    assert graded(patch) == ["pkg/a.py", "pkg/units.py"]


def test_a_file_that_the_gold_patch_adds_is_never_left_out() -> None:
    task = replace(TASK, gold_patch=new("pkg/site-packages/x.py"))
    assert strip(new("pkg/site-packages/x.py", 3), task).left_out == ()


FILES = st.lists(
    st.builds(
        added,
        st.lists(st.sampled_from(["a", "b.py", "c.txt", "pyvenv.cfg", "site-packages"]), min_size=1).map(
            "/".join
        ),
        st.integers(0, MAX_ADDED_BYTES),
        st.integers(0, MAX_LINES),
    ),
    unique_by=lambda file: file.path,
)


@given(FILES)
def test_what_stays_is_within_the_limits_and_does_not_hang_on_the_order(files: list[AddedFile]) -> None:
    dropped = left_out(files)
    kept = [file for file in files if file.path not in dropped]
    assert len(kept) <= MAX_ADDED_FILES
    assert sum(file.num_bytes for file in kept) <= MAX_ADDED_BYTES
    assert sum(file.num_lines for file in kept) <= MAX_LINES
    assert left_out(reversed(files)) == dropped


PIECES = st.lists(
    st.sampled_from(
        [
            FIX,
            new("x.py"),
            new("tests/t.py", 2),
            "diff --git a/ b/\nnew file mode 100644\n",
            "diff --git a/. b/.\nnew file mode 100644\n",
            'diff --git "a/\\000x" "b/\\000x"\nnew file mode 100644\n',
            f"diff --git a/{'x' * 9000} b/{'x' * 9000}\nnew file mode 100644\n",
            f"--- a/x\n+++ b/x\n@@ -{'9' * 5000} +1 @@\n+x\n",
            "--- /dev/null\n+++ b/plain.py\n@@ -0,0 +1 @@\n+x\n",
            *(
                "@@ -1 +1 @@\n",
                "-- \n",
                "+++ b/x\n",
                "\ud800",
                "\udc80",
                "\0",
                "From: me\n",
                "\n",
                "new file mode",
            ),
        ]
    ),
    max_size=5,
).map("".join)


@given(PIECES)
def test_any_text_is_graded_or_refused(text: str) -> None:
    with contextlib.suppress(RefusedPatch):
        stripped = strip(text, TASK)
        assert parse(stripped.text) == stripped.files


@given(PIECES)
def test_the_sections_of_a_patch_are_all_of_it(text: str) -> None:
    assert "".join(section.text for section in sections(text)) == text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (" " * (MAX_TEXT_CHARS + 1), "characters"),
        ("\ndiff --git a/x b/x" * (MAX_PARTS + 1), "files"),
        (FIX.replace("@@ -1 +1", f"@@ -1 +1,{10**6}") + "+x\n" * 10**6, "lines"),
    ],
)
def test_a_patch_over_the_limits_is_refused_and_says_which(text: str, said: str) -> None:
    with pytest.raises(RefusedPatch, match=said):
        strip(text, TASK)


def test_a_package_of_the_image_cannot_be_replaced_but_the_repository_may_be_installed(
    tmp_path: Path,
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").write_text("")
    (tmp_path / "shared").mkdir()
    installed = installed_for(TASK, tmp_path, frozenset({"numpy", "attr", "mine", "shared"}))
    paths = [
        "numpy/testing/x.py",
        "attr.py",
        "mine/new.py",
        "shared/x.py",
        "shared/__init__.py",
        "pkg/attr.py",
    ]
    stripped = strip(diff({}, dict.fromkeys(paths, "1\n")), TASK, installed)
    assert stripped.removed == ("attr.py", "numpy/testing/x.py", "shared/__init__.py")

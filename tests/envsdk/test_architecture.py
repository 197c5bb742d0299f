"""Who may import whom (docs/architecture.md): the house stays in order by test, not by memory."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.house import LINKED, PICTURE, ROOT, House, classes_of, files_of, num_lines, picture, sizes
from tests.sources import nodes, statements

COMMANDS = {
    "__main__",
    "check",
    "cli",
    "collect",
    "evaluate",
    "init",
    "plan",
    "replay",
    "report",
    "reward",
    "serve",
    "serve_env",
    "sft",
    "train",
}
"""Modules of the package itself that are command lines: `python -m envsdk.NAME`."""

HOUSE = House.read()

PURE_CORES = {
    "envsdk/buffer/contract.py",
    "envsdk/buffer/admission.py",
    "envsdk/buffer/selection.py",
    "envsdk/explorers/weight_lag.py",
    "envsdk/contracts/run_limits.py",
    "envsdk/base/settings/memory.py",
    "envsdk/engines/refusals.py",
    "envsdk/rollouts/datasets/atif_documents.py",
    "envsdk/rollouts/datasets/card.py",
    "envsdk/rollouts/datasets/differences.py",
    "envsdk/rollouts/datasets/selection.py",
    "envsdk/rollouts/datasets/tool_messages.py",
    "envsdk/adapters/tools/answers.py",
    "envsdk/contracts/seeds.py",
    "envsdk/contracts/trajectory.py",
    "envsdk/engines/endpoint/bodies.py",
    "envsdk/engines/endpoint/messages.py",
    "envsdk/engines/endpoint/record.py",
    "envsdk/engines/endpoint/reply_text.py",
    "envsdk/engines/endpoint/sampling.py",
    "envsdk/engines/endpoint/trajectories.py",
    "envsdk/engines/endpoint/wire.py",
    "envsdk/engines/tool_calls/reading.py",
    "envsdk/engines/engine_pool.py",
    "envsdk/runs/device_turns.py",
    "envsdk/runs/selection.py",
    "managers/group_judge.py",
    "envsdk/base/display/scores.py",
    "envsdk/tracking/cost.py",
    "envsdk/tracking/learning_signs.py",
    "envsdk/tracking/spans.py",
    "envsdk/view/filters.py",
    "envsdk/view/run_view.py",
    "envsdk/view/trajectory_view.py",
    "envsdk/view/waiting.py",
    "envsdk/rollouts/results/advantages.py",
    "envsdk/rollouts/results/trajectories.py",
    "envsdk/view/planning/candidates.py",
    "envsdk/view/planning/engines.py",
    "envsdk/view/planning/report.py",
    "envsdk/view/planning/simulation.py",
    "envsdk/view/planning/workload.py",
    "envsdk/rewards/code/compare.py",
    "envsdk/rewards/answers.py",
    "envsdk/rewards/notation.py",
    "envsdk/rewards/shapes.py",
    "envsdk/rewards/answer_text.py",
    "envsdk/rewards/code/rows.py",
    "envs/terminal/artifacts.py",
    "envs/terminal/harbor/config.py",
    "envs/terminal/harbor/rewards.py",
    "envsdk/rewards/sandbox/images/dockerfile.py",
    "envsdk/rewards/sandbox/terminal/emulator.py",
    "envsdk/rewards/sandbox/terminal/keys.py",
    "managers/ledger.py",
    "managers/ledger_parts.py",
    "managers/ledger_types.py",
    "managers/slot_activity.py",
    "managers/worker_pool.py",
}
"""No clock, no randomness of their own, no I/O, no framework."""

IMPURE = {"asyncio", "os", "random", "ray", "secrets", "socket", "subprocess", "threading", "time", "torch"}


@dataclass(frozen=True)
class Import:
    file: Path
    line: int
    module: str
    at_module_level: bool
    for_types: bool

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line} imports {self.module}"

    @property
    def room(self) -> str | None:
        """The room that the imported module lies in; None outside this package or in its `__init__`."""
        package, *parts = self.module.split(".")
        return room_of(parts) if package == "envsdk" and parts else None


def room_of(parts: Sequence[str]) -> str | None:
    """The room of a module below the package; None for what the `__init__.py` of package or wing defines.

    A wing's folder may hold rooms: the longest name that tests/house.toml lists is the room.
    """
    if parts[0] in COMMANDS:
        return "commands"
    nested = "/".join(parts[:2])
    if nested in HOUSE.rooms:
        return nested
    has_rooms = any(room.startswith(f"{parts[0]}/") for room in HOUSE.rooms)
    is_module = (ROOT / "envsdk" / parts[0]).is_dir() or (ROOT / "envsdk" / f"{parts[0]}.py").exists()
    return parts[0] if is_module and (parts[0] in HOUSE.rooms or not has_rooms) else None


@cache
def imports_of(file: Path) -> tuple[Import, ...]:
    return tuple(_walk(ast.parse(file.read_text(encoding="utf-8"), file), file))


def _walk(
    node: ast.AST, file: Path, *, at_module_level: bool = True, for_types: bool = False
) -> Iterator[Import]:
    for child in statements(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(file, child.lineno, alias.name, at_module_level, for_types)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, f"{file}:{child.lineno}: relative imports hide who imports whom"
            module = child.module or ""
            yield Import(file, child.lineno, module, at_module_level, for_types)
            for alias in child.names:
                yield Import(file, child.lineno, f"{module}.{alias.name}", at_module_level, for_types)
        else:
            is_for_types = for_types or _is_for_types(child)
            runs_later = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) or is_for_types
            yield from _walk(
                child, file, at_module_level=at_module_level and not runs_later, for_types=is_for_types
            )


def _is_for_types(node: ast.AST) -> bool:
    """Whether the node is `if TYPE_CHECKING:`, which never runs."""
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


@cache
def package_files() -> tuple[tuple[str, Path], ...]:
    """Every Python file of the package with its room; an `__init__.py` above the rooms belongs to none."""
    return tuple(_package_files())


def _package_files() -> Iterator[tuple[str, Path]]:
    package = ROOT / "envsdk"
    for file in files_of("envsdk"):
        parts = [part for part in file.relative_to(package).with_suffix("").parts if part != "__init__"]
        if parts and parts[0] not in LINKED | {"scaffold"} and (room := room_of(parts)):
            yield room, file
    for linked in sorted(LINKED):
        for file in files_of(linked):
            yield room_of(file.relative_to(ROOT).with_suffix("").parts) or linked, file


def test_the_reader_of_imports_sees_every_kind_of_import(tmp_path: Path) -> None:
    file = tmp_path / "sample.py"
    file.write_text(
        "import envsdk.envs.sokoban\n"
        "from envsdk import managers\n"
        "from envsdk.trainers.x import y\n"
        "class C:\n    from envsdk.envs import a\n"
        "def f():\n    import envsdk.managers\n"
        "if TYPE_CHECKING:\n    import envsdk.envs.a\n"
    )
    seen = [(i.room, i.at_module_level) for i in imports_of(file) if i.room]
    assert set(seen) == {
        ("envs", True),
        ("managers", True),
        ("trainers", True),
        ("managers", False),
        ("envs", False),
    }


def test_every_part_of_the_package_has_its_place_in_a_wing() -> None:
    assert {room for room, _ in package_files()} == set(HOUSE.rooms)


def test_a_room_imports_rooms_before_it_in_its_wing_and_wings_below_it() -> None:
    allowed = {room: HOUSE.may_import(room) | {None} for room in HOUSE.rooms}
    found = [i for room, file in package_files() for i in imports_of(file) if i.room not in allowed[room]]
    assert not found, "\n".join(map(str, found))


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports inside functions count; those for type checkers do not, nor does a module's own package."""
    names = {module_name(file): file for _, file in package_files()}
    arrows = {
        name: {
            target
            for i in imports_of(file)
            if not i.for_types and (target := i.module) in names and not f"{name}.".startswith(f"{target}.")
        }
        for name, file in names.items()
    }
    try:
        TopologicalSorter(arrows).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(reversed(error.args[1])))


def module_name(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    if parts[0] in LINKED:
        parts = ("envsdk", *parts)
    return ".".join(parts).removesuffix(".__init__")


def test_an_arrow_between_wings_is_drawn_once_and_needed() -> None:
    """Each drawn arrow stands for an import that no path over other arrows allows."""
    needed: dict[str, set[str]] = {wing: set() for wing in HOUSE.wings}
    for owner, file in package_files():
        needed[HOUSE.rooms[owner]] |= {HOUSE.rooms[i.room] for i in imports_of(file) if i.room}
    for wing, said in HOUSE.wings.items():
        for low in said["below"]:
            others = {each for other in said["below"] if other != low for each in HOUSE.reach(other)}
            assert low not in others, f"{wing} reaches {low} through another arrow"
            assert low in needed[wing], f"{wing} imports nothing of {low}"


def test_the_picture_of_the_wings_shows_what_the_test_holds() -> None:
    assert PICTURE.read_text(encoding="utf-8") == picture(HOUSE), "run `python -m tests.house --draw`"


def test_a_wing_keeps_to_its_budget_of_lines() -> None:
    budgets = {wing: said["lines"] for wing, said in HOUSE.wings.items()}
    over = [
        f"{wing}: {lines} lines, budget {budgets[wing]}: delete something, or move lines of another wing"
        for wing, lines in sizes(HOUSE, package_files()).items()
        if lines > budgets[wing]
    ]
    assert not over, "\n".join(over)


def test_files_and_classes_are_small_except_where_an_exception_says_why() -> None:
    """Also the other way round: an exception that nothing needs any more goes."""
    most = HOUSE.limits
    found: dict[str, dict[str, int]] = {}
    for _, file in package_files():
        name = str(file.relative_to(ROOT))
        if (lines := num_lines(file)) > most["file_lines"]:
            found[name] = {"file_lines": lines}
        for each in classes_of(file):
            over = {
                limit: count
                for limit, count in (
                    ("class_methods", each.num_methods),
                    ("class_attributes", each.num_attributes),
                )
                if count > most[limit]
            }
            if over:
                found[f"{name}:{each.name}"] = over
    said = {
        name: {limit: count for limit, count in each.items() if limit != "why"}
        for name, each in HOUSE.exceptions.items()
    }
    problems = [
        f"{name}: {limit} {count}, allowed {said.get(name, {}).get(limit, most[limit])}"
        for name, over in found.items()
        for limit, count in over.items()
        if count > said.get(name, {}).get(limit, most[limit])
    ]
    problems += [
        f"{name}: the exception for {limit} is not needed any more"
        for name, each in said.items()
        for limit in each
        if limit not in found.get(name, {})
    ]
    assert not problems, "\n".join(problems)


def test_the_package_itself_holds_few_modules() -> None:
    flat = sorted(file.name for file in (ROOT / "envsdk").glob("*.py"))
    assert len(flat) <= HOUSE.limits["flat_modules"], flat


def test_a_room_is_imported_by_its_name_inside_the_package() -> None:
    every_file = [f for r in ("envsdk", *LINKED, "tests", "examples", "benchmarks") for f in files_of(r)]
    named = re.compile(rf"\b(from|import|,) +({'|'.join(LINKED)})\b")
    read = [file for file in every_file if named.search(file.read_text(encoding="utf-8"))]
    found = [i for file in read for i in imports_of(file) if i.module.split(".")[0] in LINKED]
    assert not found, "write envsdk.NAME:\n" + "\n".join(map(str, found))


@pytest.mark.parametrize("room", sorted(LINKED))
def test_a_room_is_linked_into_the_package_by_a_relative_link(room: str) -> None:
    link = ROOT / "envsdk" / room
    assert link.is_symlink()
    assert link.readlink() == Path("..") / room


@pytest.mark.parametrize("name", sorted(PURE_CORES))
def test_a_pure_core_imports_no_clock_no_randomness_no_io_and_no_framework(name: str) -> None:
    found = [i for i in imports_of(ROOT / name) if i.module.split(".")[0] in IMPURE]
    assert not found, "\n".join(map(str, found))


def test_a_comment_stands_at_what_it_explains_and_heads_no_section() -> None:
    found = []
    for folder in ("envsdk", "envs", "managers", "trainers", "benchmarks", "tests"):
        for file in (ROOT / folder).rglob("*.py"):
            lines = ["", *map(str.strip, file.read_text().splitlines()), ""]
            for number, (above, line, below) in enumerate(zip(lines, lines[1:], lines[2:], strict=False), 1):
                if line.startswith("# ") and not (above or below):
                    found.append(f"{file.relative_to(ROOT)}:{number}: {line}")
    assert not found, "section banners:\n" + "\n".join(found)


def test_importing_envsdk_loads_neither_torch_nor_ray_nor_transformers() -> None:
    code = (
        "import envsdk, sys\n"
        "heavy = {'torch', 'ray', 'transformers', 'tensorboard', 'pyarrow'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


_PRINTS = {"print", "Console"}
_TERMINAL = {"envsdk/base/display/terminal.py", "envsdk/base/display/console.py"}
_FOR_OTHER_PROCESSES = {"envsdk/base/store/model_files.py"}
"""Print what another process of ours reads."""


def test_what_is_printed_goes_through_the_terminal_module() -> None:
    """Where text of an environment, a policy or a data set is made visible."""
    for room in ("envsdk", *sorted(LINKED)):
        for path in sorted((ROOT / room).rglob("*.py")):
            name = str(path.relative_to(ROOT))
            if name in _TERMINAL | _FOR_OTHER_PROCESSES or path.resolve() != path:
                continue
            text = path.read_text(encoding="utf-8")
            if not any(word in text for word in (*_PRINTS, "stdout", "stderr")):
                continue
            for node in nodes(ast.parse(text)):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                    assert node.func.id not in _PRINTS, (
                        f"{name}:{node.lineno}: use envsdk.base.display.terminal"
                    )
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute):
                    streams = (node.value.attr, node.attr)
                    assert streams not in {("stdout", "write"), ("stderr", "write")}, f"{name}:{node.lineno}"

"""The wings of the house, their sizes and their picture, as tests/house.toml says.

python -m tests.house            # wing, lines, budget: `make size`
python -m tests.house --draw     # docs/images/wings.svg
"""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.sources import nodes

ROOT = Path(__file__).parents[1]
HOUSE = ROOT / "tests/house.toml"
PICTURE = ROOT / "docs/images/wings.svg"
LINKED = {"envs", "managers", "trainers"}
"""Rooms that stand beside the package and are linked into it."""

_BOX, _GAP = (230, 44), (22, 40)
_LETTERS = 44
"""Of a box's second line, before its letters get smaller."""


@dataclass(frozen=True)
class Class:
    """A class that stands in a file, nested ones included."""

    name: str
    num_methods: int
    num_attributes: int


class House:
    """What tests/house.toml says."""

    def __init__(self, said: Mapping[str, Any]) -> None:
        self.limits: Mapping[str, int] = said["limits"]
        self.exceptions: Mapping[str, Mapping[str, Any]] = said.get("exceptions", {})
        self.wings: Mapping[str, Mapping[str, Any]] = said["wings"]

    @classmethod
    def read(cls) -> House:
        return cls(tomllib.loads(HOUSE.read_text(encoding="utf-8")))

    @cached_property
    def rooms(self) -> dict[str, str]:
        """The wing of each room."""
        return {room: wing for wing, said in self.wings.items() for room in said["rooms"]}

    def reach(self, wing: str) -> set[str]:
        """The wings that are below `wing`, directly or through others."""
        return {each for low in self.wings[wing]["below"] for each in {low} | self.reach(low)}

    def may_import(self, room: str) -> set[str]:
        """Rooms that `room` may import, itself included."""
        wing = self.rooms[room]
        own = self.wings[wing]["rooms"]
        below = {each for low in self.reach(wing) for each in self.wings[low]["rooms"]}
        return below | set(own[: own.index(room) + 1])

    def height(self, wing: str) -> int:
        """How many wings stand below each other under `wing`, at most."""
        return max((self.height(low) + 1 for low in self.wings[wing]["below"]), default=0)


def files_of(room: str) -> list[Path]:
    return sorted((ROOT / room).rglob("*.py"))


def num_lines(file: Path) -> int:
    return len(file.read_text(encoding="utf-8").splitlines())


def classes_of(file: Path) -> Iterator[Class]:
    """An attribute is what a method assigns to `self`."""
    for node in nodes(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef):
            methods = [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
            attributes = {
                inner.attr
                for method in methods
                for inner in nodes(method)
                if isinstance(inner, ast.Attribute)
                and isinstance(inner.ctx, ast.Store)
                and isinstance(inner.value, ast.Name)
                and inner.value.id == "self"
            }
            yield Class(node.name, len(methods), len(attributes))


def picture(house: House) -> str:
    """The wings as boxes, the highest above; an arrow leads to what a wing may import."""
    levels: dict[int, list[str]] = {}
    for wing in house.wings:
        levels.setdefault(house.height(wing), []).append(wing)
    (box_x, box_y), (gap_x, gap_y) = _BOX, _GAP
    width = max(map(len, levels.values())) * (box_x + gap_x) + gap_x
    top = max(levels)
    places: dict[str, tuple[float, float]] = {}
    for level, wings in levels.items():
        left = (width - len(wings) * (box_x + gap_x) + gap_x) / 2
        for number, wing in enumerate(wings):
            places[wing] = (left + number * (box_x + gap_x), gap_y / 2 + (top - level) * (box_y + gap_y))
    height = gap_y + top * (box_y + gap_y) + box_y
    shapes = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        f'width="{width:g}" font-family="sans-serif" text-anchor="middle">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto"><path d="M0 0 8 4 0 8z" fill="#667"/></marker></defs>',
        f'<rect width="{width:g}" height="{height:g}" fill="#fff"/>',
    ]
    for wing, said in house.wings.items():
        x, y = places[wing]
        for low in said["below"]:
            to_x, to_y = places[low]
            middle = (y + box_y + to_y) / 2
            shapes.append(
                f'<path d="M{x + box_x / 2:g} {y + box_y:g} C{x + box_x / 2:g} {middle:g} '
                f'{to_x + box_x / 2:g} {middle:g} {to_x + box_x / 2:g} {to_y:g}" fill="none" stroke="#667" '
                'stroke-width="1.3" marker-end="url(#tip)"/>'
            )
    for wing, (x, y) in places.items():
        rooms = [room.split("/")[-1] for room in house.wings[wing]["rooms"] if room != wing]
        first, others = (y + 27, "") if not rooms else (y + 18, ", ".join(rooms))
        size = 11 * min(1.0, _LETTERS / max(1, len(others)))
        shapes += [
            f'<rect x="{x:g}" y="{y:g}" width="{box_x}" height="{box_y}" rx="6" fill="#eef2fb" '
            'stroke="#4a5a8a"/>',
            f'<text x="{x + box_x / 2:g}" y="{first:g}" font-size="14" fill="#223">{wing}</text>',
        ]
        if others:
            shapes.append(
                f'<text x="{x + box_x / 2:g}" y="{y + 35:g}" font-size="{size:.1f}" fill="#556">'
                f"{others}</text>"
            )
    return "\n".join([*shapes, "</svg>", ""])


def sizes(house: House, owner_and_file: Iterable[tuple[str, Path]]) -> dict[str, int]:
    """Lines of each wing."""
    found = dict.fromkeys(house.wings, 0)
    for room, file in owner_and_file:
        found[house.rooms[room]] += num_lines(file)
    return found


def _since_last_tag() -> tuple[str, int, int] | None:
    """The newest tag, and the lines of the product that were added and deleted since; None without a tag."""
    named = subprocess.run(
        ["git", "describe", "--tags", "--abbrev=0"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if named.returncode:
        return None
    tag = named.stdout.strip()
    changed = subprocess.run(
        ["git", "diff", "--numstat", tag, "--", "envsdk", *sorted(LINKED)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    rows = [line.split("\t") for line in changed if line.endswith(".py")]
    return tag, sum(int(row[0]) for row in rows), sum(int(row[1]) for row in rows)


def main() -> None:
    from tests.envsdk.test_architecture import package_files

    house = House.read()
    if "--draw" in sys.argv[1:]:
        PICTURE.write_text(picture(house), encoding="utf-8")
        return
    found = sizes(house, package_files())
    print(f"{'wing':14}{'lines':>8}{'budget':>8}{'left':>7}")
    for wing, lines in [*found.items(), ("all", sum(found.values()))]:
        budget = sum(said["lines"] for name, said in house.wings.items() if wing in (name, "all"))
        print(f"{wing:14}{lines:8,}{budget:8,}{budget - lines:7,}")
    changed = _since_last_tag()
    print("no tag yet" if changed is None else "since {}: +{:,} -{:,} lines".format(*changed))


if __name__ == "__main__":
    main()

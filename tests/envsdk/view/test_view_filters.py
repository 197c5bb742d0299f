"""Filters: from a URL to SQL, over an index that any reader of the rows can check by hand."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from envsdk.view.filters import MAX_LIMIT, RESULTS, SORTS, Filter, FilterError, match_expression
from envsdk.view.index import TrajectoryIndex
from envsdk.view.sources import find_sources
from tests.envsdk.view.view_runs import STEPS, TAGS, write_run


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> TrajectoryIndex:
    folder = tmp_path_factory.mktemp("filters")
    made = TrajectoryIndex.open(find_sources(write_run(folder / "run"))[0], folder=folder / "index")
    made.refresh()
    return made


bound = st.none() | st.integers(-2, 6).map(str) | st.floats(-2, 2).map(str)
params = st.fixed_dictionaries(
    {},
    optional={
        "tag": st.sampled_from([*TAGS, "none such"]),
        "use": st.sampled_from(["train", "validation", "discarded"]),
        "success": st.sampled_from(RESULTS),
        "failure": st.sampled_from(["environment", "environment/step_timeout", "engine"]),
        "version": st.integers(0, 5).map(str),
        "task": st.sampled_from(["train/0", "val/8", "train/3"]),
        "group": st.sampled_from(["train/0", "train/3", "val_4/8"]),
        "reward_min": bound.map(lambda value: value or ""),
        "turns_max": st.integers(0, 4).map(str),
        "step_min": st.integers(0, STEPS).map(str),
    },
)


def holds(row: dict[str, object], asked: dict[str, str]) -> bool:
    """The meaning of a filter, spelled out on one row."""
    result = "failed" if row["outcome"] == "failed" else "yes" if row["success"] else "no"
    low = asked.get("reward_min")
    checks = [
        asked.get("tag", row["tag"]) == row["tag"],
        asked.get("use", row["use"]) == row["use"],
        asked.get("success", result) == result,
        asked.get("failure") in (None, row["boundary"], f"{row['boundary']}/{row['failure']}"),
        asked.get("task") in (None, f"{row['split']}/{row['task']}"),
        asked.get("group") in (None, f"{row['origin']}/{row['grp']}"),
        not low or (row["reward"] is not None and row["reward"] >= float(low)),  # a failed one has none
        row["turns"] <= float(asked.get("turns_max") or "inf"),
        row["step"] >= float(asked.get("step_min") or "-inf"),
        # Of each reply in the examples the last token is of the next version.
        asked.get("version") in (None, str(row["oldest"]), str(row["newest"])),
    ]
    return all(checks)


@given(params)
def test_a_filter_finds_what_holds_and_nothing_else(index: TrajectoryIndex, asked: dict[str, str]) -> None:
    everything = index.search(Filter(limit=MAX_LIMIT)).rows
    found = index.search(Filter.from_params(asked | {"limit": "500"}))
    assert [row["id"] for row in found.rows] == [row["id"] for row in everything if holds(row, asked)]
    assert found.total == len(found.rows)


@given(params)
def test_a_facet_counts_what_choosing_it_would_find(index: TrajectoryIndex, asked: dict[str, str]) -> None:
    facets = index.search(Filter.from_params(asked)).facets
    for name, values in facets.items():
        for value, count in values:
            chosen = asked | {name: value}
            assert index.search(Filter.from_params(chosen)).total == count


@given(params, st.sampled_from(sorted(SORTS)), st.booleans())
def test_pages_of_a_sorted_list_are_that_list(
    index: TrajectoryIndex, asked: dict[str, str], sort: str, is_descending: bool
) -> None:
    asked = asked | {"sort": f"-{sort}" if is_descending else sort}
    whole = index.search(Filter.from_params(asked | {"limit": "500"})).rows
    pages = []
    for offset in range(0, len(whole) + 7, 7):
        page = Filter.from_params(asked | {"limit": "7", "offset": str(offset)})
        pages.extend(index.search(page).rows)
    assert pages == whole
    column = SORTS[sort].removeprefix("t.")
    values = [row[column] for row in whole if row[column] is not None]
    assert values == sorted(values, reverse=is_descending)


@given(params, st.data())
def test_neighbors_are_those_beside_it_in_the_list(
    index: TrajectoryIndex, asked: dict[str, str], data: st.DataObject
) -> None:
    wanted = Filter.from_params(asked | {"sort": "-reward", "limit": "500"})
    keys = [(row["file"], row["row"]) for row in index.search(wanted).rows]
    file, row = data.draw(st.sampled_from(keys or [("step_000000.parquet", 0)]))
    before, behind, place, total = index.neighbors(wanted, file, row)
    assert total == len(keys)
    if not keys:
        assert (before, behind, place) == (None, None, -1)
        return
    names = [f"{name.removesuffix('.parquet')}:{number}" for name, number in keys]
    assert place == keys.index((file, row))
    assert before == (names[place - 1] if place else None)
    assert behind == (names[place + 1] if place + 1 < len(names) else None)


@given(st.text(max_size=30))
@example('"')
@example('a AND "b')
@example("NEAR(a b) OR c:d* ^e -f {g} \x00 h'i")
def test_nothing_that_is_typed_is_an_operator_or_an_error(index: TrajectoryIndex, text: str) -> None:
    found = index.search(Filter.from_params({"q": text}))
    assert found.total <= index.count()
    index.neighbors(Filter.from_params({"q": text}), "step_000000.parquet", 0)


@pytest.mark.parametrize(
    ("typed", "expression"),
    [
        ("", ""),
        ("push", '"push"*'),
        ("push bo", '"push" AND "bo"'),
        ("push box", '"push" AND "box"*'),
        ('"the box"', '"the box"'),
        ('"the box" lef', '"the box" AND "lef"*'),
        ("?! <>", ""),
    ],
)
def test_words_must_all_occur_and_the_last_may_be_a_beginning(typed: str, expression: str) -> None:
    assert match_expression(typed) == expression


def test_texts_failures_and_ids_are_searched_without_case_and_accents(index: TrajectoryIndex) -> None:
    def total(text: str) -> int:
        return index.search(Filter(text=text)).total

    assert total("ECLAIR") > 0
    assert total("eclai") == total("éclair")
    assert total("eclai nothing") == 0
    assert total('"eclai"') == 0
    assert total("waited 30") == 1
    assert total("train-901") == 1
    assert total('"?"') == 0


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ({"sort": "id; DROP TABLE files"}, "sort"),
        ({"success": "maybe"}, "success"),
        ({"version": "newest"}, "version"),
        ({"reward_min": "nan"}, "reward_min"),
        ({"offset": "1e99"}, "offset"),
        ({"version": "9" * 30}, "version"),
        ({"task": "train"}, "task"),
        ({"group": "train/x"}, "group"),
    ],
)
def test_a_parameter_without_sense_is_named(index: TrajectoryIndex, asked: dict[str, str], name: str) -> None:
    with pytest.raises(FilterError, match=f"^{name}: "):
        index.search(Filter.from_params(asked))


def test_values_are_never_part_of_the_sql(index: TrajectoryIndex) -> None:
    for name in ("tag", "use", "failure"):
        try:
            assert index.search(Filter.from_params({name: "' OR 1 --"})).total == 0
        except sqlite3.Error as error:
            pytest.fail(f"{name}: {error}")


def test_the_index_stays_in_its_folder(index: TrajectoryIndex, tmp_path: Path) -> None:
    run = index.source.folder
    assert not list(run.rglob("*.sqlite*"))

"""Searches for cycles: rare, and after growth."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from envsdk.base.processes import garbage

MB = 2**20


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.freeze()  # as after the collection of tests: later searches leave out what they imported
    gc.set_threshold(*thresholds)


def test_what_is_loaded_takes_no_part_in_later_searches() -> None:
    gc.unfreeze()
    garbage.collect_rarely()
    assert gc.get_freeze_count() > 0
    assert gc.get_threshold()[0] == garbage.NEW_OBJECTS
    assert gc.isenabled()


def test_while_libraries_are_imported_nothing_is_searched_nor_their_objects_later() -> None:
    def missing() -> None:
        assert not gc.isenabled()
        raise ImportError

    gc.unfreeze()
    with pytest.raises(ImportError), garbage.importing():
        missing()
    assert gc.get_freeze_count() > 0
    assert gc.isenabled()


@pytest.mark.parametrize(
    ("known", "now", "expected"),
    [
        (100 * MB, 150 * MB, False),
        (100 * MB, 165 * MB, True),
        (1000 * MB, 1200 * MB, False),
        (1000 * MB, 1251 * MB, True),
        (0, 0, False),
    ],
)
def test_a_search_follows_growth_by_a_quarter_and_by_64_mb(known: int, now: int, expected: bool) -> None:
    assert garbage.has_grown(known, now) is expected


def test_the_memory_of_this_process_is_read() -> None:
    assert garbage.resident_bytes() > MB

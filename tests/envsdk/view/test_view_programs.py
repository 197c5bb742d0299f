"""A job of several programs on its page, in its report, and when its buffer is away."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from envsdk.view.export import Detail, export_data
from envsdk.view.library import Library, OpenSource
from tests.envsdk.buffer.buffer_jobs import BEGAN, play
from tests.envsdk.view.view_runs import write_run


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_run(tmp_path_factory.mktemp("programs") / "tiny")
    play(str(folder / "buffer.db"))
    return folder


def source_of(folder: Path) -> OpenSource:
    return Library(folder, index_folder=folder.parent / "cache").sources()[0]


def programs_of(folder: Path, now: float = BEGAN + 100) -> dict[str, Any]:
    found = source_of(folder).programs(now)
    assert found is not None
    return found


def test_explorers_are_shown_with_versions_rates_and_waits(job: Path) -> None:
    east, west = programs_of(job)["explorers"]
    assert (east["name"], east["state"], east["version"], east["behind"]) == ("east", "lives", 2, 0)
    assert (east["ready"], east["held"], east["waited_places_s"]) == (6, 1, 4.0)
    # Six groups in 78 seconds.
    assert east["per_min"] == pytest.approx(60 * 6 / 78)
    assert (west["state"], west["per_min"]) == ("left", pytest.approx(60 * 4 / 78))
    # Groups of the steps 0, 1 and 2 with tokens of the versions 0, 0 and 1.
    assert east["lag"] == pytest.approx(0.5)


def test_the_page_says_how_full_the_buffer_was_and_who_waited(job: Path) -> None:
    programs = programs_of(job)
    assert {stage: counts[-1] for stage, counts in programs["depth"].items()} == {
        "played": 2,
        "ready": 1,
        "training": 2,
    }
    assert programs["waits"] == [
        {"name": "trainer", "groups": 21.0},
        {"name": "east", "places": 4.0, "weights": 1.0},
        {"name": "west", "places": 4.0, "weights": 1.0},
    ]
    assert [step["waited_s"] for step in programs["waited_by_step"]] == [6.0, 7.0, 8.0]


def test_the_page_says_what_each_tag_was_trained_on_and_how_much_of_it_was_dropped(job: Path) -> None:
    tags = programs_of(job)["tags"]
    assert sum(each["num_groups"] for each in tags) == 6
    assert sum(each["share"] for each in tags) == pytest.approx(1)
    for each in tags:
        sampled = each["num_tokens"] + each["dropped_tokens"]
        assert each["dropped_share"] == pytest.approx(each["dropped_tokens"] / sampled)
    assert any(each["dropped_tokens"] for each in tags)  # of the group that was too old


def test_only_jobs_have_such_a_page(job: Path, tmp_path: Path) -> None:
    plain = source_of(write_run(tmp_path / "plain"))
    assert plain.programs(0.0) is None
    assert not plain.listed(0.0)["has_programs"]
    assert source_of(job).listed(0.0)["has_programs"]


def test_the_report_holds_the_same_figures(job: Path) -> None:
    data = export_data(source_of(job), Detail(num_trajectories=1), now=BEGAN + 100)
    assert data["programs"] == programs_of(job)


def test_a_buffer_that_cannot_be_read_is_said_and_spoils_nothing_else(job: Path, tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    shutil.copytree(job, folder)
    (folder / "buffer.db").write_text("no database at all, " * 100)
    source = source_of(folder)
    assert "is no database" in (source.programs(0.0) or {})["problem"]
    assert source.overview(0.0)["curves"]
    data = export_data(source, Detail(num_trajectories=1), now=0.0)
    assert data["programs"] == {"problem": "It could not be read when this page was made."}


def test_a_job_whose_trainer_has_not_come_is_shown_by_its_buffer(job: Path, tmp_path: Path) -> None:
    (tmp_path / "runs" / "early").mkdir(parents=True)
    shutil.copy(job / "buffer.db", tmp_path / "runs" / "early")
    source = source_of(tmp_path / "runs")
    assert source.overview(0.0)["has_programs"]
    assert (source.programs(0.0) or {})["explorers"]


def test_a_trainer_that_has_not_joined_yet_has_no_figures(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "tiny")
    (folder / "config.yaml").write_text("mode: train\n")
    source = source_of(folder)
    assert source.listed(0.0)["has_programs"]
    assert source.programs(0.0) == {"problem": "No program has joined the job yet."}

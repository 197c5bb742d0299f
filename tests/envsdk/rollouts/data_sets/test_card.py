"""The card of a data set, read by what the hub reads it with."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import DatasetCard

from envsdk.base.store.shards import Manifest, Selection, ShardRecord
from envsdk.base.store.tally import Tally
from envsdk.contracts.failures import ConfigurationError, StorageError
from envsdk.rollouts.datasets.card import License, card_text, front_matter
from envsdk.rollouts.datasets.finishing import refuse_foreign_card, write_card
from tests.envsdk.rollouts.data_sets.episodes import episode

PLAYED = [episode("a", index=index, success=index % 2 == 0) for index in range(10)]


def a_manifest(**config: Any) -> Manifest:
    kept = Tally.of(PLAYED[::2])
    selection = Selection(played=Tally.of(PLAYED), dropped={"not_solved": 5}) if config else None
    record = ShardRecord(
        number=0, file="part-00000.parquet", tag="Lake", first_index=0, num_episodes=5, sha256="0",
        tally=kept, selection=selection,
    )  # fmt: skip
    tag = {"env_type": "envsdk/FrozenLake-v1", "env_config": {"size": 4}}
    return Manifest(
        config={
            "episodes": {"Lake": 10},
            "split": "train",
            "seed": 42,
            "policy": "oracle",
            "epsilon": 0.3,
            "tags": {"Lake": tag},
            **config,
        },
        versions={"python": "3.11", "envsdk": "0.1.0"},
        command=["collect", "--out", "/home/somebody/private"],
        num_planned=1,
        created_at="2026-01-01T00:00:00Z",
        shards={0: record},
        exports={
            "messages": {"of": "1", "episodes": 5, "files": "*.jsonl"},
            "messages-parquet": {"of": "1", "episodes": 5, "files": "*.parquet"},
            "other": {"of": "1", "episodes": 5, "files": None},
        },
    )


def test_the_hub_reads_license_size_tags_and_files_from_it() -> None:
    manifest = a_manifest()
    manifest.license = License(id="cc-by-4.0").to_json()
    data = DatasetCard(card_text(manifest, name="lakes")).data
    assert data.license == "cc-by-4.0"
    assert data.pretty_name == "lakes"
    assert data.size_categories == ["n<1K"]
    assert "envsdk/FrozenLake-v1" in data.tags
    configs = {config["config_name"]: config for config in data.to_dict()["configs"]}
    assert configs["trajectories"]["default"] is True
    assert configs["trajectories"]["data_files"] == [{"split": "train", "path": "part-*.parquet"}]
    files = [{"split": "train", "path": "messages-parquet/*.parquet"}]
    assert configs["messages-parquet"]["data_files"] == files
    assert configs.keys() == {"trajectories", "messages-parquet"}


def test_it_tells_counts_rates_seeds_and_versions_and_no_path_of_the_machine() -> None:
    text = card_text(a_manifest(filters={"success_only": True}), name="lakes")
    assert "| `Lake` | 5 | 100.0% | 56.6-100.0% | 1.000 | 1.0 | 0 |" in text
    assert (
        "Kept were 5 of 10 episodes played, by `success_only: True`. Of all played, 50.0% of 10 were solved"
        in text
    )
    assert "- not_solved: 5" in text
    assert "seed: 42" in text
    assert "0 to 9 of `Lake`" in text
    assert "envsdk 0.1.0" in text
    assert "No license was stated." in text
    assert "private" not in text


def test_a_split_that_the_hub_does_not_take_is_called_train() -> None:
    config = front_matter(a_manifest(split="my split"), name="x")["configs"][0]
    assert config["data_files"][0]["split"] == "train"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"id": "Apache 2.0"}, "no license id of the hub"),
        ({"id": "other"}, "needs --license-name and --license-link"),
        ({"id": "mit", "name": "x"}, "belongs to --license other"),
    ],
)
def test_a_license_that_the_hub_would_not_take_is_refused(fields: dict[str, str], expected: str) -> None:
    with pytest.raises(ConfigurationError, match=expected):
        License(**fields)


def test_a_license_comes_back_from_its_fields() -> None:
    license = License(id="other", name="house-rules", link="https://example.org/rules")
    assert License.from_json(license.to_json()) == license


def test_a_card_is_renewed_until_somebody_writes_into_it(tmp_path: Path) -> None:
    manifest = a_manifest()
    write_card(tmp_path, manifest)
    path = tmp_path / "README.md"
    assert "unknown" in path.read_text()
    manifest.license = License(id="mit").to_json()
    write_card(tmp_path, manifest)
    assert DatasetCard.load(path).data.license == "mit"
    path.write_text(path.read_text() + "\nRead this first.\n")
    manifest.license = License(id="apache-2.0").to_json()
    write_card(tmp_path, manifest)
    assert path.read_text().endswith("Read this first.\n")


def test_somebody_else_s_readme_is_not_replaced(tmp_path: Path) -> None:
    refuse_foreign_card(tmp_path)
    (tmp_path / "README.md").write_text("mine")
    with pytest.raises(StorageError, match=r"holds a README\.md"):
        refuse_foreign_card(tmp_path)


def test_the_same_manifest_gives_the_same_card() -> None:
    manifest = a_manifest()
    again = dataclasses.replace(manifest, config=dict(reversed(manifest.config.items())))
    assert card_text(manifest, name="x") == card_text(again, name="x")

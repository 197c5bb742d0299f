"""Pure: the card of a data set, `README.md`, with front matter as the Hugging Face hub reads it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Self

import yaml
from pydantic import model_validator

from envsdk.base.settings.options import Option, Options
from envsdk.base.store.shards import Manifest
from envsdk.base.store.tally import Tally, wilson_interval
from envsdk.contracts.failures import ConfigurationError

CARD = "README.md"
UNKNOWN = "unknown"
_SIZES = (
    (10**3, "n<1K"),
    (10**4, "1K<n<10K"),
    (10**5, "10K<n<100K"),
    (10**6, "100K<n<1M"),
    (10**7, "1M<n<10M"),
)
_HUB_SPLIT = re.compile(r"\w+(\.\w+)*")


class License(Options):
    """The license of the data."""

    id: Annotated[str, Option("--license", metavar="ID")] = UNKNOWN
    """For the card, as the hub knows it: apache-2.0, cc-by-4.0, other ...."""
    name: Annotated[str | None, Option("--license-name")] = None
    """Name of the license of --license other."""
    link: Annotated[str | None, Option("--license-link")] = None
    """Where the license is."""

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        if "id" not in self.model_fields_set and (self.name or self.link):
            raise ConfigurationError("--license-name and --license-link need --license")
        if not re.fullmatch(r"[a-z0-9][a-z0-9.+-]*", self.id):
            raise ConfigurationError(
                f"--license: {self.id!r} is no license id of the hub, such as apache-2.0, cc-by-4.0 or other"
            )
        if self.id == "other" and not (self.name and self.link):
            raise ConfigurationError("--license other needs --license-name and --license-link")
        if self.id != "other" and self.name:
            raise ConfigurationError("--license-name belongs to --license other")
        return self

    def to_json(self) -> dict[str, str]:
        """Fields of the front matter."""
        fields = {"license": self.id, "license_name": self.name, "license_link": self.link}
        return {name: value for name, value in fields.items() if value}

    @classmethod
    def from_json(cls, value: Mapping[str, str]) -> Self:
        return cls(
            id=value.get("license", UNKNOWN), name=value.get("license_name"), link=value.get("license_link")
        )


def card_text(manifest: Manifest, *, name: str) -> str:
    """The card of a complete data set. The same manifest gives the same card."""
    front = yaml.safe_dump(front_matter(manifest, name=name), sort_keys=False, allow_unicode=True)
    sections = [
        f"# {name}",
        _summary(manifest),
        _results(manifest),
        _selection(manifest),
        _how_it_was_made(manifest),
        _files(manifest),
    ]
    return f"---\n{front}---\n\n" + "\n\n".join(filter(None, sections)) + "\n"


def front_matter(manifest: Manifest, *, name: str) -> dict[str, Any]:
    """The front matter that the hub and `datasets.load_dataset` read."""
    split = manifest.config["split"]
    split = split if _HUB_SPLIT.fullmatch(split) else "train"
    environments = sorted({tag["env_type"] for tag in manifest.config["tags"].values()})

    def config(config_name: str, pattern: str) -> dict[str, Any]:
        return {"config_name": config_name, "data_files": [{"split": split, "path": pattern}]}

    return {
        **manifest.license,
        "pretty_name": name,
        "task_categories": ["reinforcement-learning", "text-generation"],
        "tags": ["envsdk", "agent", "trajectories", *environments],
        "size_categories": [_size(manifest.tally.num_episodes)],
        "configs": [
            config("trajectories", "part-*.parquet") | {"default": True},
            *(
                config(export, f"{export}/{noted['files']}")
                for export, noted in sorted(manifest.exports.items())
                # The library reads all configurations of a folder with one reader, that of the first.
                if str(noted["files"]).endswith(".parquet")
            ),
        ],
    }


def _size(num_rows: int) -> str:
    return next((name for limit, name in _SIZES if num_rows < limit), "n>10M")


def _summary(manifest: Manifest) -> str:
    config, tally = manifest.config, manifest.tally
    text = (
        f"{tally.num_episodes:,} episodes of {_listed(config['tags'])}, "
        f"split `{config['split']}`, played by the policy `{config['policy']}`"
    )
    if samples := config.get("samples_per_task"):
        kept = ", of which those below were kept" if manifest.dropped else ""
        text += f", each task {samples} times (a group: the same `group_id`){kept}"
    if config.get("epsilon"):
        text += f" with a share {config['epsilon']:g} of its moves replaced by random ones"
    license_id = manifest.license.get("license", UNKNOWN)
    stated = "No license was stated." if license_id == UNKNOWN else f"License: {license_id}."
    return f"{text}. {stated}"


def _listed(names: Mapping[str, Any]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _results(manifest: Manifest) -> str:
    rows = [
        "| tag | episodes | solved | 95% interval | mean reward | mean turns | failed |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    rows += [_row(f"`{tag}`", tally) for tag, tally in manifest.tally_by_tag.items()]
    if len(rows) > 3:
        rows.append(_row("all", manifest.tally))
    return "\n".join(["## Episodes", "", *rows])


def _row(name: str, tally: Tally) -> str:
    cells = tally.cells(wilson_interval(tally.num_successes, tally.num_scored), thousands=",")
    return f"| {' | '.join([name, *cells])} |"


def _selection(manifest: Manifest) -> str:
    config, played = manifest.config, manifest.played
    if not (config.get("filters") or config.get("deduplicate")):
        return ""
    asked = [f"`{name}: {value}`" for name, value in config.get("filters", {}).items()]
    if "deduplicate" in config:
        asked.append(f"`deduplicate: {config['deduplicate']}`")
    solved = "-" if played.success_rate is None else f"{played.success_rate:.1%} of {played.num_scored:,}"
    text = (
        f"Kept were {manifest.tally.num_episodes:,} of {played.num_episodes:,} episodes played, "
        f"by {', '.join(asked)}. Of all played, {solved} were solved and {played.num_failed:,} failed."
    )
    dropped = "".join(f"\n- {reason}: {count:,}" for reason, count in sorted(manifest.dropped.items()))
    return f"## Selection\n\n{text}" + (f" Dropped:\n{dropped}" if dropped else "")


def _how_it_was_made(manifest: Manifest) -> str:
    config = manifest.config
    lines = [
        f"- `{tag}`: `{record['env_type']}` with `{json.dumps(record['env_config'])}`"
        for tag, record in config["tags"].items()
    ]
    if "seed" in config:  # else a program saved its episodes
        tasks = ", ".join(f"0 to {count - 1} of `{tag}`" for tag, count in config["episodes"].items())
        lines += [
            f"- tasks: {tasks}",
            f"- seed: {config['seed']}; a task's seed is a hash of it, the split, the tag and the index",
        ]
    if config.get("model"):
        model = config["model"]
        shown = model.get("settings", {}).get("model") or model.get("endpoint_model") or model.get("content")
        lines.append(f"- model: `{shown}`")
    if "rescored" in config:
        changed = config["rescored"].get("rewards") or json.dumps(config["rescored"].get("env_config"))
        lines.append(f"- rewards: given anew by `{changed}`")
    lines.append(
        "- versions: " + ", ".join(f"{name} {version}" for name, version in manifest.versions.items())
    )
    lines.append(f"- created: {manifest.created_at}")
    return "## How it was made\n\n" + "\n".join(lines)


def _files(manifest: Manifest) -> str:
    formats = "".join(
        f"\n- `{name}/`: {noted['episodes']:,} episodes in the format `{name}`"
        for name, noted in sorted(manifest.exports.items())
    )
    return (
        "## Files\n\n"
        "- `part-*.parquet`: one row per episode; turns, rewards, seeds and, where a model played, token ids "
        "with log-probabilities\n"
        "- `manifest.json`: everything that decided what was played, counts, and a SHA-256 per file"
        f"{formats}\n\n"
        "```python\nfrom datasets import load_dataset\n\n"
        'episodes = load_dataset("path/to/this/folder", "trajectories")\n```'
    )

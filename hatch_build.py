"""Metadata that a build derives: project URLs, and the README as it reads outside of a checkout."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_RELATIVE_LINK = re.compile(r"(!?)(\[[^\[\]]*\]\()(?![a-z]+:|#)")
"""An image's `!`, and a link up to its target, where that is a path."""


def absolute_links(markdown: str, repository: str, tag: str) -> str:
    """Lead links and images that are relative to the repository's root to its files at `tag`."""

    def lead(match: re.Match[str]) -> str:
        return f"{match[1]}{match[2]}{repository}/{'raw' if match[1] else 'blob'}/{tag}/"

    return _RELATIVE_LINK.sub(lead, markdown)


class ProjectPages(MetadataHookInterface):
    """Sets `urls` and `readme` from the option `repository`, the one place that names an address."""

    def update(self, metadata: dict[str, Any]) -> None:
        repository, tag = self.config["repository"], f"v{metadata['version']}"
        readme = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["urls"] = {
            "Source": repository,
            "Documentation": f"{repository}/blob/{tag}/docs/README.md",
            "Changelog": f"{repository}/blob/{tag}/CHANGELOG.md",
            "Issues": f"{repository}/issues",
        }
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": absolute_links(readme, repository, tag),
        }

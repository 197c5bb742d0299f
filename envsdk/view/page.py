"""The page: one HTML file with the package's own style and scripts, linked or included."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

from envsdk.view.run_view import number

STYLES = ("view.css",)
SCRIPTS = (
    "dom.js",
    "filters.js",
    "data.js",
    "charts.js",
    "sources.js",
    "overview.js",
    "tokens.js",
    "trajectories.js",
    "trajectory.js",
    "group.js",
    "timeline.js",
    "programs.js",
    "failures.js",
    "main.js",
)
"""In the order in which they are run; each adds to the one global name `View`."""
COMPARISON_SCRIPTS = ("dom.js", "charts.js", "compare.js")
"""Those of the page of `envsdk compare`."""
ASSETS = frozenset(STYLES + SCRIPTS)


def served_page() -> str:
    """The page of a server: it loads its style and scripts from there."""
    links = "".join(f'<link rel="stylesheet" href="/assets/{name}">' for name in STYLES)
    scripts = "".join(f'<script defer src="/assets/{name}"></script>' for name in SCRIPTS)
    main = "<noscript>This page needs JavaScript, all of which is in it.</noscript>"
    return _page("envsdk view", links + scripts, main, "")


def exported_page(
    data: Any, *, name: str = "envsdk view", summary: str = "", scripts: Sequence[str] = SCRIPTS
) -> str:
    """The page as one file that holds `data` (JSON-ready) and may neither load nor run anything else.

    `summary` is markup that shows until the scripts draw the page, or permanently where scripts are disabled.
    """
    style = "\n".join(_read(name) for name in STYLES)
    script = "\n".join(_read(name) for name in scripts)
    content = json.dumps(data, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    # Inside a script element only `<` can end it, and JSON has it in strings alone.
    content = content.replace("<", "\\u003c").encode("utf-8", "replace").decode()
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}"><style>{style}</style>'
    body = f'<script type="application/json" id="data">{content}</script><script>{script}</script>'
    return _page(name, head, summary, body)


def summary(
    source: Mapping[str, Any], failures: Mapping[str, Any], metrics: Sequence[tuple[str, *tuple[float, ...]]]
) -> str:
    """The figures of a source as markup that needs no scripts: headlines, facts and tables.

    `source` and `failures` are those pages' data; `metrics` is what `metrics_view` returns.
    """
    from jinja2 import Environment

    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["number"] = number
    tables = [
        ("How episodes ended", ("Ending", "Episodes"), failures["ended"]),
        ("Failed episodes", ("Boundary and kind", "Episodes"), failures["totals"]),
        ("Metrics", ("Name", "First", "Last", "Lowest", "Highest"), metrics),
    ]
    return environment.from_string(_read("summary.html.j2")).render(source=source, tables=tables)


def _page(title: str, head: str, main: str, body: str) -> str:
    page = _read("page.html")
    parts = {"title": escape(title), "head": head, "main": main, "body": body}
    return re.sub("<!-- (title|head|main|body) -->", lambda match: parts[match[1]], page)


def _read(name: str) -> str:
    return (files("envsdk.view") / "assets" / name).read_text("utf-8")


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"

"""The pages of the site, made of docs/ and the code: what `make docs` builds from.

    python docs/prepare_site.py build/docs       # writes them
    python docs/prepare_site.py --check site     # what was built loads nothing from elsewhere

The Markdown in docs/ is right where it is read as a file: its links lead to files of the repository. The site
also has the pages outside docs/, the source files that pages link to, the docstrings of public modules, and
references of keys, for which it runs in the environment that envsdk is installed in.
"""

from __future__ import annotations

import ast
import posixpath
import re
import shutil
import sys
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

MODULES = (
    "envsdk",
    "envsdk.algorithms",
    "envsdk.collect",
    "envsdk.evaluate",
    "envsdk.rewards",
    "envsdk.testing",
    "envsdk.tracking",
    "envsdk.trainers",
)
"""Modules whose `__all__` is public."""
FIRST = ("rollout", "rollout_sync", "make", "TurnEnv", "TextEnv", "Policy", "Trajectories", "Rollouts")
"""What most programs begin with: at the head of its page. Then functions, then classes."""

_LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s:#]+)(#[^)\s]*)?\)")
_LOADS = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["']?(?:https?:)?//"""
    r"""|<link\b(?=[^>]*\brel=["']?(?:stylesheet|preconnect|icon))[^>]*\bhref=["']?(?:https?:)?//"""
    r"""|class="?mermaid"""
)
"""The theme fetches Mermaid from elsewhere where a page has a diagram of it."""
_STYLE_LOADS = re.compile(r"""url\(["']?(?:https?:)?//|@import\s+(?:url\()?["'](?:https?:)?//""")
_DIAGRAM = re.compile(r"^```mermaid.*?^```$", re.MULTILINE | re.DOTALL)
_DRAWN = "[![A training run: who sends what to whom](images/one-run.svg)](images/one-run.svg)"
_FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def _source(module: str) -> Path:
    path = ROOT / module.replace(".", "/")
    if not path.is_dir():
        return path.with_suffix(".py")
    stub = path / "__init__.pyi"
    return stub if stub.is_file() else stub.with_suffix(".py")


def public_names(module: str) -> list[str]:
    """What stands in `__all__` or in the stub, read without importing the module."""
    source = _source(module)
    if source.suffix == ".pyi":
        imports = (node for node in ast.parse(source.read_text()).body if isinstance(node, ast.ImportFrom))
        return sorted(each.name for node in imports for each in node.names)
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and any(
            getattr(each, "id", "") == "__all__" for each in node.targets
        ):
            return [name for name in ast.literal_eval(node.value) if not name.startswith("__")]
    raise ValueError(f"{source} has no list `__all__`")


def reference(module: str) -> str:
    """The page of a public module, which mkdocstrings fills in: a table of names, then one section each."""
    options = "members: [], show_root_heading: false, show_root_toc_entry: false"
    head = f"# {module}\n\n::: {module}\n    options: {{{options}}}"
    names = sorted(public_names(module), key=lambda name: (_rank(name), name[0].isupper(), name.lower()))
    rows = [f"| [`{name}`](#{module}.{name}) | {summary(module, name)} |" for name in names]
    table = "\n".join(["| name | |", "| --- | --- |", *rows])
    return "\n\n".join([head, table, *(f"::: {module}.{name}" for name in names)]) + "\n"


def key_references() -> dict[str, str]:
    """The pages of all keys: ours, and those of projects whose files are read, by path."""
    sys.path.insert(0, str(ROOT))
    from envsdk.config.reference import reference as keys
    from envsdk.config.roll.dialect import ROLL
    from envsdk.config.trinity.dialect import TRINITY
    from tests.envsdk.config.dialect_pages import table

    about = "`*` is any name, `a|b` one of two. The first line that applies to a key decides."
    return {
        "reference/configuration.md": f"# Keys of the YAML\n\n{keys()}\n",
        "reference/roll-keys.md": f"# Keys of ROLL\n\n{about}\n\n{table(ROLL.rows, 'ROLL')}\n",
        "reference/trinity-keys.md": "# Keys of Trinity-RFT\n\n"
        f"{about} `taskset` stands for the one entry of `tasksets`, too.\n\n"
        f"{table(TRINITY.rows, 'Trinity-RFT', without='.tasksets.*.')}\n",
    }


def _rank(name: str) -> int:
    return FIRST.index(name) if name in FIRST else len(FIRST)


def summary(module: str, name: str) -> str:
    """The first sentence of a public name's docstring, found without importing anything."""
    tree = ast.parse(_source(module).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and any(
            (each.asname or each.name) == name for each in node.names
        ):
            return summary(node.module or "", name)
    for node, after in pairwise([*tree.body, ast.Pass()]):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name == name:
            text = ast.get_docstring(node) or ""
        elif getattr(getattr(node, "targets", [None])[0], "id", "") == name and isinstance(after, ast.Expr):
            text = ast.literal_eval(after.value)
        else:
            continue
        first = " ".join(text.partition("\n\n")[0].split())
        return re.split(r"(?<=[.:]) (?=[A-Z])", first)[0].rstrip(":.").replace("|", "\\|")
    return ""


def sources() -> dict[str, Path]:
    """Every page that is a file, by its path on the site."""
    inside = {path.relative_to(ROOT / "docs").as_posix(): path for path in ROOT.glob("docs/**/*.md")}
    guides = {"guides.md": inside.pop("README.md")}
    outside = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    outside += ROOT.glob("envs/*/README.md")
    return inside | guides | {path.relative_to(ROOT).as_posix(): path for path in outside}


def site_files() -> dict[str, bytes]:
    """Everything the site is built from, by path."""
    files = {f"api/{module}.md": reference(module).encode() for module in MODULES}
    files |= {place: page.encode() for place, page in key_references().items()}
    for place, path in sources().items():
        markdown, linked = _with_links(path, place)
        files[place] = markdown.encode()
        files |= {_place(each): each.read_bytes() for each in linked}
    images = [path for path in ROOT.glob("docs/**/*") if path.suffix in {".png", ".svg", ".css"}]
    return files | {path.relative_to(ROOT / "docs").as_posix(): path.read_bytes() for path in images}


def _place(path: Path) -> str:
    """Where the site has a file of the repository."""
    if path in (ROOT / "docs", ROOT / "docs" / "README.md"):
        return "guides.md"
    if path.is_relative_to(ROOT / "docs"):
        return path.relative_to(ROOT / "docs").as_posix()
    relative = path.relative_to(ROOT).as_posix()
    return relative if relative in sources() else f"source/{relative}.txt"


def _with_links(page: Path, place: str) -> tuple[str, list[Path]]:
    """A page with links as they are on the site, and the files that must be there for them."""
    linked: list[Path] = []

    def on_site(match: re.Match[str]) -> str:
        text, target, anchor = match.groups()
        path = (page.parent / target).resolve()
        if not path.exists():
            return match.group()
        # The site has no page for a folder.
        if path.is_dir() and path != ROOT / "docs":
            return text
        if _place(path).startswith("source/"):
            linked.append(path)
        # As files, pages are named by their file; on the site, by their title.
        elif text == path.name:
            text = path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        return f"[{text}]({posixpath.relpath(_place(path), posixpath.dirname(place) or '.')}{anchor or ''})"

    # The theme would fetch Mermaid from elsewhere; a test holds the picture to the diagram.
    whole = re.sub(
        r"^```mermaid.*?^```$", _DRAWN, page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    parts = _FENCE.split(whole)
    return "".join(part if part.startswith("```") else _LINK.sub(on_site, part) for part in parts), linked


def loads_from_elsewhere(site: Path) -> list[str]:
    """Pages and styles that make a browser ask another server when they open."""
    found = [page for page in site.rglob("*.html") if _LOADS.search(page.read_text(encoding="utf-8"))]
    found += [
        sheet for sheet in site.rglob("*.css") if _STYLE_LOADS.search(sheet.read_text(encoding="utf-8"))
    ]
    return sorted(str(path) for path in found)


def main(target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    for place, content in site_files().items():
        path = target / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


if __name__ == "__main__":
    if sys.argv[1] != "--check":
        main(Path(sys.argv[1]))
    elif outside := loads_from_elsewhere(Path(sys.argv[2])):
        sys.exit(f"these load something from elsewhere: {', '.join(outside)}")

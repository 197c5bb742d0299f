"""The documentation is true: its code runs, its commands exist, its links lead somewhere."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import shlex
import sys
import types
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote

import pytest
import yaml
from markdown_it import MarkdownIt

from tests.envsdk.public_api import MODULES

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted(ROOT.glob("docs/**/*.md")),
    *sorted(ROOT.glob("envs/*/README.md")),
]

OPTIONAL = {
    "gem": "gem",
    "reasoning_gym": "reasoning_gym",
    "envsdk.adapters.gem": "gem",
    "envsdk.adapters.openenv": "openenv",
}
"""Packages that `make install` leaves out, by what a block imports.

`make test-adapters` and `make test-openenv` run it.
"""

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    """One fenced code block."""

    page: Path
    line: int
    """Of its first line of code, from 1."""
    language: str
    code: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    return [
        Block(page, token.map[0] + 2, (token.info.split() or [""])[0], token.content)
        for token in MarkdownIt().parse(page.read_text())
        if token.type == "fence" and token.map
    ]


BLOCKS = [block for page in PAGES for block in blocks_of(page)]


def blocks_in(language: str) -> list[Block]:
    return [block for block in BLOCKS if block.language == language]


def _marked(block: Block) -> object:
    """The block as a parameter, marked and skipped if it needs a package that is not installed."""
    missing = [name for name in _needed(block) if importlib.util.find_spec(name) is None]
    marks = [pytest.mark.adapters] if _needed(block) else []
    if missing:
        marks.append(pytest.mark.skip(reason=f"needs {missing[0]}: make test-adapters, or test-openenv"))
    return pytest.param(block, marks=marks, id=str(block))


def _needed(block: Block) -> list[str]:
    nodes = [
        node for node in ast.walk(ast.parse(block.code)) if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    modules = [
        module
        for node in nodes
        for module in (
            [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
        )
    ]
    return [
        package for name, package in OPTIONAL.items() if any(f"{m}.".startswith(f"{name}.") for m in modules)
    ]


@pytest.mark.parametrize("block", [_marked(block) for block in blocks_in("python")])
def test_a_python_block_runs_by_itself(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # Blank lines in front make tracebacks point into the page; a real module makes dataclasses work.
    code = compile("\n" * (block.line - 1) + block.code, str(block.page), "exec", dont_inherit=True)
    module = types.ModuleType("documentation_block")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(code, module.__dict__)


def test_public_names_are_imported_from_where_they_are_public() -> None:
    public = {name: module for module in MODULES for name in importlib.import_module(module).__all__}
    others = [
        f"{block}: {name} is public in {public[name]}, and imported from {node.module}"
        for block in blocks_in("python")
        for node in ast.walk(ast.parse(block.code))
        if isinstance(node, ast.ImportFrom) and node.module not in MODULES
        for name in (each.name for each in node.names)
        if name in public and f"{node.module}.".startswith(f"{public[name]}.")
    ]
    assert not others, "\n".join(others)


@pytest.mark.parametrize("block", blocks_in("yaml"), ids=str)
def test_a_yaml_block_parses(block: Block) -> None:
    assert yaml.safe_load(block.code) is not None


@pytest.mark.parametrize("block", blocks_in("bash"), ids=str)
def test_the_commands_of_a_bash_block_exist(block: Block) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for module in re.findall(r"python3? -m (envsdk[\w.]*)", block.code):
        assert _is_runnable(module), f"{block}: there is no `python -m {module}`"
    for target in re.findall(r"^(?:\$ )?make ([a-z][a-z-]*)", block.code, re.MULTILINE):
        assert target in targets, f"{block}: the Makefile has no target {target!r}"
    for command in re.findall(r"^(?:\$ )?(?:\.venv/bin/)?envsdk ([a-z][a-z-]*)", block.code, re.MULTILINE):
        assert command in _commands(), f"{block}: there is no `envsdk {command}`"


_COMMAND_LINE = re.compile(r"^(?:\$ )?(?:\.venv/bin/)?(?:python3? -m (envsdk[\w.]*)|envsdk ([a-z-]+))( .*)?$")


def command_lines(block: Block) -> list[tuple[str, list[str]]]:
    """Module and arguments of each of envsdk's command lines in a block."""
    found = []
    for line in block.code.replace("\\\n", " ").splitlines():
        match = _COMMAND_LINE.match(line)
        if match:
            others = {"explain": "cli", "eval": "evaluate", "compare": "view.compare"}
            module = match[1] or f"envsdk.{others.get(match[2], match[2].replace('-', '_'))}"
            arguments = shlex.split(match[3] or "", comments=True)
            before_pipe = arguments[: arguments.index("|")] if "|" in arguments else arguments
            found.append((module, ["explain", *before_pipe] if module == "envsdk.cli" else before_pipe))
    return found


COMMAND_LINES = [
    pytest.param(module, arguments, id=f"{block} {module} {' '.join(arguments)}"[:100])
    for block in blocks_in("bash")
    for module, arguments in command_lines(block)
]


@pytest.mark.parametrize(("module", "arguments"), COMMAND_LINES)
def test_a_command_line_has_arguments_that_its_command_takes(module: str, arguments: list[str]) -> None:
    import typer.main

    from envsdk.config import load_config
    from envsdk.config.reading import examples_folder
    from envsdk.contracts.failures import ConfigurationError

    places = [module, f"{module}.command", f"{module}.__main__"]
    # A package may have a module called `app`, too.
    apps = (getattr(_module(place), "app", None) for place in places)
    app = next((app for app in apps if isinstance(app, typer.Typer)), None)
    if app is not None:
        typer.main.get_command(app).make_context(module, list(arguments))
    is_plan = module == "envsdk.plan" and "--measured" not in arguments
    if arguments and not is_plan and (examples_folder() / arguments[0]).is_file():
        overrides = [argument for argument in arguments[1:] if re.match(r"[a-z][\w.]*=", argument)]
        try:
            load_config(arguments[0], overrides, for_training=module == "envsdk.train")
        except ConfigurationError as error:
            if "is not installed" not in str(error):
                raise


def _module(name: str) -> types.ModuleType | None:
    """The module, unless there is none; one that runs on import is left alone."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None or "\nsys.exit(main())" in Path(spec.origin).read_text():
        return None
    return importlib.import_module(name)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_code_block_says_its_language(page: Path) -> None:
    assert not [str(block) for block in blocks_of(page) if not block.language]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for link in _LINK.findall(text):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = unquote(link).partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name}: {link} leads nowhere"
        if anchor:
            assert anchor in anchors(target.read_text()), (
                f"{page.name}: {target.name} has no heading #{anchor}"
            )


def test_every_page_is_reachable_from_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    linked = {unquote(link).partition("#")[0] for link in _LINK.findall(index)}
    pages = {str(page.relative_to(ROOT / "docs")) for page in ROOT.glob("docs/**/*.md")} - {"README.md"}
    assert pages - linked == set()


def test_the_guides_stay_short_enough_to_be_read() -> None:
    pages = [page.read_text() for page in ROOT.glob("docs/**/*.md")]
    num_words = sum(bool(re.search(r"\w", word)) for page in pages for word in page.split())
    assert num_words <= 60_000, f"{num_words} words: what a key means belongs to its docstring"


def _is_runnable(module: str) -> bool:
    spec = importlib.util.find_spec(module)
    if spec is None:
        return False
    return not spec.submodule_search_locations or importlib.util.find_spec(f"{module}.__main__") is not None


def _commands() -> set[str]:
    import typer.main

    from envsdk.cli import app

    command = typer.main.get_command(app)
    return set(getattr(command, "commands", {}))


def anchors(page: str) -> set[str]:
    tokens = MarkdownIt().parse(page)
    titles = [title.content for opening, title in pairwise(tokens) if opening.type == "heading_open"]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}

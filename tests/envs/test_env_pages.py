"""Each environment's folder has a page of its own, and the page is true."""

import inspect
import re
from pathlib import Path

import pytest

from envsdk.base.plugins import load_object
from envsdk.base.registry import known_ids, spec

ROOT = Path(__file__).parents[2]
FOLDERS = sorted(file.parent for file in (ROOT / "envs").glob("*/__init__.py") if "SPEC" in file.read_text())
"""Those of environments; the base of the shell environments is none."""
SECTIONS = ["Reply", "Keywords", "Reward", "Oracle", "Data", "Tests"]
LONGEST_PAGE = 120


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_page_of_an_environment_names_its_id_its_keywords_and_its_tests(folder):
    page = (folder / "README.md").read_text()
    assert re.findall(r"^## (.+)$", page, re.MULTILINE) == SECTIONS
    assert len(page.splitlines()) <= LONGEST_PAGE
    ids = set(re.findall(r"envsdk/[A-Za-z]\w*-v\d+", page))
    assert ids
    assert ids <= set(known_ids())

    [own] = [id for id in ids if spec(id) is load_object(f"envsdk.envs.{folder.name}:SPEC")]
    rows = re.findall(
        r"^\| (`[^|]+) \|", page.partition("## Keywords")[2].partition("\n## ")[0], re.MULTILINE
    )
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    undocumented = keywords(own) - named - {"render_mode"}
    assert not undocumented

    for path in re.findall(r"(?:tests|benchmarks)/[\w./]+", page):
        assert (ROOT / path).exists(), path


def keywords(env_id):
    """The keywords of the environment's constructor, read without what its package may lack."""
    module, _, name = spec(env_id).entry_point.partition(":")
    if module.endswith(".installed"):
        module = module.removesuffix(".installed") + ".env"
    return set(inspect.signature(load_object(f"{module}:{name}").__init__).parameters) - {"self"}

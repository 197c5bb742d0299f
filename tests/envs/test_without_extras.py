"""Environments are listed and played without the packages that only some of them need."""

from __future__ import annotations

import subprocess
import sys

import pytest

WITHOUT = """
import re
import sys
from importlib.metadata import packages_distributions, requires


def name(requirement):
    return re.split(r"[^A-Za-z0-9._-]", requirement)[0].lower()


asked = requires("envsdk")
always = {name(each) for each in asked if "extra ==" not in each}
needed = {name(each) for each in asked} - always
found = packages_distributions().items()
modules = {module for module, of in found if {each.lower() for each in of} & needed}
modules -= {"envsdk", *sys.stdlib_module_names}
assert {"torch", "ray", "Stemmer", "jsonschema"} <= modules


class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in modules:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Absent())
"""
LIST = "from envsdk.base.registry import list_specs; print(*(spec.id for spec in list_specs()))"
PLAY = """
from envsdk.cli import main
main(["evaluate", "FrozenLake", "--policy", "random", "--episodes", "2"])
"""


@pytest.mark.parametrize(("what", "found"), [(LIST, "envsdk/WebShop-v1"), (PLAY, "FrozenLake")])
def test_no_extra_is_needed_to_list_all_environments_or_to_play_one_of_ours(what: str, found: str) -> None:
    ran = subprocess.run([sys.executable, "-c", WITHOUT + what], capture_output=True, text=True, timeout=120)
    assert found in ran.stdout, ran.stderr
    assert "No module named" not in ran.stderr

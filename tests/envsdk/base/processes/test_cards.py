"""The memory of GPUs as the driver's own program says it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from envsdk.base.processes.cards import smallest_card_bytes

SAYS = """#!/bin/sh
case "$*" in *--id=1*) echo 24564; exit;; *--id=*) echo "No devices were found"; exit 6;; esac
printf '81559\\n24564\\n'
"""


@pytest.mark.parametrize(
    ("visible", "program", "mib"),
    [
        (None, SAYS, 24564),
        ("1", SAYS, 24564),
        ("", SAYS, None),
        ("MIG-1", SAYS, None),
        (None, "#!/bin/sh\necho '[N/A]'", None),
        (None, None, None),
    ],
)
def test_the_smallest_that_may_be_used_counts(
    visible: str | None, program: str | None, mib: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if program is not None:
        (tmp_path / "nvidia-smi").write_text(program)
        (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin" if program else str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    smallest_card_bytes.cache_clear()
    try:
        assert smallest_card_bytes() == (None if mib is None else mib * 2**20)
    finally:
        smallest_card_bytes.cache_clear()


def test_asking_imports_no_torch() -> None:
    code = (
        "import envsdk.base.processes.cards as c, sys; c.smallest_card_bytes(); print('torch' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "False"

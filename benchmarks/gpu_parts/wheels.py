"""What to carry to a GPU host from which nothing can be installed, and that has PyTorch and transformers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

LOOKED_UP = "23 November 2026, for Python 3.12 on x86-64"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    """One package, with the size of its wheel."""

    package: str
    version: str
    kb: int


def _wheels(text: str) -> tuple[Wheel, ...]:
    rows = (line.split() for line in text.strip().splitlines())
    return tuple(Wheel(package=package, version=version, kb=int(kb)) for package, version, kb in rows)


WHEELS: dict[str, tuple[Wheel, ...]] = {
    "everything (environments, configuration, command line)": _wheels("""
        annotated-types      0.8.0    13
        click                8.5.1   126
        cloudpickle          3.1.2    22
        farama-notifications 0.0.6     3
        gymnasium            1.4.0   476
        markdown-it-py       4.3.0    97
        mdurl                0.1.2    10
        omegaconf            2.4.0   254
        psutil               7.2.2   156
        pydantic            2.14.3   494
        pydantic-core       2.50.4  2262
        pygments            2.21.0  1250
        rich                15.0.0   311
        shellingham          1.5.4    10
        typer               0.29.2   121
        typing-inspection    0.4.5    15
    """),
    "the tests marked gpu": _wheels("""
        attrs               26.1.0    68
        hypothesis        6.170.15  1168
        iniconfig            2.3.1     8
        pluggy               1.7.0    27
        pytest               9.2.0   412
        pytest-asyncio       1.5.0    17
        pytest-timeout       2.4.0    14
        sortedcontainers     2.4.0    30
    """),
    "replies with a structure": _wheels("llguidance 1.9.1 3072"),
    "the Megatron-core trainer": _wheels("megatron-core 0.16.1 2612"),
}
"""By what they are for. Jinja2, PyYAML, packaging, safetensors and tokenizers come with the two."""
TOO_LARGE = ("pyarrow (47 MB)", "ray (73 MB)", "vllm (some 400 MB, and its own torch)")
"""Of which nothing here needs any."""


def lines() -> Iterator[str]:
    """The table, as text."""
    total = 0
    for purpose, wheels in WHEELS.items():
        size = sum(wheel.kb for wheel in wheels)
        total += size
        yield f"{purpose}: {size / 1000:.1f} MB"
        yield "  " + " ".join(f"{wheel.package}=={wheel.version}" for wheel in wheels)
    yield f"together {total / 1000:.1f} MB. Not carried, and not needed: {', '.join(TOO_LARGE)}."
    yield f"Versions and sizes of {LOOKED_UP}. To fetch them:"
    yield (
        "  pip download --no-deps --only-binary=:all: --python-version 3.12 --implementation cp "
        "--platform manylinux_2_31_x86_64 --platform manylinux_2_28_x86_64 "
        "--platform manylinux2014_x86_64 -d wheels PACKAGES"
    )
    yield "and envsdk itself, 1.8 MB, from a checkout:"
    yield "  pip wheel --no-deps -w wheels ."
    yield "and there: pip install --no-index --no-deps --target site wheels/*.whl; export PYTHONPATH=site"

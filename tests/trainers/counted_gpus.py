"""A Ray runtime on this machine that is told how many accelerators it has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import ray

REPOSITORY = Path(__file__).resolve().parents[2]


@contextmanager
def counted_gpus(count: int) -> Iterator[None]:
    """Ray believes the count; actors must only look at what they are shown. Ends a runtime that is up."""
    ray.shutdown()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(REPOSITORY), prepend=":")
        ray.init(
            address="local",
            num_cpus=2,
            num_gpus=count,
            include_dashboard=False,
            object_store_memory=100 * 1024**2,
            _node_ip_address="127.0.0.1",
            log_to_driver=False,
        )
        yield
        ray.shutdown()

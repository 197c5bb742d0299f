"""Main memory that libraries hold and nobody uses."""

import ctypes
import gc
import os
from contextlib import suppress


def keep_few_kernels(count: int) -> None:
    """Bound what oneDNN remembers; call before the first product. A variable that is set stays.

    For each shape of the matrices that it multiplies oneDNN makes code, some 0.6 MB. It keeps the last 1,024,
    and so does PyTorch: 0.7 GB and more once sizes of batches and lengths have varied.
    """
    for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(name, str(count))


def give_back(device: str) -> None:
    """What this process let go of, on the device as PyTorch names it and in main memory, others may take."""
    gc.collect()
    if device.startswith("cuda"):
        import torch

        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
    give_back_freed()


def give_back_freed() -> None:
    """Give pages that were freed back to the system, where the C library can: glibc keeps most of them."""
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)

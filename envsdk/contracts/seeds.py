"""Seeds by stable hash: the same task has the same seed on every machine and in every run order."""

from __future__ import annotations

import hashlib


def stable_seed(*parts: str | int) -> int:
    """A seed in [0, 2**31) from `parts`, for example `(run_seed, split, tag, index)`.

    BLAKE2b over the parts with their types and lengths, so `("a", 1)` and `("a1",)` differ and
    neither Python's hash randomisation nor the platform's word size matters.
    """
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        encoded = f"{type(part).__name__}:{part}".encode()
        digest.update(len(encoded).to_bytes(4, "big"))
        digest.update(encoded)
    return int.from_bytes(digest.digest(), "big") >> 33

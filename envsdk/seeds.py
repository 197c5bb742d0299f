"""Seeds by stable hash: the same task has the same seed on every machine and in every run order."""

from __future__ import annotations

import hashlib


def stable_seed(*parts: str | int) -> int:
    """A seed in [0, 2**31) from `parts`, for example `(run_seed, split, tag, index)`.

    BLAKE2b over the parts with their types and lengths, so `("a", 1)` and `("a1",)` differ and
    neither Python's hash randomisation nor the platform's word size matters.
    """
    encoded = [f"{type(part).__name__}:{part}".encode() for part in parts]
    framed = b"".join([len(each).to_bytes(4, "big") + each for each in encoded])
    return int.from_bytes(hashlib.blake2b(framed, digest_size=8).digest(), "big") >> 33

"""Pure: the experts that a mixture chose, as servers tell them. Shape: tokens, layers, chosen ones."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envsdk.engines.core import Reply
from envsdk.engines.engine import GenerationRequest
from envsdk.engines.engine_support.failures import ReplyRefused


def from_npy(told: bytes) -> NDArray[Any]:
    """vLLM's: a file of numpy's. ValueError when it is none."""
    return np.lib.format.read_array(io.BytesIO(told), allow_pickle=False)


def read_experts(
    reply: Reply, told: str | None, decode: Callable[[bytes], NDArray[Any]]
) -> NDArray[np.int16] | None:
    """Those that a server told of in base64 with a reply's end, as `experts_of`. ReplyRefused."""
    if reply.request.experts_from is None:
        return None
    try:
        found = None if told is None else decode(base64.b64decode(told, validate=True))
        return experts_of(reply.request, len(reply.token_ids), found)
    except ValueError as error:
        raise ReplyRefused(f"routed_experts: {error}") from error


def experts_of(
    request: GenerationRequest, num_tokens: int, told: NDArray[Any] | None
) -> NDArray[np.int16] | None:
    """Those that the request asks for with a reply of so many tokens: of each token but the last.

    None where it asks for none or nothing was sampled. ValueError where the server told of others.
    """
    if request.experts_from is None or num_tokens == 0:
        return None
    num_asked = len(request.prompt_ids) + num_tokens - 1 - request.experts_from
    if told is None or told.ndim != 3 or len(told) != num_asked:
        found = "none" if told is None else f"an array of shape {list(told.shape)}"
        raise ValueError(f"asked for experts of {num_asked} tokens, the server told {found}")
    return told.astype(np.int16)

"""Whether a server refused a request because its model's context is full. Pure.

Servers of the OpenAI protocol name a code or only use words: those of OpenAI, vLLM, SGLang, llama.cpp, TGI,
xAI, the compatible endpoints of Anthropic and Google, and of proxies before them.
"""

from __future__ import annotations

import re

_STATUSES = frozenset({400, 413, 422})
_CODE = "context_length_exceeded"
_WORDS = re.compile(
    "|".join(
        (
            _CODE,
            "exceed_context_size_error",
            r"maximum (context|model|prompt) (length|limit)",
            r"(longer|greater|larger) than the (model's )?(maximum )?context (length|size|window)",
            r"exceeds? the (model's )?(available )?context (length|size|window|limit)",
            r"(input|requested|prompt) tokens? count[^.]{0,40} exceeds",
            r"maximum allowed (input )?(length|number of tokens)",
            r"context window exceed",
            r"exceed context limit",
            r"(prompt|input) is too long",
            r"`inputs` tokens \+ `max_new_tokens` must be",
            r"context holds \d+ tokens",
        )
    ),
    re.IGNORECASE,
)


def says_context_is_full(text: str, *, status: int | None, code: object = None) -> bool:
    """Whether an answer with this status, code and text means that prompt and reply do not fit."""
    return code == _CODE or (status in _STATUSES and _WORDS.search(text) is not None)


def is_full_context(error: BaseException) -> bool:
    """The same of a client's exception, which has a `status_code` or `status`, and perhaps a `code`."""
    status = getattr(error, "status_code", getattr(error, "status", None))
    try:
        text = str(error)[:10_000]
    except Exception:  # noqa: BLE001 - boundary: a plug-in's object
        return False
    return says_context_is_full(
        text, status=status if isinstance(status, int) else None, code=getattr(error, "code", None)
    )

"""A full context is told from other refusals, in the words of the servers that people use."""

from __future__ import annotations

import pytest

from envsdk.engines.refusals import is_full_context, says_context_is_full

FULL = [
    "This model's maximum context length is 4096 tokens. However, your prompt contains at least 5000 tokens.",
    "This model's maximum context length is 8191 tokens, however you requested 9000 tokens.",
    "'max_tokens' or 'max_completion_tokens' is too large: 4096. This model's maximum context length is 8192 "
    "tokens and your request has 7000 input tokens (4096 > 8192 - 7000).",
    "The decoder prompt (length 5000) is longer than the maximum model length of 4096.",
    "The decoder prompt is too long: request has 5000 input tokens.",
    "The input (5000 tokens) is longer than the model's context length (4096 tokens).",
    "Input length (33432) exceeds model's maximum context length (32768).",
    "Requested token count exceeds the model's maximum context length of 4096 tokens.",
    "the request exceeds the available context size, try increasing it",
    "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 4000 `inputs` tokens",
    "Your input exceeds the context window of this model. Please adjust your input and try again.",
    "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000",
    "prompt is too long: 210000 tokens > 200000 maximum",
    "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
    "This model's maximum prompt length is 131072 but the request contains 140000 tokens.",
    "context holds 512 tokens: the 560 of the prompt leave no room",
]

OTHERS = [
    "unknown field `foo`",
    "max_tokens must be at least 1, got 0",
    "you exceeded your current quota, please check your plan and billing details",
    "Rate limit reached for tokens per minute: limit 30000, used 29000",
    "the model `gpt` does not exist",
    "temperature: must be at most 2",
    "Invalid value for 'content': expected a string, got null.",
]


class Refused(Exception):
    def __init__(self, text: str, status_code: int = 400, code: str | None = None) -> None:
        super().__init__(text)
        self.status_code = status_code
        self.code = code


@pytest.mark.parametrize("text", FULL)
def test_the_words_of_a_full_context_are_known(text: str) -> None:
    assert says_context_is_full(text, status=400)
    assert is_full_context(Refused(text))
    assert not says_context_is_full(text, status=500)
    assert not is_full_context(ValueError(text))


@pytest.mark.parametrize("text", OTHERS)
def test_other_refusals_are_none(text: str) -> None:
    assert not says_context_is_full(text, status=400)
    assert is_full_context(Refused(text, code="context_length_exceeded"))


def test_an_exception_that_cannot_be_shown_is_none() -> None:
    class Silent(Refused):
        def __str__(self) -> str:
            raise RuntimeError

    assert not is_full_context(Silent("x"))

"""Conversations in tokens: a chat template, cut behind a reply, against the `renderers` of its family.

`renderers` writes each family's template by hand. The templates are the published ones that TRL keeps; the
tokenizer is a small one with the family's special tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from envsdk.contracts.chat import ChatTokenizer

renderers = pytest.importorskip("renderers", reason="needs renderers: make test-peers")
pytestmark = pytest.mark.peers

FAMILIES = {
    "qwen3": ("qwen3", ["<|im_end|>"]),
    "qwen3.5": ("qwen3_5_think", ["<|im_end|>"]),
    "qwen3.6": ("qwen3_6", ["<|im_end|>"]),
    "qwen3.8": ("qwen3_8", ["<|im_end|>"]),
    "nemotron-3": ("nemotron_3_nano", ["<|im_end|>"]),
    "glm-4.5": ("glm4moe", ["<|user|>", "<|observation|>"]),
}
"""A template of TRL's and the tokens that end a reply, by the name of the renderer."""

_SPECIAL = re.compile(r"<\|\w+\|>|</?[a-z_]+>|\[gMASK\]")

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
TOOLS = [
    {
        "type": "function",
        "function": {"name": "weather", "description": "of a city", "parameters": PARAMETERS},
    }
]
SYSTEM = {"role": "system", "content": "You help."}
ASKED = {"role": "user", "content": "How is the weather in Oslo?"}
ANSWER = {"role": "assistant", "content": "Three degrees."}
AGAIN = {"role": "user", "content": "And tomorrow?"}
RESULT = {"role": "tool", "tool_call_id": "call_1", "name": "weather", "content": '{"degrees": 3}'}
CALL = {
    "role": "assistant",
    "content": "",
    "reasoning_content": "I look it up.",
    "tool_calls": [
        {
            "id": "call_1",
            "type": "function",
            "function": {"name": "weather", "arguments": {"city": "Oslo", "days": 2}},
        }
    ],
}
CONVERSATIONS = {
    "first": [SYSTEM, ASKED],
    "second": [SYSTEM, ASKED, ANSWER, AGAIN],
    "result": [SYSTEM, ASKED, CALL, RESULT],
    "after a result": [SYSTEM, ASKED, CALL, RESULT, ANSWER, AGAIN],
}


class HeldTokenizer:
    """A tokenizer as `renderers` asks for one, which gets each special token that is asked for."""

    unk_token_id = None

    def __init__(self, tokenizer: Tokenizer, name: str, eos: str) -> None:
        self._tokenizer = tokenizer
        self.name_or_path = name
        self.eos_token_id = self.convert_tokens_to_ids(eos)

    def encode(self, text: str, **_: Any) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: list[int], *, skip_special_tokens: bool = False, **_: Any) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def convert_tokens_to_ids(self, token: str) -> int:
        self._tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False)])
        return int(self._tokenizer.token_to_id(token))


def template(name: str) -> str:
    spec = find_spec("trl")
    assert spec is not None
    (folder,) = spec.submodule_search_locations or ()
    return (Path(folder) / "chat_templates" / f"{name}.jinja").read_text()


@pytest.fixture(params=FAMILIES)
def both(request: pytest.FixtureRequest) -> tuple[ChatTokenizer, Any]:
    """The same template in both ways, over one tokenizer."""
    family = request.param
    name, stops = FAMILIES[family]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([template(name), str(CONVERSATIONS)], trainer)
    marks = sorted({*_SPECIAL.findall(template(name)), *stops})
    tokenizer.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in marks])
    configs = {
        each.model_fields["name"].default: each
        for each in renderers.configs.BaseRendererConfig.__subclasses__()
    }
    renderer = renderers.create_renderer(HeldTokenizer(tokenizer, family, stops[0]), configs[family]())
    stop_ids = [tokenizer.token_to_id(stop) for stop in stops]
    return ChatTokenizer(tokenizer, template(name), stop_token_ids=stop_ids), renderer


@pytest.mark.parametrize("kind", CONVERSATIONS)
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["without tools", "with tools"])
def test_a_conversation_has_the_same_tokens(both: tuple[ChatTokenizer, Any], kind: str, tools: Any) -> None:
    chat, renderer = both
    messages = CONVERSATIONS[kind]
    ids = chat.encode(chat.render(messages, tools=tools))
    assert list(renderer.render_ids(messages, tools=tools, add_generation_prompt=True)) == ids


@pytest.mark.parametrize("cut", [False, True], ids=["ended", "cut"])
def test_a_result_continues_the_sampled_tokens_in_the_same_way(
    both: tuple[ChatTokenizer, Any], cut: bool, write_down: Callable[..., None]
) -> None:
    chat, renderer = both
    prompt = chat.encode(chat.render([SYSTEM, ASKED], tools=TOOLS))
    behind = chat.behind_reply([SYSTEM, ASKED, CALL, RESULT], 2, reply_closed=False, tools=TOOLS)
    whole = chat.encode(chat.render([SYSTEM, ASKED, CALL, RESULT], tools=TOOLS))
    reply = whole[len(prompt) : -len(behind)] + ([] if cut else behind[:1])
    ours = chat.behind_reply(
        [SYSTEM, ASKED, CALL, RESULT],
        2,
        reply_closed=not cut,
        closing=None if cut else reply[-1],
        tools=TOOLS,
    )
    theirs = renderer.bridge_to_next_turn(prompt, reply, [RESULT], tools=TOOLS)
    if cut and renderer.config.name == "glm-4.5":
        # It closes the cut reply with a token that the template writes nowhere.
        reply = [*reply, theirs.token_ids[len(prompt) + len(reply)]]
    assert list(theirs.token_ids) == [*prompt, *reply, *ours]
    write_down("ChatTokenizer.behind_reply", f"renderers {renderer.config.name}", "0 tokens", "0")

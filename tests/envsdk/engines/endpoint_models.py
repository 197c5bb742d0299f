"""Tokenizers and templates that the endpoint's tests share."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from envsdk.contracts.chat import ChatTokenizer
from envsdk.trainers.warm_start.tiny_policy import CHAT_TEMPLATE, build_tokenizer

WORDS = [
    "hello world, you walk on ice. <answer>Up</answer> <answer>Down</answer>",
    '<tool_call>\n{"name": "look", "arguments": {"where": "up"}}\n</tool_call>',
    "漢字 Zürich 🙂",
]

QWEN_LIKE = """{%- if tools %}
{{- '<|im_start|>system\\n# Tools\\n' }}
{%- for tool in tools %}{{- tool | tojson + '\\n' }}{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}
{{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
{%- elif message.role == 'assistant' %}
{{- '<|im_start|>assistant\\n' + message.content }}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments | tojson + '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- else %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
"""Tools and tool calls as the templates of Hermes and Qwen write them."""


def tiny_chat() -> ChatTokenizer:
    """The tokenizer of the tiny policy."""
    return ChatTokenizer(build_tokenizer(WORDS * 3), CHAT_TEMPLATE)


def qwen_like_chat() -> ChatTokenizer:
    """Byte-level BPE, and a template with tools."""
    return chat_with_template(QWEN_LIKE)


def chat_with_template(template: str) -> ChatTokenizer:
    """Byte-level BPE, with marks of Mistral's as special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(WORDS, trainers.BpeTrainer(vocab_size=340, initial_alphabet=alphabet))
    tokenizer.add_special_tokens(
        [
            AddedToken(token, normalized=False)
            for token in ("<|im_start|>", "<|im_end|>", "[TOOL_CALLS]", "[ARGS]")
        ]
    )
    return ChatTokenizer(tokenizer, template)


def metaspace_chat() -> ChatTokenizer:
    """Words with leading spaces, and bytes for what is no word."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    special = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokenizer.train_from_iterator(WORDS, trainers.BpeTrainer(vocab_size=400, special_tokens=["<unk>"]))
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in special[1:]])
    tokenizer.add_special_tokens([AddedToken("<|end|>", normalized=False)])
    return ChatTokenizer(tokenizer, CHAT_TEMPLATE)


CHATS = {make.__name__: make() for make in (tiny_chat, qwen_like_chat, metaspace_chat)}

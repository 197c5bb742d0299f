"""The tiny policy: a decoder of 1 to 4 M parameters that any machine trains in minutes.

It is an ordinary Hugging Face folder (Qwen3 architecture, fast tokenizer, chat template), so code that works
on it works on a larger model. Its tokenizer knows words and single symbols: a grid cell, a tag such as
`<answer>` and a complete answer such as `<answer>Up</answer>` are one token each. Unknown text is split into
bytes, so nothing is lost and nothing fails.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from envsdk.base.store.atomic import write_json_atomically

END_OF_TURN = "<|end|>"
PADDING = "<|pad|>"
SPECIAL_TOKENS = (PADDING, END_OF_TURN, "<|system|>", "<|user|>", "<|assistant|>")

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|' + message['role'] + '|>' + message['content'] + '<|end|>' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)

_PIECES = "|".join(
    [
        # A short answer with its tags: one token for the engine to sample.
        r"<answer>[\p{L}\p{N} ]{1,24}</answer>",
        r"</?[A-Za-z_]+>",
        # A word and its one-character value, as in `Left # Down 2`.
        r" ?\p{L}+ [^\s\p{L}](?!\S)",
        r" ?\p{L}+",
        r"\p{N}",
        r"\s",
        r"[^\s\p{L}\p{N}]",
    ]
)
"""Text is cut into these pieces, by the first alternative that matches; each can become a single token."""


def build_tokenizer(
    texts: Iterable[str], *, pieces: Sequence[str] = (), max_vocab_size: int = 2048
) -> Tokenizer:
    """A tokenizer whose vocabulary is the commonest pieces of `texts`, and all bytes.

    `pieces` are regular expressions (Oniguruma's) of other texts that can become a single token, such as an
    environment's `text_pieces`; they are tried before the usual ones. ValueError names an invalid expression.
    The same texts in any order give the same tokenizer.
    """
    check_pieces(pieces)
    splitter = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex("|".join([*pieces, _PIECES])), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    counts: Counter[str] = Counter()
    for text, times in Counter(texts).items():
        for piece, _ in splitter.pre_tokenize_str(text):
            counts[piece] += times
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    room = max_vocab_size - len(SPECIAL_TOKENS) - len(alphabet)
    pieces = sorted((piece for piece in counts if len(piece) > 1), key=lambda piece: (-counts[piece], piece))
    vocabulary = {token: index for index, token in enumerate((*SPECIAL_TOKENS, *alphabet, *pieces[:room]))}
    # Without merges and with `ignore_merges`, a piece is its own token or falls apart into bytes.
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS]
    )
    return tokenizer


def check_pieces(pieces: Iterable[str]) -> None:
    """ValueError names the first that is no regular expression."""
    for piece in pieces:
        try:
            Regex(piece)
        except Exception as error:  # noqa: BLE001 - tokenizers raises nothing narrower
            raise ValueError(f"{piece!r} is no regular expression: {error}") from None


def write_tokenizer(folder: Path, tokenizer: Tokenizer, *, sequence_length: int) -> None:
    """Write the tokenizer, its chat template and its settings as Hugging Face files into `folder`."""
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    write_json_atomically(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": END_OF_TURN,
            "pad_token": PADDING,
            "model_max_length": sequence_length,
            "clean_up_tokenization_spaces": False,
        },
    )


def write_random_model(
    folder: Path,
    tokenizer: Tokenizer,
    *,
    hidden_size: int,
    num_layers: int,
    num_heads: int,
    sequence_length: int,
    seed: int,
) -> None:
    """Write a Qwen3 model with random weights; the same arguments give the same weights."""
    import torch
    from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    end_of_turn, padding = tokenizer.token_to_id(END_OF_TURN), tokenizer.token_to_id(PADDING)
    config = Qwen3Config(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=hidden_size,
        intermediate_size=4 * hidden_size,
        num_hidden_layers=num_layers,
        num_attention_heads=num_heads,
        num_key_value_heads=max(1, num_heads // 2),
        head_dim=hidden_size // num_heads,
        max_position_embeddings=sequence_length,
        # Texts are short: a low base separates near positions in more dimensions.
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
        # The usual 0.02 is for wide models; at this width it makes the first steps slow.
        initializer_range=hidden_size**-0.5,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=end_of_turn,
        pad_token_id=padding,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(
        do_sample=True, temperature=1.0, eos_token_id=end_of_turn, pad_token_id=padding
    )
    model.save_pretrained(folder)

"""The chat tokenizer: what it appends turn by turn is what the template writes for the whole conversation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jinja2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from envsdk.contracts.chat import ChatTokenizer, TooManyTokens
from envsdk.contracts.chat_template import CALL
from envsdk.contracts.failures import ConfigurationError
from envsdk.trainers.warm_start.tiny_policy import CHAT_TEMPLATE, SPECIAL_TOKENS, build_tokenizer

CORPUS = [
    "You walk on ice. Answer with <answer>Up</answer> or <answer>Down</answer>.",
    "user assistant system\n\n_ _ P G\n# O X",
    "the quick brown fox, 12 34; Zürich 漢字",
]

CHATML = """{%- if messages[0]['role'] != 'system' -%}
{{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' -}}
{%- endif -%}
{%- for message in messages %}
{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

LLAMA3 = """{{- bos_token }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {{- message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

INSTRUCT = """{{- bos_token }}
{%- for message in messages %}
{%- if message['role'] == 'system' %}{{ raise_exception('Only user and assistant roles') }}
{%- elif message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}
{%- else %}{% generation %}{{ message['content'] }}{% endgeneration %}{{ eos_token }}
{%- endif %}
{%- endfor %}
"""

SHOUTING = """{%- for message in messages %}
{%- set text = message['content'] | upper if message['role'] == 'user' else message['content'] %}
{{- '<|im_start|>' + message['role'] + '\\n' + text + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""


def byte_level_tokenizer(special: list[str], **token_options: bool) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet))
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, **token_options) for token in special])
    return tokenizer


def metaspace_tokenizer(special: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    tokenizer.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=500, special_tokens=["<unk>", *bytes_])
    )
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    return tokenizer


CHATML_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def tiny() -> ChatTokenizer:
    return ChatTokenizer(build_tokenizer(CORPUS), CHAT_TEMPLATE)


def chatml() -> ChatTokenizer:
    return ChatTokenizer(byte_level_tokenizer(CHATML_TOKENS), CHATML)


def greedy_chatml() -> ChatTokenizer:
    """Added tokens that swallow the white space around them."""
    return ChatTokenizer(byte_level_tokenizer(CHATML_TOKENS, lstrip=True, rstrip=True), CHATML)


def llama3() -> ChatTokenizer:
    special = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    return ChatTokenizer(
        byte_level_tokenizer(special), LLAMA3, special_tokens={"bos_token": "<|begin_of_text|>"}
    )


def instruct() -> ChatTokenizer:
    tokens = {"bos_token": "<s>", "eos_token": "</s>"}
    return ChatTokenizer(metaspace_tokenizer(list(tokens.values())), INSTRUCT, special_tokens=tokens)


def shouting() -> ChatTokenizer:
    """A template that changes the content: nothing can be cut out of it in advance."""
    return ChatTokenizer(byte_level_tokenizer(CHATML_TOKENS), SHOUTING)


KINDS: dict[str, ChatTokenizer] = {
    make.__name__: make() for make in (tiny, chatml, greedy_chatml, llama3, instruct, shouting)
}

SPECIAL = [*CHATML_TOKENS, *SPECIAL_TOKENS, "<|eot_id|>", "<|start_header_id|>", "<s>", "</s>"]
special_texts = st.sampled_from([*SPECIAL, "<|im_", "end|>"])

texts = st.text(max_size=40).filter(lambda text: not any(special in text for special in SPECIAL))
observations = texts | st.sampled_from(["", " ", "\n", "\n\n_ P\n# G\n", "  Up  ", "12", "user"])
conversations = st.lists(observations, min_size=1, max_size=5)


@pytest.mark.parametrize("kind", KINDS)
@given(system=st.sampled_from(["", "You walk on ice."]), users=conversations, data=st.data())
@settings(max_examples=60, deadline=None)
def test_prompts_and_replies_put_together_are_the_tokens_of_the_whole_conversation(
    kind: str, system: str, users: list[str], data: st.DataObject
) -> None:
    chat = KINDS[kind]
    if kind == "instruct":
        system = ""
    # A reply is canonical when the template leaves it as it is.
    replies = [data.draw(st.sampled_from(["UP", "<A>", "NO. 7"])) for _ in users[1:]]
    log = chat.first_prompt(system=system, user=users[0])
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": users[0]})
    for reply, user in zip(replies, users[1:], strict=True):
        if (
            kind == "instruct"
        ):  # the text follows a word without a special token between: only ids are canonical
            reply_ids = chat.encode("[/INST]" + reply)[len(chat.encode("[/INST]")) :]
        else:
            reply_ids = chat.encode(reply)
        closed = data.draw(st.booleans())
        log += reply_ids + ([chat.stop_token_ids[0]] if closed else [])
        log += chat.next_prompt(user=user, reply_closed=closed)
        messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": user}]
    assert log == chat.encode(chat.render(messages))


@pytest.mark.parametrize("kind", KINDS)
@given(user=observations, closed=st.booleans(), has_system=st.booleans())
@settings(max_examples=40, deadline=None)
def test_behind_a_reply_stands_what_the_next_prompt_would_be(
    kind: str, user: str, closed: bool, has_system: bool
) -> None:
    chat = KINDS[kind]
    messages = [{"role": "system", "content": "You walk."}] if has_system and kind != "instruct" else []
    messages += [{"role": "user", "content": "a"}, {"role": "assistant", "content": "UP"}]
    ids = chat.behind_reply(
        [*messages, {"role": "user", "content": user}], len(messages) - 1, reply_closed=closed
    )
    assert ids == chat.next_prompt(user=user, reply_closed=closed)


GLM = """{%- for message in messages -%}
{%- if message.role == 'tool' -%}
{{- '<|observation|>\\n<tool_response>\\n' + message.content + '\\n</tool_response>' -}}
{%- else -%}
{{- '<|' + message.role + '|>\\n' + message.content -}}
{%- for call in message.tool_calls or [] -%}
{{- '\\n<tool_call>' + call.function.name -}}
{%- for name, value in call.function.arguments.items() -%}
{{- '<arg_key>' + name + '</arg_key><arg_value>' + value + '</arg_value>' -}}
{%- endfor -%}
{{- '</tool_call>' -}}
{%- endfor -%}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>\\n' -}}{%- endif -%}
"""

DEEPSEEK = """{%- for message in messages -%}
{%- if message.role == 'tool' -%}
{{- '<|tool|>' + message.content + '<|end|>' -}}
{%- else -%}
{{- '<|' + message.role + '|>' + message.content -}}
{%- for call in message.tool_calls or [] -%}
{{- '<|call|>' + call.function.name + '\\n```json\\n' + call.function.arguments + '\\n```' -}}
{%- endfor -%}
{{- '<|end|>' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}
"""

HARMONY = """{%- set last = namespace(call=none) -%}
{%- for message in messages -%}
{%- if message.role == 'tool' -%}
{%- if last.call is none -%}{{- raise_exception('no call came before') -}}{%- endif -%}
{{- '<|start|>functions.' + last.call + '<|message|>' + message.content + '<|end|>' -}}
{%- elif message.tool_calls -%}
{%- set last.call = message.tool_calls[-1].function.name -%}
{%- for call in message.tool_calls -%}
{{- '<|start|>assistant to=' + call.function.name + '<|message|>' + call.function.arguments | tojson -}}
{%- endfor -%}
{{- '<|call|>' -}}
{%- else -%}
{%- set last.call = none -%}
{{- '<|start|>' + message.role + '<|message|>' + message.content + '<|end|>' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|start|>assistant' -}}{%- endif -%}
"""

GLM_TOKENS = ["<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"]
DEEPSEEK_TOKENS = ["<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|call|>", "<|end|>"]
HARMONY_TOKENS = ["<|start|>", "<|message|>", "<|end|>", "<|call|>"]
ENDS_OF_CALLS = {
    "glm": (GLM, GLM_TOKENS, ["<|user|>", "<|observation|>"]),
    "deepseek": (DEEPSEEK, DEEPSEEK_TOKENS, ["<|end|>"]),
    "harmony": (HARMONY, HARMONY_TOKENS, ["<|call|>", "<|end|>"]),
}


@pytest.mark.parametrize("kind", ENDS_OF_CALLS)
@pytest.mark.parametrize("closed", [True, False])
def test_a_result_continues_a_reply_that_ends_otherwise_than_with_the_usual_token(
    kind: str, closed: bool
) -> None:
    template, special, stops = ENDS_OF_CALLS[kind]
    tokenizer = byte_level_tokenizer(special)
    chat = ChatTokenizer(tokenizer, template, stop_token_ids=[tokenizer.token_to_id(stop) for stop in stops])
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": {"at": "ice"}}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "look"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "ice"},
    ]
    whole = chat.encode(chat.render(messages))
    behind = chat.behind_reply(messages, 1, reply_closed=closed)
    before, end = whole[: -len(behind)], whole[-len(behind)]
    assert whole[-len(behind) :] == behind
    assert (before[-1] if closed else end) in chat.stop_token_ids


def test_a_reply_that_ended_with_another_stop_token_is_followed_by_all_of_the_next_message() -> None:
    tokenizer = byte_level_tokenizer(GLM_TOKENS)
    user, observed = map(tokenizer.token_to_id, ("<|user|>", "<|observation|>"))
    chat = ChatTokenizer(tokenizer, GLM, stop_token_ids=[user, observed])
    messages = [{"role": "user", "content": "look"}, CALL, {"role": "tool", "content": "ice"}]
    behind = {
        closing: chat.behind_reply(messages, 1, reply_closed=True, closing=closing)
        for closing in (user, observed)
    }
    assert behind[user] == [observed, *behind[observed]]


def test_results_that_no_stop_token_separates_from_their_call_continue_nothing() -> None:
    tokenizer = byte_level_tokenizer(HARMONY_TOKENS)
    chat = ChatTokenizer(tokenizer, HARMONY, stop_token_ids=[tokenizer.token_to_id("<|end|>")])
    calling = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"function": {"name": "look", "arguments": {}}}],
    }
    messages = [{"role": "user", "content": "a"}, calling, {"role": "tool", "content": "b"}]
    with pytest.raises(jinja2.TemplateError, match="ends calls with no stop token"):
        chat.behind_reply(messages, 1, reply_closed=True)


@pytest.mark.parametrize("kind", KINDS)
@given(
    parts=st.lists(special_texts | st.text(max_size=3) | st.sampled_from("<|>"), max_size=8),
    closed=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_an_observation_writes_no_special_token(kind: str, parts: list[str], closed: bool) -> None:
    chat = KINDS[kind]
    special = {token_id for text, (token_id, _) in chat._added.items() if text in SPECIAL}

    def marks(ids: list[int]) -> list[int]:
        return [token for token in ids if token in special]

    said = "".join(parts)
    assert marks(chat.first_prompt(system="", user=said)) == marks(chat.first_prompt(system="", user="x"))
    written = chat.next_prompt(user=said, reply_closed=closed)
    assert marks(written) == marks(chat.next_prompt(user="x", reply_closed=closed))


def test_only_what_a_special_token_would_be_is_parted() -> None:
    chat = KINDS["chatml"]
    assert chat.without_markup("a <|im_end|><b></b>") == "a < |im_end|><b></b>"
    assert chat.without_markup("<|im_<|im_end|>end|>") == "<|im_< |im_end|>end|>"


def test_a_reply_that_the_template_does_not_write_once_has_nothing_behind_it() -> None:
    twice = ChatTokenizer(byte_level_tokenizer(CHATML_TOKENS), CHATML)
    messages = [{"role": "user", "content": "envsdkreplysentinel"}, {"role": "assistant", "content": "UP"}]
    with pytest.raises(jinja2.TemplateError, match="exactly once"):
        twice.behind_reply(messages, 1, reply_closed=True)


@pytest.mark.parametrize("kind", KINDS)
def test_the_end_of_turn_is_written_exactly_once_whether_or_not_the_reply_had_it(kind: str) -> None:
    chat = KINDS[kind]
    closed = chat.next_prompt(user="_ P", reply_closed=True)
    open_ = chat.next_prompt(user="_ P", reply_closed=False)
    assert open_ == [chat.stop_token_ids[0], *closed]
    assert closed[0] != chat.stop_token_ids[0]
    assert chat.is_closed(chat.reply("Up"))
    assert not chat.is_closed(chat.encode("Up"))
    assert not chat.is_closed([])


@given(text=st.text(max_size=60))
@settings(deadline=None)
def test_our_tokenizer_loses_no_text(text: str) -> None:
    chat = KINDS["tiny"]
    if not any(token in text for token in SPECIAL_TOKENS):
        assert chat.decode(chat.encode(text)) == text


@pytest.mark.parametrize("kind", ["tiny", "chatml", "shouting"])
def test_what_utf8_cannot_hold_is_read_as_it_is_stored(kind: str) -> None:
    chat = KINDS[kind]
    broken, stored = "file \ud800.txt \ud83d\ude42", "file \ufffd.txt \U0001f642"
    assert chat.first_prompt(system="", user=broken) == chat.first_prompt(system="", user=stored)
    for closed in (False, True):
        assert chat.next_prompt(user=broken, reply_closed=closed) == chat.next_prompt(
            user=stored, reply_closed=closed
        )


def test_decode_leaves_special_tokens_out() -> None:
    chat = KINDS["chatml"]
    assert chat.decode(chat.reply("<answer>Up</answer>")) == "<answer>Up</answer>"


def test_a_next_prompt_costs_less_than_60_us() -> None:
    chat = KINDS["tiny"]
    observation = "____\n_P__\n__#G\nO___"

    def cost_us() -> float:
        start = time.process_time()
        for _ in range(500):
            chat.next_prompt(user=observation, reply_closed=True)
        return (time.process_time() - start) / 500 * 1e6

    assert min(cost_us() for _ in range(5)) < 60


def write_folder(folder: Path, **config: Any) -> Path:
    byte_level_tokenizer(CHATML_TOKENS).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def test_stop_tokens_come_from_the_template_the_generation_config_and_the_tokenizer(tmp_path: Path) -> None:
    write_folder(tmp_path, chat_template=CHATML, eos_token={"content": "<|endoftext|>"})
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    start, end, text_end = (tokenizer.token_to_id(t) for t in ("<|im_start|>", "<|im_end|>", "<|endoftext|>"))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [end, start]}))
    chat = ChatTokenizer.load(tmp_path)
    assert chat.stop_token_ids == (end, start, text_end)
    assert chat.vocab_size == tokenizer.get_vocab_size()


def test_a_template_file_wins_over_the_one_in_the_settings(tmp_path: Path) -> None:
    write_folder(tmp_path, chat_template=CHATML, eos_token="<|im_end|>")
    (tmp_path / "chat_template.jinja").write_text(SHOUTING)
    assert "HELLO" in ChatTokenizer.load(tmp_path).render([{"role": "user", "content": "hello"}])


def test_padding_and_truncation_stored_in_the_tokenizer_are_ignored(tmp_path: Path) -> None:
    tokenizer = byte_level_tokenizer(CHATML_TOKENS)
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=8)
    chat = ChatTokenizer(tokenizer, CHATML)
    assert chat.decode(chat.encode("one two three four five")) == "one two three four five"


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def write(name: str, content: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(content) and None


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (remove("tokenizer.json"), "tokenizer.json is missing"),
        (write("tokenizer.json", "{"), "tokenizer.json is not a tokenizer file"),
        (write("tokenizer_config.json", "{}"), "no chat template"),
        (write("tokenizer_config.json", "{"), "tokenizer_config.json is not JSON"),
        (write("chat_template.jinja", "{% for %}"), "cannot be used"),
        (write("chat_template.jinja", "hello"), "assistant's message"),
    ],
)
def test_a_damaged_model_folder_is_refused_with_the_name_of_the_file(
    tmp_path: Path, damage: Callable[[Path], None], message: str
) -> None:
    damage(write_folder(tmp_path, chat_template=CHATML, eos_token="<|im_end|>"))
    with pytest.raises(ConfigurationError, match=message):
        ChatTokenizer.load(tmp_path)


def test_a_missing_model_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="nowhere does not exist"):
        ChatTokenizer.load(tmp_path / "nowhere")


def test_a_template_without_a_system_role_says_what_to_do() -> None:
    with pytest.raises(ConfigurationError, match="agent_system_template"):
        KINDS["instruct"].first_prompt(system="Be brief.", user="_ P")


def test_a_template_cannot_reach_the_interpreter() -> None:
    escape = "{{ messages.__class__.__mro__ }}" + CHATML
    with pytest.raises(Exception, match="unsafe"):
        ChatTokenizer(byte_level_tokenizer(CHATML_TOKENS), escape)


def test_transformers_renders_the_same(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    write_folder(
        tmp_path, tokenizer_class="PreTrainedTokenizerFast", chat_template=CHATML, eos_token="<|im_end|>"
    )
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path)
    messages = [{"role": "user", "content": "_ P\n# G\n"}, {"role": "assistant", "content": "Up"}]
    messages += [{"role": "user", "content": "é 漢 "}]
    expected = reference.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert ChatTokenizer.load(tmp_path).render(messages) == expected


def test_importing_it_loads_neither_torch_nor_transformers() -> None:
    heavy = "{'torch', 'transformers', 'ray'}"
    code = f"import sys, envsdk.contracts.chat; sys.exit(bool({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], env=os.environ, check=False).returncode == 0


@pytest.mark.parametrize("kind", KINDS)
@given(
    text=st.text(min_size=1, max_size=8) | st.sampled_from([" ", "x ", "=", "é漢字🙂", "<|im_end|>"]),
    times=st.integers(1, 20_000),
    room=st.integers(0, 3_000),
)
@settings(max_examples=25, deadline=None)
def test_only_texts_that_are_too_long_are_refused_by_their_beginning(
    kind: str, text: str, times: int, room: int
) -> None:
    chat = KINDS[kind]
    ids = chat.encode(text * times)
    try:
        read = chat.encode(text * times, room=room)
    except TooManyTokens as refused:
        counted = refused.num_tokens
        read = ids if len(ids) > room and counted > room else []
    assert read == ids


def test_a_text_far_too_long_is_not_read_to_its_end() -> None:
    chat = next(iter(KINDS.values()))
    endless = "You walk on ice. " * 3_000_000
    for asked in (
        lambda: chat.encode(endless, room=100),
        lambda: chat.first_prompt(system="", user=endless, room=100),
        lambda: chat.next_prompt(user=endless, reply_closed=True, room=100),
    ):
        with pytest.raises(TooManyTokens) as refused:
            asked()
        assert refused.value.num_tokens < 100_000

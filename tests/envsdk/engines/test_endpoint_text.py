"""From sampled tokens to text: whole characters, stop strings, tool calls."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envsdk.engines.endpoint.reply_text import Detokenizer, ReplyText
from envsdk.engines.tool_calls.formats import CLOSING, HERMES, OPENING, read_reply
from envsdk.engines.tool_calls.reading import ToolCall
from tests.by_day import examples
from tests.envsdk.engines.endpoint_models import CHATS


def some_tokens(data: st.DataObject, kind: str) -> list[int]:
    """A text's tokens, or any, or some of both."""
    chat = CHATS[kind]
    any_ids = st.lists(st.integers(0, chat.vocab_size - 1), max_size=12)
    text_ids = st.text(max_size=12).map(chat.encode) | st.sampled_from(["漢字 🙂", " a  b ", "hello"]).map(
        chat.encode
    )
    return [token for part in data.draw(st.lists(any_ids | text_ids, max_size=4)) for token in part]


@pytest.mark.parametrize("kind", CHATS)
@given(data=st.data())
@settings(max_examples=examples(50), deadline=None)
def test_the_pieces_put_together_are_the_text_of_all_tokens(kind: str, data: st.DataObject) -> None:
    ids, decode = some_tokens(data, kind), CHATS[kind].decode
    detokenizer = Detokenizer(decode)
    pieces = [detokenizer.push(token) for token in ids]
    whole = "".join([*pieces, detokenizer.finish()])
    is_text = "\N{REPLACEMENT CHARACTER}" not in decode(ids)
    # A decoder with byte fallback takes characters back when broken bytes follow; shown they are by then.
    if is_text or kind != "metaspace_chat":
        assert whole == decode(ids)
    if is_text:
        assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)


def test_a_token_costs_the_same_however_long_the_reply() -> None:
    decoded: list[int] = []
    chat = CHATS["tiny_chat"]

    def decode(ids: Sequence[int]) -> str:
        decoded.append(len(ids))
        return chat.decode(ids)

    detokenizer = Detokenizer(decode)
    for token in chat.encode("hello world " * 50):
        detokenizer.push(token)
    assert max(decoded) <= 2


@given(data=st.data(), stops=st.lists(st.text("ab c", min_size=1, max_size=3), max_size=3))
@settings(max_examples=examples(60), deadline=None)
def test_a_reply_ends_before_its_first_stop_string_with_the_token_that_completes_it(
    data: st.DataObject, stops: list[str]
) -> None:
    decode = CHATS["tiny_chat"].decode
    ids = CHATS["tiny_chat"].encode(data.draw(st.text("abc d", max_size=20)))
    text = ReplyText(decode, stops=stops)
    shown, kept = "", []
    for token in ids:
        kept.append(token)
        shown += text.push(token)
        if text.is_stopped:
            break
    shown += text.finish()
    whole = decode(ids)
    ends = [whole.find(stop) for stop in stops if stop in whole]
    assert text.is_stopped == bool(ends)
    assert shown == text.whole
    if ends:
        assert not any(stop in text.whole for stop in stops)
        assert any(stop in decode(kept) for stop in stops)
        assert not any(stop in decode(kept[:-1]) for stop in stops)
        assert whole.startswith(shown)
    else:
        assert shown == whole


def test_what_may_become_a_stop_string_is_not_shown_before_that_is_known() -> None:
    chat = CHATS["tiny_chat"]
    text = ReplyText(chat.decode, stops=["xyz"])
    pieces = [text.push(token) for token in chat.encode("axyq")]
    assert pieces == ["a", "", "", "xyq"]


def test_nothing_behind_the_start_of_a_tool_call_is_shown_before_the_end() -> None:
    chat = CHATS["qwen_like_chat"]
    text = ReplyText(chat.decode, calls=HERMES)
    reply = f"Let me look.\n\n{OPENING}anything{CLOSING} more"
    pieces = [text.push(token) for token in chat.encode(reply)]
    assert "".join(pieces) == "Let me look."
    assert text.finish() == reply.removeprefix("Let me look.")


def _found(reply: str) -> tuple[str, tuple[ToolCall, ...]]:
    reading = read_reply(reply, HERMES)
    return reading.shown, reading.calls


strings = st.text('ab<>/漢 \n"', max_size=8) | st.sampled_from([OPENING, CLOSING, f"a{CLOSING}\n{OPENING}b"])
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | strings,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
names = st.text("abc_", min_size=1, max_size=6)
contents = st.text(max_size=10).filter(lambda text: OPENING not in text)


@given(
    content=contents,
    calls=st.lists(
        st.tuples(names, st.dictionaries(st.text(max_size=5), values, max_size=3)), min_size=1, max_size=3
    ),
    space=st.sampled_from(["", "\n", " \n "]),
)
def test_calls_are_found_with_their_arguments(
    content: str, calls: list[tuple[str, dict[str, Any]]], space: str
) -> None:
    written = [
        OPENING + space + json.dumps({"name": name, "arguments": arguments}) + space + CLOSING
        for name, arguments in calls
    ]
    found_content, found = _found(content + space.join(written) + space)
    assert found_content == content.rstrip()
    assert [(call.name, json.loads(call.arguments)) for call in found] == calls


@given(
    content=contents,
    calls=st.lists(st.dictionaries(st.text(max_size=5), values, max_size=3), min_size=1, max_size=3),
    tail=st.text("a <>/", max_size=5),
)
@settings(deadline=None)
def test_a_reply_may_end_behind_its_first_call(content: str, calls: list[dict[str, Any]], tail: str) -> None:
    written = [
        OPENING + json.dumps({"name": "look", "arguments": arguments}, ensure_ascii=False) + CLOSING
        for arguments in calls
    ]
    chat = CHATS["tiny_chat"]
    text = ReplyText(chat.decode, calls=HERMES, ends_with_first_call=True)
    reply = chat.encode(content + "".join(written) + tail)
    pushed = 0
    while not text.is_stopped and pushed < len(reply):
        text.push(reply[pushed])
        pushed += 1
    assert text.is_stopped
    assert text.whole == chat.decode(chat.encode(content + written[0]))


@pytest.mark.parametrize(
    "reply",
    [
        "no call at all",
        f"{OPENING}not json{CLOSING}",
        f'{OPENING}{{"name": "look"',
        f'{OPENING}{{"arguments": {{}}}}{CLOSING}',
        f'{OPENING}{{"name": "look", "arguments": [1]}}{CLOSING}',
        f"{OPENING}[]{CLOSING}",
        f'{OPENING}{{"name": "look"}}{CLOSING} and then some',
        f'{OPENING}{{"name": "look"}}{CLOSING}{OPENING}broken{CLOSING}',
        f"{OPENING}{'[' * 100_000}{CLOSING}",
    ],
)
def test_a_call_that_cannot_be_read_stays_text(reply: str) -> None:
    assert _found(reply) == (reply, ())


@given(st.text('<>/toolca_{}": [],', max_size=60))
def test_any_text_is_read(reply: str) -> None:
    content, calls = _found(reply)
    assert content == reply or calls

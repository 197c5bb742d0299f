"""The record of a session: which requests go on from which replies, and what is learned from."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envsdk.contracts.segments import last_segment
from envsdk.contracts.trajectory import NO_VERSION, FinishReason, VersionSpan
from envsdk.engines.endpoint.answering import Answerer
from envsdk.engines.endpoint.record import Prompt, RecordedReply, message_keys, next_key
from envsdk.engines.endpoint.reply_text import ReplyReader
from envsdk.engines.endpoint.sampling import SamplingRules
from envsdk.engines.endpoint.sessions import Session, SessionBook
from envsdk.engines.endpoint.wire import ChatFields, read_chat
from envsdk.engines.proxy import InferenceProxy
from tests.by_day import examples
from tests.envsdk.engines.endpoint_models import CHATS

CHAT = CHATS["qwen_like_chat"]
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
Messages = list[dict[str, Any]]


def chat_prompt(answers: Answerer, session: Session, fields: ChatFields) -> Prompt:
    return answers._chat_prompt(fields, *answers._line(session, fields))


def answerer() -> Answerer:
    return Answerer(InferenceProxy({}), ReplyReader(CHAT, "auto"), sequence_length=1 << 20)


def new_session() -> Session:
    return SessionBook("token", max_sessions=1, idle_s=1e9).open(rules=SamplingRules())


def asked(messages: Messages, tools: list[dict[str, Any]] | None = None) -> ChatFields:
    body: dict[str, Any] = {"model": "m", "messages": messages}
    return read_chat(json.dumps(body | ({"tools": tools} if tools else {})).encode())


def record(session: Session, prompt: Prompt, token_ids: Sequence[int], version: int = 0) -> RecordedReply:
    """What an engine answered; returns the reply."""
    text = CHAT.decode(token_ids)
    number = len(session.record.replies)
    reply = RecordedReply(
        number=number,
        parent=prompt.parent,
        prompt_ids=prompt.new_ids,
        token_ids=token_ids,
        logprobs=[-0.25 - number] * len(token_ids),
        version_spans=[VersionSpan(version=version, start=0, end=len(token_ids))] if token_ids else [],
        finish_reason=FinishReason.STOP,
        text=text,
        observation=prompt.observation,
        segment=None if prompt.new_text is None else prompt.new_text + text,
    )
    key = None if prompt.key is None else next_key(prompt.key, {"role": "assistant", "content": text})
    session.record.add(reply, key=key)
    return reply


def letter_by_letter(text: str, *, closed: bool) -> list[int]:
    """Tokens that a tokenizer would never write for this text."""
    ids = [token for letter in text for token in CHAT.encode(letter)]
    return ids + ([CHAT.stop_token_ids[0]] if closed else [])


replies = st.tuples(
    st.sampled_from(["hello", "hello world", "", "Up", " 漢 ", "<answer>Up</answer>"]), st.booleans()
)
users = st.sampled_from(["hello", "go on", "\n", "漢字"])


@st.composite
def requests(draw: st.DrawFn) -> tuple[int, int, list[str], bool]:
    """Which earlier conversation to take up, how much to drop of it, what to say, whether with tools."""
    said = draw(st.lists(users, min_size=1, max_size=2))
    return draw(st.integers(0, 30)), draw(st.integers(0, 8)), said, draw(st.integers(0, 9)) == 0


@given(steps=st.lists(st.tuples(requests(), replies), min_size=1, max_size=14), rewards=st.data())
@settings(max_examples=examples(50), deadline=None)
def test_recorded_tokens_are_never_tokenized_again_and_each_is_learned_from_once(
    steps: list[tuple[tuple[int, int, list[str], bool], tuple[str, bool]]], rewards: st.DataObject
) -> None:
    session, answers = new_session(), answerer()
    conversations: list[Messages] = [[]]
    seen: dict[int, list[int]] = {}
    known: dict[tuple[bool, str], list[int]] = {}
    given_rewards = 0.0
    for (which, kept, said, with_tools), (text, closed) in steps:
        start = conversations[which % len(conversations)]
        kept_messages = start[: len(start) - kept] if kept < 4 else start
        messages = [*kept_messages, *({"role": "user", "content": each} for each in said)]
        prompt = chat_prompt(answers, session, asked(messages, TOOLS if with_tools else None))

        longest = [
            ids
            for count in range(len(messages), 0, -1)
            if (ids := known.get((with_tools, json.dumps(messages[:count])))) is not None
        ]
        if longest:
            assert list(prompt.ids)[: len(longest[0])] == longest[0]
            assert prompt.parent is not None
            as_text = CHAT.decode(prompt.ids, skip_special_tokens=False)
            assert as_text == CHAT.render(messages, tools=TOOLS if with_tools else None)
        else:
            assert prompt.parent is None
            assert prompt.ids == CHAT.encode(CHAT.render(messages, tools=TOOLS if with_tools else None))

        token_ids = letter_by_letter(text, closed=closed)
        reply = record(session, prompt, token_ids, version=len(seen))
        seen[reply.number] = [*prompt.ids, *token_ids]
        messages = [*messages, {"role": "assistant", "content": text}]
        known[with_tools, json.dumps(messages)] = seen[reply.number]
        conversations.append(messages)
        if rewards.draw(st.booleans()):
            session.reward(1.0)
            given_rewards += 1.0

    ended = session.episode()
    assert ended.total_reward == given_rewards
    assert [turn.reply for turn in ended.turns] == [reply.text for reply in session.record.replies]
    assert ended.tokens is not None
    assert session.record.num_tokens == len(ended.tokens)
    segments = ended.segments()
    assert len(segments) == len(session.record.lines())
    learned: Counter[int] = Counter()
    for segment in segments:
        tokens = segment.tokens
        assert tokens is not None
        assert tokens.ids.tolist() in seen.values()
        own = segment.turns[segment.num_given_turns :]
        for turn in own:
            span = slice(turn.response_start, turn.response_end)
            assert tokens.response_mask[span].all()
            assert turn.reply == CHAT.decode(tokens.ids[span].tolist())
        assert tokens.response_mask.sum() == sum(turn.response_end - turn.response_start for turn in own)
        sampled = tokens.response_mask == 1
        learned.update(tokens.versions[sampled].tolist())
        assert (tokens.versions[~sampled] == NO_VERSION).all()
        assert np.allclose(tokens.behavior_logprobs[sampled], -0.25 - tokens.versions[sampled])
    assert learned == Counter(
        {reply.number: len(reply.token_ids) for reply in session.record.replies if reply.token_ids}
    )
    last = last_segment(segments).tokens
    assert last is not None
    assert last.ids.tolist() == seen[session.record.replies[-1].number]


def test_a_conversation_goes_on_with_the_tokens_that_were_sampled() -> None:
    session, answers = new_session(), answerer()
    messages: Messages = [{"role": "system", "content": "You walk."}, {"role": "user", "content": "hello"}]
    first = chat_prompt(answers, session, asked(messages))
    sampled = letter_by_letter("hello", closed=True)
    assert sampled[:-1] != CHAT.encode("hello")
    record(session, first, sampled)
    messages += [{"role": "assistant", "content": "hello"}, {"role": "user", "content": "more"}]
    second = chat_prompt(answers, session, asked(messages))
    assert list(second.ids) == [*first.ids, *sampled, *CHAT.next_prompt(user="more", reply_closed=True)]
    assert second.observation == "more"


def test_a_changed_message_starts_another_line_from_what_is_still_shared() -> None:
    session, answers = new_session(), answerer()
    messages: Messages = [{"role": "user", "content": "hello"}]
    first = record(
        session, chat_prompt(answers, session, asked(messages)), letter_by_letter("Up", closed=True)
    )
    messages += [{"role": "assistant", "content": "Up"}, {"role": "user", "content": "more"}]
    record(session, chat_prompt(answers, session, asked(messages)), letter_by_letter("a", closed=True))
    messages[2] = {"role": "user", "content": "less"}
    branched = chat_prompt(answers, session, asked(messages))
    assert branched.parent is first
    messages[0] = {"role": "user", "content": "HELLO"}
    assert chat_prompt(answers, session, asked(messages)).parent is None


def test_other_tools_are_another_conversation() -> None:
    session, answers = new_session(), answerer()
    messages: Messages = [{"role": "user", "content": "hello"}]
    record(session, chat_prompt(answers, session, asked(messages)), letter_by_letter("Up", closed=True))
    messages += [{"role": "assistant", "content": "Up"}, {"role": "user", "content": "more"}]
    assert chat_prompt(answers, session, asked(messages)).parent is not None
    assert chat_prompt(answers, session, asked(messages, TOOLS)).parent is None


def test_a_tool_call_is_the_same_whatever_its_id_and_the_spaces_in_its_arguments() -> None:
    def call(arguments: str, call_id: str) -> Messages:
        function = {"name": "look", "arguments": arguments}
        message = {"role": "assistant", "content": None}
        return [{**message, "tool_calls": [{"id": call_id, "type": "function", "function": function}]}]

    def key(messages: Messages) -> str:
        return message_keys(asked(messages).conversation)[-1]

    assert key(call('{"a": 1, "b": [2]}', "x")) == key(call('{"b":[2],"a":1}', "y"))
    assert key(call('{"a": 1}', "x")) != key(call('{"a": 2}', "x"))


@given(
    texts=st.lists(st.tuples(st.text("ab \n", max_size=6), st.text("ab", max_size=4)), min_size=1, max_size=5)
)
@settings(deadline=None)
def test_a_prompt_of_text_goes_on_from_the_longest_text_that_was_recorded(
    texts: list[tuple[str, str]],
) -> None:
    session, answers = new_session(), answerer()
    so_far, ids = "", list[int]()
    for new_text, reply_text in texts:
        if not so_far + new_text:
            new_text = "a"
        prompt = answers.completion_prompt(session, so_far + new_text)
        assert prompt.ids[: len(ids)] == ids
        reply = record(session, prompt, letter_by_letter(reply_text, closed=False))
        so_far, ids = so_far + new_text + reply_text, list(reply.ids)
    again = answers.completion_prompt(session, ids)
    assert list(again.ids) == ids
    assert again.parent is not None
    assert list(again.parent.ids) == ids


@pytest.mark.parametrize("ids", [[-1], [10**6]])
def test_token_ids_that_the_model_does_not_have_are_refused(ids: list[int]) -> None:
    from envsdk.engines.endpoint.errors import ApiError

    with pytest.raises(ApiError, match="outside"):
        answerer().completion_prompt(None, ids)


def test_replies_at_once_are_waited_for_once_and_details_stand_beside_what_a_line_began_with() -> None:
    session = new_session()
    for began, seconds in ((10.0, 4.0), (11.0, 1.0), (13.0, 3.0), (20.0, 0.5)):
        prompt = chat_prompt(answerer(), session, asked([{"role": "user", "content": str(began)}]))
        reply = record(session, prompt, letter_by_letter("Up", closed=True))
        reply.asked_at, reply.generate_s = began, seconds
    session.reward(1.0, details='{"task": "one"}')
    episode = session.episode()
    assert episode.generate_s == 6.5
    assert json.loads(episode.turns[-1].details or "") == {"task": "one", "history": []}

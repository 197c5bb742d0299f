"""Conversations as tokens to imitate."""

from __future__ import annotations

from pathlib import Path

import jinja2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk.contracts.chat import ChatTokenizer
from envsdk.contracts.prompts import Line
from envsdk.trainers.warm_start.imitation import imitation_trainer, mean_loss, tokens_of
from tests.tiny_policies import write_tiny_policy


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_policy(tmp_path_factory.mktemp("model"), ["go left", "go right", "you see"])


@pytest.fixture(scope="module")
def chat(model: Path) -> ChatTokenizer:
    return ChatTokenizer.load(model)


def messages_of(roles: list[str]) -> list[dict[str, str]]:
    return [{"role": role, "content": f"go {role} {index}"} for index, role in enumerate(roles)]


# A reply in front of all, or right behind another, is preceded by a generation prompt alone.
ROLES = st.lists(st.sampled_from(["system", "user", "assistant", "tool"]), max_size=9)


@given(roles=ROLES)
def test_the_tokens_are_those_of_the_whole_conversation(chat: ChatTokenizer, roles: list[str]) -> None:
    messages = messages_of(roles)
    demo = tokens_of(Line(spoken=messages), chat, 10_000)
    if "assistant" not in roles:
        assert demo is None
        return
    last = len(roles) - 1 - roles[::-1].index("assistant")
    whole = chat.encode(chat.render(messages[: last + 1], add_generation_prompt=False))
    assert demo is not None
    assert demo.ids.tolist() == whole
    replies = [chat.reply(message["content"]) for message in messages if message["role"] == "assistant"]
    assert demo.ids[demo.response_mask == 1].tolist() == [token for reply in replies for token in reply]


def test_a_template_that_refuses_says_so(model: Path) -> None:
    chat = ChatTokenizer.load(model)
    with pytest.raises((jinja2.TemplateError, KeyError)):
        tokens_of(Line(spoken=[{"role": "assistant"}]), chat, 100)


def test_the_mean_loss_is_that_of_the_reply_tokens(model: Path, chat: ChatTokenizer) -> None:
    import torch

    demos = [
        demo
        for number in range(3)
        if (demo := tokens_of(Line(spoken=messages_of(["user", "assistant"] * (1 + number))), chat, 256))
    ]
    trainer = imitation_trainer(model, sequence_length=256, seed=0, num_steps=1, learning_rate=1e-3)
    expected, count = 0.0, 0
    for demo in demos:
        with torch.no_grad():
            logits = trainer.model.model(input_ids=torch.tensor(demo.ids[None].astype(np.int64))).logits[0]
        logprobs = torch.log_softmax(logits[:-1], -1).gather(
            1, torch.tensor(demo.ids[1:, None].astype(np.int64))
        )
        expected -= float(logprobs[:, 0][torch.tensor(demo.response_mask[1:] == 1)].sum())
        count += demo.num_scored
    assert mean_loss(trainer, demos) == pytest.approx(expected / count, rel=1e-5)


def test_replies_that_are_given_are_not_learned(chat: ChatTokenizer) -> None:
    messages = messages_of(["user", "assistant", "user", "assistant"])
    line = Line(spoken=messages)
    whole, rest = tokens_of(line, chat, 1000), tokens_of(line, chat, 1000, num_given_replies=1)
    assert whole is not None
    assert rest is not None
    assert rest.ids.tolist() == whole.ids.tolist()
    assert rest.ids[rest.response_mask == 1].tolist() == chat.reply(messages[3]["content"])


def test_replies_that_are_masked_are_shown_and_not_learned(chat: ChatTokenizer) -> None:
    messages = messages_of(["user", "assistant", "user", "assistant", "user", "assistant"])
    line = Line(spoken=messages)
    whole, rest = tokens_of(line, chat, 1000), tokens_of(line, chat, 1000, masked_replies=[1])
    assert whole is not None
    assert rest is not None
    assert rest.ids.tolist() == whole.ids.tolist()
    learned = [*chat.reply(messages[1]["content"]), *chat.reply(messages[5]["content"])]
    assert rest.ids[rest.response_mask == 1].tolist() == learned

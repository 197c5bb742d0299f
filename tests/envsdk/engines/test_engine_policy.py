from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk.contracts.chat import ChatTokenizer
from envsdk.contracts.policy import ContextFull, EnvView, PolicyFailed, Reply, SequenceFull, TurnContext
from envsdk.contracts.trajectory import NO_VERSION, FinishReason, TokenLog, VersionSpan
from envsdk.engines.engine import EngineConfig, ErrorKind, GenerationRequest, GenerationResult
from envsdk.engines.engine_policy import EnginePolicy
from envsdk.engines.mock import MockEngine
from envsdk.engines.proxy import InferenceProxy, LocalLink
from envsdk.engines.sampling import SamplingParams
from envsdk.trainers.warm_start.tiny_policy import CHAT_TEMPLATE, build_tokenizer

CHAT = ChatTokenizer(build_tokenizer(["You walk on ice. Up Down Left Right P G _ # turn"]), CHAT_TEMPLATE)
(END,) = CHAT.stop_token_ids
UP = CHAT.encode("Up")


class NoEnv(EnvView):
    async def oracle(self) -> str:
        raise NotImplementedError

    async def legal_actions(self) -> Sequence[str]:
        raise NotImplementedError


class ScriptedProxy(InferenceProxy):
    """Answers at once with the next reply of a script; None is an engine's error."""

    def __init__(
        self,
        *replies: list[int] | None,
        error: str = "",
        error_kind: ErrorKind = ErrorKind.REQUEST_FAILED,
    ) -> None:
        super().__init__({})
        self._replies = list(replies)
        self._error = error
        self._error_kind = error_kind
        self.requests: list[GenerationRequest] = []

    def generate(self, request: GenerationRequest) -> asyncio.Future[GenerationResult]:
        self.requests.append(request)
        ids = self._replies.pop(0)
        reason = FinishReason.ERROR
        if ids is not None:
            reason = FinishReason.STOP if not ids or ids[-1] == END else FinishReason.LENGTH
        count = len(ids or [])
        future: asyncio.Future[GenerationResult] = asyncio.get_running_loop().create_future()
        future.set_result(
            GenerationResult(
                request_id=request.request_id,
                token_ids=np.array(ids or [], np.int32),
                logprobs=np.full(count, -0.25, np.float32),
                version_spans=(VersionSpan(version=4, start=0, end=count),) if count else (),
                finish_reason=reason,
                error=self._error,
                error_kind=self._error_kind,
            )
        )
        return future


def policy(proxy: InferenceProxy, *, sequence_length: int = 512, **options: int) -> EnginePolicy:
    generating = SamplingParams(max_new_tokens=16, temperature=0.7, top_p=0.9, top_k=5)
    return EnginePolicy(proxy, CHAT, generating, sequence_length=sequence_length, **options)


def turn(log: TokenLog, index: int = 0, prompt: str = "P _ G") -> TurnContext:
    return TurnContext(
        system="You walk on ice.",
        prompt=prompt,
        observation=prompt,
        turn_index=index,
        num_actions_left=9 - index,
        env=NoEnv(),
        seed=index + 7,
        log=log,
        session_id="episode",
    )


async def play(player: EnginePolicy, num_turns: int, log: TokenLog) -> list[Reply]:
    return [await player.act(turn(log, index, prompt=f"turn {index}")) for index in range(num_turns)]


replies = st.lists(
    st.lists(st.integers(5, CHAT.vocab_size - 1), max_size=5).flatmap(
        lambda ids: st.sampled_from([ids, [*ids, END]])
    ),
    min_size=1,
    max_size=5,
)


@given(script=replies)
def test_every_request_extends_the_one_before_by_exactly_what_was_sampled(script: list[list[int]]) -> None:
    proxy, log = ScriptedProxy(*script), TokenLog()
    played = asyncio.run(play(policy(proxy), len(script), log))
    sent = [request.prompt_ids.tolist() for request in proxy.requests]
    for (before, after), sampled in zip(pairwise(sent), script, strict=False):
        assert after[: len(before) + len(sampled)] == before + sampled
    arrays = log.arrays()
    assert arrays.ids.tolist() == sent[-1] + script[-1]
    assert int(arrays.response_mask.sum()) == sum(map(len, script))
    for reply, sampled in zip(played, script, strict=True):
        mine = slice(reply.response_start, reply.response_end)
        assert arrays.ids[mine].tolist() == sampled
        assert arrays.response_mask[mine].all()
        assert set(arrays.versions[mine].tolist()) <= {4}
        assert reply.text == CHAT.decode(sampled)
    assert (arrays.versions[arrays.response_mask == 0] == NO_VERSION).all()


@given(script=replies)
def test_each_turn_is_closed_once_whether_the_policy_closed_it_or_not(script: list[list[int]]) -> None:
    proxy, log = ScriptedProxy(*script), TokenLog()
    asyncio.run(play(policy(proxy), len(script), log))
    last_prompt = proxy.requests[-1].prompt_ids.tolist()
    # One for the system message, and for each turn before the last one each for the user and the policy.
    assert last_prompt.count(END) == 1 + 2 * (len(script) - 1) + 1
    assert all((one, other) != (END, END) for one, other in pairwise(last_prompt))


@pytest.mark.parametrize(("index", "left", "session"), [(0, 1, ""), (0, 2, "episode"), (3, 1, "episode")])
async def test_an_only_turn_leaves_no_session_whose_prefix_an_engine_would_keep(
    index: int, left: int, session: str
) -> None:
    proxy = ScriptedProxy([*UP, END])
    await policy(proxy).act(replace(turn(TokenLog(), index), num_actions_left=left))
    assert [request.session_id for request in proxy.requests] == [session]


async def test_the_log_is_what_the_template_writes_for_the_whole_conversation() -> None:
    proxy, log = ScriptedProxy([*UP, END], UP, [*UP, END]), TokenLog()
    await play(policy(proxy), 3, log)
    messages = [{"role": "system", "content": "You walk on ice."}]
    for index in range(3):
        messages.append({"role": "user", "content": f"turn {index}"})
        messages.append({"role": "assistant", "content": "Up"})
    whole = CHAT.encode(CHAT.render(messages, add_generation_prompt=False))
    assert list(log.ids) == whole


async def test_an_empty_reply_is_a_legal_action() -> None:
    proxy, log = ScriptedProxy([], [*UP, END]), TokenLog()
    first, second = await play(policy(proxy), 2, log)
    assert (first.text, first.response_start) == ("", first.response_end)
    assert second.text == "Up"


async def test_a_request_carries_the_sampling_the_seed_and_the_session() -> None:
    proxy = ScriptedProxy([END], [END])
    await play(policy(proxy, max_new_tokens=4), 2, TokenLog())
    for request, seed in zip(proxy.requests, (7, 8), strict=True):
        sampling = request.sampling
        assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.7, 0.9, 5)
        assert (sampling.max_new_tokens, sampling.stop_token_ids) == (4, (END,))
        assert (sampling.seed, request.session_id) == (seed, "episode")
    assert len({request.request_id for request in proxy.requests}) == 2


async def test_a_tag_cannot_ask_for_longer_replies_than_the_engine_gives() -> None:
    proxy = ScriptedProxy([END])
    await policy(proxy, max_new_tokens=99).act(turn(TokenLog()))
    assert proxy.requests[0].sampling.max_new_tokens == 16


async def test_without_room_for_a_whole_reply_nothing_is_sent_and_the_log_stays_as_it_was() -> None:
    log = TokenLog()
    proxy = ScriptedProxy([*UP, END])
    await policy(proxy).act(turn(log))
    needed = len(CHAT.next_prompt(user="P _ G", reply_closed=True)) + 16
    before = list(log.ids)
    with pytest.raises(SequenceFull) as full:
        await policy(proxy, sequence_length=len(log) + needed - 1).act(turn(log, 1))
    assert full.value.num_tokens == len(before) + needed - 16
    assert list(log.ids) == before
    assert len(proxy.requests) == 1
    roomy = ScriptedProxy([END])
    await policy(roomy, sequence_length=len(log) + needed).act(turn(log, 1))
    assert len(roomy.requests) == 1


@pytest.mark.parametrize("kind", ErrorKind)
async def test_an_engines_error_is_put_down_to_the_engine_with_its_kind(kind: ErrorKind) -> None:
    proxy = ScriptedProxy(None, error="turn_timeout is what it says, not what it is", error_kind=kind)
    with pytest.raises(PolicyFailed) as failed:
        await policy(proxy).act(turn(TokenLog()))
    failure = failed.value.failure
    assert (failure.boundary, failure.kind) == ("engine", kind.value)
    assert failure.message == "turn_timeout is what it says, not what it is"


async def test_the_same_seeds_play_the_same_episode_on_a_real_engine() -> None:
    logs = []
    for _ in range(2):
        engine = MockEngine.create(
            EngineConfig(model=None, sequence_length=512, strategy_config={"vocab_size": CHAT.vocab_size})
        )
        await engine.start()
        proxy = InferenceProxy({"mock": LocalLink(engine)})
        proxy.start()
        log = TokenLog()
        await play(policy(proxy), 3, log)
        await proxy.close()
        logs.append(list(log.ids))
    assert logs[0] == logs[1]


def test_members_of_a_group_tokenize_their_prompt_once_and_ask_for_the_same_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    first_prompt = CHAT.first_prompt

    def counted(**options: Any) -> list[int]:
        asked.append(options["user"])
        return first_prompt(**options)

    monkeypatch.setattr(CHAT, "first_prompt", counted)
    proxy = ScriptedProxy(*([[5, END]] * 6))
    shares, alone = policy(proxy, shares_prompts=True), policy(proxy)

    async def test() -> None:
        for player, prompt in ((shares, "P _ G"), (shares, "P _ G"), (shares, "turn 1"), (alone, "P _ G")):
            await player.act(replace(turn(TokenLog(), prompt=prompt), prompt_group=3))
        history = [{"role": "user", "content": "1+1="}, {"role": "assistant", "content": "2"}]
        await shares.act(replace(turn(TokenLog()), history=history))

    asyncio.run(test())
    assert asked == ["P _ G", "turn 1", "P _ G", "P _ G"]
    first, again, other, _, with_history = [request.prompt_ids.tolist() for request in proxy.requests]
    assert first == again
    assert len({len(first), len(with_history)}) == 2
    assert other != first
    assert [request.prompt_group for request in proxy.requests] == [3, 3, 3, None, None]


def test_a_server_whose_context_is_shorter_than_ours_truncates_the_episode() -> None:
    error = "http://x/v1/completions answered 400: This model's maximum context length is 32 tokens."
    log = TokenLog()
    proxy = ScriptedProxy([*UP, END], None, error=error)
    with pytest.raises(ContextFull, match="maximum context length"):
        asyncio.run(play(policy(proxy), 2, log))
    assert log.ids[-1] == END  # nothing of the turn that was not played

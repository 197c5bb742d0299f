"""Supervised learning of replies, for the warm start and for `envsdk.sft`.

    conversation -> Demonstration (tokens, and which of them are replies) -> batches -> sft_step

A conversation becomes tokens as it would have during play: the prompt of each turn behind the reply before
it, replies closed as the policy closes them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from envsdk.contracts.chat import ChatTokenizer
from envsdk.contracts.policy import SequenceFull
from envsdk.contracts.prompts import Line, opening
from envsdk.contracts.seeds import stable_seed
from envsdk.engines.engine_policy import first_prompt

if TYPE_CHECKING:
    from envsdk.trainers.sft_trainer import SftTrainer

WARMUP_SHARE = 0.05
"""Share of the steps, over which the learning rate rises."""
_MIN_LR_RATIO = 0.05
_SCORED_AT_ONCE = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstration:
    """One episode as the policy would have seen and written it; arrays are `[num_tokens]`."""

    ids: NDArray[np.int32]
    response_mask: NDArray[np.int8]
    """1 on the demonstrator's replies, their end of turn included."""

    @property
    def num_scored(self) -> int:
        """Tokens that are learned."""
        return int(self.response_mask.sum())


def tokens_of(
    line: Line,
    chat: ChatTokenizer,
    sequence_length: int,
    *,
    num_given_replies: int = 0,
    masked_replies: Collection[int] = (),
    max_new_tokens: int = 0,
) -> Demonstration | None:
    """The tokens of one conversation, cut after the last reply that fits; None where nobody replies.

    Any roles may stand between replies; the first `num_given_replies` of `line.messages` are not learned, nor
    the `masked_replies`, by their number among the replies.
    Raises SequenceFull when the first reply, or one of `max_new_tokens`, does not fit, and
    jinja2.TemplateError where the template refuses the messages.
    """
    ids: list[int] = []
    mask: list[int] = []
    replies = [index for index, message in enumerate(line.spoken) if message["role"] == "assistant"]
    num_shown = sum(message["role"] == "assistant" for message in line.history)
    before: int | None = None
    for number, index in enumerate(replies, start=num_shown):
        prompt = _prompt(line, before, index, chat)
        reply = chat.reply(line.spoken[index]["content"])
        if not ids and len(prompt) + max(len(reply), max_new_tokens) > sequence_length:
            raise SequenceFull(
                num_tokens=len(prompt),
                max_new_tokens=max(len(reply), max_new_tokens),
                sequence_length=sequence_length,
            )
        if len(ids) + len(prompt) + len(reply) > sequence_length:
            break
        ids += prompt + reply
        is_learned = number >= num_given_replies and number not in masked_replies
        mask += [0] * len(prompt) + [int(is_learned)] * len(reply)
        before = index
    if not ids:
        return None
    return Demonstration(ids=np.array(ids, np.int32), response_mask=np.array(mask, np.int8))


def _prompt(line: Line, before: int | None, index: int, chat: ChatTokenizer) -> list[int]:
    """Tokens from the reply `before`, or the beginning, to the reply `index`."""
    between = line.spoken[0 if before is None else before + 1 : index]
    if before is None:
        history = [*line.history, *between[:-1]]
        if between and between[-1]["role"] == "user":
            user = between[-1]["content"]
            return first_prompt(chat, user, system=line.system, history=history, tools=line.tools)
        return chat.encode(chat.render([*opening(line.system, line.history), *between], tools=line.tools))
    if [message["role"] for message in between] == ["user"]:
        return chat.next_prompt(user=between[0]["content"], reply_closed=True)
    behind, at = line.messages, len(line.messages) - len(line.spoken)
    return chat.behind_reply(behind[: at + index], at + before, reply_closed=True, tools=line.tools)


def batches(
    demonstrations: Sequence[Demonstration], *, size: int, epochs: int, seed: int
) -> Iterator[list[int]]:
    """Indices of each step's demonstrations: every epoch a new order, every demonstration once in it."""
    for epoch in range(epochs):
        order = np.random.default_rng(stable_seed(seed, "warm start", epoch)).permutation(len(demonstrations))
        for start in range(0, len(order), size):
            yield order[start : start + size].tolist()


def imitation_trainer(
    model: Path,
    *,
    sequence_length: int,
    seed: int,
    num_steps: int,
    learning_rate: float,
    max_tokens_per_microbatch: int = 1024,
    strategy_config: Mapping[str, Any] | None = None,
) -> SftTrainer:
    """AdamW with a short warm-up and a linear decay over `num_steps`."""
    from envsdk.contracts.trainer import TrainerConfig
    from envsdk.trainers.sft_trainer import SftTrainer

    return SftTrainer.create(
        TrainerConfig(
            model=model,
            sequence_length=sequence_length,
            seed=seed,
            training_args={
                "learning_rate": learning_rate,
                # Short and long episodes are in one batch: small micro-batches pad less.
                "max_tokens_per_microbatch": max_tokens_per_microbatch,
                "weight_decay": 0.01,
                "adam_beta2": 0.95,
                "lr_scheduler_type": "linear",
                "warmup_steps": max(1, round(WARMUP_SHARE * num_steps)),
                "max_steps": num_steps,
                "min_lr_ratio": _MIN_LR_RATIO,
            },
            strategy_config=dict(strategy_config or {}),
        )
    )


def imitate(
    trainer: SftTrainer,
    demonstrations: Sequence[Demonstration],
    *,
    batch_size: int,
    epochs: int,
    seed: int,
) -> Iterator[tuple[int, dict[str, float]]]:
    """Behavior cloning; yields (steps taken, metrics of the step)."""
    order = batches(demonstrations, size=batch_size, epochs=epochs, seed=seed)
    for step, members in enumerate(order, start=1):
        yield (
            step,
            trainer.sft_step(
                [(demonstrations[index].ids, demonstrations[index].response_mask) for index in members]
            ),
        )


def mean_loss(trainer: SftTrainer, demonstrations: Sequence[Demonstration]) -> float:
    """Cross entropy per reply token in nats, without learning from it."""
    total, num_tokens = 0.0, 0
    for start in range(0, len(demonstrations), _SCORED_AT_ONCE):
        members = demonstrations[start : start + _SCORED_AT_ONCE]
        for demo, logprobs in zip(members, trainer.logprobs([demo.ids for demo in members]), strict=True):
            total -= float(logprobs[demo.response_mask == 1].sum(dtype=np.float64))
            num_tokens += demo.num_scored
    return total / num_tokens

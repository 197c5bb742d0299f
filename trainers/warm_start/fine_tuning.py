"""Fine-tune a policy on recorded conversations.

    result = fine_tune(SFTConfig(data=[Path("demos")], out=Path("cloned"), epochs=3))
    result.held_out_loss        # by epoch, beginning before the first

Only replies are learned, after the prompts as the policy will see them. The result is an ordinary Hugging
Face folder: `pretrain` of a run, `--model` of `evaluate` and `collect`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from omegaconf import OmegaConf
from pydantic import ConfigDict, Field, NonNegativeInt, PositiveFloat, PositiveInt

from envsdk.base.settings.extras import require
from envsdk.base.settings.options import Option, Options
from envsdk.base.settings.precision import DType
from envsdk.base.settings.validation import validated
from envsdk.base.store.atomic import new_folder, write_json_atomically
from envsdk.config import EMBEDDED_DEFAULT
from envsdk.config.reading import Reading
from envsdk.contracts.failures import ConfigurationError
from envsdk.contracts.policy import SequenceFull
from envsdk.contracts.prompts import Message
from envsdk.contracts.seeds import stable_seed
from envsdk.engines.endpoint.messages import spelled_out
from envsdk.rollouts.datasets.conversation import Conversation
from envsdk.rollouts.datasets.conversations import read_conversations
from envsdk.rollouts.datasets.selection import EpisodeFilters

if TYPE_CHECKING:
    from envsdk.contracts.chat import ChatTokenizer
    from envsdk.trainers.warm_start.imitation import Demonstration

RECORD = "sft.json"
"""File next to the weights: what the policy was made from, and its losses."""
_TINY_LENGTH, _LONGEST = 512, 2048
_TINY_RATE, _USUAL_RATE = 2e-3, 1e-5
_SEED_RANGE = 2**31


class SFTConfig(Options):
    """The YAML file of `envsdk sft`; every key can be given as `key=value` too, and most as an option."""

    model_config = ConfigDict(allow_inf_nan=False)

    shown = (
        "data", "out", "model", "epochs", "batch_size", "learning_rate", "sequence_length", "held_out",
        "success_only", "min_reward", "seed",
    )  # fmt: skip

    data: Annotated[list[Path], Option("--data", "-d", metavar="PATH"), Field(min_length=1)]
    """A collection, a run, or files of {"messages": [...]}; repeat the option for more."""
    out: Annotated[Path, Option("--out", "-o", metavar="FOLDER")]
    """Where the policy goes."""
    model: Annotated[str, Option(metavar="FOLDER")] = EMBEDDED_DEFAULT
    """A Hugging Face folder, checkpoint, run or name; embedded_default, a new tiny policy, if absent."""
    epochs: NonNegativeInt = 1
    """Passes over the data; 1 when absent. 0 makes a new policy that knows the words and learned nothing."""
    batch_size: PositiveInt = 16
    """Conversations per step; 16 when absent."""
    learning_rate: PositiveFloat | None = None
    """Peak; 2e-3 for a new tiny policy, otherwise 1e-5, when absent."""
    sequence_length: PositiveInt | None = None
    """Longest conversation in tokens; longer ones are cut."""
    max_tokens_per_microbatch: PositiveInt = 1024
    """Tokens in one forward and backward pass: bounds memory and changes no result."""
    held_out: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Share of the tasks to measure the loss on, 0.1 when absent; 0 for none."""
    success_only: bool = False
    """Learn solved episodes alone."""
    min_reward: float | None = None
    """Learn episodes with at least this total reward."""
    seed: Annotated[int, Field(ge=0)] = 42
    """Seed of weights, order and what is held out; 42 when absent."""
    hidden_size: PositiveInt = 128
    """Width of a new tiny policy."""
    num_layers: PositiveInt = 4
    """Depth of a new tiny policy."""
    num_heads: PositiveInt = 4
    """Attention heads of a new tiny policy; divides `hidden_size`."""
    dtype: DType = "auto"
    """Precision of the forward pass; weights and optimizer stay float32. The model's own when absent, where
    the processor multiplies it."""
    device: str = "cpu"
    """A torch device such as `cpu` or `cuda:0`."""
    num_threads: PositiveInt = 1
    """CPU threads of one operator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SFTResult:
    """The policy, and how well it learned."""

    folder: Path
    num_learned: int
    """Conversations."""
    num_held_out: int
    num_cut: int
    """Conversations that were too long and are learned in part."""
    train_loss: list[float]
    """Cross entropy per reply token in nats, mean over the steps of each epoch."""
    held_out_loss: list[float]
    """Before the first epoch, and after each; empty when nothing is held out."""


OnStep = Callable[[int, int, float], None]
"""Called with the step, the number of steps, and the loss."""


def fine_tune(
    config: SFTConfig,
    *,
    on_step: OnStep | None = None,
    on_epoch: Callable[[int, float | None, float | None], None] | None = None,
) -> SFTResult:
    """Learn the conversations of `config.data` and write the policy to `config.out`.

    `on_epoch` is called with the epoch (0 before the first), its loss in training and the held-out loss.
    Raises ConfigurationError, and StorageError when the folder cannot be written: it is then not there.
    """
    require("fine-tuning", "torch", "transformers", "safetensors")
    started = time.monotonic()
    out = config.out.expanduser()
    if out.exists():
        raise ConfigurationError(f"--out: {out} is there already: choose another folder, or remove it")
    filters = EpisodeFilters(success_only=config.success_only, min_reward=config.min_reward)
    conversations = [each for each in read_conversations(config.data, filters) if each.num_learned]
    learned, held_out = split_held_out(conversations, share=config.held_out, seed=config.seed)
    _check_enough(config, learned, held_out)
    with new_folder(out) as folder, TemporaryDirectory(prefix="envsdk-sft-") as scratch:
        base, sequence_length = _base_model(config, conversations, Path(scratch) / "base")
        result = _learn(config, base, sequence_length, learned, held_out, folder, on_step, on_epoch)
        record = {
            "format": "envsdk.sft/1",
            "config": config.model_dump(mode="json"),
            "sequence_length": sequence_length,
            "learned": result.num_learned,
            "held_out": result.num_held_out,
            "cut": result.num_cut,
            "train_loss": result.train_loss,
            "held_out_loss": result.held_out_loss,
            "seconds": round(time.monotonic() - started, 1),
        }
        write_json_atomically(folder / RECORD, record)
    return result


def split_held_out(
    conversations: Sequence[Conversation], *, share: float, seed: int
) -> tuple[list[Conversation], list[Conversation]]:
    """What is learned, and what is held out: `share` of the tasks, so that no task is on both sides."""
    learned: list[Conversation] = []
    held_out: list[Conversation] = []
    for conversation in conversations:
        is_held_out = stable_seed(seed, "held out", conversation.task) < share * _SEED_RANGE
        (held_out if is_held_out else learned).append(conversation)
    return learned, held_out


def _check_enough(config: SFTConfig, learned: Sequence[object], held_out: Sequence[object]) -> None:
    where = ", ".join(map(str, config.data))
    if not learned and not held_out:
        raise ConfigurationError(f"--data: {where} holds no conversation with a reply that can be learned")
    if not learned or (config.held_out and not held_out):
        raise ConfigurationError(
            f"--held-out: a share of {config.held_out:g} leaves {len(learned)} conversations to learn and "
            f"{len(held_out)} held out, of few tasks; use more data, another share or --seed, or --held-out 0"
        )


def _base_model(config: SFTConfig, conversations: Sequence[Conversation], folder: Path) -> tuple[Path, int]:
    """The folder to begin with, and the length of sequences."""
    if config.model != EMBEDDED_DEFAULT:
        from envsdk.rollouts.play.model import check_model, find_model_folder

        base = find_model_folder(Path(config.model))
        check_model(base)
        positions = json.loads((base / "config.json").read_text()).get("max_position_embeddings", _LONGEST)
        longest = int(positions)
        if config.sequence_length is not None and config.sequence_length > longest:
            raise ConfigurationError(
                f"--sequence-length: {base} takes {longest} tokens, not {config.sequence_length}"
            )
        return base, config.sequence_length or min(longest, _LONGEST)
    from envsdk.base.registry import known_text_pieces
    from envsdk.trainers.warm_start.tiny_policy import build_tokenizer, write_random_model, write_tokenizer

    sequence_length = config.sequence_length or _TINY_LENGTH
    if config.hidden_size % config.num_heads:
        raise ConfigurationError(
            f"num_heads={config.num_heads} does not divide hidden_size={config.hidden_size}"
        )
    folder.mkdir()
    shown = (spelled_out(each.messages, each.line.tools) for each in conversations)
    texts = (message["content"] for messages in shown for message in messages)
    tokenizer = build_tokenizer(texts, pieces=known_text_pieces())
    write_tokenizer(folder, tokenizer, sequence_length=sequence_length)
    write_random_model(
        folder,
        tokenizer,
        hidden_size=config.hidden_size,
        num_layers=config.num_layers,
        num_heads=config.num_heads,
        sequence_length=sequence_length,
        seed=config.seed,
    )
    return folder, sequence_length


def _learn(
    config: SFTConfig,
    base: Path,
    sequence_length: int,
    learned: Sequence[Conversation],
    held_out: Sequence[Conversation],
    folder: Path,
    on_step: OnStep | None,
    on_epoch: Callable[[int, float | None, float | None], None] | None,
) -> SFTResult:
    from envsdk.contracts.chat import ChatTokenizer
    from envsdk.trainers.warm_start.imitation import imitate, imitation_trainer, mean_loss

    chat = ChatTokenizer.load(base)
    demos, num_cut = _tokenize(learned, chat, sequence_length)
    held_out_demos, num_held_out_cut = _tokenize(held_out, chat, sequence_length)
    steps_per_epoch = -(-len(demos) // config.batch_size)
    num_steps = config.epochs * steps_per_epoch
    usual_rate = _TINY_RATE if config.model == EMBEDDED_DEFAULT else _USUAL_RATE
    trainer = imitation_trainer(
        base,
        sequence_length=sequence_length,
        seed=config.seed,
        num_steps=max(num_steps, 1),
        learning_rate=config.learning_rate or usual_rate,
        max_tokens_per_microbatch=config.max_tokens_per_microbatch,
        strategy_config={
            "device": config.device,
            "dtype": config.dtype,
            "num_threads": config.num_threads,
        },
    )
    train_loss: list[float] = []
    held_out_loss: list[float] = []

    def end_epoch(epoch: int) -> None:
        if held_out_demos:
            held_out_loss.append(mean_loss(trainer, held_out_demos))
        if on_epoch is not None:
            on_epoch(
                epoch, train_loss[-1] if train_loss else None, held_out_loss[-1] if held_out_loss else None
            )

    end_epoch(0)
    losses: list[float] = []
    for step, metrics in imitate(
        trainer, demos, batch_size=config.batch_size, epochs=config.epochs, seed=config.seed
    ):
        losses.append(metrics["sft/loss"])
        if on_step is not None:
            on_step(step, num_steps, losses[-1])
        if step % steps_per_epoch == 0:
            train_loss.append(sum(losses) / len(losses))
            losses = []
            end_epoch(step // steps_per_epoch)
    trainer.save_pretrained(folder)
    return SFTResult(
        folder=config.out,
        num_learned=len(demos) if config.epochs else 0,
        num_held_out=len(held_out_demos),
        num_cut=num_cut + num_held_out_cut,
        train_loss=train_loss,
        held_out_loss=held_out_loss,
    )


def _tokenize(
    conversations: Iterable[Conversation], chat: ChatTokenizer, sequence_length: int
) -> tuple[list[Demonstration], int]:
    """What is learned of the conversations, and how many of them are cut."""
    import jinja2

    from envsdk.trainers.warm_start.imitation import tokens_of

    demos, num_cut, too_long = [], 0, list[tuple[int, Conversation]]()
    for number, conversation in enumerate(conversations):
        try:
            demo = tokens_of(
                conversation.line,
                chat,
                sequence_length,
                num_given_replies=conversation.num_given_replies,
                masked_replies=conversation.masked_replies,
            )
        except jinja2.TemplateError as error:
            raise ConfigurationError(
                f"--data: the model's chat template refuses conversation {number}: {error}"
            ) from error
        except SequenceFull as full:
            too_long.append((full.num_needed, conversation))
            continue
        if demo is not None:
            num_cut += _is_cut(conversation, demo)
            demos += [demo] if demo.num_scored else []
    if too_long:
        needed, longest = max(too_long, key=itemgetter(0))
        raise ConfigurationError(
            f"--sequence-length: {sequence_length} tokens are too few for the first reply of a conversation: "
            f"{needed} are needed, for one that begins with {_beginning(longest.messages)!r}"
        )
    return demos, num_cut


def _beginning(messages: Sequence[Message]) -> str:
    text = messages[0]["content"]
    return text if len(text) <= 40 else text[:37] + "..."


def _is_cut(conversation: Conversation, demo: Demonstration) -> bool:
    return int(np.count_nonzero(np.diff(demo.response_mask, prepend=0) == 1)) < conversation.num_learned


def load_sft_config(file: Path | None, values: Mapping[str, Any]) -> SFTConfig:
    """The YAML file, if there is one, with `values` over it; ConfigurationError tells all that is wrong."""
    written: Any = {} if file is None else OmegaConf.to_container(Reading().read(file))
    return validated(SFTConfig, {**written, **values}, str(file or "sft"))

"""`pretrain: embedded_default`: the tiny policy, made once and kept.

    collect demonstrations -> tokenizer from their text -> random weights -> behavior cloning -> rename

The demonstrator is the environments' own oracle, or another scripted policy, made imperfect: a share
`epsilon` of its moves is random. The clone therefore knows the game and plays it badly, which is what
reinforcement learning needs: successes to reinforce, and room above them.

    folder = prepare_policy(load_config("agentic_async.yaml").config)

The folder's name is a hash of everything that decides its content, including the environments' sources. It
lies in `$ENVSDK_CACHE`, or in `envsdk` in the user's cache folder. It is written under another name and
renamed, so it is complete or absent; processes that want the same policy wait for the one that makes it.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

import envsdk
from envsdk.base.display.console import StatusLine, TerminalConsole
from envsdk.base.display.episode_progress import EpisodeProgress
from envsdk.base.registry import load_entry_point
from envsdk.base.registry import spec as registered
from envsdk.base.store.atomic import make_folder, replaced_folder, write_json_atomically
from envsdk.base.store.cache import cache_folder
from envsdk.base.store.file_lock import held_to_make
from envsdk.base.store.shard_plan import plan_shards, usual_shard_size
from envsdk.base.store.source_digest import source_digest
from envsdk.config import EMBEDDED_DEFAULT
from envsdk.config.rlvr import PROMPTS_ENV, source_of
from envsdk.contracts.chat import ChatTokenizer
from envsdk.contracts.failures import ConfigurationError
from envsdk.contracts.policy import SequenceFull
from envsdk.contracts.prompts import TagPrompts, own_history
from envsdk.contracts.trajectory import Trajectory
from envsdk.engines.endpoint.messages import spelled_out
from envsdk.managers.policies import OraclePolicy, policy_class
from envsdk.managers.traj_env_manager import prompt_too_long
from envsdk.rewards.prompt_data.opening import open_prompts
from envsdk.rollouts.datasets.conversation import conversations_of
from envsdk.rollouts.play.options import ENDPOINT, PlayOptions, TaskOptions
from envsdk.rollouts.play.player import MODEL, Player, make_player
from envsdk.rollouts.play.source import resolve_source
from envsdk.trainers.warm_start.imitation import Demonstration, imitate, imitation_trainer, tokens_of
from envsdk.trainers.warm_start.tiny_policy import (
    build_tokenizer,
    check_pieces,
    write_random_model,
    write_tokenizer,
)

if TYPE_CHECKING:
    from envsdk.config import RunConfig, WarmStartArgs
    from envsdk.managers.traj_env_manager import TagSetup
    from envsdk.trainers.sft_trainer import SftTrainer

RECORD = "warm_start.json"
"""File next to the weights: the recipe of the policy, and how well it imitates."""

_RECIPE = 2
"""Raised when the same settings would give another policy."""
_HOPELESS = 32
"""With so many failed demonstrations of the last tag and no other of any, no more are played."""


def prepare_policy(config: RunConfig, *, console: Console | None = None, device: str = "cpu") -> Path:
    """The folder of the tiny policy that `config` describes; made if it is not there yet.

    `device` is the torch device on which it is cloned; a policy that is there is taken as it is.
    Shows progress on stderr. Raises ConfigurationError when a tag's environment has no oracle or its
    first prompt is longer than `sequence_length`, and StorageError when the cache cannot be written.
    """
    console = console or TerminalConsole(file=sys.stderr)
    config = _as_demonstrated(config)
    description = _describe(config)
    digest = hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()[:16]
    parent = cache_folder() / "policies"
    folder = parent / digest
    if (folder / RECORD).is_file():
        console.print(f"warm start: {folder}", soft_wrap=True)
        return folder
    make_folder(parent)
    waiting = "warm start: another process is making this policy, waiting"
    with held_to_make(parent / f".{digest}.lock", lambda: console.print(waiting, soft_wrap=True)):
        if not (folder / RECORD).is_file():
            _make(config, description, folder, console, device)
    return folder


def _as_demonstrated(config: RunConfig) -> RunConfig:
    """The configuration whose training is the demonstrations."""
    tags = {tag: env.demonstrated for tag, env in config.custom_envs.items()}
    groups = config.train_env_manager.groups_per_tag
    partition = [number * tags[tag].demonstration_weight for tag, number in groups.items()]
    manager = config.train_env_manager.model_copy(update={"num_groups_partition": partition})
    return config.model_copy(update={"custom_envs": tags, "train_env_manager": manager})


def demonstrations_of(
    trajectory: Trajectory, chat: ChatTokenizer, shown: TagPrompts, sequence_length: int
) -> list[Demonstration]:
    """The tokens of each segment, cut after the last turn that fits; none of one whose first does not. Random
    moves are learned too: the clone is to slip.

    Raises SequenceFull where the first prompt of the episode leaves no room for a reply.
    """
    found = []
    for each in conversations_of(replace(trajectory, shown=shown)):
        limits: Any = {"num_given_replies": each.num_given_replies, "max_new_tokens": shown.max_new_tokens}
        try:
            found.append(tokens_of(each.line, chat, sequence_length, **limits))
        except SequenceFull:
            if each.beginning is None:
                raise
    return [demo for demo in found if demo is not None]


def _describe(config: RunConfig) -> dict[str, Any]:
    """All that decides the policy, as JSON."""
    args = config.warm_start
    try:
        check_pieces(args.pieces)
    except ValueError as error:
        raise ConfigurationError(f"warm_start.pieces: {error}") from None
    settings = args.model_dump(mode="json")
    if not args.pieces:
        del settings["pieces"]
    if args.demonstrator == OraclePolicy.name:
        del settings["demonstrator"]
    elif args.demonstrator in (MODEL, ENDPOINT):
        raise ConfigurationError(
            f"warm_start.demonstrator: `{args.demonstrator}` needs a model, and there is none yet; "
            "name a policy without one, such as oracle"
        )
    player = _demonstrator(config, config.train_env_manager.tags)
    prompts = _prompts_digest(config)
    return {
        "recipe": _RECIPE,
        "envsdk": envsdk.__version__,
        "sequence_length": config.sequence_length,
        "warm_start": settings,
        "episodes": _num_episodes(config),
        "demonstrator": player.describe(),
        "sources": _sources(config),
        **({"prompts": prompts} if prompts else {}),
    }


def _num_episodes(config: RunConfig) -> Mapping[str, int]:
    """Demonstrations by tag, in the order in which tags are played."""
    return resolve_source(config).episodes_by_tag(config.warm_start.num_episodes, split="train", tags=None)


def _prompts_digest(config: RunConfig) -> dict[str, str]:
    """Digests by tag, which change with the rows of prompt data that the demonstrations may answer."""
    found = {}
    for tag in config.train_env_manager.tags:
        env = config.custom_envs[tag]
        if env.env_type == PROMPTS_ENV:
            prompts = open_prompts(source_of(env.env_config))
            seed = env.env_config.get("order_seed", 0) if env.env_config.get("shuffle") else None
            digest = hashlib.sha256()
            for number in range(min(len(prompts), config.warm_start.num_episodes)):
                row = prompts[prompts.nth(number, seed=seed)]
                content = [list(row.messages), dict(row.fields)]
                digest.update(json.dumps(content, sort_keys=True, default=str).encode())
            found[tag] = digest.hexdigest()[:16]
    return found


def _alone(config: RunConfig) -> RunConfig:
    """The configuration in which the demonstrator plays the roles of opponents too."""
    tags = {tag: each.model_copy(update={"players": None}) for tag, each in config.custom_envs.items()}
    return config.model_copy(update={"custom_envs": tags})


def _demonstrator(config: RunConfig, tags: Iterable[str]) -> Player:
    args, source = config.warm_start, _alone(config)
    try:
        options = TaskOptions.of(
            source=source,
            num_episodes=args.num_episodes,
            policy=args.demonstrator,
            epsilon=args.epsilon,
            seed=args.seed,
        )
        return make_player(resolve_source(source), options, PlayOptions(), tags=tags)
    except ConfigurationError as error:
        if config.warm_start.demonstrator != OraclePolicy.name:
            raise ConfigurationError(f"warm_start.demonstrator: {error}") from error
        raise ConfigurationError(
            f"pretrain: {EMBEDDED_DEFAULT} is warm-started by the environments' own oracles, and one cannot "
            f"play ({error}); set `pretrain` to the folder of a model instead"
        ) from error


def _sources(config: RunConfig) -> str:
    """Sources of the environments and the demonstrator: other code plays other games."""
    tags = [config.custom_envs[tag] for tag in config.train_env_manager.tags]
    environments = [load_entry_point(registered(tag.env_type)) for tag in tags]
    demonstrator = policy_class(config.warm_start.demonstrator)
    return source_digest([*environments, demonstrator], [tag.env_config for tag in tags])


def _make(
    config: RunConfig, description: Mapping[str, Any], folder: Path, console: Console, device: str
) -> None:
    started = time.monotonic()
    for line in _announced(config, description, folder):
        console.print(f"warm start: {line}", soft_wrap=True)
    trajectories = _collect(config, console)
    with replaced_folder(folder) as work:
        score = _clone(config, trajectories, work, console, device)
        solved = sum(trajectory.success for trajectory in trajectories) / len(trajectories)
        took = time.monotonic() - started
        record = {**description, "demonstrator_success": solved, **score, "seconds": round(took, 1)}
        write_json_atomically(work / RECORD, record)
    console.print(
        f"warm start: done in {took:.0f} s; the demonstrator solved {solved:.0%}, its moves are "
        f"predicted with cross entropy {score['loss']:.3f} per token",
        soft_wrap=True,
    )


def _announced(config: RunConfig, description: Mapping[str, Any], folder: Path) -> Iterator[str]:
    """What is made, and what would do instead."""
    tags = description["demonstrator"]["tags"]
    yield (
        f"making a tiny policy for {', '.join(tags)} once, in {folder}: "
        f"{config.warm_start.num_episodes:,} demonstrations, then imitation"
    )
    for file in sorted(folder.parent.glob(f"*/{RECORD}")):
        with suppress(OSError, ValueError, KeyError, TypeError):
            other = json.loads(file.read_bytes())
            known = other["demonstrator"]["tags"]
            if tags.items() <= known.items() and other["sequence_length"] >= config.sequence_length:
                names = ", ".join(known)
                yield f"there is one for {names} already: to take that instead, pretrain={file.parent}"
                return


def _collect(config: RunConfig, console: Console) -> list[Trajectory]:
    counts, num_failed = _num_episodes(config), 0
    # Tags are played one after the other: one that cannot be demonstrated says nothing of the next.
    *before, last = counts.values()
    hopeless = sum(before) + min(last, _HOPELESS)
    plans = plan_shards(counts, split="train", shard_size=usual_shard_size(sum(counts.values())))
    played: dict[int, Trajectory] = {}

    def ended(position: int, trajectory: Trajectory) -> None:
        nonlocal num_failed
        played[position] = trajectory
        failure = trajectory.failure
        progress.played(1, trajectory.success, failure is not None)
        num_failed += failure is not None
        if num_failed == len(played) == hopeless:
            raise ConfigurationError(
                f"warm_start: the first {num_failed} demonstrations all failed, one with {failure}"
            )

    title, total = "warm start: demonstrations", config.warm_start.num_episodes
    with EpisodeProgress(title, total=total, console=console) as progress:
        _demonstrator(config, counts).play(chain.from_iterable(plan.tasks() for plan in plans), ended)
    trajectories = [played[position] for position in sorted(played)]
    for line in _left_out(trajectories):
        console.print(f"warm start: {line}", soft_wrap=True)
    return [trajectory for trajectory in trajectories if trajectory.failure is None and trajectory.turns]


def _left_out(trajectories: Sequence[Trajectory]) -> Iterator[str]:
    """How many demonstrations of each tag cannot be imitated, and why, for example."""
    for tag in dict.fromkeys(trajectory.task.tag for trajectory in trajectories):
        own = [trajectory for trajectory in trajectories if trajectory.task.tag == tag]
        failures = [trajectory.failure for trajectory in own if trajectory.failure is not None]
        if failures:
            yield (
                f"{len(failures)} of {len(own)} demonstrations of {tag} are left out; the first failed with "
                f"{failures[0]}"
            )


def _clone(
    config: RunConfig, trajectories: Sequence[Trajectory], folder: Path, console: Console, device: str
) -> dict[str, float]:
    """Write the tokenizer, the random model and then the cloned weights into `folder`."""
    from envsdk.managers.wiring import tag_setups

    args = config.warm_start
    setups = tag_setups(config, config.train_env_manager)
    tokenizer = build_tokenizer(_texts(trajectories, setups), pieces=_pieces(config))
    write_tokenizer(folder, tokenizer, sequence_length=config.sequence_length)
    write_random_model(
        folder,
        tokenizer,
        hidden_size=args.hidden_size,
        num_layers=args.num_layers,
        num_heads=args.num_heads,
        sequence_length=config.sequence_length,
        seed=args.seed,
    )
    chat = ChatTokenizer.load(folder)
    demonstrations = _tokenize(trajectories, chat, setups, config.sequence_length)
    num_steps = args.epochs * -(-len(demonstrations) // args.batch_size)
    trainer = imitation_trainer(
        folder,
        sequence_length=config.sequence_length,
        seed=args.seed,
        num_steps=num_steps,
        learning_rate=args.learning_rate,
        strategy_config={"device": device},
    )
    score = _imitate(trainer, demonstrations, args, num_steps, console)
    trainer.save_pretrained(folder)
    return {**score, "num_parameters": float(sum(p.numel() for _, p in trainer.model.parameters()))}


def _pieces(config: RunConfig) -> list[str]:
    """Regular expressions of single tokens: those of the file, then those of its environments."""
    tags = [config.custom_envs[tag] for tag in config.train_env_manager.tags]
    declared = [piece for tag in tags for piece in registered(tag.env_type).text_pieces]
    return list(dict.fromkeys([*config.warm_start.pieces, *declared]))


def _texts(trajectories: Sequence[Trajectory], setups: Mapping[str, TagSetup]) -> Iterator[str]:
    """All that a policy reads and writes, as far as the vocabulary is concerned."""
    for setup in setups.values():
        yield setup.prompts.system
        yield setup.prompts.user(
            observation="", turn_index=0, num_actions_left=0, max_response_length=setup.max_new_tokens
        )
    for trajectory in trajectories:
        before = spelled_out(own_history(trajectory.turns), trajectory.tools)
        yield from (message["content"] for message in before)
        for turn in trajectory.turns:
            yield turn.observation
            yield turn.reply


def _tokenize(
    trajectories: Sequence[Trajectory],
    chat: ChatTokenizer,
    setups: Mapping[str, TagSetup],
    sequence_length: int,
) -> list[Demonstration]:
    demonstrations, too_long = [], list[tuple[int, str, SequenceFull]]()
    for trajectory in trajectories:
        tag = trajectory.task.tag
        try:
            demonstrations += demonstrations_of(trajectory, chat, setups[tag].shown, sequence_length)
        except SequenceFull as full:
            too_long.append((full.num_needed, tag, full))
    if too_long:
        _, tag, longest = max(too_long, key=itemgetter(0))
        raise ConfigurationError(f"warm_start: {prompt_too_long(tag, longest).message}")
    return demonstrations


def _imitate(
    trainer: SftTrainer,
    demonstrations: Sequence[Demonstration],
    args: WarmStartArgs,
    num_steps: int,
    console: Console,
) -> dict[str, float]:
    """Behavior cloning; returns loss and accuracy per token, averaged over the last tenth of the steps."""
    tail: list[dict[str, float]] = []
    with StatusLine(console) as status:
        steps = imitate(
            trainer, demonstrations, batch_size=args.batch_size, epochs=args.epochs, seed=args.seed
        )
        for step, metrics in steps:
            if step > 0.9 * num_steps:
                tail.append(metrics)
            status.show(f"warm start: imitating, step {step}/{num_steps}, loss {metrics['sft/loss']:.3f}")
    return {
        name: float(np.mean([metrics[f"sft/{name}"] for metrics in tail])) for name in ("loss", "accuracy")
    }

"""A run and a data set as the product writes them, small and with something of everything."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from envsdk.base.store.trajectories import write_trajectories
from envsdk.contracts.failures import Boundary, Failure
from envsdk.contracts.trajectory import Outcome, Task, TokenLog, Trajectory, Turn, VersionSpan
from envsdk.tracking import JsonlTracker
from envsdk.tracking.timeline import Timeline, Track

ATTACK = "</script></pre><script>window.attacked = 1</script><img src=x onerror='window.attacked = 1'>"
TAGS = ("FrozenLake", "SimpleSokoban")
WORDS = ("push", "the", "box", "Left", "Right", "hole", "éclair", "goal")
STEPS = 4
GROUP_SIZE = 4
START_S = 1_767_225_600.0


def tokenizer() -> Tokenizer:
    """One token for each byte: any text can be written, and a character may take several tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({letter: number for number, letter in enumerate(alphabet)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return made


_TOKENIZER = tokenizer()


def encode(text: str) -> list[int]:
    return list(_TOKENIZER.encode(text, add_special_tokens=False).ids)


def make_trajectory(
    number: int,
    *,
    tag: str = TAGS[0],
    group: int = 0,
    split: str = "train",
    version: int = 0,
    outcome: Outcome = Outcome.TERMINATED,
    success: bool = False,
    replies: Sequence[str] = ("Left", "Right"),
    observation: str = "P _\n# G",
    failure: Failure | None = None,
    with_tokens: bool = True,
) -> Trajectory:
    """Each reply's last token is sampled by the next version, its log-probabilities fall from 0 on."""
    log = TokenLog()
    turns = []
    for turn, reply in enumerate(replies):
        log.append_prompt(encode(f"<user>{observation}<reply>"))
        start = len(log)
        ids = encode(reply)
        spans = [VersionSpan(version=version, start=0, end=max(0, len(ids) - 1))]
        if ids:
            spans.append(VersionSpan(version=version + 1, start=len(ids) - 1, end=len(ids)))
        log.append_sampled(ids, [-0.7 * at for at in range(len(ids))], spans)
        turns.append(
            Turn(
                observation=observation,
                reply=reply,
                reward=1.0 if success and turn == len(replies) - 1 else -0.25,
                response_start=start if with_tokens else 0,
                response_end=len(log) if with_tokens else 0,
                metrics={"action_is_valid": 1.0},
            )
        )
    return Trajectory(
        trajectory_id=f"{split}-{number}",
        group_id=group,
        task=Task(tag=tag, split=split, index=group),
        seed=group + 100,
        outcome=outcome,
        success=success,
        turns=tuple(turns),
        tokens=log.arrays() if with_tokens else None,
        failure=failure,
        final_observation="_ P\n# G",
        started_at=START_S + number,
        ended_at=START_S + number + 2.5,
        generate_s=1.5,
        env_s=0.5,
        worker="train-0#0",
    )


def branched(trajectory: Trajectory) -> Trajectory:
    """The same four turns as two lines, the first of which branches after its first turn."""
    tree = zip(trajectory.turns, (None, None, -1, 0), ("main", "main", "helper", "main"), strict=True)
    return replace(
        trajectory, turns=tuple(replace(turn, follows=before, role=role) for turn, before, role in tree)
    )


def make_batch(step: int, *, split: str = "train", group_size: int = GROUP_SIZE) -> list[Trajectory]:
    """Two groups of a step, the same on every call."""
    rng = random.Random(f"{split} {step}")
    batch = []
    for place, tag in enumerate(TAGS):
        group = 2 * step + place
        for member in range(group_size):
            words = [" ".join(rng.choices(WORDS, k=3)) for _ in range(rng.randint(1, 4))]
            batch.append(
                make_trajectory(
                    group * group_size + member,
                    tag=tag,
                    group=group,
                    split=split,
                    version=step,
                    success=rng.random() < 0.3 + 0.1 * step,
                    replies=words,
                )
            )
    return batch


def write_run(folder: Path, *, is_over: bool = True) -> Path:
    """A run of `STEPS` steps with one discarded file and two validations; returns its folder."""
    (folder / "trajectories").mkdir(parents=True)
    (folder / "config.yaml").write_text(
        f"exp_name: tiny\nmax_steps: {STEPS}\nasync_generation_ratio: 1\nseed: 42\npretrain: nowhere\n"
    )
    checkpoint = folder / "checkpoints" / "step_000004" / "model"
    checkpoint.mkdir(parents=True)
    tokenizer().save(str(checkpoint / "tokenizer.json"))
    tracker = JsonlTracker(folder / "metrics.jsonl")
    timeline = Timeline(folder / "timeline.json")
    for step in range(STEPS):
        write_step(folder, step, tracker=tracker, timeline=timeline)
    failed = make_trajectory(
        900,
        group=0,
        outcome=Outcome.FAILED,
        replies=("Left",),
        failure=Failure(boundary=Boundary.ENVIRONMENT, kind="step_timeout", message=f"waited 30 s {ATTACK}"),
    )
    attack = make_trajectory(901, group=1, tag=TAGS[1], replies=(ATTACK, "Down"), observation=ATTACK)
    write_trajectories(
        folder / "trajectories" / "discarded_step_000001.parquet",
        [failed, attack],
        metadata={"ends": json.dumps(["failed: step_timeout", "stale: 2 versions behind"])},
    )
    for step in (0, STEPS):
        write_trajectories(
            folder / "trajectories" / f"val_{step:06d}.parquet", make_batch(step, split="val", group_size=1)
        )
    tracker.log(STEPS, {"val/success/mean": 0.75, "val/success/FrozenLake": 0.75}, time_unix_s=START_S + 90)
    tracker.close()
    if is_over:
        timeline.close()
    return folder


def write_step(folder: Path, step: int, *, tracker: JsonlTracker, timeline: Timeline) -> None:
    """What one step leaves behind."""
    at = START_S + 10 * step
    write_trajectories(folder / "trajectories" / f"step_{step:06d}.parquet", make_batch(step))
    metrics = {f"success/{tag}": 0.2 + 0.1 * step for tag in TAGS} | {
        f"reward/{tag}": -0.5 + 0.2 * step for tag in TAGS
    }
    metrics |= {"success/mean": 0.2 + 0.1 * step, "reward/mean": -0.5 + 0.2 * step, "time/step_s": 10.0}
    metrics |= {"ledger/delivered": 8.0 * (step + 1), "ledger/failed": 1.0, "actor/entropy": 1 / (step + 1)}
    metrics |= {"failures/environment/step_timeout": 1.0 if step == 1 else 0.0, "actor/lr": 0.001}
    if step == 0:
        metrics |= {"val/success/mean": 0.25, "val/success/FrozenLake": 0.25}
    tracker.log(step, metrics, time_unix_s=at + 10)
    timeline.span(Track.TRAINER, "wait", at, at + 4, step=step)
    timeline.span(Track.TRAINER, "train", at + 4, at + 9, step=step)
    timeline.span(Track.GENERATION, "generate", at + 1, at + 6, step=step)
    timeline.span(Track.PUBLISH, "publish", at + 9, at + 10, step=step)

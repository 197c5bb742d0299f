"""`Trajectories` and `Batch`: episodes as a sequence, and their conversions.

trajectories = envsdk.rollout_sync("envsdk/FrozenLake-v1", policy="oracle", tasks=8, group_size=4)
trajectories.success_rate, trajectories.groups[0]
trajectories.to_frame(), trajectories.to_messages()
trajectories.to_arrays(), trajectories.advantages("grpo")       # of a policy that samples tokens
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from envsdk.contracts.segments import Segment, given_and_masked_replies
from envsdk.contracts.trajectory import Task, Trajectory

if TYPE_CHECKING:
    from envsdk.rollouts.results.arrays import Layout, Library, Side
    from envsdk.rollouts.results.frames import FrameLibrary, FrameRow

_SHOWN_TAGS = 3
_SHOWN_REASON = 120
"""Characters."""


class Trajectories(Sequence[Trajectory]):
    """Episodes in a fixed order; never changed. A slice is `Trajectories` as well.

    Failed episodes are members like all others, and never scored: rates and means leave them out, and
    conversions mark them.
    """

    __slots__ = ("_episodes", "_group_of")

    def __init__(self, trajectories: Iterable[Trajectory] = ()) -> None:
        self._episodes = tuple(trajectories)
        self._group_of: tuple[int, ...] | None = None

    @classmethod
    def from_folder(cls, folder: str | Path, *, discarded: bool = False) -> Trajectories:
        """All episodes of `envsdk collect`, a run of `envsdk train`, or `envsdk serve --out`, in memory.

        `discarded` adds those of a run that were played and not used, to the groups that they belonged to.
        ConfigurationError when the folder is neither, StorageError when a file is damaged.
        """
        from envsdk.base.store.trajectories import DISCARDED_PREFIX
        from envsdk.rollouts.datasets.reading import open_dataset

        dataset = open_dataset(Path(folder))
        if not discarded:
            used = [shard for shard in dataset.shards if not shard.name.startswith(DISCARDED_PREFIX)]
            dataset = replace(dataset, shards=used)
        return cls(dataset.episodes())

    @classmethod
    def from_atif(cls, path: str | Path) -> Trajectories:
        """Episodes of ATIF documents, ours or those of another program: a file, or a folder of files.

        docs/results.md says how documents of other programs are read. ConfigurationError for a file that is
        no ATIF document, StorageError for one that cannot be read.
        """
        from envsdk.rollouts.datasets.atif import read_atif

        return cls(read_atif(Path(path)))

    def save(self, folder: str | Path, *, policy: str = "policy") -> None:
        """Write all episodes, failed ones too, as a data set that `envsdk view` and `from_folder` read.

        Args:
            folder: A new or empty one; it is complete or absent. Nothing is overwritten.
            policy: Name of who played, for the record.

        Files do not keep the traceback of a failure.

        Raises:
            ConfigurationError: The folder holds something already, there are no episodes, one does not know
                its prompts, or episodes of one tag were shown with different ones.
            StorageError: The folder cannot be written.
        """
        from envsdk.rollouts.datasets.saving import save_episodes

        save_episodes(self._episodes, Path(folder), policy=policy)

    def to_atif(self, path: str | Path, *, agent: str = "policy", model: str | None = None) -> None:
        """Write each episode that has a turn as a document of ATIF 1.7, failed ones too, for `from_atif`.

        Args:
            path: A new file `*.jsonl`, which gets a document per line; else a new or empty folder, which gets
                a file for each. Nothing is overwritten.
            agent: Name of who played.
            model: Name of the model behind it, if there is one.

        Raises:
            ConfigurationError: The file or folder is there already, or an episode does not know its prompts.
            StorageError: It cannot be written.
        """
        from envsdk.rollouts.datasets.atif import write_atif

        write_atif(self._episodes, Path(path), agent=agent, model=model)

    def __len__(self) -> int:
        return len(self._episodes)

    @overload
    def __getitem__(self, index: int) -> Trajectory: ...
    @overload
    def __getitem__(self, index: slice) -> Trajectories: ...
    def __getitem__(self, index: int | slice) -> Trajectory | Trajectories:
        found = self._episodes[index]
        return Trajectories(found) if isinstance(found, tuple) else found

    @property
    def groups(self) -> list[Trajectories]:
        """Members of one group each, in the order in which the groups first appear.

        A group is what has the same `group_id` and the same task. An episode that is not grouped is a group
        of one.
        """
        found: dict[int, list[Trajectory]] = {}
        for episode, group in zip(self._episodes, self.group_indices, strict=True):
            found.setdefault(group, []).append(episode)
        return [Trajectories(members) for members in found.values()]

    @property
    def group_indices(self) -> Sequence[int]:
        """For each episode, the position of its group in `groups`."""
        if self._group_of is None:
            numbers: dict[tuple[Task, int], int] = {}
            self._group_of = tuple(
                numbers.setdefault((each.task, each.group_id), len(numbers)) for each in self._episodes
            )
        return self._group_of

    @property
    def failed(self) -> Trajectories:
        """Episodes that something broke; `Trajectory.failure` says what."""
        return Trajectories(each for each in self._episodes if each.failure is not None)

    @property
    def success_rate(self) -> float | None:
        """Share of solved episodes among those that did not fail; None when there is none."""
        return _mean([each.success for each in self._episodes if each.failure is None])

    @property
    def mean_reward(self) -> float | None:
        """Mean total reward of the episodes that did not fail; None when there is none."""
        return _mean([each.total_reward for each in self._episodes if each.failure is None])

    def to_messages(self, *, tool_calls: bool = False) -> list[list[dict[str, Any]]]:
        """Each segment as the conversation that the policy saw and wrote: messages of `role` and `content`.

        Tool calls and their answers are text in it, as the policy has them. With `tool_calls` those that can
        be read become `tool_calls` and messages of the role `tool`, as OpenAI's API has them. A reply that is
        not to be learned (`Reply.learned`) has `weight: 0`, as for OpenAI's fine-tuning.
        ConfigurationError for an episode that does not know its prompts.
        """
        conversations: list[list[dict[str, Any]]] = [
            _weighed(each.to_messages(segment), segment)
            for each in self._episodes
            for segment in each.segments()
        ]
        if tool_calls:
            from envsdk.rollouts.datasets.tool_messages import with_tool_calls

            return [with_tool_calls(each) for each in conversations]
        return conversations

    def to_frame(self, library: FrameLibrary = "pandas", *, per: FrameRow = "episode") -> Any:
        """A `pandas.DataFrame` or `pyarrow.Table`: one row per episode, or per turn.

        Columns of an episode: who, what and when, `success`, `total_reward` (both null where it failed),
        `failure`, numbers of turns and tokens. Columns of a turn: the texts, `reward`, its place in the token
        log, and `metrics.NAME` for each metric. `group` is the position in `groups`.
        ConfigurationError when pandas is asked for and not installed.
        """
        from envsdk.rollouts.results.frames import to_frame

        return to_frame(self._episodes, self.group_indices, library=library, per=per)

    def to_dataset(self) -> Any:
        """A `datasets.Dataset` with one row per segment of the episodes that did not fail and have a turn.

        `prompt` are the messages up to the first observation, and replies that an earlier row has as its own;
        `completion` are all after them, `messages` both;
        then `tools` as JSON text where the policy had some, `tag`, `split`, `index`, `seed`, `success`,
        `reward`, `group` (position in `groups`), `trajectory_id`, and `masked_replies`: which replies are
        not to be learned, by their number among those of `messages`.
        ConfigurationError when `datasets` is not installed or an episode does not know its prompts.
        """
        from envsdk.rollouts.results.frames import to_dataset

        return to_dataset(self._episodes, self.group_indices)

    def to_arrays(
        self,
        layout: Layout = "padded",
        library: Library = "numpy",
        *,
        padding_side: Side = "right",
        pad_id: int = 0,
        max_length: int | None = None,
    ) -> dict[str, Any]:
        """Token logs and rewards as arrays for a training step.

        N segments, one per episode of a single line, T tokens of the longest one, M tokens of all:

        | key | padded | packed | dtype | |
        | --- | --- | --- | --- | --- |
        | `ids` | `[N, T]` | `[M]` | int64 | tokens of prompts and replies; `pad_id` where padded |
        | `attention_mask` | `[N, T]` | | int64 | 1 for a token, 0 for padding |
        | `cu_seqlens` | | `[N + 1]` | int32 | segment n is `cu_seqlens[n]:cu_seqlens[n + 1]` |
        | `position_ids` | `[N, T]` | `[M]` | int64 | 0, 1, 2, ... in each segment; 0 where padded |
        | `response_mask` | `[N, T]` | `[M]` | int64 | 1 where sampled, in one segment; 0 where failed |
        | `logprobs` | `[N, T]` | `[M]` | float32 | log-probability (nats) of that token; else 0 |
        | `versions` | `[N, T]` | `[M]` | int64 | publication that sampled it; -1 where not sampled |
        | `token_rewards` | `[N, T]` | `[M]` | float32 | each turn's reward, at its reply's last token |
        | `rewards` | `[N]` | `[N]` | float32 | sum of the episode's rewards; NaN where it failed |
        | `success` | `[N]` | `[N]` | bool | whether the task was solved |
        | `valid` | `[N]` | `[N]` | bool | False where it failed or no token was sampled |
        | `group_ids` | `[N]` | `[N]` | int64 | position of the episode's group in `groups` |
        | `episodes` | `[N]` | `[N]` | int64 | position of the episode in this sequence |
        | `lengths` | `[N]` | `[N]` | int64 | tokens of the segment in the arrays |
        | `num_cut` | `[N]` | `[N]` | int64 | tokens at its end that `max_length` left out |

        `logprobs[n, t]` belongs to `ids[n, t]` itself: a model's `logits[n, t - 1]` predict that token. It is
        that of the distribution the token was drawn from, after temperature, `top_k` and `top_p`.

        Args:
            layout: `padded` to the longest segment, or `packed` end to end.
            library: `numpy` arrays, or `torch` tensors on the CPU.
            padding_side: `right` or `left`.
            pad_id: Token id where padded.
            max_length: Most tokens of a segment; absent, all.

        Returns:
            The arrays by key, episodes in the order of this sequence and segments in theirs.

        Raises:
            ConfigurationError: No episode has tokens, since the policy replied with text alone; torch is not
                installed; or an argument is none of these.
        """
        from envsdk.rollouts.results.arrays import to_arrays

        return to_arrays(
            self._episodes,
            self.group_indices,
            layout=layout,
            library=library,
            padding_side=padding_side,
            pad_id=pad_id,
            max_length=max_length,
        )

    def to_verl(
        self, *, prompt_length: int | None = None, response_length: int | None = None, pad_id: int = 0
    ) -> dict[str, Any]:
        """Arguments for `verl.DataProto.from_dict`, as verl's own agent loops fill it.

        `tensors`: `prompts` `[N, P]`, all before the first sampled token, padded on the left; `responses`,
        `response_mask`, `rollout_log_probs` and `rm_scores` (the reward, at the last token) `[N, R]`, padded
        on the right; `input_ids`, `attention_mask`, `position_ids` `[N, P + R]`. `non_tensors`: `uid` of the
        group, `data_source` (the tag), versions and more.

        Failed episodes are left out, since verl has no mark for them. P and R are those of the longest, or as
        given: a response is cut at `response_length`. ConfigurationError for a prompt that is longer than
        `prompt_length`, and when no episode can be learned from.
        """
        from envsdk.rollouts.results.verl import to_verl

        return to_verl(
            self._episodes, prompt_length=prompt_length, response_length=response_length, pad_id=pad_id
        )

    def advantages(self, estimator: str = "grpo", **settings: Any) -> list[NDArray[np.float32]]:
        """Advantages of each segment, computed as training computes them.

        Args:
            estimator: What `adv_estimator` takes: `grpo`, `rloo`, `reinforce`, `package.module:function` ...
            settings: Keys of the YAML that belong to advantages, such as `grpo_normalize_std=False`.

        Returns one array `[num_tokens]` per row of `to_arrays`, 0 where its mask is 0; where
        episodes have no tokens, `[num_turns]`. All zeros where an episode failed; it is in no baseline.
        Raises ConfigurationError for unknown names and for estimators that need what results do not have.
        """
        from envsdk.rollouts.results.advantages import advantages

        return advantages(self._episodes, self.group_indices, estimator, settings)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {', '.join(f'{name} {value}' for name, value in self._summary())}>"

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><th>{name}</th><td>{escape(value)}</td></tr>" for name, value in self._summary())
        return f"<table><caption>{type(self).__name__}</caption>{rows}</table>"

    def _summary(self) -> list[tuple[str, str]]:
        tags = list(dict.fromkeys(each.task.tag for each in self._episodes))
        num_scored = sum(each.failure is None for each in self._episodes)
        named = ", ".join(tags[:_SHOWN_TAGS]) + (", ..." if len(tags) > _SHOWN_TAGS else "")
        lines = [
            ("episodes", str(len(self))),
            ("groups", str(len(set(self.group_indices)))),
            ("of", named),
            ("success", "" if self.success_rate is None else f"{self.success_rate:.1%} of {num_scored}"),
            ("mean reward", "" if self.mean_reward is None else f"{self.mean_reward:.3f}"),
            ("failed", self._failures()),
        ]
        return [(name, value) for name, value in lines if value]

    def _failures(self) -> str:
        """How many episodes failed, and the most frequent reason; empty when none did."""
        reasons = Counter(str(each.failure) for each in self.failed)
        if not reasons:
            return ""
        reason, _ = reasons.most_common(1)[0]
        shown = reason if len(reason) <= _SHOWN_REASON else f"{reason[:_SHOWN_REASON]}..."
        return f"{reasons.total()} ({shown})"


def _weighed(messages: Sequence[Mapping[str, str]], segment: Segment) -> list[dict[str, Any]]:
    conversation: list[dict[str, Any]] = [dict(message) for message in messages]
    replies = [message for message in conversation if message["role"] == "assistant"]
    for number in given_and_masked_replies(messages, segment)[1]:
        replies[number]["weight"] = 0
    return conversation


class Batch(Trajectories):
    """Episodes that one training step learns from."""

    __slots__ = ("metrics", "step", "version")

    version: int
    """How many weight publications the trainer had made when the batch was taken."""
    step: int
    """The training step that the batch is for, from 0."""
    metrics: Mapping[str, float]
    """Metrics of the rollouts since the batch before, by the names that trackers use."""

    def __init__(
        self,
        trajectories: Iterable[Trajectory] = (),
        *,
        version: int,
        step: int,
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__(trajectories)
        self.version = version
        self.step = step
        self.metrics = dict(metrics or {})

    def _summary(self) -> list[tuple[str, str]]:
        return [("step", str(self.step)), ("version", str(self.version)), *super()._summary()]


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None

"""TaskChoice: the job's task sampler within one transaction. Its state is a row of the buffer.

with database.writing(member) as tx:
    choice = TaskChoice(tx)
    tasks = choice.next_tasks(["maze", "shop"], also=["maze"])
    choice.started(ids, tasks)                  # or: choice.over({group_id: played})
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import sqlalchemy as sa
from pydantic import TypeAdapter

from envsdk.algorithms.task_samplers.contract import PlayedGroup, SamplerConfig, load_sampler, saved_state
from envsdk.buffer.contract import GroupState
from envsdk.buffer.rows import TRAIN_SPLIT
from envsdk.buffer.tables import cursors, groups, task_sampler
from envsdk.buffer.transaction import Transaction
from envsdk.contracts.trajectory import Task

_CONFIG = TypeAdapter(SamplerConfig)


class BufferOrder:
    """The usual order: tags as explorers ask for them, and of each tag the index that nobody has got."""

    split = TRAIN_SPLIT

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self.wanted: list[str] = []
        self._first: dict[str, int | None] = {}
        """Indexes that the buffer has, by tag."""
        self._next: dict[str, int] = {}

    @property
    def tags(self) -> Sequence[str]:
        return list(dict.fromkeys(self.wanted))

    def next_tag(self) -> str:
        return self.wanted[0]

    def next_index(self, tag: str) -> int:
        if tag not in self._next:
            query = sa.select(cursors.c.next_index).where(cursors.c.tag == tag)
            self._first[tag] = self._tx.execute(query).scalar()
            self._next[tag] = self._first[tag] or 0
        self._next[tag] += 1
        return self._next[tag] - 1

    def save(self) -> None:
        """Nobody else gets the indexes that were given."""
        for tag, number in self._next.items():
            if self._first[tag] is None:
                self._tx.execute(cursors.insert().values(tag=tag, next_index=number))
            else:
                self._tx.execute(cursors.update().where(cursors.c.tag == tag).values(next_index=number))
            self._first[tag] = number


class TaskChoice:
    """See the module."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self._order = BufferOrder(tx)
        text, config = None, None
        if tx.terms.task_sampler:
            text = tx.execute(sa.select(task_sampler.c.state)).scalar()
            config = _CONFIG.validate_json(tx.terms.task_sampler)
        self._is_new = text is None
        saved = {"sampler": None, "open": []} if text is None else json.loads(text)
        self._sampler = load_sampler(config, self._order, saved["sampler"])
        self._open = {
            group_id: Task(tag=tag, split=TRAIN_SPLIT, index=index) for group_id, tag, index in saved["open"]
        }
        """Groups whose end the sampler has not heard of, by id."""

    def next_tasks(self, tags: Sequence[str], also: Sequence[str] = ()) -> list[Task]:
        """As many tasks as `tags`, which are asked for first; those of `also` may take their places."""
        lives = sa.and_(groups.c.id.in_(self._open), groups.c.state.in_([GroupState.OPEN, GroupState.LEASED]))
        living = set(self._tx.execute(sa.select(groups.c.id).where(lives)).scalars())
        for group_id in sorted(self._open.keys() - living):  # dropped by the buffer itself
            self._end(group_id, None)
        self._order.wanted = [*tags, *also]
        tasks = []
        for _ in tags:
            tasks.append(task := self._sampler.next_task())
            self._order.wanted.remove(task.tag)
        self._order.save()
        return tasks

    def started(self, ids: Sequence[int], tasks: Sequence[Task]) -> None:
        """Groups play these tasks."""
        if not self._tx.terms.task_sampler:
            return
        self._open.update(zip(ids, tasks, strict=True))
        self._save()

    def over(self, played: Mapping[int, PlayedGroup]) -> None:
        """These groups are complete, or dropped with a result."""
        for group_id in sorted(played.keys() & self._open.keys()):
            self._end(group_id, played[group_id])
        self._save()

    def _end(self, group_id: int, played: PlayedGroup | None) -> None:
        task = self._open.pop(group_id)
        self._sampler.observe(played or PlayedGroup(task=task, successes=(), rewards=()))

    def _save(self) -> None:
        state = {
            "sampler": saved_state(self._sampler),
            "open": [[group_id, task.tag, task.index] for group_id, task in self._open.items()],
        }
        change = task_sampler.insert() if self._is_new else task_sampler.update()
        self._tx.execute(change.values(id=1, state=json.dumps(state)))
        self._is_new = False

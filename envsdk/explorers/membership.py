"""Membership: one program's part in a job. It joins the buffer, says that it lives, and leaves.

join -> (view every third of a lease)* -> leave
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from envsdk.base.settings.problems import leaves
from envsdk.base.store.atomic import make_folder
from envsdk.base.store.hub import hub_folder
from envsdk.base.store.travel import PathContents, paths_in
from envsdk.buffer.client import BufferClient
from envsdk.buffer.connecting import open_engine, shown_place, url_of
from envsdk.buffer.contract import BUFFER_FILE, JobView, Meaning, Member, Role, Signal, Terms
from envsdk.buffer.selection import Selection
from envsdk.buffer.sql_buffer import SqlBuffer
from envsdk.config.models import EMBEDDED_DEFAULT, RunConfig
from envsdk.config.plugins import environment_spec
from envsdk.config.rlvr import PROMPTS_ENV, source_of
from envsdk.contracts.chat import digests
from envsdk.managers.wiring import sampler_config
from envsdk.rewards.loading import WORKER_KEYS
from envsdk.rewards.prompt_data.opening import open_prompts
from envsdk.rewards.prompt_data.prompts import PromptSource


def buffer_path(config: RunConfig) -> str:
    """The buffer of the job: its URL or its file."""
    return config.buffer.trainer_input.experience_buffer.path or str(
        config.run_folder.resolve() / BUFFER_FILE
    )


def open_buffer(config: RunConfig) -> SqlBuffer:
    """Connections to the buffer. ConfigurationError when it cannot be where `config` has it.

    The job's own folder is made; any other has to be there, or a typo would begin a second job.
    """
    file = url_of(buffer_path(config)).database or ""
    if Path(file).absolute().is_relative_to(config.run_folder.absolute()):
        make_folder(config.run_folder)
    return SqlBuffer(open_engine(buffer_path(config)), lease_s=config.buffer.lease_s)


def terms_of(config: RunConfig) -> Terms:
    """What all programs of the job must agree on."""
    manager, sampler = config.train_env_manager, sampler_config(config)
    return Terms(
        seed=config.seed,
        group_size=manager.group_size,
        groups_per_batch=config.num_train_groups,
        alpha=config.largest_depth,
        max_staleness=config.max_staleness,
        sync_interval=config.synchronizer.sync_interval,
        num_groups_redundancy=manager.num_groups_redundancy,
        max_group_attempts=manager.max_group_attempts,
        task_sampler="" if sampler is None else json.dumps(asdict(sampler)),
    )


def selection_of(config: RunConfig) -> Selection:
    """How the trainer chooses among ready groups."""
    keys = config.buffer.trainer_input.experience_buffer
    is_stated = config.batch_mixture == "stratified" and not keys.mixture
    stated = config.train_env_manager.groups_per_tag if is_stated else {}
    return Selection(
        order=keys.selection,
        max_uses=keys.max_uses,
        cool_down_steps=keys.cool_down_steps,
        mixture=keys.mixture or stated,
        mixture_by="tag" if is_stated else keys.mixture_by,
    )


class Membership:
    """Owner: the program's own object; called from one event loop."""

    def __init__(
        self,
        config: RunConfig,
        role: Role,
        name: str,
        *,
        say: Callable[[str], None],
        model: Path | None = None,
    ) -> None:
        """`model`: whose token ids this program reads and writes; the folder in `config` when None."""
        self._config = config
        self._role = role
        self._name = name
        self._say = say
        self.terms = terms_of(config)
        self.buffer = open_buffer(config)
        self.client = BufferClient(self.buffer, retry_s=config.buffer.retry_s, say=say)
        self.member: Member | None = None
        self._joining = asyncio.Lock()
        self.pause_s = config.buffer.lease_s / 3
        """Between two signs of life."""
        self._model = model
        self._meaning: Meaning | None = None

    @property
    def me(self) -> Member:
        """This program, once joined."""
        assert self.member is not None
        return self.member

    async def check(self) -> None:
        """ConfigurationError when this program does not fit its job, which is made if it is not there."""
        buffer, config = self.buffer, self._config
        meaning = await asyncio.to_thread(self._meant)
        if await self.client.call(lambda: buffer.create(config.exp_name, self.terms, meaning)):
            self._say(f"job {config.exp_name} begins in a new buffer, {shown_place(buffer_path(config))}")

    async def join(self) -> None:
        """Take part. ConfigurationError when the name is taken, or this program does not fit the job."""
        await self.check()
        buffer, meaning = self.buffer, self._meant()
        self.member = await self.client.call(lambda: buffer.join(self._role, self._name, meaning))
        for note in self.member.notes:
            self._say(note)

    def _meant(self) -> Meaning:
        if self._meaning is None:
            config, model = self._config, self._model
            if model is None and config.pretrain != EMBEDDED_DEFAULT:
                model = hub_folder(config.pretrain)
            tags = config.train_env_manager.tags if config.mode in ("train", "explore") else ()
            self._meaning = meaning_of(config, model, tags=tags)
        return self._meaning

    async def join_again(self, lost: Member) -> None:
        """Take part again, after the lease of `lost` ran out; nothing to do if this was done meanwhile."""
        async with self._joining:
            if self.member is lost:
                await self.join()

    async def renew(self, *, version: int = -1, waited: Mapping[str, float] | None = None) -> JobView:
        """This program lives; how the job stands. LeaseLost when it was taken for dead."""
        waits = waited or {}
        return await self.client.call(
            lambda: self.buffer.renew(
                self.me,
                version=version,
                waited_places_s=waits.get("places", 0.0),
                waited_weights_s=waits.get("weights", 0.0),
            )
        )

    async def signal_number(self, signal: Signal) -> int:
        return await self.client.call(lambda: self.buffer.signal_number(signal))

    async def leave(self) -> None:
        """Take part no longer; what this program holds is handed back. Idempotent."""
        member, self.member = self.member, None
        if member is not None:
            await self.client.call(lambda: self.buffer.leave(member))
        await self.client.close()


_OF_THE_MACHINE = frozenset(
    {"env_config", "isolation", "start_timeout_s", "reset_timeout_s", "step_timeout_s", "env_manager_cls"}
)
"""Keys of a tag that decide where and how fast it plays, or that are looked at one by one."""
_LONGEST = 60
"""Letters of a value that is shown as it is."""


def meaning_of(config: RunConfig, model: Path | None, *, tags: Sequence[str] = ()) -> Meaning:
    """What this program means by the ids of `model` and by these tags.

    Paths, worker counts, engines and deadlines may differ from machine to machine: of a path only what lies
    there counts, of prompt data only the rows. `model` is None where it is not made yet. Reads files.
    ConfigurationError when one is not there.
    """
    return Meaning(
        tokens={} if model is None else digests(model),
        model=str(model),
        tags={tag: dict(_tag(config, tag)) for tag in tags},
        may_differ=config.explorer.may_differ if config.mode == "explore" else (),
    )


def _tag(config: RunConfig, tag: str) -> Iterator[tuple[str, str]]:
    """The keys that decide its episodes, with what they say."""
    env, own = config.custom_envs[tag], dict(config.custom_envs[tag].env_config)
    settings: dict[str, Any] = {
        **env.model_dump(mode="json", exclude=set(_OF_THE_MACHINE), exclude_defaults=True),
        "max_tokens_per_step": config.max_response_tokens(tag),
        "env_manager_cls": env.env_manager_cls or config.train_env_manager.env_manager_cls,
        "sequence_length": config.sequence_length,
        "generating_args": config.actor_infer.generating_args.model_dump(exclude={"max_new_tokens"}),
    }
    if env.env_type == PROMPTS_ENV:
        prompts, reward = open_prompts(source_of(own)), own.get("reward")
        settings["rows"] = f"{len(prompts):,} rows ({prompts.digest()})"
        of_rows = PromptSource.model_fields.keys() - {"columns"}
        own = {name: value for name, value in own.items() if name not in of_rows}
        section = reward if isinstance(reward, Mapping) else {"worker_cls": reward}
        own["reward"] = {name: value for name, value in section.items() if name not in WORKER_KEYS}
    local = environment_spec(env.env_type).local_arguments
    settings["env_config"] = {name: value for name, value in own.items() if name not in local}
    for path, value in leaves(settings):
        if value != {}:
            yield ".".join(map(str, path)), _shown(_without_places(value))


def _without_places(value: Any) -> Any:
    """With a digest in place of each path that leads to files, and servers without their addresses."""
    if isinstance(value, list | tuple):
        return [_without_places(each) for each in value]
    if not isinstance(value, str):
        return value
    if "://" in value and "\n" not in value:
        return "a server"
    path = Path(value).expanduser()
    if not list(paths_in(value)) or not path.exists():
        return value
    if path.is_file() and (contents := PathContents.of(path)):
        return f"a file ({contents.digest[:16]})"
    found = sorted((str(each.relative_to(path)), each.stat().st_size) for each in path.rglob("*"))
    return f"a folder ({hashlib.sha256(repr(found).encode()).hexdigest()[:16]})"


def _shown(value: Any) -> str:
    is_text = isinstance(value, str)
    text = value if is_text else json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)
    if len(text) <= _LONGEST and "\n" not in text:
        return text
    return f"{text[: _LONGEST // 2]}... ({hashlib.sha256(text.encode()).hexdigest()[:16]})"

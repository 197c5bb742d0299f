"""What roles take of their devices, what each phase of a step needs there, and which runs cannot fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ValidationError

from envsdk.base.processes.cards import has_gpus, smallest_card_bytes
from envsdk.base.settings.memory import (
    CUDA_CONTEXT,
    CUDA_WORK,
    EstimatesSampling,
    EstimatesTraining,
    Memory,
    ModelSizes,
    TakesShare,
)
from envsdk.base.settings.problems import Problem
from envsdk.base.store.hub import is_hub_name, is_model_name
from envsdk.base.store.model_files import model_sizes
from envsdk.config.device_sharing import NEEDS, Phase, device_groups
from envsdk.config.loaded_models import LoadedModel, devices_of, models_of
from envsdk.config.models import EMBEDDED_DEFAULT, RunConfig
from envsdk.config.plugins import settings_model
from envsdk.config.role_models import Role
from envsdk.contracts.held import Held

_GIB = 2**30
_ADVICE = {
    "weights, gradients": "train an adapter alone (`strategy_config.lora`), or share it among more devices",
    "activations": "set `gradient_checkpointing: true` (megatron_train: `recompute_granularity: full`), or a "
    "smaller max_tokens_per_microbatch and sequence_length",
    "attention": "take another `attn_implementation` than eager, or a smaller sequence_length",
    "logits": "take a smaller max_tokens_per_microbatch and sequence_length",
    "keys and values": "take a smaller infer_batch_size, or a smaller sequence_length",
    "share": "give the engine a smaller one, for instance 0.4",
    "": "take a smaller model, or more devices for this role",
}
"""What to set, by how the largest part begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleMemory:
    """What a role takes of each of its devices, in bytes."""

    parts: Memory
    weights: float
    """What it takes when it holds its weights alone."""
    context: float = 0.0
    """What it takes when it holds nothing."""
    is_on_cpu: bool
    """It takes main memory."""
    problem: str = ""
    """Why the share of a device that it asks for is not enough, where that is known."""

    @property
    def total(self) -> float:
        return sum(self.parts.values())

    def taken(self, held: Held) -> float:
        return {Held.NOTHING: self.context, Held.WEIGHTS: self.weights, Held.ALL: self.total}[held]

    def told(self, where: str = "") -> str:
        """The parts in words, in GiB."""
        parts = "; ".join(f"{what} {gib(num_bytes)}" for what, num_bytes in self.parts.items())
        return f"{gib(self.total)} GiB{where and ' '}{where}: {parts}"


def gib(num_bytes: float) -> str:
    """Bytes as GiB, in words."""
    number = num_bytes / _GIB
    return f"{number:,.1f}" if number >= 0.05 else f"{number:.2g}"


def settings_of(role: Role, kind: str) -> BaseModel | None:
    """Settings of the role's plug-in, where it declares them."""
    model = settings_model(kind, role.strategy_args.strategy_name, "strategy_config")
    return None if model is None else model.model_validate(dict(role.settings))


def card_bytes(config: RunConfig) -> float | None:
    """Memory of this machine's smallest GPU; None where it has none, or the run joins a cluster."""
    return smallest_card_bytes() if config.ray.address is None and has_gpus() else None


def device_bytes(config: RunConfig) -> float | None:
    """Memory of each device, as stated or as it is here; None where it is not known."""
    stated = config.device_memory_gib
    return card_bytes(config) if stated is None else stated * _GIB


def role_memory(config: RunConfig, size: float | None = None) -> dict[str, RoleMemory]:
    """What each model of this program takes of devices of this size, where its plug-in says so.

    LookupError where a model does not say it.
    """
    found: dict[str, RoleMemory] = {}
    for name, model in models_of(config).items():
        settings = model.own_settings
        if model.pretrain == EMBEDDED_DEFAULT:
            continue
        if isinstance(settings, EstimatesTraining):
            found[name] = _of_trainer(config, model, settings)
        elif isinstance(settings, EstimatesSampling):
            memory = _of_engine(config, model, settings, size)
            found |= {} if memory is None else {name: memory}
    return found


def _sizes_of(model: LoadedModel) -> ModelSizes:
    name, of = model.pretrain, "" if len(model.path) == 1 else f"{model.name}: "
    folder = model.folder
    if folder is None and not is_model_name(name):
        path = Path(name).expanduser()
        raise LookupError(
            f"{of}there is no folder {path}; download the model into it, or name one of the hub"
        )
    if folder is None:
        way = "`hf download NAME config.json --local-dir DIR` with pretrain=DIR is enough for an estimate"
        way = f"; {way}" if is_hub_name(name) else ""
        raise LookupError(f"{of}the model is not on this machine yet{way}")
    try:
        return model_sizes(folder)
    except LookupError as error:
        raise LookupError(f"{of}{error.args[0]}") from error


def _of_trainer(config: RunConfig, model: LoadedModel, settings: EstimatesTraining) -> RoleMemory:
    num_ranks, sizes = len(model.device_mapping or (0,)), _sizes_of(model)
    frozen = parts = settings.frozen_memory(sizes, num_ranks=num_ranks)
    if model.name == "actor_train":
        args = settings_model("trainers", model.strategy.strategy_name, "training_args")
        given = args.model_validate(dict(config.actor_train.training_args)).model_dump() if args else {}
        parts = settings.training_memory(
            sizes,
            num_ranks=num_ranks,
            num_tokens=max(int(given.get("max_tokens_per_microbatch", 0)), config.sequence_length),
            sequence_length=config.sequence_length,
        )
    return _with_cuda(settings, parts, frozen["weights"])


def _of_engine(
    config: RunConfig, model: LoadedModel, settings: EstimatesSampling, size: float | None
) -> RoleMemory | None:
    sizes, num_tokens = _sizes_of(model), config.sequence_length
    parts = settings.sampling_memory(sizes, num_replies=model.num_replies, num_tokens=num_tokens)
    if not parts:
        return None
    share = settings.device_share if isinstance(settings, TakesShare) else None
    if size is not None and share is not None:
        one = settings.sampling_memory(sizes, num_replies=1, num_tokens=num_tokens)
        return _with_share(one, *share, size)
    return _with_cuda(settings, parts, parts["weights"], has_work=share is None)


def _with_cuda(
    settings: object, parts: Memory, weights: float, *, has_work: bool = True, problem: str = ""
) -> RoleMemory:
    is_on_cpu = getattr(settings, "device", "") == "cpu"
    context = 0 if is_on_cpu else CUDA_CONTEXT
    if not is_on_cpu:
        parts = {**parts, "CUDA": context + has_work * CUDA_WORK}
    return RoleMemory(
        parts=parts, weights=weights + context, context=context, is_on_cpu=is_on_cpu, problem=problem
    )


def _with_share(one: Memory, key: str, share: float, size: float) -> RoleMemory:
    """An engine takes a share of the device, and in it has to hold `one` sequence at least."""
    given, least, weights = share * size, sum(one.values()), one["weights"]
    problem = ""
    if least > given:
        problem = (
            f"{key} {share:g} of {gib(size)} GiB is {gib(given)}, and weights with one sequence take about "
            f"{gib(least)}: raise it, take more devices for an engine, or a smaller model"
        )
    parts = {"weights": weights, f"share for keys and values ({key} {share:g})": max(given, least) - weights}
    return _with_cuda(None, parts, weights, has_work=False, problem=problem)


Needs = Mapping[Phase, Mapping[str, float]]
"""Bytes of one device by phase and role."""


def device_needs(config: RunConfig, memory: Mapping[str, RoleMemory]) -> dict[str, Needs]:
    """What each phase needs of each device, by the device's name; equal ones have one together."""
    group_of = {role.name: group for group in device_groups(config) for role in group}

    def taken(name: str, owner: str, held: Held) -> float:
        """What a role takes while it is the turn of `owner`."""
        rests = {role.name: role.rests_at for role in group_of.get(name, ())}
        now = held if name == owner else rests[name] if owner in rests else Held.ALL
        return memory[name].taken(now if rests else Held.ALL)

    places = _places(config, memory)
    alike: dict[str, list[str]] = {}
    found: dict[str, Needs] = {}
    for device in dict.fromkeys(device for where in places.values() for device in where):
        here = [name for name, where in places.items() if device in where]
        needs: Needs = {
            phase: {name: taken(name, *NEEDS[phase]) for name in here}
            for phase in Phase
            if phase is not Phase.SAVE
            and (phase is not Phase.SCORE or config.needs_reference or config.needs_values)
        }
        alike.setdefault(repr(needs), []).append(device)
        found[alike[repr(needs)][0]] = needs
    return {_named(devices): found[devices[0]] for devices in alike.values()}


def _places(config: RunConfig, memory: Mapping[str, RoleMemory]) -> dict[str, list[str]]:
    """The devices of each role that is not on a CPU, by number, or by a role that chooses its own."""
    models = models_of(config)
    places = {name: devices_of(models[name]) or [name] for name in memory if not memory[name].is_on_cpu}
    for group in device_groups(config):
        known = [device for each in group for device in places.get(each.name, ()) if device != each.name]
        for each in group:
            if places.get(each.name) == [each.name]:
                places[each.name] = list(dict.fromkeys(known)) or [group[0].name]
    return places


def _named(devices: list[str]) -> str:
    if not devices[0].isdecimal():
        return f"the device of {devices[0]}"
    numbers = [int(device) for device in devices]
    if len(numbers) > 2 and numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"devices {numbers[0]} to {numbers[-1]}"
    return f"device{'s' if len(devices) > 1 else ''} {', '.join(devices)}"


def needs_told(needs: Needs) -> str:
    """Each phase with what it needs, in GiB."""
    sums = {str(phase): gib(sum(taken.values())) for phase, taken in needs.items()}
    if len(set(sums.values())) == 1:
        return f"{next(iter(sums.values()))} in every phase"
    return ", ".join(f"{phase} {total}" for phase, total in sums.items())


def memory_problems(config: RunConfig, size: float) -> Iterator[Problem]:
    """What cannot fit on devices of so many bytes: what each phase needs, and what to set."""
    try:
        memory = role_memory(config, size)
    except (LookupError, ValidationError):
        return  # a row of --explain, or another check, says why
    for name, role in memory.items():
        if role.problem:
            yield Problem((name, "strategy_args", "strategy_config"), role.problem)
            return
    turns = {role.name for group in device_groups(config) for role in group}
    for device, needs in device_needs(config, memory).items():
        phase, taken = max(needs.items(), key=lambda each: sum(each[1].values()))
        if sum(taken.values()) <= size:
            continue
        largest = max(taken, key=lambda name: taken[name])
        part = max(memory[largest].parts, key=lambda part: memory[largest].parts[part])
        advice = next(text for begin, text in _ADVICE.items() if part.startswith(begin))
        if len(taken) > 1 and not turns.intersection(taken):
            names = " and ".join(taken)
            advice = f"let {names} take turns (`offload: all`, async_generation_ratio 0); or {advice}"
        where = f" in {phase}" if len({gib(sum(each.values())) for each in needs.values()}) > 1 else ""
        roles = "; ".join(f"{name} {memory[name].told()}" for name in taken)
        yield Problem(
            ("device_memory_gib",),
            f"{gib(size)} GiB are not enough for {device}. It takes about, in GiB, {needs_told(needs)}. "
            f"By role: {roles}. Most{where} is {part} of {largest}: {advice}",
        )

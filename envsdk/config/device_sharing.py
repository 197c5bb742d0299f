"""Which roles share devices, and what each gives back while another one has its turn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations

from envsdk.base.settings.problems import Problem
from envsdk.config.loaded_models import devices_of, models_of, roles_of
from envsdk.config.models import RunConfig
from envsdk.config.role_models import Role
from envsdk.contracts.held import Held

_KEPT = {"none": Held.ALL, "optimizer": Held.WEIGHTS, "all": Held.NOTHING}


class Phase(StrEnum):
    """The phases of a training step that compute on devices."""

    PUBLISH = "publish"
    VALIDATE = "validate"
    GENERATE = "generate"
    SCORE = "score"
    TRAIN = "train"
    SAVE = "save"


NEEDS: Mapping[Phase, tuple[str, Held]] = {
    Phase.PUBLISH: ("actor_infer", Held.WEIGHTS),
    Phase.VALIDATE: ("actor_infer", Held.ALL),
    Phase.GENERATE: ("actor_infer", Held.ALL),
    Phase.SCORE: ("actor_train", Held.WEIGHTS),
    Phase.TRAIN: ("actor_train", Held.ALL),
    Phase.SAVE: ("actor_train", Held.ALL),  # some trainers gather on the device what they write
}
"""Which role computes in a phase, and what it holds for it. Other roles score too."""


@dataclass(frozen=True, slots=True)
class SharedRole:
    """One of a group of roles that take turns."""

    name: str
    offload: str
    """As given, or what stands for it."""

    @property
    def rests_at(self) -> Held:
        """What it holds while it is another one's turn."""
        return _KEPT[self.offload]


def device_groups(config: RunConfig) -> list[tuple[SharedRole, ...]]:
    """The groups of roles that take turns: each shares devices with one of its group.

    Engines and trainers on the same devices do so unless all say `offload: none`. Without engines among them,
    trainer and reference model stay side by side unless one says otherwise.
    """
    groups = []
    for names in _connected(config):
        stands_for = "all" if "actor_infer" in names else "none"
        group = tuple(SharedRole(name, roles_of(config)[name].offload or stands_for) for name in names)
        if any(role.offload != "none" for role in group):
            groups.append(group)
    return groups


def sharing_told(config: RunConfig) -> str:
    """How the roles of this program share devices, in words."""
    told = []
    for group in device_groups(config):
        told.append("in turns: " + ", ".join(f"{role.name} (offload: {role.offload})" for role in group))
    taking_turns = {role.name for group in device_groups(config) for role in group}
    apart = {name: devices_of(role) for name, role in roles_of(config).items() if name not in taking_turns}
    for device in dict.fromkeys(device for devices in apart.values() for device in devices):
        beside = [name for name, devices in apart.items() if device in devices]
        if len(beside) > 1 and f"side by side: {', '.join(beside)}" not in told:
            told.append(f"side by side: {', '.join(beside)}")
    roles = roles_of(config)
    for name, model in models_of(config).items():
        beside = [key for key, role in roles.items() if {*devices_of(model)}.intersection(devices_of(role))]
        if beside and name not in roles:
            told.append(f"{name} takes no turns: it stays beside {', '.join(beside)}")
    return "; ".join(told) or "no: each role has its own"


def _connected(config: RunConfig) -> list[list[str]]:
    roles = roles_of(config)
    group_of = {name: [name] for name in roles}
    for one, other in combinations(roles, 2):
        if group_of[one] is not group_of[other] and _share(roles[one], roles[other]):
            group_of[one] += group_of[other]
            group_of |= dict.fromkeys(group_of[other], group_of[one])
    return [group for name, group in group_of.items() if name == group[0] and len(group) > 1]


def _share(one: Role, other: Role) -> bool:
    """Their devices overlap, or both say that they give theirs back."""
    overlap = set(one.device_mapping or ()) & set(other.device_mapping or ())
    return bool(overlap) or all(role.offload not in (None, "none") for role in (one, other))


def sharing_problems(config: RunConfig) -> Iterator[Problem]:
    """What keeps roles from taking turns."""
    groups = device_groups(config)
    taking_turns = {role.name for group in groups for role in group}
    for name, role in roles_of(config).items():
        if role.offload not in (None, "none") and name not in taking_turns:
            yield Problem(
                (name, "offload"),
                f"{role.offload}, but no other role takes turns with it: set `offload` of the other one too, "
                "or give both the same device_mapping; or leave this out",
            )
    # One key of Trinity says `all` of every role, whether it is loaded or not.
    has_all_alike = config.actor_train.offload == config.actor_infer.offload == "all"
    is_loaded = config.needs_reference or config.mode not in ("both", "train")
    if config.reference.offload == "all" and not (is_loaded or has_all_alike):
        yield Problem(
            ("reference", "offload"),
            "all, but no reference model is loaded: leave this out, or ask for a KL term (init_kl_coef or "
            "kl_loss_coef above 0)",
        )
    for group in groups:
        names = [role.name for role in group]
        if "actor_infer" not in names or config.largest_depth == 0:
            continue
        others = " and ".join(name for name in names if name != "actor_infer")
        yield Problem(
            ("async_generation_ratio",),
            f"{config.async_generation_ratio}, but actor_infer takes turns on its devices with {others}, so "
            "nothing is generated while they train: set async_generation_ratio=0, or give actor_infer "
            "devices of its own (device_mapping); or, where the memory is enough for all of them, set "
            "`offload: none` for each",
        )

"""Which node of a cluster an actor runs on. Pure: the cluster and what runs there come in, a node comes out.

Ray puts an actor that takes no CPU on a random node. The processes of a run are light or heavy in ways
that Ray's resources do not show, so their nodes are chosen here: evenly, and again when one is lost.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from envsdk.config.ray_models import RolePlacement
from envsdk.contracts.failures import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node of the cluster that is alive."""

    node_id: str
    """Ray's."""
    address: str
    labels: Mapping[str, str] = field(default_factory=dict)
    resources: Mapping[str, float] = field(default_factory=dict)
    """All it has, in use or not."""
    is_draining: bool = False
    """It was asked to end soon."""

    @property
    def num_cpus(self) -> float:
        return self.resources.get("CPU", 0.0)


def choose_node(
    rule: RolePlacement,
    nodes: Sequence[Node],
    load: Mapping[str, int],
    *,
    driver: str,
    avoid: Collection[str] = (),
) -> str | None:
    """The node for one more process of a role; None when none will do at present.

    `load` counts the processes of this role by node id. A node to `avoid`, one that is draining, and one to
    which Ray was given no CPUs are chosen only when there is no other. `spread` takes the node with the
    fewest processes per CPU, and rather another one than the driver's; `pack` the one with most processes
    that has room.
    """
    if rule.strategy == "driver":
        return driver
    suitable = [node for node in nodes if suits(rule, node)]
    for is_good in (
        lambda node: not node.is_draining,
        lambda node: node.node_id not in avoid,
        lambda node: node.num_cpus > 0,
    ):
        suitable = [node for node in suitable if is_good(node)] or suitable
    if not suitable:
        return None
    if rule.strategy == "pack":
        roomy = [node for node in suitable if _has_room(rule, node, load.get(node.node_id, 0))] or suitable
        return min(roomy, key=lambda node: (-load.get(node.node_id, 0), -node.num_cpus, node.node_id)).node_id
    return min(
        suitable,
        key=lambda node: (
            (load.get(node.node_id, 0) + 1) / (node.num_cpus or 1.0),
            node.node_id == driver,
            node.node_id,
        ),
    ).node_id


def suits(rule: RolePlacement, node: Node) -> bool:
    """Whether the node has the labels, and so much of the resources that one process could run there."""
    return has_labels(rule, node) and _has_room(rule, node, 0)


def has_labels(rule: RolePlacement, node: Node) -> bool:
    """Whether the node has the labels of the rule, as Ray reads them: an absent label is not `a`."""
    return all(_selects(selector, node.labels.get(label)) for label, selector in rule.labels.items())


def demand(rule: RolePlacement) -> dict[str, float]:
    """The resources that one process takes, by Ray's names."""
    return dict(rule.resources) | ({"CPU": rule.num_cpus} if rule.num_cpus else {})


def check_role(role: str, rule: RolePlacement, nodes: Sequence[Node]) -> None:
    """ConfigurationError when no node of the cluster could ever hold a process of this role."""
    if any(suits(rule, node) for node in nodes):
        return
    is_label = not any(has_labels(rule, node) for node in nodes)
    key = f"ray.placement.{role}.{'labels' if is_label else 'resources'}"
    asked = dict(rule.labels) if is_label else demand(rule)
    raise ConfigurationError(
        f"{key}: no node of the cluster has {_listed(asked)}. There are {_described(nodes, is_label)}. "
        "Change the key, or start a node that has them"
        + (f" (ray start --labels={_example(rule.labels)})" if is_label else "")
    )


def _selects(selector: str, value: str | None) -> bool:
    is_negated, wanted = selector.startswith("!"), selector.removeprefix("!")
    values = wanted[3:-1].split(",") if wanted.startswith("in(") else [wanted]
    return (value is not None and value in [each.strip() for each in values]) is not is_negated


def _has_room(rule: RolePlacement, node: Node, num_there: int) -> bool:
    return all(
        amount * (num_there + 1) <= node.resources.get(name, 0.0) for name, amount in demand(rule).items()
    )


def _described(nodes: Sequence[Node], by_label: bool) -> str:
    """Each node with what could have been asked for."""
    return "; ".join(
        f"{node.address} with "
        + _listed(
            {name: value for name, value in node.labels.items() if not name.startswith("ray.io/")}
            if by_label
            else {name: value for name, value in node.resources.items() if not name.startswith("node:")}
        )
        for node in nodes
    )


def _listed(values: Mapping[str, object]) -> str:
    return (
        ", ".join(
            f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
            for name, value in values.items()
        )
        or "none"
    )


def _example(labels: Mapping[str, str]) -> str:
    return (
        ",".join(f"{name}={value}" for name, value in labels.items() if value[0] not in "!i(") or "NAME=VALUE"
    )

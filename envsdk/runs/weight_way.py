"""How a run's weights reach its engines: the transport, which depends on nodes and cards of both ends.

came (each engine) -> choose -> to(engines) ..., without the device once it `failed`
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from envsdk.contracts.failures import ConfigurationError
from envsdk.weights.source import WeightSource
from envsdk.weights.transports import Transport, can_share_memory, choose_transport, device_transport

_IN_MAIN_MEMORY = [each for each in Transport if not each.is_on_device]


class WeightWay:
    """Owner: the group of engines."""

    def __init__(
        self, asked_for: str, *, delta: bool, nodes: dict[str, str], say: Callable[[str], None]
    ) -> None:
        """`asked_for`: as configured. `nodes`: those of engines whose place is reserved."""
        self._asked_for = asked_for
        self._delta = delta
        self._say = say
        self.nodes = nodes
        """Each engine's; it may not be known yet."""
        self.in_memory = Transport.OBJECT_STORE
        """Through main memory, unless a device was asked for."""
        self._card = ""
        """The trainer's, and each engine's; "" for main memory."""
        self._cards: dict[str, str] = {}
        self.sends_adapter = False

    def came(self, name: str, node: str, card: str) -> None:
        """An engine is on this node, and takes weights on this card; "" for main memory."""
        self.nodes[name] = node
        self._cards[name] = _card_there(node, card)

    async def choose(self, source: WeightSource, actors: Mapping[str, Any], all_names: Iterable[str]) -> None:
        """Find the way, and whether an adapter will do; `actors` have come, others of `all_names` may later.

        ConfigurationError when the way that is asked for does not exist.
        """
        trainer_node = await source.node_id()
        if await source.has_adapter():
            abilities = await asyncio.gather(*(actor.abilities.remote() for actor in actors.values()))
            self.sends_adapter = all(ability.lora for ability in abilities)
        if (card := await source.card()) and not self.sends_adapter and not self._delta:
            self._card = _card_there(trainer_node, card)
        on_device, why_not = self._on_device(actors)
        if self.sends_adapter:
            why_not = "adapters are sent through main memory"
        if on_device is None and self._asked_for not in ("auto", *_IN_MAIN_MEMORY):
            raise ConfigurationError(
                f"model_update_transport: {self._asked_for}, but {why_not}; use auto, which takes the "
                "fastest way there is"
            )
        self.in_memory = choose_transport(
            self._asked_for,
            trainer_node=trainer_node,
            engine_nodes=self.nodes,
            can_share_memory=can_share_memory(),
        )
        if self.in_memory is Transport.SHARED_MEMORY:
            # Where all others are, an engine that is started later must be too.
            self.nodes = dict.fromkeys(all_names, trainer_node)
        if on_device is not None:
            self._say(f"weights reach the engines by {on_device}, in memory of the card")
        elif self._asked_for == "auto" and self._card and any(self._cards.values()):
            self._say(f"weights reach the engines by {self.in_memory}, in main memory: {why_not}")

    def to(self, names: Iterable[str]) -> Transport:
        """The way to these engines."""
        return self._on_device(names)[0] or self.in_memory

    def failed(self, transport: Transport, why: str) -> bool:
        """Whether there is another way, through main memory: from now on, for the rest of the run."""
        if not transport.is_on_device or self._asked_for != "auto":
            return False
        self._card = ""
        self._say(f"weights cannot go by {transport}, and go by {self.in_memory}: {why}")
        return True

    def _on_device(self, names: Iterable[str]) -> tuple[Transport | None, str]:
        cards = {name: self._cards[name] for name in names}
        return device_transport(self._asked_for, trainer_card=self._card, engine_cards=cards)


def _card_there(node: str, card: str) -> str:
    """The card's name in the cluster: handles mean nothing on another node."""
    return card and f"{node} {card}"

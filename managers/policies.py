"""Policies without a model: random, oracle, scripted, and an oracle that slips.

    policy = EpsilonPolicy(OraclePolicy(), epsilon=0.3)
    reply = await policy.act(turn)

All randomness comes from `turn.seed`: the same episode is played the same way in every run, in
whatever order episodes run. Another policy plugs in by its dotted name, or under the entry-point
group `envsdk.policies`; it is built without arguments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from envsdk.base.plugins import load_plugin, plugin_names
from envsdk.base.settings.nearest import suggest
from envsdk.config.plugins import POLICIES
from envsdk.contracts.failures import ConfigurationError
from envsdk.contracts.players import POLICY, Players, player_names
from envsdk.contracts.policy import Policy, Reply, TurnContext
from envsdk.contracts.seeds import stable_seed

_SEED_RANGE = 2**31


class RandomPolicy(Policy):
    """Every legal action is equally likely."""

    name = "random"

    async def act(self, turn: TurnContext) -> Reply:
        actions = await turn.env.legal_actions()
        return Reply(text=actions[turn.seed % len(actions)])


class OraclePolicy(Policy):
    """What the environment's own solver would do next."""

    name = "oracle"

    async def act(self, turn: TurnContext) -> Reply:
        return Reply(text=await turn.env.oracle())


class ScriptedPolicy(Policy):
    """Plays a fixed list of replies, one per turn, and starts over after the last."""

    name = "scripted"

    def __init__(self, replies: Sequence[str]) -> None:
        if not replies:
            raise ValueError("a scripted policy needs at least one reply")
        self._replies = tuple(replies)

    async def act(self, turn: TurnContext) -> Reply:
        return Reply(text=self._replies[turn.turn_index % len(self._replies)])


class EpsilonPolicy(Policy):
    """With probability `epsilon` a random legal action, which nobody is to learn, else what `base` says.

    For bases that keep no tokens: an action put in place of a model's reply would be missing from
    the token log.
    """

    def __init__(self, base: Policy, epsilon: float) -> None:
        if not 0 <= epsilon <= 1:
            raise ValueError(f"epsilon is a probability from 0 to 1, not {epsilon}")
        self.name = f"{base.name}+random({epsilon:g})"
        self._base = base
        self._random = RandomPolicy()
        self._epsilon = epsilon

    async def act(self, turn: TurnContext) -> Reply:
        # A draw of its own: whether to explore must not correlate with which action is then chosen.
        explores = stable_seed("explore", turn.seed) < self._epsilon * _SEED_RANGE
        if not explores:
            return await self._base.act(turn)
        return replace(await self._random.act(turn), learned=False)


BUILT_IN: Mapping[str, type[Policy]] = {"oracle": OraclePolicy, "random": RandomPolicy}
"""Policies the command lines know by name, besides `scripted`, `model` and `endpoint`."""

REQUIRED_ABILITY: Mapping[str, str] = {"oracle": "oracle", "random": "legal_actions"}
"""The ability of `TextEnv` that a built-in policy needs."""


def make_policy(name: str, *, epsilon: float = 0.0, replies: Sequence[str] = ()) -> Policy:
    """A policy without a model, by name: built-in, entry point or `package.module:Class`.

    `replies` are those of `scripted`. Raises ConfigurationError for an unknown name and for an epsilon that
    is no probability.
    """
    if name == ScriptedPolicy.name:
        if not replies:
            raise ConfigurationError("--policy scripted needs --replies FILE: the replies, one per turn")
        policy: Policy = ScriptedPolicy(replies)
    else:
        policy = policy_class(name)()
    try:
        return EpsilonPolicy(policy, epsilon) if epsilon else policy
    except ValueError as error:
        raise ConfigurationError(f"--epsilon: {error}") from error


def opponents(players: Players, models: Mapping[str, Policy] | None = None) -> dict[str, Policy]:
    """The players other than the policy, by name: one of `models`, or a policy without a model.

    ConfigurationError for an unknown name.
    """
    known = models or {}
    return {name: known.get(name) or make_policy(name) for name in player_names(players) if name != POLICY}


def policy_class(name: str) -> type[Policy]:
    """A policy without a model by name; ConfigurationError when there is none."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    plugins = plugin_names(POLICIES)
    if name not in plugins and ":" not in name:
        others = ("endpoint", "model", "scripted")
        known = suggest(name, [*BUILT_IN, *others, *plugins], known="known policies")
        raise ConfigurationError(f"there is no policy {name!r}; {known} (`package.module:Class` works too)")
    found = load_plugin(POLICIES, name)
    if not (isinstance(found, type) and issubclass(found, Policy)):
        raise ConfigurationError(f"policy {name!r} is not a subclass of envsdk.contracts.policy.Policy")
    return found

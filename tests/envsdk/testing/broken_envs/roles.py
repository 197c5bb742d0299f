"""Lines that two players walk in turn, and that lose track of them."""

from __future__ import annotations

from tests.envsdk.testing.broken_envs.line import Line, broken


class TwoOnALine(Line):
    """Sound: a role moves once, then the other; a reply that does not parse is asked for again."""

    roles = ("a", "b")
    role = "a"

    def named(self):
        return list(self.roles)

    def reset(self, *, seed=None, options=None):
        observation, info = super().reset(seed=seed)
        self.role = "a"
        return observation, {**info, "roles": self.named(), "role": self.role}

    def step(self, action):
        was_over = self.over
        *result, info = super().step(action)
        rewards = {self.role: result[1]}
        if info.get("metrics", {}).get("action_is_valid") and not was_over:
            self.role = "b" if self.role == "a" else "a"
        return (*result, {**info, "role": self.role, "rewards": rewards})

    def snapshot(self):
        return super().snapshot(), self.role

    def restore(self, snapshot):
        self.role = snapshot[1]
        return super().restore(snapshot[0])

    def state_hash(self):
        return f"{self.place[0]} {self.role}"


@broken("roles.roles_are_the_same_for_all_tasks", "for one seed and")
class RolesAreShuffled(TwoOnALine):
    def named(self):
        return ["a", "b"][:: 1 if self.place[0] < 5 else -1]


@broken("roles.infos_name_known_roles", "info\\['role'\\] is 'c'")
class AThirdOneIsAsked(TwoOnALine):
    def step(self, action):
        *result, info = super().step(action)
        return (*result, {**info, "role": "c"})


@broken("roles.infos_name_known_roles", "info\\['rewards'\\] is")
class PaysSomebodyElse(TwoOnALine):
    def step(self, action):
        *result, info = super().step(action)
        return (*result, {**info, "rewards": {"c": 1.0}})


@broken("roles.invalid_replies_keep_the_turn", "did not parse")
class ASlipCostsTheTurn(TwoOnALine):
    def step(self, action):
        before = self.role
        *result, info = super().step(action)
        if self.role == before:
            self.role = "b" if before == "a" else "a"
        return (*result, {**info, "role": self.role})

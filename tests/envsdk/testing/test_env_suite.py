"""The suite passes a sound toy environment and catches one broken on purpose for each property."""

import random
from typing import ClassVar

import numpy as np
import pytest
from gymnasium.spaces import Text

from envsdk import TextEnv
from envsdk.testing import TextEnvSuite, check_text_env

PRINTABLE = "".join(map(chr, range(32, 127)))


class Line(TextEnv):
    """Walk along a line of ten places to place 5; `left` and `right` may slip and stay."""

    def __init__(self):
        self.observation_space = Text(max_length=20, charset=PRINTABLE)
        self.action_space = Text(min_length=0, max_length=20, charset=PRINTABLE)
        self.place = [0]

    def observation(self):
        return f"at {self.place[0]}"

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = [int(self.np_random.choice([0, 1, 2, 3, 4, 6, 7, 8, 9]))]
        return self.observation(), {}

    def step(self, action):
        moves = {"left": -1, "right": 1}
        is_valid = action in moves
        if is_valid and self.np_random.random() < 0.7:
            self.place[0] = min(9, max(0, self.place[0] + moves[action]))
        success = self.place[0] == 5
        metrics = {"action_is_valid": float(is_valid)}
        return self.observation(), float(success), success, False, {"success": success, "metrics": metrics}

    def snapshot(self):
        return list(self.place), self.np_random.bit_generator.state

    def restore(self, snapshot):
        self.place = list(snapshot[0])
        self.np_random.bit_generator.state = snapshot[1]
        return self.observation()

    def oracle(self):
        return "right" if self.place[0] < 5 else "left"

    def legal_actions(self):
        return ("left", "right")

    def state_hash(self):
        return str(self.place[0])


class UnseededTask(Line):
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = [int(np.random.default_rng().integers(5))]
        return self.observation(), {}


class ResetKeepsOldState(Line):
    num_resets = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.num_resets += 1
        self.place = [min(4, self.num_resets)]
        return self.observation(), {}


class SharedBetweenInstances(Line):
    shared: ClassVar = {"place": 0}

    def reset(self, *, seed=None, options=None):
        observation, info = super().reset(seed=seed)
        self.shared["place"] = self.place[0]
        return observation, info

    def step(self, action):
        self.place = [self.shared["place"]]
        result = super().step(action)
        self.shared["place"] = self.place[0]
        return result


class DrawsFromGlobalRandom(Line):
    def step(self, action):
        random.random()
        return super().step(action)


class SeedsGlobalNumpy(Line):
    def reset(self, *, seed=None, options=None):
        np.random.seed(seed)
        return super().reset(seed=seed)


class DependsOnGlobalRandom(Line):
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        state = random.getstate()
        self.place = [random.randrange(5)]
        random.setstate(state)
        return self.observation(), {}


class RaisesOnOddReplies(Line):
    def step(self, action):
        action.encode("ascii")
        return super().step(action)


class RewardIsNotANumber(Line):
    def step(self, action):
        observation, _, terminated, truncated, info = super().step(action)
        return observation, float("nan"), terminated, truncated, info


class FlagIsNumpyBool(Line):
    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, np.bool_(terminated), truncated, info


class SuccessWithoutAMove(Line):
    def step(self, action):
        *result, info = super().step(action)
        return (*result, {**info, "success": True})


class SnapshotIsTheLiveState(Line):
    def snapshot(self):
        return self.place, self.np_random.bit_generator.state


class SnapshotForgetsRandomState(Line):
    def restore(self, snapshot):
        self.place = list(snapshot[0])
        return self.observation()


class SnapshotCannotBePickled(Line):
    def snapshot(self):
        kept = super().snapshot()
        return lambda: kept

    def restore(self, snapshot):
        return super().restore(snapshot())


class RestoreShowsSomethingElse(Line):
    def restore(self, snapshot):
        super().restore(snapshot)
        return "restored"


class OracleGoesRoundInCircles(Line):
    def oracle(self):
        return "left" if self.place[0] < 5 else "right"


class OracleOnlyEndsTheEpisode(Line):
    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated, truncated or self.place[0] == 3, info


class SomeTasksCannotBeSolved(Line):
    def reset(self, *, seed=None, options=None):
        observation, info = super().reset(seed=seed)
        self.is_blocked = self.place[0] == 9
        return observation, info

    def step(self, action):
        if self.is_blocked:
            return self.observation(), 0.0, False, False, {"success": False}
        return super().step(action)


class LegalActionDoesNotParse(Line):
    def legal_actions(self):
        return ("left", "rihgt")


class NoLegalActions(Line):
    def legal_actions(self):
        return ()


class LegalActionsChangeOrder(Line):
    calls = 0

    def legal_actions(self):
        self.calls += 1
        return ("left", "right") if self.calls % 2 else ("right", "left")


class HashCountsTurns(Line):
    turns = 0

    def step(self, action):
        self.turns += 1
        return super().step(action)

    def state_hash(self):
        return f"{self.place[0]} {self.turns}"


class HashRemembersAnInvalidReply(Line):
    last_reply = "left"

    def step(self, action):
        self.last_reply = action
        return super().step(action)

    def state_hash(self):
        return f"{self.place[0]} {self.last_reply in self.legal_actions()}"


class HashIsOfTheObject(Line):
    def state_hash(self):
        return str(id(self))


class HashIsConstant(Line):
    def state_hash(self):
        return "same"


class SnapshotWithoutRestore(Line):
    restore = TextEnv.restore


class ObservationOutsideItsSpace(Line):
    def observation(self):
        return f"at {self.place[0]} \N{SNOWMAN}"


class LongObservation(Line):
    def step(self, action):
        observation, *result = super().step(action)
        return observation + " after " + action, *result


BROKEN = [
    (UnseededTask, "test_the_same_seed_gives_the_same_course", "seed differ"),
    (ResetKeepsOldState, "test_the_same_seed_gives_the_same_course", "a second reset"),
    (SharedBetweenInstances, "test_instances_do_not_influence_each_other", "another instance"),
    (DrawsFromGlobalRandom, "test_no_global_random_state_is_touched", "state of `random` changed"),
    (SeedsGlobalNumpy, "test_no_global_random_state_is_touched", r"state of `numpy\.random` changed"),
    (DependsOnGlobalRandom, "test_no_global_random_state_is_touched", "depends on global random state"),
    (LongObservation, "test_any_reply_is_answered", "is not in Text"),
    (RewardIsNotANumber, "test_any_reply_is_answered", "no finite number"),
    (FlagIsNumpyBool, "test_any_reply_is_answered", "terminated is no bool"),
    (SuccessWithoutAMove, "test_any_reply_is_answered", "success by a reply that did not parse"),
    (SnapshotIsTheLiveState, "test_snapshots_can_be_replayed", r"restore\(\) in the same instance"),
    (SnapshotForgetsRandomState, "test_snapshots_can_be_replayed", "the course differs"),
    (RestoreShowsSomethingElse, "test_snapshots_can_be_replayed", "shows 'restored'"),
    (OracleGoesRoundInCircles, "test_the_oracle_solves_every_task", "has not solved"),
    (OracleOnlyEndsTheEpisode, "test_the_oracle_solves_every_task", r"without info\['success'\]"),
    (SomeTasksCannotBeSolved, "test_the_oracle_solves_every_task", "has not solved"),
    (LegalActionDoesNotParse, "test_legal_actions_parse", "'rihgt' does not parse"),
    (NoLegalActions, "test_legal_actions_parse", "is empty before the end"),
    (LegalActionsChangeOrder, "test_legal_actions_parse", "changes from call to call"),
    (
        HashCountsTurns,
        "test_the_state_hash_tells_states_apart",
        "did not parse changed the hash|do not tell apart",
    ),
    (HashRemembersAnInvalidReply, "test_the_state_hash_tells_states_apart", "did not parse changed the hash"),
    (HashIsOfTheObject, "test_the_state_hash_tells_states_apart", "two instances in the same state"),
    (HashIsConstant, "test_the_state_hash_tells_states_apart", "do not tell apart"),
    (SnapshotWithoutRestore, "test_abilities_come_in_pairs", r"here is only snapshot\(\)"),
    (ObservationOutsideItsSpace, "test_gymnasium_accepts_it", "observation space"),
]


def suite_for(env_class, **options) -> TextEnvSuite:
    attributes = {"observations_show_state": True, "max_examples": 100, "max_turns": 100, **options}
    return type("Suite", (TextEnvSuite,), {**attributes, "make_env": lambda self: env_class()})()


class TestLine(TextEnvSuite):
    observations_show_state = True

    def make_env(self):
        return Line()


@pytest.mark.parametrize(
    ("broken", "test", "message"), BROKEN, ids=[broken.__name__ for broken, *_ in BROKEN]
)
def test_the_suite_catches(broken, test, message):
    with pytest.raises(AssertionError, match=message):
        getattr(suite_for(broken), test)()


def test_the_suite_catches_an_environment_that_raises():
    with pytest.raises(UnicodeEncodeError):
        suite_for(RaisesOnOddReplies).test_any_reply_is_answered()


def test_the_suite_catches_a_snapshot_that_cannot_be_pickled():
    with pytest.raises(Exception, match="pickle"):
        suite_for(SnapshotCannotBePickled).test_snapshots_can_be_replayed()


def test_every_property_of_the_suite_is_shown_to_fail():
    tests = {name for name in vars(TextEnvSuite) if name.startswith("test_")}
    assert tests == {test for _, test, _ in BROKEN}


def test_abilities_that_are_not_declared_are_not_tested():
    class Bare(Line):
        snapshot = TextEnv.snapshot
        restore = TextEnv.restore
        oracle = TextEnv.oracle
        legal_actions = TextEnv.legal_actions
        state_hash = TextEnv.state_hash

    ran = check_text_env(Bare, max_examples=5)
    assert ran == [
        "test_the_same_seed_gives_the_same_course",
        "test_instances_do_not_influence_each_other",
        "test_no_global_random_state_is_touched",
        "test_any_reply_is_answered",
        "test_abilities_come_in_pairs",
        "test_gymnasium_accepts_it",
    ]


def test_check_text_env_runs_every_test_and_names_the_one_that_fails():
    ran = check_text_env(Line, max_examples=5, observations_show_state=True)
    assert set(ran) == {name for name in vars(TextEnvSuite) if name.startswith("test_")}
    with pytest.raises(AssertionError, match=r"test_legal_actions_parse: .*'rihgt'"):
        check_text_env(LegalActionDoesNotParse, max_examples=5)
    with pytest.raises(TypeError, match="no option 'max_example'"):
        check_text_env(Line, max_example=5)

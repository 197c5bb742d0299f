"""`TextEnvSuite`: the properties as tests that pytest collects, with examples from Hypothesis."""

from __future__ import annotations

import unittest
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.errors import FlakyFailure

from envsdk.env import TextEnv
from envsdk.testing import properties

AWKWARD_REPLIES = (
    "",
    " \n\t",
    "\x00",
    "<answer>",
    "</answer>",
    "<answer></answer>",
    "</answer><answer>",
    "<answer><answer></answer>",
    "<ANSWER>\u202eright</ANSWER>",
    "\ud800",
    "İ" * 50,
    "<answer>" * 200,
)
"""Replies that a careless parser falls over; drawn beside arbitrary text."""

seeds = st.integers(min_value=0, max_value=2**31 - 1)


def scripts(max_size: int = 12) -> st.SearchStrategy[list[int | str]]:
    """Scripts (see `envsdk.testing.properties`): mostly legal actions, some text of any kind."""
    legal = st.integers(min_value=0, max_value=63)
    text = st.text(st.characters(), max_size=40)
    return st.lists(st.one_of(legal, legal, text, st.sampled_from(AWKWARD_REPLIES)), max_size=max_size)


class TextEnvSuite:
    """Tests for one configuration of an environment. In a test file:

        class TestMyEnv(TextEnvSuite):
            def make_env(self):
                return MyEnv(size=5)

    Tests of an optional ability are skipped when the environment does not declare it.
    """

    max_examples: int = 25
    """Examples per property. Fewer for environments that are slow to build."""
    max_turns: int = 1000
    """Turns within which the oracle must have ended the episode."""
    oracle_always_solves: bool = True
    """False where luck decides, as on slippery ice."""
    observations_show_state: bool = False
    """The observation is a function of the state alone, so hashes and observations must agree."""

    def make_env(self) -> TextEnv:
        raise NotImplementedError("make_env() must return a new environment")

    def test_the_same_seed_gives_the_same_course(self) -> None:
        self._check(properties.same_seed_gives_the_same_course, seed=seeds, script=scripts())

    def test_instances_do_not_influence_each_other(self) -> None:
        self._check(
            properties.instances_do_not_influence_each_other,
            seed=seeds,
            script=scripts(),
            other_seed=seeds,
            other_script=scripts(),
        )

    def test_no_global_random_state_is_touched(self) -> None:
        self._check(properties.global_random_state_is_not_touched, seed=seeds, script=scripts())

    def test_any_reply_is_answered(self) -> None:
        self._check(properties.any_reply_is_answered, seed=seeds, script=scripts())

    def test_snapshots_can_be_replayed(self) -> None:
        self._needs("snapshot", "restore")
        self._check(properties.snapshots_can_be_replayed, seed=seeds, script=scripts(6), then=scripts(6))

    def test_the_oracle_solves_every_task(self) -> None:
        self._needs("oracle")
        if not self.oracle_always_solves:
            raise unittest.SkipTest("oracle_always_solves is off")
        turns = st.just(self.max_turns)
        self._check(properties.oracle_solves_the_task, seed=seeds, script=scripts(), max_turns=turns)

    def test_legal_actions_parse(self) -> None:
        self._needs("legal_actions")
        self._check(properties.legal_actions_parse, seed=seeds, script=scripts())

    def test_the_state_hash_tells_states_apart(self) -> None:
        self._needs("state_hash")
        shows = st.just(self.observations_show_state)
        self._check(
            properties.state_hash_tells_states_apart,
            seed=seeds,
            script=scripts(),
            observations_show_state=shows,
        )

    def test_abilities_come_in_pairs(self) -> None:
        properties.abilities_come_in_pairs(self.make_env)

    def test_gymnasium_accepts_it(self) -> None:
        properties.gymnasium_accepts_it(self.make_env)

    def _needs(self, *abilities: str) -> None:
        missing = set(abilities) - self.make_env().abilities()
        if missing:
            raise unittest.SkipTest(f"does not declare {', '.join(sorted(missing))}")

    def _check(self, holds: Callable[..., None], **examples: st.SearchStrategy[Any]) -> None:
        @settings(
            max_examples=self.max_examples,
            deadline=None,
            report_multiple_bugs=False,
            suppress_health_check=[HealthCheck.too_slow],
        )
        @given(**examples)
        def property_holds(**example: Any) -> None:
            holds(self.make_env, **example)

        try:
            property_holds()
        except FlakyFailure as flaky:
            # The environment, not the test, answered differently when the example was tried again.
            raise flaky.exceptions[0] from flaky


def check_text_env(make_env: Callable[[], TextEnv], **options: Any) -> list[str]:
    """Run the whole suite without pytest; returns the names of the tests that ran.

    Args:
        make_env: Returns a new environment, of the same configuration each time.
        options: Attributes of `TextEnvSuite`, such as `max_examples=5`.

    Raises:
        AssertionError: A property does not hold; the message names it and gives an example.
    """
    suite = TextEnvSuite()
    suite.make_env = make_env  # type: ignore[method-assign]
    for name, value in options.items():
        if not hasattr(TextEnvSuite, name) or name.startswith(("_", "test_")):
            raise TypeError(f"check_text_env: TextEnvSuite has no option {name!r}")
        setattr(suite, name, value)
    ran = []
    for name in [name for name in vars(TextEnvSuite) if name.startswith("test_")]:
        try:
            getattr(suite, name)()
        except unittest.SkipTest:
            continue
        except Exception as error:
            raise AssertionError(f"{name}: {type(error).__name__}: {error}") from error
        ran.append(name)
    return ran

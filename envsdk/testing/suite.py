"""`TextEnvSuite`: the checks as tests that pytest collects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Self

from envsdk.contracts.env import AnyTextEnv
from envsdk.testing.checks import Check, catalogue
from envsdk.testing.runner import Status, demand_of, described, examine, run
from envsdk.testing.subject import Options, Subject, Target, options_from, subject_of, synchronous


class TextEnvSuite:
    """Tests for one configuration of an environment. In a test file, one line:

        TestMyEnv = TextEnvSuite.of("mine/MyEnv-v1", {"size": 5})

    or, where it takes more to build one:

        class TestMyEnv(TextEnvSuite):
            max_examples = 10

            def make_env(self):
                return MyEnv(size=5)

    There is a test for every check of `envsdk check`. Those of an optional ability are skipped when
    the environment does not declare it, those of other processes when only `make_env` is known.
    """

    target: ClassVar[Target | None] = None
    """What `of` was given."""
    env_config: ClassVar[Mapping[str, Any]] = {}

    max_examples: int = Options.max_examples
    max_turns: int = Options.max_turns
    oracle_always_solves: bool = Options.oracle_always_solves
    observations_show_state: bool = Options.observations_show_state
    seeds_give_tasks: bool = Options.seeds_give_tasks
    timeout_s: float | None = Options.timeout_s

    @classmethod
    def of(cls, target: Target, env_config: Mapping[str, Any] | None = None, **options: Any) -> type[Self]:
        """A suite for what `target` names; `options` are fields of `Options`."""
        options_from(options)
        attributes = {"target": staticmethod(target) if callable(target) else target, **options}
        return type("TextEnvSuiteOf", (cls,), {**attributes, "env_config": dict(env_config or {})})

    def make_env(self) -> AnyTextEnv:
        """A new environment. To be overridden, unless the suite is made by `of`."""
        raise NotImplementedError("make_env() must return a new environment")

    def subject(self) -> Subject:
        """What the tests are about."""
        kind = type(self)
        options = Options(**{name: getattr(self, name) for name in _OPTIONS})
        # What one test finds out, such as courses that many look at, the others of the class use too.
        if "_memory" not in vars(kind):
            kind._memory = {}
        if self.target is None:
            return Subject(
                name=kind.__name__, make=synchronous(self.make_env), options=options, memory=kind._memory
            )
        return replace(subject_of(self.target, self.env_config, options), memory=kind._memory)

    _memory: ClassVar[dict[str, Any]] = {}


_OPTIONS = tuple(name for name in Options.names() if name != "derandomize")


def _test(check: Check) -> Callable[[TextEnvSuite], None]:
    def test(self: TextEnvSuite) -> None:
        demand_of(run(check, self.subject()))

    test.__name__ = test_name(check)
    test.__qualname__ = f"TextEnvSuite.{test.__name__}"
    test.__doc__ = check.demand
    return test


def test_name(check: Check) -> str:
    """Name of the test method that runs it."""
    return f"test_{check.group}_{check.title}"


for _check in catalogue().values():
    setattr(TextEnvSuite, test_name(_check), _test(_check))


def check_text_env(make_env: Callable[[], AnyTextEnv], **options: Any) -> list[str]:
    """Run every check without pytest; returns the names of those that passed.

    Args:
        make_env: Returns a new environment, of the same configuration each time.
        options: Fields of `Options`, such as `max_examples=5`.

    Raises:
        AssertionError: A demand is not met; the message names it and gives a script that shows it.
        TypeError: There is no such option.
    """
    subject = Subject(name="make_env", make=synchronous(make_env), options=options_from(options))
    report = examine(subject)
    for outcome in report.failed:
        raise AssertionError(described(outcome))
    return [outcome.check.name for outcome in report.having(Status.PASSED)]

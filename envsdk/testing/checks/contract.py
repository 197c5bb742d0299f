"""The shapes and types that everybody else relies on."""

from __future__ import annotations

import contextlib
import math
import pickle
import warnings

from gymnasium.spaces import Text
from gymnasium.utils.env_checker import check_env

from envsdk.base.registry import load_entry_point, make
from envsdk.contracts.env import EnvSpec
from envsdk.contracts.failures import ConfigurationError, describe_error
from envsdk.testing.checks import NotApplicable, check, spec_of
from envsdk.testing.courses import Course, Fault, Script, ask, build, play, play_from, reset, short, step
from envsdk.testing.strategies import choices_of
from envsdk.testing.subject import Subject


@check("It is built again and again with the same arguments: a worker holds hundreds.")
def can_be_built(subject: Subject) -> None:
    for _ in range(3):
        build(subject.make).close()


@check("Every call returns: one that never does holds a worker until a deadline ends it.")
def calls_return(subject: Subject, seed: int, script: Script) -> None:
    # What they raise or return is for other checks.
    with contextlib.suppress(Fault):
        env = build(subject.make)
        reset(env, seed)
        for method in sorted(env.abilities() - {"snapshot", "restore"}):
            ask(env, method)
        if {"snapshot", "restore"} <= env.abilities():
            ask(env, "restore", ask(env, "snapshot"))
        play(env, script)
        ask(env, "close")


@check("`observation_space` and `action_space` are text spaces: policies read and write text.")
def spaces_are_text(subject: Subject) -> None:
    env = subject.make()
    for name in ("observation_space", "action_space"):
        space = getattr(env, name, None)
        assert isinstance(space, Text), f"{name} is {short(space)}, not a gymnasium.spaces.Text"


@check("`reset` answers (observation, info) for every seed: a task that cannot start is lost.")
def reset_answers(subject: Subject, course: Course) -> None:
    if course.fault is not None and course.fault.method == "reset":
        raise course.fault


@check("`reset` takes the smallest and the largest seed, and none at all: all of them are used.")
def reset_takes_any_seed(subject: Subject) -> None:
    for seed in (0, 1, 2**31 - 1, 2**32 - 1, None):
        env = subject.make()
        reset(env, seed)
        env.close()


@check("`reset` takes options, those it does not know included: wrappers pass them on.")
def reset_takes_options(subject: Subject) -> None:
    for options in (None, {}, {"an option nobody knows": 1}):
        env = subject.make()
        ask(env, "reset", seed=0, options=options)
        env.close()


@check("`step` answers (observation, reward, terminated, truncated, info): five values in a tuple.")
def step_returns_five_values(subject: Subject, course: Course) -> None:
    fault = course.fault
    if fault is not None and fault.method == "step" and fault.__cause__ is None:
        raise fault


@check("`terminated` and `truncated` are bool: other truth values fail in masks and in JSON.")
def flags_are_bools(subject: Subject, course: Course) -> None:
    for index, turn in course.steps():
        for name in ("terminated", "truncated"):
            flag = getattr(turn, name)
            assert isinstance(flag, bool), f"turn {index}: {name} is no bool but {short(flag)}"


@check("`info` is a dict with text keys: it is searched for `success` and `metrics`.")
def info_is_a_dict(subject: Subject, course: Course) -> None:
    for index, turn in enumerate(course.turns):
        assert isinstance(turn.info, dict), f"turn {index}: info {short(turn.info)} is no dict"
        odd = [key for key in turn.info if not isinstance(key, str)]
        assert not odd, f"turn {index}: info has the key {short(odd[0] if odd else None)}, which is no str"


@check("`info` can be pickled: environments in processes of their own send it.")
def info_can_be_pickled(subject: Subject, course: Course) -> None:
    for index, turn in enumerate(course.turns):
        try:
            pickle.dumps(turn.info)
        except Exception as error:
            raise AssertionError(f"turn {index}: info cannot be pickled: {error}") from error


@check("`info['success']` is a bool where it is given: success rates count it.")
def success_is_a_bool(subject: Subject, course: Course) -> None:
    for index, turn in course.steps():
        if isinstance(turn.info, dict) and "success" in turn.info:
            success = turn.info["success"]
            assert isinstance(success, bool), f"turn {index}: success is no bool but {short(success)}"


@check("`info['metrics']` maps text to finite numbers: they are averaged over episodes.")
def metrics_are_numbers(subject: Subject, course: Course) -> None:
    for index, turn in course.steps():
        metrics = turn.info.get("metrics", {}) if isinstance(turn.info, dict) else {}
        assert isinstance(metrics, dict), f"turn {index}: metrics {short(metrics)} is no dict"
        for name, value in metrics.items():
            is_number = isinstance(name, str) and isinstance(value, int | float) and math.isfinite(value)
            assert is_number, f"turn {index}: metrics has {name!r}: {short(value)}, which is no finite number"


@check("`close` may be called before `reset` and more than once: clean-up runs whatever happened.")
def close_can_be_repeated(subject: Subject) -> None:
    for plays in (False, True):
        env = subject.make()
        if plays:
            play_from(env, 0, [0])
        ask(env, "close")
        ask(env, "close")


@check("Gymnasium's own `check_env` accepts it without a warning: its wrappers rely on that.")
def gymnasium_accepts_it(subject: Subject) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            check_env(subject.make(), skip_close_check=True)
        except AssertionError:
            raise
        except Exception as error:
            raise AssertionError(f"check_env raised {describe_error(error)}") from error
    # It can build no second environment to render with; that takes a registered id.
    serious = [str(w.message) for w in caught if "alternative render modes" not in str(w.message)]
    assert not serious, f"check_env warns: {serious}"


@check("Every switch and choice of its constructor works or is refused by ValueError: users set them.")
def every_choice_works_or_is_refused(subject: Subject) -> None:
    spec = spec_of(subject)
    for name, values in choices_of(load_entry_point(spec)).items():
        if name in subject.env_config:
            continue
        for value in values:
            _starts(spec, {**subject.env_config, name: value})


def _starts(spec: EnvSpec, env_config: dict[str, object]) -> None:
    try:
        env = make(spec, **env_config)
    except ConfigurationError:
        return
    except Exception as error:
        raise Fault("__init__", f"{env_config}: {describe_error(error)}") from error
    try:
        play_from(env, 0, [0])
    except Fault as fault:
        raise Fault(fault.method, f"with {env_config}: {fault}") from fault
    finally:
        env.close()


@check("A keyword it does not know is refused: a misspelled one would be ignored in silence.")
def unknown_keywords_are_refused(subject: Subject) -> None:
    spec = spec_of(subject)
    try:
        make(spec, **{**subject.env_config, "a_keyword_nobody_knows": 1}).close()
    except ConfigurationError:
        return
    raise AssertionError("the constructor takes `a_keyword_nobody_knows=1` and says nothing")


@check("The spec can be pickled: worker processes receive it.")
def spec_can_be_pickled(subject: Subject) -> None:
    spec = spec_of(subject)
    try:
        copy = pickle.loads(pickle.dumps((spec, subject.env_config)))
    except Exception as error:
        raise AssertionError(f"the spec cannot be pickled: {describe_error(error)}") from error
    assert copy[0].id == spec.id


@check("The spec has a description and an action format: lists and the policy's prompt show them.")
def spec_tells_what_to_reply(subject: Subject) -> None:
    spec = subject.spec
    if spec is None or not subject.is_registered:
        raise NotApplicable("it has no spec of its own")
    for name in ("description", "action_format"):
        assert str(getattr(spec, name)).strip(), f"{name} of the spec is empty"
    lines = spec.description.strip().splitlines()
    assert len(lines) == 1, f"the description has {len(lines)} lines; lists have room for one"


@check("The spec's limits are above zero: others end every episode before it starts.")
def spec_limits_are_positive(subject: Subject) -> None:
    spec = spec_of(subject)
    assert spec.max_steps is None or spec.max_steps >= 1, f"max_steps is {spec.max_steps}"
    for name in ("reset_timeout_s", "step_timeout_s"):
        assert getattr(spec, name) > 0, f"{name} is {getattr(spec, name)}"


@check("Text drawn from `action_space` is answered: wrappers and explorers sample it.")
def sampled_actions_are_answered(subject: Subject, seed: int) -> None:
    env = subject.make()
    reset(env, seed)
    env.action_space.seed(seed)
    for _ in range(3):
        if step(env, env.action_space.sample()).is_last:
            break
    env.close()

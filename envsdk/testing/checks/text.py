"""Text in, text out, whatever the text is."""

from __future__ import annotations

from envsdk.testing.checks import check
from envsdk.testing.courses import Course, Script, Turn, ask, play_from, reset, short, step
from envsdk.testing.strategies import AWKWARD_REPLIES
from envsdk.testing.subject import Subject


@check("Any reply is answered with a turn: a policy says anything, and nothing it says is an error.")
def any_reply_is_answered(subject: Subject, course: Course) -> None:
    fault = course.fault
    if fault is not None and fault.method == "step" and fault.__cause__ is not None:
        raise fault


@check("Replies that careless parsers fall over are answered: empty, NUL, lone surrogates, half tags.")
def awkward_replies_are_answered(subject: Subject) -> None:
    _answers_to_awkward_replies(subject)


def _answers_to_awkward_replies(subject: Subject) -> list[tuple[str, Turn]]:
    env = subject.make()
    over = True
    answers = []
    for reply in AWKWARD_REPLIES:
        if over:
            reset(env, 0)
        answers.append((reply, step(env, reply)))
        over = answers[-1][1].is_last
    env.close()
    return answers


@check("A reply of a hundred thousand characters is answered: sampling may run away.")
def long_replies_are_answered(subject: Subject) -> None:
    for unit in ("<answer>", "no ", "(", "a"):
        env = subject.make()
        reset(env, 0)
        turn = step(env, unit * (100_000 // len(unit)))
        length = len(turn.observation) if isinstance(turn.observation, str) else 0
        assert length < 100_000, f"the observation echoes the whole reply: {length} characters"
        env.close()


@check("Observations are `str`, not a subclass or bytes: they are tokenized and stored.")
def observations_are_strings(subject: Subject, course: Course) -> None:
    for index, turn in enumerate(course.turns):
        assert type(turn.observation) is str, (
            f"turn {index}: the observation is a {type(turn.observation).__name__}: {short(turn.observation)}"
        )


@check("Observations are in `observation_space`: Gymnasium's wrappers and buffers rely on it.")
def observations_are_in_their_space(subject: Subject, course: Course) -> None:
    space = course.env.observation_space
    for index, turn in enumerate(course.turns):
        if isinstance(turn.observation, str):
            assert turn.observation in space, (
                f"turn {index}: the observation {short(turn.observation)} is not in {short(space)}"
            )


@check("Observations can be encoded as UTF-8, whatever the reply was: tokenizers and files need it.")
def observations_can_be_encoded(subject: Subject) -> None:
    for reply, turn in _answers_to_awkward_replies(subject):
        if isinstance(turn.observation, str):
            try:
                turn.observation.encode()
            except UnicodeEncodeError as error:
                raise AssertionError(
                    f"after {short(reply)} {short(turn.observation)} cannot be encoded: {error}"
                ) from error


@check("Observations say something until the end: a policy cannot answer to nothing.")
def observations_say_something(subject: Subject, course: Course) -> None:
    for index, turn in enumerate(course.turns):
        if isinstance(turn.observation, str) and not turn.is_last:
            assert turn.observation.strip(), f"turn {index}: the observation is {short(turn.observation)}"


@check("`metrics['action_is_valid']` is 0 or 1 where it is given: it is counted.")
def validity_is_zero_or_one(subject: Subject, course: Course) -> None:
    for index, turn in course.steps():
        value = turn.metrics.get("action_is_valid", 1.0)
        assert value in (0.0, 1.0), f"turn {index}: action_is_valid is {short(value)}"


@check("A reply that did not parse ends nothing: it costs a turn, and the limit of turns counts it.")
def invalid_replies_end_nothing(subject: Subject, course: Course) -> None:
    for index, turn in course.steps():
        assert not (turn.was_invalid and turn.terminated), (
            f"turn {index}: the reply {short(course.replies[index - 1])} did not parse, and ended the episode"
        )


@check("A reply that did not parse leaves the legal actions as they were: it changes nothing.")
def invalid_replies_change_nothing(subject: Subject, seed: int, script: Script, reply: str) -> None:
    env = subject.make()
    if "legal_actions" not in env.abilities() or play_from(env, seed, script)[-1].is_last:
        return
    before = list(ask(env, "legal_actions"))
    turn = step(env, reply)
    if turn.was_invalid and not turn.is_last:
        after = list(ask(env, "legal_actions"))
        assert before == after, (
            f"the reply {short(reply)} did not parse, and changed the legal actions from"
            f" {short(before)} to {short(after)}"
        )

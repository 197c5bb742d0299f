"""What happens at the end of an episode, and after it."""

from __future__ import annotations

from gymnasium.error import ResetNeeded

from envsdk.testing.checks import NotApplicable, check
from envsdk.testing.courses import (
    GIBBERISH,
    Fault,
    Script,
    Turn,
    assert_same,
    choose_reply,
    play_from,
    play_to_the_end,
    reset,
    short,
    step,
)
from envsdk.testing.subject import Subject

_TURNS_TO_THE_END = 200


def _after_the_end(subject: Subject, seed: int, script: Script, reply: str) -> list[tuple[str, Turn]]:
    """Replies to an episode that is over and their results; empty when it refuses them."""
    env = subject.make()
    turns = play_to_the_end(env, seed, script, min(subject.options.max_turns, _TURNS_TO_THE_END))
    if not turns[-1].is_last:
        return []
    replies = [choose_reply(env, item) for item in script[:2] if isinstance(item, str)]
    seen = []
    for late in [*_first_moves(subject, seed), *replies, reply]:
        try:
            seen.append((late, step(env, late)))
        except Fault as fault:
            if isinstance(fault.__cause__, ResetNeeded):
                return []
            raise
    return seen


def _first_moves(subject: Subject, seed: int) -> list[str]:
    """Replies that would do something at the start of the episode."""
    env = subject.make()
    reset(env, seed)
    moves = [choose_reply(env, item) for item in (0, 1)]
    if "oracle" in env.abilities():
        moves.append(env.oracle())
    env.close()
    return moves


def _own_limit(subject: Subject) -> int:
    """Turns after which the environment ends an episode by itself. NotApplicable where it has no limit."""
    if subject.own_turn_limit is None:
        raise NotApplicable("it has no `max_steps` of its own")
    return subject.own_turn_limit


@check(
    "After the end there is no more reward: a late reply is answered with 0, or with ResetNeeded.",
    effort=0.25,
)
def no_reward_after_the_end(subject: Subject, seed: int, script: Script, reply: str) -> None:
    for late, turn in _after_the_end(subject, seed, script, reply):
        assert turn.reward == 0, f"reward {short(turn.reward)} for {short(late)} after the end of the episode"


@check("An episode that is over stays over: a late reply does not bring it back.", effort=0.25)
def the_end_is_final(subject: Subject, seed: int, script: Script, reply: str) -> None:
    for late, turn in _after_the_end(subject, seed, script, reply):
        assert turn.is_last, f"after the end, {short(late)} is answered as if the episode went on"


@check("A late reply is answered with a turn or with ResetNeeded, never with another error.", effort=0.25)
def late_replies_are_answered(subject: Subject, seed: int, script: Script, reply: str) -> None:
    _after_the_end(subject, seed, script, reply)


@check("Success is not earned after the end: a late reply leaves it as it was.", effort=0.25)
def no_success_after_the_end(subject: Subject, seed: int) -> None:
    env, limit = subject.make(), _own_limit(subject)
    turns = play_from(env, seed, [GIBBERISH] * limit)
    if turns[-1].success or not turns[-1].is_last or "oracle" not in env.abilities():
        return
    fresh = subject.make()
    reset(fresh, seed)
    for _ in range(limit):
        reply = fresh.oracle()
        try:
            late = step(env, reply)
        except Fault:
            return  # Another check says which errors are allowed.
        assert not late.success, f"success by {short(reply)} after the episode was truncated without it"
        if step(fresh, reply).is_last:
            return


@check("`reset` after the end starts anew: the next episode is as if it were the first.", effort=0.25)
def reset_after_the_end_starts_anew(subject: Subject, seed: int, script: Script, other_seed: int) -> None:
    env = subject.make()
    play_to_the_end(env, other_seed, script, min(subject.options.max_turns, _TURNS_TO_THE_END))
    turns = play_from(env, seed, script)
    assert_same(play_from(subject.make(), seed, script), turns, "after an episode's end the next one differs")


@check("`reset` in the middle of an episode starts anew: episodes are given up at deadlines.", effort=0.5)
def reset_in_the_middle_starts_anew(subject: Subject, seed: int, script: Script, other_seed: int) -> None:
    env = subject.make()
    turns = play_from(env, other_seed, script)
    if turns[-1].is_last:
        return
    turns = play_from(env, seed, script)
    assert_same(
        play_from(subject.make(), seed, script), turns, "after an episode given up the next one differs"
    )


@check(
    "Its own limit `max_steps` is kept, also by replies that do not parse: an episode must end.", effort=0.25
)
def the_limit_of_turns_is_kept(subject: Subject, seed: int) -> None:
    limit = _own_limit(subject)
    for item in (GIBBERISH, 0):
        env = subject.make()
        turns = play_from(env, seed, [item] * limit)
        assert turns[-1].is_last, f"max_steps is {limit}, and the episode goes on after {limit} replies"
        env.close()


@check(
    "Running out of turns is `truncated`, not `terminated`: estimators go on from the value there.",
    effort=0.25,
)
def the_limit_truncates(subject: Subject, seed: int) -> None:
    limit = _own_limit(subject)
    env = subject.make()
    *before, turn = play_from(env, seed, [GIBBERISH] * limit)
    if turn.is_last and len(before) == limit and turn.was_invalid:
        is_right = turn.truncated and not turn.terminated
        assert is_right, f"after {limit} replies: terminated={turn.terminated}, truncated={turn.truncated}"
    env.close()

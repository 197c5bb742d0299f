"""What a class declares by overriding it, it can do: legal actions, state hashes, pairs."""

from __future__ import annotations

from envsdk.base.processes.as_sync import SyncEnv
from envsdk.contracts.env import AnyTextEnv, AsyncTextEnv, TextEnv
from envsdk.testing.checks import NotApplicable, check
from envsdk.testing.courses import (
    Course,
    Script,
    ask,
    assert_same,
    play_asking,
    play_from,
    reset,
    short,
    step,
)
from envsdk.testing.subject import Subject

LEGAL = ("legal_actions",)
HASH = ("state_hash",)


@check("`snapshot` and `restore` come together: one is of no use without the other.")
def snapshot_and_restore_come_together(subject: Subject) -> None:
    declared = subject.abilities & {"snapshot", "restore"}
    assert len(declared) != 1, f"snapshot() and restore() go together; here is only {', '.join(declared)}()"


@check("`abilities()` names what is overridden, and nothing else: policies are chosen by it.")
def declared_is_what_is_overridden(subject: Subject) -> None:
    env = subject.make()
    kind: type[AnyTextEnv] = type(env.asynchronous if isinstance(env, SyncEnv) else env)
    contract: type[AnyTextEnv] = AsyncTextEnv if issubclass(kind, AsyncTextEnv) else TextEnv
    overridden = contract.abilities.__func__(kind)  # type: ignore[attr-defined]
    declared = frozenset(kind.abilities())
    assert declared == overridden, (
        f"abilities() says {sorted(declared)}, and the class overrides {sorted(overridden)}"
    )


@check("What is declared answers right after `reset`: it raises neither NotImplementedError nor another.")
def declared_abilities_answer(subject: Subject) -> None:
    env = subject.make()
    reset(env, 0)
    for name in ("legal_actions", "state_hash", "oracle", "snapshot"):
        if name in subject.abilities:
            ask(env, name)


@check("Legal actions are a sequence of str: random policies pick from it by index.", needs=LEGAL)
def legal_actions_are_text(subject: Subject, course: Course) -> None:
    for index, (legal, _) in enumerate(course.legal):
        is_text = isinstance(legal, list) and all(type(reply) is str for reply in legal)
        assert is_text, f"before turn {index + 1}: legal_actions() returned {short(legal)}"


@check("Legal actions are never empty before the end: a random policy must be able to go on.", needs=LEGAL)
def legal_actions_are_there(subject: Subject, course: Course) -> None:
    if course.fault is not None and course.fault.method == "legal_actions":
        raise course.fault


@check("Legal actions do not repeat: a random policy would prefer the doubled one.", needs=LEGAL)
def legal_actions_do_not_repeat(subject: Subject, course: Course) -> None:
    for index, (legal, _) in enumerate(course.legal):
        assert len(set(legal)) == len(legal), f"before turn {index + 1}: legal_actions() is {short(legal)}"


@check("Legal actions keep their order from call to call: an index is an action.", needs=LEGAL)
def legal_actions_keep_their_order(subject: Subject, course: Course) -> None:
    for index, (legal, again) in enumerate(course.legal):
        assert legal == again, (
            f"before turn {index + 1}: legal_actions() is {short(legal)}, then {short(again)}"
        )


@check("Each legal action parses at that moment: it is what the environment itself proposes.", needs=LEGAL)
def legal_actions_parse(subject: Subject, seed: int, script: Script) -> None:
    env = subject.make()
    if play_from(env, seed, script)[-1].is_last:
        return
    for reply in list(ask(env, "legal_actions")):
        env = subject.make()
        play_from(env, seed, script)
        assert not step(env, reply).was_invalid, f"the legal action {short(reply)} does not parse"


@check("Asking for legal actions and hashes changes no course.", effort=0.5)
def asking_changes_nothing(subject: Subject, seed: int, script: Script) -> None:
    asked = sorted(subject.abilities & {"legal_actions", "state_hash"})
    if not asked:
        return
    turns, replies = play_asking(subject.make(), seed, script, *asked)
    alone = play_from(subject.make(), seed, replies)
    assert_same(alone, turns, f"with {' and '.join(asked)} asked the course differs")


@check("A state hash is text: it is stored with every turn.", needs=HASH)
def state_hash_is_text(subject: Subject, course: Course) -> None:
    for index, state in enumerate(course.hashes):
        assert type(state) is str, f"turn {index}: state_hash() returned {short(state)}"


@check("Two instances in the same state have one hash: groups are compared state by state.", needs=HASH)
def same_state_same_hash(subject: Subject, seed: int, script: Script) -> None:
    seen = []
    for _ in range(2):
        env = subject.make()
        play_from(env, seed, script)
        seen.append(ask(env, "state_hash"))
    assert seen[0] == seen[1], f"two instances in the same state have the hashes {seen[0]!r} and {seen[1]!r}"


@check("A reply that did not parse leaves the hash: it changed nothing.", needs=HASH)
def invalid_replies_leave_the_hash(subject: Subject, course: Course) -> None:
    for index, turn in course.steps():
        if turn.was_invalid and not turn.is_last and index < len(course.hashes):
            assert course.hashes[index] == course.hashes[index - 1], (
                f"turn {index}: the reply {short(course.replies[index - 1])} did not parse, and moved it"
            )


@check("Different states have different hashes: else actions of different states are compared.", needs=HASH)
def hashes_tell_states_apart(subject: Subject) -> None:
    seen: dict[str, str] = {}
    for seed in range(20):
        env = subject.make()
        turn = reset(env, seed)
        seen[turn.observation] = ask(env, "state_hash")
        env.close()
    if len(seen) > 1:
        assert len(set(seen.values())) > 1, (
            f"{len(seen)} tasks that look different have one hash, {next(iter(seen.values()))!r}"
        )


@check("Where observations show the state, hashes differ exactly when observations do.", needs=HASH)
def hashes_agree_with_observations(subject: Subject, course: Course) -> None:
    if not subject.options.observations_show_state:
        raise NotApplicable("observations_show_state is off")
    shown = [
        (turn.observation, state)
        for turn, state in zip(course.turns, course.hashes, strict=False)
        if not turn.was_invalid
    ]
    for observation, state in shown:
        for other_observation, other_state in shown:
            assert (observation == other_observation) == (state == other_state), (
                f"hashes {state!r} and {other_state!r} do not tell apart what looks different (or do tell"
                f" apart what looks the same):\n{observation}\n\n{other_observation}"
            )


@check(
    "A restored state has the hash it had: searches find back to states.",
    needs=("state_hash", "snapshot", "restore"),
)
def restored_states_keep_their_hash(
    subject: Subject, seed: int, script: Script, other_seed: int, then: Script
) -> None:
    env = subject.make()
    if play_from(env, seed, script)[-1].is_last:
        return
    state, snapshot = ask(env, "state_hash"), ask(env, "snapshot")
    other = subject.make()
    play_from(other, other_seed, then)
    ask(other, "restore", snapshot)
    assert ask(other, "state_hash") == state, "restored in another instance, the state has another hash"

import pytest

from rewind import History, NothingToUndo


def test_there_and_back():
    history = History(0)
    history.push(1)
    history.push(2)
    assert history.undo() == 1
    assert history.undo() == 0
    assert history.redo() == 1
    assert history.current == 1


def test_at_the_ends():
    history = History(0)
    with pytest.raises(NothingToUndo, match="undo"):
        history.undo()
    with pytest.raises(NothingToUndo, match="redo"):
        history.redo()


def test_a_new_state_forgets_what_was_undone():
    history = History(0)
    history.push(1)
    history.undo()
    history.push(2)
    assert not history.can_redo
    assert history.undo() == 0


def test_states_are_copies():
    state = {"a": [1]}
    history = History(state)
    state["a"].append(2)
    history.current["a"].append(3)
    assert history.current == {"a": [1]}


def test_the_limit_counts_states_to_go_back_to():
    history = History(0, limit=2)
    for state in (1, 2, 3):
        history.push(state)
    assert history.undo() == 2
    assert history.undo() == 1
    assert not history.can_undo


def test_the_limit_keeps_the_newest_states():
    history = History("none", limit=4)
    for word in ("one", "two", "three", "four", "five", "six", "seven"):
        history.push(word)
    assert [history.undo() for _ in range(4)] == ["six", "five", "four", "three"]


def test_no_history_at_all():
    history = History(0, limit=0)
    history.push(1)
    assert history.current == 1
    assert not history.can_undo

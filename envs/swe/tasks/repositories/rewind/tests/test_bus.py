import pytest

from rewind import Bus


def test_subscribers_are_called_in_order():
    bus, seen = Bus(), []
    bus.subscribe("a", lambda event: seen.append(("first", event)))
    bus.subscribe("*", lambda event: seen.append(("all", event)))
    bus.subscribe("a", lambda event: seen.append(("second", event)))
    assert bus.publish("a", 1) == 3
    assert seen == [("first", 1), ("second", 1), ("all", 1)]


def test_other_topics_are_not_heard():
    bus, seen = Bus(), []
    bus.subscribe("a", seen.append)
    assert bus.publish("b", 1) == 0
    assert seen == []


def test_leaving():
    bus, seen = Bus(), []
    leave = bus.subscribe("a", seen.append)
    bus.subscribe("a", seen.append)
    leave()
    leave()
    bus.publish("a", 1)
    assert seen == [1]


def test_leaving_while_called_skips_nobody():
    bus, seen = Bus(), []

    def once(event):
        seen.append("once")
        leave()

    leave = bus.subscribe("a", once)
    bus.subscribe("a", lambda event: seen.append("other"))
    bus.publish("a", 1)
    bus.publish("a", 2)
    assert seen == ["once", "other", "other"]


def test_all_may_leave_while_called():
    bus, seen, leave = Bus(), [], {}

    def called(name, event):
        seen.append(f"{name} {event}")
        leave[name]()

    for name in "abcd":
        leave[name] = bus.subscribe("t", lambda event, name=name: called(name, event))
    assert [bus.publish("t", event) for event in (1, 2, 3)] == [4, 0, 0]
    assert seen == ["a 1", "b 1", "c 1", "d 1"]


def test_an_error_does_not_stop_the_others():
    bus, seen = Bus(), []

    def fail(event):
        raise OSError("first")

    bus.subscribe("a", fail)
    bus.subscribe("a", seen.append)
    with pytest.raises(OSError, match="first"):
        bus.publish("a", 1)
    assert seen == [1]

import pytest

from slotcache import Cache, CacheFull


def test_the_oldest_entry_makes_room():
    cache = Cache(2)
    for key in "abc":
        cache.put(key, key.upper())
    assert cache.keys() == ["b", "c"]
    assert cache.stats.evictions == 1


def test_reading_keeps_an_entry():
    cache = Cache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    cache.get("a")
    cache.put("c", 3)
    assert cache.keys() == ["a", "c"]


def test_the_order_of_reading_decides():
    cache = Cache(4)
    for key in "pqrs":
        cache.put(key, key.upper())
    for key in "qpq":
        cache.get(key)
    for key in "tu":
        cache.put(key, key.upper())
    assert cache.keys() == ["p", "q", "t", "u"]
    cache.get("p")
    cache.put("v", "V")
    assert cache.keys() == ["t", "u", "p", "v"]


def test_writing_again_keeps_an_entry_and_takes_no_slot():
    cache = Cache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    cache.put("a", 3)
    assert cache.keys() == ["b", "a"]
    cache.put("c", 4)
    assert cache.get("a") == 3
    assert "b" not in cache


def test_pinned_entries_stay():
    cache = Cache(2)
    cache.put("a", 1, pin=True)
    cache.put("b", 2)
    cache.put("c", 3)
    assert cache.keys() == ["a", "c"]


def test_no_room_beside_pinned_entries():
    cache = Cache(1)
    cache.put("a", 1, pin=True)
    with pytest.raises(CacheFull):
        cache.put("b", 2)
    cache.put("a", 5)
    assert cache.get("a") == 5


def test_a_discarded_key_is_not_pinned_any_more():
    cache = Cache(1)
    cache.put("a", 1, pin=True)
    cache.discard("a")
    cache.put("a", 2)
    cache.put("b", 3)
    assert cache.keys() == ["b"]

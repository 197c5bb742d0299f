import pytest

from slotcache import Cache, Stats


def test_hits_and_misses():
    cache = Cache(2)
    cache.put("a", 1)
    cache.get("a")
    cache.get("b")
    assert (cache.stats.hits, cache.stats.misses) == (1, 1)
    assert cache.stats.hit_rate == 0.5


def test_the_rate_before_the_first_look_up():
    assert Stats().hit_rate == 0.0


def test_sums():
    total = Stats(1, 2, 3) + Stats(10, 20, 30)
    assert (total.hits, total.misses, total.evictions) == (11, 22, 33)


def test_report_with_labels():
    assert Stats(1, 2, 3).report({"hits": "found"}) == ["found: 1", "misses: 2", "evictions: 3"]


def test_labels_of_one_report_do_not_reach_the_next():
    Stats().report({"hits": "found"})
    assert Stats(1).report() == ["hits: 1", "misses: 0", "evictions: 0"]
    Stats(4, 5, 6).report({"misses": "absent", "evictions": "thrown out"})
    assert Stats(7, 8, 9).report() == ["hits: 7", "misses: 8", "evictions: 9"]


@pytest.mark.parametrize("arguments", [{"slots": 0}, {"slots": 1, "ttl": 0}])
def test_impossible_sizes_are_refused(arguments):
    with pytest.raises(ValueError, match="must be"):
        Cache(**arguments)

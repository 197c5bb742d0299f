import random
from unittest import mock

import pytest

from fetcher import Client, GaveUp, Response


@pytest.fixture
def sleep():
    with mock.patch("fetcher.client.time.sleep") as patched:
        yield patched


def test_the_first_answer_counts(sleep):
    transport = mock.Mock(return_value=Response(200, b"x"))
    response = Client(transport, headers={"a": "1"}).get("u", b="2")
    assert response.ok
    assert response == Response(200, b"x")
    transport.assert_called_once_with("GET", "u", {"a": "1", "b": "2"})
    sleep.assert_not_called()


def test_errors_of_the_server_are_tried_again(sleep):
    transport = mock.Mock(side_effect=[Response(500), OSError("reset"), Response(200)])
    client = Client(transport)
    assert client.get("u").status == 200
    assert transport.call_count == 3
    assert sleep.call_args_list == [mock.call(1.0), mock.call(2.0)]
    assert client.log == [("u", 500), ("u", 200)]


def test_errors_of_the_caller_are_not(sleep):
    transport = mock.Mock(return_value=Response(404))
    response = Client(transport).get("u")
    assert not response.ok
    assert transport.mock_calls == [mock.call("GET", "u", mock.ANY)]


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_giving_up(sleep, retries):
    error = ConnectionError("refused")
    transport = mock.Mock(side_effect=error)
    with pytest.raises(GaveUp, match=f"u: gave up after {retries + 1} attempts") as info:
        Client(transport, retries=retries).get("u")
    assert info.value.__cause__ is error
    assert (info.value.url, info.value.attempts) == ("u", retries + 1)
    assert sleep.call_count == retries


def test_pauses_grow_up_to_a_limit(sleep):
    with pytest.raises(GaveUp):
        Client(lambda *_: Response(503), retries=5, longest=5).get("u")
    assert [call.args[0] for call in sleep.call_args_list] == [1, 2, 4, 5, 5]


def test_jitter_is_at_most_a_tenth(sleep):
    with pytest.raises(GaveUp):
        Client(lambda *_: Response(503), retries=40, jitter=random.Random(5)).get("u")
    for number, call in enumerate(sleep.call_args_list):
        least = min(2.0**number, 30.0)
        assert least <= call.args[0] <= least * 1.1
